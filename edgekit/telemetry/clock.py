"""Is the wall clock set by someone who knows, and what is known where it is not?

The kernel is asked, which time daemons keep informed. Small boards have no clock that runs without power: they start in
1970, or where they were when they were switched off.
"""

from __future__ import annotations

import ctypes
import logging
import secrets
import sys
import time
from pathlib import Path

import msgspec

from edgekit.files import write_atomic

logger = logging.getLogger(__name__)

EARLIEST_UNIX_S = 1_795_996_800.0
"""2026-11-30: no clock that shows less is right."""
NOTED_S = 3600.0
"""The floor is written when it has risen by this: 24 small writes a day."""
JUMP_S = 1.0
"""Time daemons bend a clock by at most 0.5 ms a second; this much between two windows was set."""

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512
"""Larger than struct timex on every architecture."""
_PROCESS = secrets.token_hex(4)


def unix_ms() -> int:
    """The wall clock, in milliseconds, right or wrong."""
    return int(time.time() * 1000)


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Eight digits that differ from boot to boot; where the kernel has none, from process to process.

    Within one, monotonic times compare. Check by hand: cat /proc/sys/kernel/random/boot_id
    """
    try:
        return path.read_text()[:8]
    except OSError:
        return _PROCESS


def clock_synced(run_root: Path = Path("/run")) -> bool | None:
    """Whether the clock is synchronised; None where there is no way to tell.

    Source: adjtimex(2) and systemd-timesyncd's flag file. Check by hand: timedatectl show -p NTPSynchronized
    """
    if (run_root / "systemd/timesync/synchronized").exists():
        return True
    if sys.platform != "linux":
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != _TIME_ERROR


class _Noted(msgspec.Struct, frozen=True):
    unix_s: float


class ClockFloor:
    """The latest time that has surely been reached, as far as this device has noted it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "clock.json"
        try:
            self._noted_s = msgspec.json.decode(self._path.read_bytes(), type=_Noted).unix_s
        except (OSError, msgspec.DecodeError):
            self._noted_s = EARLIEST_UNIX_S
        self.unix_s = max(EARLIEST_UNIX_S, self._noted_s)

    def learn(self, now_s: float, synced: bool | None) -> None:
        """Take the time from a clock that somebody has set; such a one also corrects a floor that is too high."""
        if not synced or now_s < EARLIEST_UNIX_S:
            return
        self.unix_s = now_s
        if abs(now_s - self._noted_s) < NOTED_S:
            return
        self._noted_s = now_s
        try:
            write_atomic(self._path, msgspec.json.encode(_Noted(now_s)))
        except OSError as e:
            logger.warning("the time could not be noted: %s", e)

    def is_clock_behind(self) -> bool:
        """Whether the wall clock may be behind: nobody has set it, or it shows less than the floor."""
        return time.time() < self.unix_s or clock_synced() is False


class ClockWatch:
    """Tells when the wall clock was set, from how it runs beside the monotonic one. Pure."""

    def __init__(self) -> None:
        self._difference_s: float | None = None

    def jump_s(self, unix_s: float, mono_s: float) -> float | None:
        """By how much the wall clock has jumped since the last look; None when it has not."""
        before, self._difference_s = self._difference_s, unix_s - mono_s
        jumped_s = self._difference_s - before if before is not None else 0.0
        return jumped_s if abs(jumped_s) >= JUMP_S else None
