"""What the CPU itself counts while queries run: instructions, branch misses, cache misses. Linux, where it is allowed.

Source: perf_event_open(2). Virtual machines and hardened kernels grant none; then there is nothing to tell.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Mapping
from types import TracebackType

import msgspec

_SYSCALL = {"x86_64": 298, "aarch64": 241, "armv7l": 364, "riscv64": 241}
_EVENTS = {
    "cycles": 0,
    "instructions": 1,
    "cache_references": 2,
    "cache_misses": 3,
    "branches": 4,
    "branch_misses": 5,
}
"""PERF_TYPE_HARDWARE by name."""
_ATTR_BYTES = 112
_TIMES = 0b11
"""Read with the time that a counter was enabled and the time that it really ran: the hardware has only a few."""
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 2, 32, 64


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over some queries. None: the kernel grants no such counter."""

    cycles: float | None = None
    instructions: float | None = None
    cache_references: float | None = None
    cache_misses: float | None = None
    branches: float | None = None
    branch_misses: float | None = None

    @property
    def instructions_per_cycle(self) -> float | None:
        """Below 1 the CPU mostly waits for memory."""
        return self.instructions / self.cycles if self.instructions and self.cycles else None

    @property
    def branch_miss_ratio(self) -> float | None:
        """Share of branches that were predicted wrongly."""
        return self.branch_misses / self.branches if self.branch_misses is not None and self.branches else None

    @property
    def cache_miss_ratio(self) -> float | None:
        """Share of last-level cache accesses that went to memory."""
        return (
            self.cache_misses / self.cache_references
            if self.cache_misses is not None and self.cache_references
            else None
        )


class Counters:
    """Counters of this process and of threads that it starts later. Use as a context manager."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        number = _SYSCALL.get(platform.machine())
        if not sys.platform.startswith("linux") or number is None:
            return
        for name, event in _EVENTS.items():
            file = _open(number, event)
            if file >= 0:
                self._files[name] = file

    @property
    def granted(self) -> bool:
        """Whether the kernel lets us count anything."""
        return bool(self._files)

    def read(self) -> dict[str, bytes]:
        """Each counter as the kernel hands it out."""
        return {name: os.read(file, 24) for name, file in self._files.items()}

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> Counters:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def between(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Counts:
    """What was counted between two reads, scaled up where a counter shared its place with others. Pure."""
    found = {}
    for name in before.keys() & after.keys():
        if len(before[name]) != 24 or len(after[name]) != 24:
            continue
        first, last = struct.unpack("=QQQ", before[name]), struct.unpack("=QQQ", after[name])
        count, enabled, running = (b - a for a, b in zip(first, last, strict=True))
        if running > 0:
            found[name] = count * enabled / running
    return Counts(**found)


def _open(number: int, event: int) -> int:
    """A counter of this thread, inherited by those that it starts; -1 when it is not granted."""
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV
    attr = struct.pack("=IIQQQQQ", 0, _ATTR_BYTES, event, 0, 0, _TIMES, flags).ljust(_ATTR_BYTES, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(number, ctypes.create_string_buffer(attr, _ATTR_BYTES), 0, -1, -1, 0)
    return file
