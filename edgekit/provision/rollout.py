"""A rollout as a value: its plan, how far each device is, and the decisions that need no clock and no broker. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from edgekit.bench.stats import MIN_SAMPLES
from edgekit.provision.compare import PLENTY, Bounds
from edgekit.provision.evidence import NONE, Evidence, sample_count, stretch_count
from edgekit.provision.figure import Answer, Figure, decisive, overall
from edgekit.provision.waves import Wave
from edgekit.telemetry.desired import FINAL, Reported, Step

SCHEMA = 1
LEAST_STRETCHES = 2 * MIN_SAMPLES


class Phase(str, Enum):
    """Of the wave that is under way."""

    BEFORE = "before"
    "Nobody of it was told; where no device of its kind will be left to compare with, its own past is measured."
    TOLD = "told"
    "Each was told; we wait for their guards' verdicts."
    OBSERVED = "observed"
    "Enough have committed; their telemetry is compared with that of the others."


class Condition(str, Enum):
    """Of the whole."""

    RUNNING = "running"
    "Also while nobody drives it: the operator's machine may have died."
    PAUSED = "paused"
    STOPPED = "stopped"
    "By itself, for the reason it gives."
    ABORTED = "aborted"
    DONE = "done"


UNFINISHED = frozenset((Condition.RUNNING, Condition.PAUSED, Condition.STOPPED))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a wave goes on, stops, or has waited long enough."""

    success: float = 0.95
    "Share of a wave that must have committed the release before it is judged."
    failure: float = 0.05
    "More than this share rolled back, refused or gave up: stop."
    observe_s: float = 300.0
    "Compare for at least so long."
    patience_s: float = 3600.0
    "A phase that is not decided by then stops the rollout: what is not proven does not go on."


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device, as it last reported of this rollout."""

    step: Step = Step.IDLE
    "IDLE: it has not answered yet."
    reason: str = ""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that must survive the operator's machine; written before each act."""

    v: int = SCHEMA
    id: str
    release: str
    digest: str = ""
    sites: tuple[str, ...] = ()
    waves: tuple[Wave, ...]
    kinds: Mapping[str, str]
    '"site/device" -> kind of board, as planned.'
    bounds: Bounds = Bounds()
    limits: Limits = Limits()
    wave: int = 0
    phase: Phase = Phase.BEFORE
    condition: Condition = Condition.RUNNING
    why: str = ""
    "One line, when it stopped."
    round: int = 0
    "Grows when devices are told anew after a pause: another wish to them."
    began_unix_s: float
    devices: Mapping[str, Progress] = {}
    before: Mapping[str, Evidence] = {}
    "Telemetry from before their update, of the devices of the wave under way."
    history: tuple[str, ...] = ()
    "One line for each wave that went well."

    @property
    def wish_id(self) -> str:
        """What devices see as the id of the wish."""
        return f"{self.id}.{self.round}"

    @property
    def current(self) -> Wave:
        return self.waves[min(self.wave, len(self.waves) - 1)]


def with_report(rollout: Rollout, key: str, reported: Reported) -> Rollout:
    """The rollout after a device has said how far it is; what it says of other wishes is not about us."""
    if key not in rollout.kinds or reported.desired_id != rollout.wish_id:
        return rollout
    progress = Progress(step=reported.step, reason=reported.reason if reported.step in FINAL else "")
    if rollout.devices.get(key) == progress:
        return rollout
    return replace(rollout, devices={**rollout.devices, key: progress})


def committed(rollout: Rollout, wave: Wave | None = None) -> list[str]:
    """Devices that have committed the release, of one wave or of all."""
    keys = wave.devices if wave is not None else rollout.kinds
    return [key for key in keys if rollout.devices.get(key, Progress()).step is Step.COMMITTED]


def failed(rollout: Rollout, wave: Wave) -> list[str]:
    """Devices on which it ended otherwise."""
    ended = FINAL - {Step.COMMITTED}
    return [key for key in wave.devices if rollout.devices.get(key, Progress()).step in ended]


