"""The fold without a screen: listen to a fleet, store every window once, and only then acknowledge it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit.collect.history import History, open_history
from edgekit.collect.intake import Intake
from edgekit.collect.rollup import LEVELS_S, Place, Rollup, merge
from edgekit.config import MqttConfig
from edgekit.errors import BrokerError, UnreachableError
from edgekit.fleet import Fleet, fold
from edgekit.telemetry.backoff import EAGER, BackOff
from edgekit.telemetry.connection import check_config
from edgekit.telemetry.histogram import quantile
from edgekit.telemetry.messages import EVERYONE, ROOT, Ack, Birth, Received, decode, encode, parse_topic, topic
from edgekit.telemetry.recording import RecordingWriter
from edgekit.telemetry.stream import Stream

logger = logging.getLogger(__name__)

COMMIT_S, FOLD_S, CLEAN_S, POUR_S = 0.25, 1.0, 10.0, 300.0
_HEARD = (("metrics", 0), ("status", 1), ("birth", 1), ("event", 1), ("reply", 1))
"""Windows with QoS 0: the acknowledgement that counts is ours, after the commit; the broker's would add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what is kept."""

    windows_s: float = 2 * 3600.0
    short_s: float = 14 * 86_400.0
    "Rollups of five minutes."
    long_s: float = 400 * 86_400.0
    "Rollups of an hour."
    pages_s: float = 90 * 86_400.0
    "How far an epoch is; a device may send again windows that have waited for less."


Group = tuple[str, str, str, str]
"""site, model, lane, artifact."""


