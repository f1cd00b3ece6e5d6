"""Is the wall clock set by someone who knows? Asked of the kernel, which time daemons keep informed."""

from __future__ import annotations

import ctypes
import secrets
import sys
import time
from pathlib import Path

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
