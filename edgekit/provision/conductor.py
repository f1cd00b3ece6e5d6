"""Drives a rollout: tells a wave, waits for the guards' verdicts, compares the telemetry, and goes on or stops.

Its state is written before each act, so that it may be killed at any moment and taken up by whoever has the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from edgekit.fleet import Fleet, Presence, fold
from edgekit.provision import rollout as ro
from edgekit.provision.compare import figures
from edgekit.provision.crier import Crier
from edgekit.provision.evidence import NONE, Evidence, is_wholly_after, pool, with_window
from edgekit.provision.figure import Answer, Figure, decisive
from edgekit.provision.rollout import Condition, Phase, Rollout
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.messages import Metrics, Received, decode, encode, parse_topic

TURN_S, LOOK_S = 0.2, 2.0
LOOKS = 2
"""Times in a row that new windows must give the same answer: who looks often is wrong often."""
SETTLE_S = 0.5


class Store(Protocol):
    """`rollout_file.RolloutFile`; in tests, memory."""

    def write(self, rollout: Rollout) -> None: ...
    def asked(self) -> str | None: ...


class Conductor:
    """One process's turn at driving a rollout."""

    def __init__(
        self,
        rollout: Rollout,
        store: Store,
        crier: Crier,
        *,
        note: Callable[[str], None],
        show: Callable[[str, float], None],
        fleet: Fleet | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`note`: a line that stays. `show`: how it stands now, and the share of devices that have committed."""
        self.rollout = rollout
        self._store, self._crier, self._note, self._show, self._clock = store, crier, note, show, clock
        self._fleet = fleet or Fleet()
        self._past: dict[str, Evidence] = {}
        self._now: dict[str, Evidence] = {}
        self._phase_s = self._looked_s = clock()
        self._looks: list[Answer] = []
        self._seen = 0
        self._text = self._brief = ""

    def run(self) -> Rollout:
        """Until it is done, paused, stopped or aborted."""
        if self.rollout.phase is not Phase.BEFORE:
            self._tell()
        while self.rollout.condition is Condition.RUNNING:
            for message in self._crier.drain():
                self.hear(message)
            self._fleet = fold(self._fleet, (), now_s=self._clock(), keep_history=False)
            if asked := self._store.asked():
                self._end(Condition.PAUSED if asked == "pause" else Condition.ABORTED, f"{asked} was asked for")
                break
            self.turn()
            self._crier.repeat()
            share = len(ro.committed(self.rollout)) / max(1, len(self.rollout.kinds))
            self._show(self._crier.state or self._headline(), share)
            time.sleep(TURN_S)
        return self.rollout

    def hear(self, message: Received) -> None:
        """Take in one message of the fleet."""
        where = parse_topic(message.topic)
        key = f"{where.site}/{where.device}" if where else ""
        if where is None or key not in self.rollout.kinds or where.leaf in ("desired", "command"):
            return
        if where.leaf == "reported":
            self._hear_report(key, message)
            return
        self._fleet = fold(self._fleet, (message,), now_s=message.received_s, keep_history=False)
        if where.leaf == "metrics" and not message.retained:
            self._hear_window(key, message)

    def _hear_report(self, key: str, message: Received) -> None:
        try:
            reported = decode("reported", message.payload)
        except ValueError:
            return
        assert isinstance(reported, Reported)
        after = ro.with_report(self.rollout, key, reported)
        if after is not self.rollout:
            self._keep(after)

    def _hear_window(self, key: str, message: Received) -> None:
        try:
            metrics = decode("metrics", message.payload)
        except ValueError:
            return
        assert isinstance(metrics, Metrics)
        if key in self._untouched():
            self._past[key] = with_window(self._past.get(key, NONE), metrics, message.received_s)
        if self.rollout.phase is Phase.OBSERVED and is_wholly_after(metrics, message.received_s, self._phase_s):
            self._now[key] = with_window(self._now.get(key, NONE), metrics, message.received_s)
            self._seen += 1

    def _untouched(self) -> set[str]:
        told = 0 if self.rollout.phase is Phase.BEFORE else 1
        return {key for wave in self.rollout.waves[self.rollout.wave + told :] for key in wave.devices}

    def turn(self) -> None:
        """One look at where the wave stands, and what follows from it."""
        phase = self.rollout.phase
        if phase is Phase.BEFORE:
            self._measure_past()
            return
        answer, text = ro.verdict_of_guards(self.rollout, self._online())
        if phase is Phase.TOLD or answer is Answer.WORSE:
            self._text = text
        if answer is Answer.WORSE:
            self._end(Condition.STOPPED, self._text)
        elif phase is Phase.TOLD and answer is Answer.WITHIN:
            self._note(f"{self._title()}: {self._text}")
            self._begin(Phase.OBSERVED) if self.rollout.bounds.samples else self._advance(self._text)
        elif phase is Phase.OBSERVED:
            self._observe()
        self._lose_patience()

    def _measure_past(self) -> None:
        missing = ro.lacks_past(self.rollout, self._past)
        self._text = "telling its devices"
        if missing:
            self._text = f"measuring {', '.join(kind or 'the devices' for kind in missing)} before the update"
        else:
            before = {key: self._past[key] for key in ro.without_peers(self.rollout) if key in self._past}
            self._begin(Phase.TOLD, before=before)
            devices = self.rollout.current.devices
            named = ", ".join(devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else "")
            self._note(f"{self._title()}: told {named}")
            self._tell()
        self._lose_patience()

    def _observe(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        if not self._now:
            self._text = self._brief = "no window yet that began after the update"
        if not self._seen:
            return
        found = self._figures()
        answer, self._text = ro.verdict_of_telemetry(found)
        told = decisive(found)
        self._brief = told.brief if told else self._text
        self._seen = 0
        self._looks = [*self._looks, answer][-LOOKS:]
        if self._looks != [answer] * LOOKS:
            return
        if answer is Answer.WORSE:
            self._end(Condition.STOPPED, self._text)
        elif answer is Answer.WITHIN and now_s - self._phase_s >= self.rollout.limits.observe_s:
            self._advance(self._text)

    def _figures(self) -> tuple[Figure, ...]:
        """The wave against its peers; where a kind has none, against its own past."""
        kinds = self.rollout.kinds
        updated = pool(
            (kinds[k], self._now[k]) for k in ro.committed(self.rollout, self.rollout.current) if k in self._now
        )
        others = pool((kinds[k], self._now[k]) for k in ro.peers(self.rollout) if k in self._now)
        past = pool((kinds[key], evidence) for key, evidence in self.rollout.before.items())
        return figures(updated, {**past, **others}, self.rollout.bounds)

    def _lose_patience(self) -> None:
        waited_s = self._clock() - self._phase_s
        if self.rollout.condition is Condition.RUNNING and waited_s > self.rollout.limits.patience_s:
            self._end(Condition.STOPPED, f"not decided within {waited_s:.0f} s: {self._text}")

    def _advance(self, why: str) -> None:
        self._note(f"{self._title()}: holds: {why}")
        after = ro.next_wave(self.rollout, f"{self._title()}: {why}")
        self._keep(after)
        self._reset()

    def _begin(self, phase: Phase, *, before: Mapping[str, Evidence] | None = None) -> None:
        more = {} if before is None else {"before": before}
        self._keep(replace(self.rollout, phase=phase, **more))
        self._reset()

    def _reset(self) -> None:
        self._phase_s = self._clock() + (SETTLE_S if self.rollout.phase is Phase.OBSERVED else 0.0)
        self._now, self._looks, self._seen, self._brief = {}, [], 0, "awaiting the first windows"

    def _tell(self) -> None:
        """Say it, again if need be, to whoever of the wave has not committed it."""
        rollout = self.rollout
        wish = encode(Desired(release=rollout.release, digest=rollout.digest, id=rollout.wish_id))
        for key in rollout.current.devices:
            if rollout.devices.get(key, ro.Progress()).step is not Step.COMMITTED:
                self._crier.tell(key, wish)

    def _end(self, condition: Condition, why: str) -> None:
        """Take back what was desired of those who have not committed it; whose guard has it already goes on."""
        self._keep(replace(self.rollout, condition=condition, why=f"{self._title()}: {why}"))
        if self.rollout.phase is not Phase.BEFORE:
            for key in set(self.rollout.current.devices) - set(ro.committed(self.rollout)):
                self._crier.tell(key, b"")
        self._crier.settle()

    def _keep(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self._store.write(rollout)

    def _online(self) -> list[str]:
        there = (Presence.ONLINE, Presence.LATE)
        return [f"{d.site}/{d.device}" for d in self._fleet.devices.values() if d.presence in there]

    def _title(self) -> str:
        return f"wave {self.rollout.wave + 1} of {len(self.rollout.waves)}, {self.rollout.current.name}"

    def _headline(self) -> str:
        return f"{self._title()}: {self._brief if self.rollout.phase is Phase.OBSERVED else self._text}"
