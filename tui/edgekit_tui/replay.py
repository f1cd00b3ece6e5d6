"""A recording played as if it were the broker: its own clock, its own pace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edgekit.errors import ConfigError
from edgekit.telemetry.messages import Received
from edgekit.telemetry.recording import read_recording


class Replay:
    """A source of what was recorded. `now_s` is the time of the recording; it stands still while paused and at the end.

    Raises ConfigError for a file that is no recording, or an empty one.
    """

    connected = True
    overrun = 0

    def __init__(self, path: Path, *, speed: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: speed: seconds of the recording a second; infinite for all of it at once."""
        self._messages = read_recording(path)
        first = next(self._messages, None)
        if first is None:
            raise ConfigError(path, None, "the recording holds no message")
        self._next: Received | None = first
        self._name, self._speed, self._clock = path.name, speed, clock
        self._from_s, self._since_s = first.received_s, clock()
        self._last_s = first.received_s
        self.paused = False
        self._ready: list[Received] = []

    @property
    def state(self) -> str:
        return f"{self._name} has ended" if self._next is None else f"replaying {self._name}"

    def now_s(self) -> float:
        """Unix time within the recording."""
        if self._next is None:
            return self._last_s
        if self.paused:
            return self._from_s
        return self._from_s + (self._clock() - self._since_s) * self._speed

    def pause(self, paused: bool) -> None:
        """Stand still, or go on from there."""
        self._from_s = self.now_s()
        self._since_s, self.paused = self._clock(), paused

    def start(self) -> None:
        """Begin now; at infinite speed, be at the end."""
        self._since_s = self._clock()
        if self._speed == float("inf") and self._next is not None:
            self._ready, self._next = [self._next, *self._messages], None
            self._last_s = max(message.received_s for message in self._ready)

    def stop(self) -> None:
        """Nothing is held open but the file, which ends with us."""

    def drain(self) -> list[Received]:
        """What is due by now."""
        due, self._ready = self._ready, []
        until = self.now_s()
        while self._next is not None and self._next.received_s <= until:
            due.append(self._next)
            self._last_s = max(self._last_s, self._next.received_s)
            self._next = next(self._messages, None)
        return due