class Collector:
    """Collects until `stop`. `run` belongs to one thread; `view` may be called from any."""

    def __init__(
        self,
        config: MqttConfig,
        path: Path | str,
        *,
        password_file: Path | None = None,
        sites: Sequence[str] | None = None,
        retention: Retention | None = None,
        commit_s: float = COMMIT_S,
        recording: RecordingWriter | None = None,
        back_off: BackOff = EAGER,
    ) -> None:
        """`path`: a file, or the address of a PostgreSQL that collectors of other sites share.

        Raises ConfigError for settings that can never work and for what is no history of ours.
        """
        check_config(config)
        self._config, self._path, self._commit_s = config, path, commit_s
        self._retention = retention or Retention()
        self._sites = tuple(sites) if sites else ()
        self._recording, self._back_off = recording, back_off
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._fleet = Fleet()
        self._unfolded: deque[Received] = deque()
        self._cleared: list[str] = []
        self._totals: dict[Group, Rollup] = {}
        "Of what was poured since the start."
        self.state = "not connected"
        self._password_file = password_file
        self._store = self._open()
        self._intake = Intake(self._store)
        now_s = time.monotonic()
        self._fold_due_s, self._clean_due_s, self._pour_due_s = now_s, now_s + CLEAN_S, now_s + POUR_S

    def stop(self) -> None:
        """Ask `run` to end; it stores and acknowledges first."""
        self._stopping.set()

    def run(self, on_state: Callable[[str], None] = lambda _: None) -> None:
        """Listen until `stop`, connecting again whenever the connection breaks."""
        failures = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._listen(on_state)
            except BrokerError as e:
                failures = self._back_off.failures(failures, lasted_s=time.monotonic() - began_s)
                self._say(e.detail, on_state)
                self._settle(None)
                self._stopping.wait(self._back_off.wait_s(failures))
        with self._lock:
            try:
                self._store.pour(self._intake.poured(), rolled=self._intake.newest)
            except self._store.errors as e:
                logger.error("%s: %s; the next start pours what is stored into the rollups", self._path, e)
            self._store.close()

    def view(self) -> tuple[Fleet, dict[Group, Rollup], dict[str, Any]]:
        """The fleet, what each group did since the start, and the collector's own counts."""
        with self._lock:
            groups = dict(self._totals)
            self._add_groups(groups, self._intake.places)
            return self._fleet, groups, self._own_counts()

    def _listen(self, on_state: Callable[[str], None]) -> None:
        """One connection. Raises BrokerError when it ends before we do."""
        sites = self._sites or ("+",)
        filters = [(f"{ROOT}/{site}/+/{leaf}", qos) for site in sites for leaf, qos in _HEARD]
        name = f"edgekit-collector-{secrets.token_hex(6)}"
        stream = Stream(self._config, name, filters, is_over=self._stopping.is_set)
        try:
            for site in self._sites or (EVERYONE,):
                stream.publish(topic(site, EVERYONE, "rebirth"), b"{}")
            self._say("connected", on_state)
            due_s = time.monotonic() + self._commit_s
            while not self._stopping.is_set():
                messages = stream.receive(max(0.0, due_s - time.monotonic()))
                with self._lock:
                    self._take(messages)
                if time.monotonic() >= due_s:
                    self._settle(stream)
                    due_s = time.monotonic() + self._commit_s
            self._settle(stream)
        finally:
            stream.close()

    def _take(self, messages: Sequence[Received]) -> None:
        self._intake.take(messages)
        self._unfolded.extend(messages)
        self._cleared += [m.topic for m in messages if not m.payload and m.topic.endswith("/status")]
        if self._recording is not None:
            self._recording.write(messages)

    def _settle(self, stream: Stream | None) -> None:
        """Store what came, acknowledge it, and do what is due."""
        batch, now_ms = self._intake.taken(), int(time.time() * 1000)
        try:
            with self._lock:
                if batch.pages or batch.events:
                    self._store.commit(batch.windows, batch.events, batch.pages, now_ms=now_ms)
                self._forget_cleared()
                self._upkeep(now_ms / 1000)
                self._intake.stored(batch, int(time.time() * 1000))
        except self._store.errors as e:
            self._begin_again(e)
            return
        if stream is None:
            return
        for (device, epoch), page in batch.pages.items():
            if page.next and device in self._store.names:
                site, name = self._store.names[device]
                stream.publish(topic(site, name, "ack"), encode(Ack(epoch=epoch, seq=page.next - 1)))
        stream.flush()

    def _forget_cleared(self) -> None:
        cleared, self._cleared = self._cleared, []
        for where in cleared:
            if (parsed := parse_topic(where)) is not None:
                self._intake.forget(parsed.site, parsed.device)

    def _open(self) -> History:
        return open_history(self._path, sites=self._sites, password_file=self._password_file)

    def _begin_again(self, error: Exception) -> None:
        """Nothing of the batch is stored or acknowledged: forget it, as the devices have it still."""
        logger.error("%s: %s; nothing is acknowledged until it can be written", self._path, error)
        self._store.close()
        said = ""
        while not self._stopping.wait(1.0):  # without the lock: a view of what was is better than none
            try:
                store = self._open()
                intake = Intake(store)
            except UnreachableError as e:
                if said != (said := str(e)):
                    logger.error("%s", e)
                continue
            intake.counts, intake.delay_ms = self._intake.counts, self._intake.delay_ms
            with self._lock:
                self._store, self._intake = store, intake
            return

    def _upkeep(self, now_s: float) -> None:
        mono_s = time.monotonic()
        if mono_s >= self._fold_due_s:
            messages = [_lean(message) for message in self._unfolded]
            self._unfolded.clear()
            self._fleet = fold(self._fleet, messages, now_s=now_s, keep_history=False)
            self._fold_due_s = mono_s + FOLD_S
        if mono_s >= self._pour_due_s:
            places = self._intake.poured()
            self._store.pour(places, rolled=self._intake.newest)
            self._add_groups(self._totals, places)
            self._pour_due_s = mono_s + POUR_S
        if mono_s >= self._clean_due_s:
            keep = self._retention
            self._store.forget_before(
                windows_ms=int((now_s - keep.windows_s) * 1000),
                rollups_s={LEVELS_S[0]: now_s - keep.short_s, LEVELS_S[1]: now_s - keep.long_s},
                pages_ms=int((now_s - keep.pages_s) * 1000),
            )
            self._clean_due_s = mono_s + CLEAN_S

    def _add_groups(self, groups: dict[Group, Rollup], places: dict[Place, Rollup]) -> None:
        for place, rollup in places.items():
            group = (self._store.names[place.device][0], place.model, place.lane, place.artifact)
            groups[group] = merge(groups[group], rollup) if group in groups else rollup

    def _own_counts(self) -> dict[str, Any]:
        delay = self._intake.delay_ms.histogram()
        return {
            **asdict(self._intake.counts),
            "devices": len(self._store.devices),
            "delay_p50_ms": quantile(delay, 0.5) if delay else None,
            "delay_p99_ms": quantile(delay, 0.99) if delay else None,
            "state": self.state,
        }

    def _say(self, state: str, on_state: Callable[[str], None]) -> None:
        if state != self.state:
            self.state = state
            on_state(state)


def _lean(message: Received) -> Received:
    """A birth without its facts: ten thousand of them would fill the memory, and nobody here reads them."""
    if not message.topic.endswith("/birth"):
        return message
    try:
        birth = decode("birth", message.payload)
    except ValueError:
        return message  # the fold counts it
    assert isinstance(birth, Birth)
    return msgspec.structs.replace(message, payload=encode(msgspec.structs.replace(birth, facts={})))
