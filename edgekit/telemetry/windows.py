"""The windows of one device: closed, numbered by epoch and sequence, dated as well as its clock allows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgekit.telemetry.clock import ClockFloor, ClockWatch, boot_id, clock_synced, unix_ms
from edgekit.telemetry.epoch import EpochCounter
from edgekit.telemetry.messages import Metrics, OutboxState, Readings
from edgekit.telemetry.outbox_file import Item
from edgekit.telemetry.recorder import Recorder
from edgekit.telemetry.window import Moment, as_sent

logger = logging.getLogger(__name__)


class Windows:
    """Counts epochs and windows. Any thread may call."""

    def __init__(
        self,
        state_folder: Path,
        window_s: float,
        *,
        recorder: Recorder,
        readings: Callable[[], Readings],
        on_jump: Callable[[str, float], None] = lambda _text, _seconds: None,
    ) -> None:
        """`on_jump`: told when the wall clock jumped, in words and by how many seconds. Raises ConfigError."""
        self.epochs = EpochCounter(state_folder)
        self.floor = ClockFloor(state_folder)
        self._recorder, self._readings, self._on_jump = recorder, readings, on_jump
        self._window_s, self._boot = window_s, boot_id()
        self._watch = ClockWatch()
        self._lock = threading.Lock()
        self._seq, self._began_s = 0, time.monotonic()

    def begin(self) -> None:
        """The first window begins now."""
        self._began_s = time.monotonic()

    def advance(self, past: int = 0) -> None:
        """A new epoch, above `past` too; its windows count from 0."""
        with self._lock:
            try:
                self.epochs.advance(past=past, unix_s=time.time())
            except OSError as e:
                # A full disk must not silence the device: epochs follow the clock, so the next process's are higher.
                logger.warning("the epoch %s could not be stored: %s", self.epochs.current, e)
            self._seq = 0

    def close(self, outbox: OutboxState, store: Callable[[Metrics], None]) -> Metrics:
        """End the window that is open, give it to `store` in order, and begin the next."""
        lanes, synced = self._recorder.take(), clock_synced()
        system = msgspec.structs.replace(self._readings(), memory_total_bytes=None)  # the birth has it
        with self._lock:
            now_s, now_ms = time.monotonic(), unix_ms()
            window = Metrics(
                epoch=self.epochs.current,
                seq=self._seq,
                t_unix_ms=now_ms,
                t_mono_ms=int(now_s * 1000),
                window_ms=max(1, round((now_s - self._began_s) * 1000)),
                clock_synced=synced,
                lanes=lanes,
                system=system,
                outbox=outbox,
                boot=self._boot,
            )
            self._seq += 1
            self._began_s = now_s
            store(window)
        self.floor.learn(now_ms / 1000, synced)
        if (jumped_s := self._watch.jump_s(now_ms / 1000, now_s)) is not None:
            self._on_jump(f"the clock jumped by {jumped_s:+.1f} s{' and is synchronised' if synced else ''}", jumped_s)
        return window

    def as_sent(self, item: Item) -> bytes:
        """What waits, as it goes out now."""
        now = Moment(time.monotonic(), unix_ms(), clock_synced(), self._boot)
        return as_sent(item, now, live_s=self._window_s)
