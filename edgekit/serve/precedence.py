"""Real-time work goes first: tolerant lanes run at the lowest priority and wait while a real-time request is under way.

Waiting alone is not enough (an inference that has begun cannot be paused), nor is priority alone (memory bandwidth
and caches are shared all the same).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

NICE = 19
"""Not SCHED_IDLE: a thread of that class that is preempted while it holds the interpreter's lock may never run again
on a busy machine, and nothing else of the daemon would either."""
YIELD_S = 0.05
"""A tolerant inference waits at most this long for a moment without real-time work, so that it is slow but not dead."""


class Precedence:
    """Counts real-time requests under way in the whole process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_free = threading.Event()
        self._is_free.set()

    def enter(self) -> None:
        """A real-time request has arrived."""
        with self._lock:
            self._under_way += 1
            if self._under_way == 1:
                self._is_free.clear()

    def leave(self) -> None:
        """It is answered."""
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0:
                self._is_free.set()

    def give_way(self, at_most_s: float = YIELD_S) -> None:
        """Called by tolerant lanes before each inference."""
        self._is_free.wait(at_most_s)


def lower_this_thread() -> None:
    """The calling thread, and every thread that it starts from now on, run at the lowest priority.

    Source: setpriority(2): on Linux a nice value belongs to a thread. Elsewhere it is the process's and is left alone.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def run_lowered(work: Callable[[], Result]) -> Result:
    """`work` on a thread of the lowest priority, waited for. The threads that a runtime starts in it inherit that."""
    with ThreadPoolExecutor(1, thread_name_prefix="lowered", initializer=lower_this_thread) as executor:
        return executor.submit(work).result()