def peers(rollout: Rollout) -> list[str]:
    """Those to compare with, at the same time and of the same kind: devices that were not told yet.

    Where none of a kind are left, as in the last wave, those of earlier waves take their place: they were compared
    with devices without the release, and held.
    """
    untold = [key for wave in rollout.waves[rollout.wave + 1 :] for key in wave.devices]
    left = {rollout.kinds[key] for key in untold}
    earlier = [key for wave in rollout.waves[: rollout.wave] for key in committed(rollout, wave)]
    return untold + [key for key in earlier if rollout.kinds[key] not in left]


def without_peers(rollout: Rollout) -> list[str]:
    """Devices of this wave of whose kind there is no other to compare with: their own past takes its place."""
    known = {rollout.kinds[key] for key in peers(rollout)}
    return [key for key in rollout.current.devices if rollout.kinds[key] not in known]


def lacks_past(rollout: Rollout, evidence: Mapping[str, Evidence]) -> list[str]:
    """Kinds of which too little was measured before the update to judge it afterwards, when that past cannot grow."""
    if rollout.bounds.samples == 0:
        return []
    kinds: dict[str, list[Evidence]] = {}
    for key in without_peers(rollout):
        kinds.setdefault(rollout.kinds[key], []).append(evidence.get(key, NONE))
    return sorted(
        kind
        for kind, past in kinds.items()
        if sum(map(sample_count, past)) < PLENTY * rollout.bounds.samples
        or max(map(stretch_count, past)) < LEAST_STRETCHES
    )


def verdict_of_guards(rollout: Rollout, online: Sequence[str]) -> tuple[Answer, str]:
    """Whether enough devices of the wave have committed. OPEN while others that are there are still at it."""
    wave = rollout.current
    good, bad, size = len(committed(rollout, wave)), failed(rollout, wave), len(wave.devices)
    if len(bad) > rollout.limits.failure * size:
        first = rollout.devices[bad[0]]
        word = {Step.ROLLED_BACK: "went back", Step.REFUSED: "refused", Step.CANCELLED: "had it taken back"}
        said = f"{bad[0]} {word.get(first.step, 'gave up')}: {first.reason}"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return Answer.WORSE, f"{len(bad)} of {size} did not keep it, {rollout.limits.failure:.0%} may: {said}{more}"
    needed = max(1, math.ceil(rollout.limits.success * size - 1e-9))
    busy = [k for k in wave.devices if k in online and rollout.devices.get(k, Progress()).step not in FINAL]
    text = f"{good} of {size} committed" + (f", {len(bad)} did not keep it" if bad else "")
    if good >= needed and not busy:
        return Answer.WITHIN, text
    waiting = size - good - len(bad)
    return Answer.OPEN, f"{text}, {needed} needed; {waiting} to come" + ("" if busy else ", none of them online")


def verdict_of_telemetry(figures: Sequence[Figure]) -> tuple[Answer, str]:
    """What all compared lanes say together, and the figure that decides, in words."""
    if not figures:
        return Answer.OPEN, "no requests on the updated devices and on others of their kind: nothing to judge by"
    told = decisive(figures)
    return overall(figures), told.text if told else ""


def next_wave(rollout: Rollout, line: str) -> Rollout:
    """The wave has held."""
    history = (*rollout.history, line)
    if rollout.wave + 1 >= len(rollout.waves):
        done = f"all {len(rollout.waves)} waves have it"
        return replace(rollout, condition=Condition.DONE, why=done, history=history, before={})
    return replace(rollout, wave=rollout.wave + 1, phase=Phase.BEFORE, history=history, before={})


def told_anew(rollout: Rollout) -> Rollout:
    """Taken up again after a pause: who was told and did not commit is told as by another wish, and judged anew."""
    kept = {key: p for key, p in rollout.devices.items() if p.step is Step.COMMITTED}
    phase = Phase.BEFORE if rollout.phase is Phase.BEFORE else Phase.TOLD
    return replace(rollout, condition=Condition.RUNNING, why="", round=rollout.round + 1, devices=kept, phase=phase)
