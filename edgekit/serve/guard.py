"""Keeps a daemon alive on a device that runs out of memory: what to give up, in steps, and when to take it back.

It looks at what the kernel says is available and at this process's own size, never at what a framework believes to
hold: retained arenas and packed weights show only there. Page cache counts as available.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from edgekit.config import MemoryConfig
from edgekit.device.memory import available_bytes
from edgekit.device.tree import Tree

NORMAL, FRUGAL, SMALL, REFUSING = range(4)
STEPS = (
    "everything is served as configured",
    "the cache is dropped and tolerant lanes are closed",
    "models run their smallest artifact",
    "requests are refused",
)
SHARE_OF_LIMIT = (0.8, 0.9, 1.0)
"""Of `memory.limit_mb`: the process's size at which each step is taken."""
RECOVERY = 1.25
"""A step is taken back when this much more than its watermark is available."""
RECOVERY_S = 10.0
"""And has been for this long."""
_SOME = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """None: this system does not tell."""

    available_bytes: int | None
    usable_bytes: int | None
    "The total, or the tightest limit."
    rss_bytes: int | None
    pressure_percent: float | None
    "Of the last 10 s in which some task waited for memory."

    def __str__(self) -> str:
        parts = [
            f"{value // _MIB} MiB {name}"
            for name, value in (("available", self.available_bytes), ("of its own", self.rss_bytes))
            if value is not None
        ]
        if self.pressure_percent:
            parts.append(f"{self.pressure_percent:g} % of the time waiting for memory")
        return ", ".join(parts)


def read_now(tree: Tree, usable_bytes: int | None) -> MemoryReading:
    """What the kernel says. Sources: proc(5); Documentation/accounting/psi.rst."""
    pages = (tree.text("proc/self/statm") or "").split()
    pressure = _SOME.search(tree.text("proc/pressure/memory") or "")
    return MemoryReading(
        available_bytes=available_bytes(tree),
        usable_bytes=usable_bytes,
        rss_bytes=int(pages[1]) * 4096 if len(pages) > 1 else None,
        pressure_percent=float(pressure[1]) if pressure else None,
    )


def level_of(reading: MemoryReading, config: MemoryConfig, *, room: float = 1.0) -> int:
    """The step that this reading asks for by itself; `room` above 1 asks for that much more than the watermarks."""
    level = NORMAL
    for step, (share, of_limit) in enumerate(zip(config.low, SHARE_OF_LIMIT, strict=True), 1):
        if reading.available_bytes is not None and reading.usable_bytes is not None:
            level = step if reading.available_bytes < room * share * reading.usable_bytes else level
        if reading.rss_bytes is not None and config.limit_mb is not None:
            level = step if room * reading.rss_bytes > of_limit * config.limit_mb * _MIB else level
    if reading.pressure_percent is not None and room * reading.pressure_percent > config.pressure_percent:
        level = max(level, FRUGAL)
    return level


class Guard:
    """Steps up at once and one at a time, steps down slowly: what was given up costs time and memory to get back."""

    def __init__(self, config: MemoryConfig) -> None:
        self._config = config
        self.level = NORMAL
        self._better_since_s: float | None = None

    def see(self, reading: MemoryReading, now_s: float) -> bool:
        """Whether the level has changed by this reading."""
        if level_of(reading, self._config) > self.level:
            self.level += 1
            self._better_since_s = None
            return True
        if level_of(reading, self._config, room=RECOVERY) >= self.level:
            self._better_since_s = None
            return False
        self._better_since_s = now_s if self._better_since_s is None else self._better_since_s
        if now_s - self._better_since_s < RECOVERY_S:
            return False
        self.level -= 1
        self._better_since_s = None
        return True


def give_back() -> None:
    """Return what was freed to the system: glibc keeps it otherwise. Elsewhere a no-op. Source: malloc_trim(3).

    What lies in cycles is freed first: Python itself looks for it only after a quarter of all objects are new.
    """
    gc.collect()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Looked up once: every look makes a class, which is a kilobyte in a cycle."""
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
