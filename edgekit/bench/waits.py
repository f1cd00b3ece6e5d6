"""How long this process stood in line for a CPU: what others take from a candidate is no property of the candidate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

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


class Span(NamedTuple):
    """What the kernel told before and after something that took so long; None: it does not tell."""

    before: Line | None
    after: Line | None
    took_ms: float


def shared_waits_ms(spans: Sequence[Span]) -> list[float]:
    """For how long of each span, at least, all threads that work waited at once: then nobody made progress.

    Of a single working thread that is all of its waiting. Of several, waits overlap by no less than what their sum
    exceeds the span by for all but one: two that take turns on one CPU wait for each other, and nothing is lost.
    Which threads work is told by all spans together, since the kernel counts what one does elsewhere with a delay.
    """
    told = [(span.before, span.after, span.took_ms) if span.before and span.after else None for span in spans]
    known = [one for one in told if one is not None]
    if not known:
        return [0.0] * len(spans)
    threads = range(len(known[0][0]))
    ran = [sum(after[i][0] - before[i][0] for before, after, _ in known) for i in threads]
    working = [i for i in threads if ran[i] >= _WORKS * max(ran)]

    def shared(before: Line, after: Line, took_ms: float) -> float:
        waits = [min(took_ms, (after[i][1] - before[i][1]) / 1e6) for i in working]
        return max(0.0, sum(waits) - (len(waits) - 1) * took_ms)

    return [0.0 if one is None else shared(*one) for one in told]
