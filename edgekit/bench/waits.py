"""How long this process stood in line for a CPU: what others take from a candidate is no property of the candidate."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

_MOST_THREADS = 64
_WORKS = 0.2
"""A thread works when it has run for this share of the time of the busiest."""
Line = tuple[tuple[int, int], ...]
"""Nanoseconds that each thread has run and waited."""


class Waits:
    """The time that the threads of a process were ready to run and did not get a CPU. Use as a context manager.

    Source: /proc/PID/task/TID/schedstat, nanoseconds on a CPU and waiting for one (kernel documentation, sched-stats).
    Where the kernel does not tell, `read` is None. Threads that start later are not counted.
    """

    def __init__(self, task: Path = Path("/proc/self/task")) -> None:
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            for thread in sorted(task.iterdir())[:_MOST_THREADS]:
                self._files.append(os.open(thread / "schedstat", os.O_RDONLY))

    def read(self) -> Line | None:
        """For each thread, the nanoseconds that it has run and waited so far."""
        try:
            fields = (os.pread(file, 96, 0).split() for file in self._files)
            return tuple((int(ran), int(waited)) for ran, waited, *_ in fields) or None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.pop())

    def __enter__(self) -> Waits:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def waited_ms(before: Line | None, after: Line | None) -> float:
    """What every thread that worked waited at least: then nobody made progress for the others meanwhile.

    Of a single working thread that is all of its waiting; of several it is rather too little than too much.
    """
    if before is None or after is None:
        return 0.0
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
    most = max(ran for ran, _ in spans)
    return min(waited for ran, waited in spans if ran >= _WORKS * most) / 1e6
