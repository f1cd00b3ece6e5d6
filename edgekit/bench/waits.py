"""How long this process stood in line for a CPU: what others take from a candidate is no property of the candidate."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

_MOST_THREADS = 64


class Waits:
    """The time that the threads of a process were ready to run and did not get a CPU. Use as a context manager.

    Source: the second number of /proc/PID/task/TID/schedstat, in nanoseconds (kernel documentation, sched-stats).
    Where the kernel does not tell, `read` is None. Threads that start later are not counted.
    """

    def __init__(self, task: Path = Path("/proc/self/task")) -> None:
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            for thread in sorted(task.iterdir())[:_MOST_THREADS]:
                self._files.append(os.open(thread / "schedstat", os.O_RDONLY))

    def read(self) -> tuple[int, ...] | None:
        """Nanoseconds waited so far, for each thread."""
        try:
            return tuple(int(os.pread(file, 96, 0).split()[1]) for file in self._files) or None
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.pop())

    def __enter__(self) -> Waits:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def waited_ms(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> float:
    """What the thread that waited longest waited: the others wait for it at the end of each operator."""
    if before is None or after is None:
        return 0.0
    return max(b - a for a, b in zip(before, after, strict=True)) / 1e6
