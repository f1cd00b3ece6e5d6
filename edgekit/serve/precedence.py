"""Real-time work goes first: while a request of it is under way, tolerant inferences wait, and those begun are paused.

A thread deep in a runtime cannot be paused, but a process can: tolerant lanes live in one of their own (`remote`), so a
real-time request finds processors, caches and memory bandwidth free whatever ran a moment before. Priority alone is not
enough: a lowered thread that is preempted while it holds the interpreter's lock holds up everybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

NICE = 19
"""Not SCHED_IDLE: a thread of that class that is preempted while it holds the interpreter's lock may never run again
on a busy machine, and nothing else of the daemon would either."""
YIELD_S = 0.05
"""A tolerant inference that cannot be paused waits at most this long for a moment without real-time work."""
LOAN_EVERY_S, LOAN_S = 1.0, 0.005
"""A paused inference runs beside real-time work for this part of the time: it is slow but not dead, and so few
real-time requests meet it that their 99th percentile does not."""
CAN_PAUSE = hasattr(signal, "SIGSTOP")


class Precedence:
    """Counts real-time requests under way in the whole process, and pauses others' work meanwhile. Thread-safe.

    `clock` in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._free, self._waiting = threading.Condition(self._lock), 0
        self._running: dict[int, _Pauses] = {}

    @property
    def is_free(self) -> bool:
        """No real-time request is under way."""
        return self._under_way == 0

    def enter(self) -> None:
        """A real-time request has arrived."""
        with self._lock:
            self._under_way += 1
            if self._under_way == 1:
                for pid in self._running:
                    self._pause(pid)

    def leave(self) -> None:
        """It is answered."""
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0:
                if self._waiting:
                    self._free.notify_all()
                for pid in self._running:
                    self._resume(pid)

    def give_way(self, at_most_s: float = YIELD_S) -> None:
        """Called by tolerant lanes before each inference."""
        with self._lock:
            self._waiting += 1
            self._free.wait_for(lambda: self.is_free, at_most_s)
            self._waiting -= 1

    def begin(self, pid: int) -> None:
        """A tolerant inference runs in this child of ours from now on, paused while there is real-time work."""
        with self._lock:
            self._running[pid] = _Pauses()
            if self._under_way:
                self._pause(pid)

    def end(self, pid: int) -> None:
        """It is done, or given up. Before the child is waited for: afterwards its number may be another's."""
        with self._lock:
            self._resume(pid)
            self._running.pop(pid, None)

    def lend(self, pid: int, seconds: float = LOAN_S) -> None:
        """Let it run for a moment although there is real-time work; the calling thread sleeps meanwhile."""
        with self._lock:
            self._resume(pid)
        time.sleep(seconds)
        with self._lock:
            if self._under_way and pid in self._running:
                self._pause(pid)

    def paused_s(self, pid: int) -> float:
        """For how long the inference that runs in it now has been paused."""
        with self._lock:
            pauses = self._running.get(pid)
            if pauses is None:
                return 0.0
            return pauses.total_s + (0.0 if pauses.since_s is None else self._clock() - pauses.since_s)

    def _pause(self, pid: int) -> None:
        pauses = self._running[pid]
        if pauses.since_s is None:
            pauses.since_s = self._clock()
            _signal(pid, "SIGSTOP")

    def _resume(self, pid: int) -> None:
        pauses = self._running.get(pid)
        if pauses is not None and pauses.since_s is not None:
            pauses.total_s += self._clock() - pauses.since_s
            pauses.since_s = None
            _signal(pid, "SIGCONT")


@dataclass(slots=True)
class _Pauses:
    """Of one inference; `since_s`: it is paused."""

    total_s: float = 0.0
    since_s: float | None = None


def _signal(pid: int, name: str) -> None:
    """SIGSTOP or SIGCONT; one that has died meanwhile needs neither."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.Signals[name])


def lower_this_thread() -> None:
    """The calling thread, and every thread that it starts from now on, run at the lowest priority.

    Source: setpriority(2): on Linux a nice value belongs to a thread. Elsewhere it is the process's and is left alone.
    """
    if sys.platform.startswith("linux"):
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        except OSError as e:  # a seccomp filter: nothing is wrong but the order of what is urgent
            logger.warning("tolerant work runs at the same priority as real-time work: %s", e.strerror)


def run_lowered(work: Callable[[], Result]) -> Result:
    """`work` on a thread of the lowest priority, waited for. The threads that a runtime starts in it inherit that."""
    with ThreadPoolExecutor(1, thread_name_prefix="lowered", initializer=lower_this_thread) as executor:
        return executor.submit(work).result()
