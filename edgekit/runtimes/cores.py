"""The threads that a runtime made for one session, kept off the core that their caller is on.

After a pause Linux may wake a thread on its caller's core though another one idles: two threads then take as long as
one. Seen on a virtual machine with Linux 6.18; `make bench-pauses` measures it. The caller itself stays free to move:
where it is, is asked before each inference.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)
_TASKS = Path("/proc/self/task")


def _current_core() -> Callable[[], int] | None:
    """libc's own way to ask, 0.2 µs; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


CURRENT_CORE = _current_core()


class Helpers:
    """All of a session's threads but the caller; only where a session has one for each core that may be used.

    With fewer threads than cores there is a choice of cores, which is the kernel's: it knows what else runs.
    """

    def __init__(self, threads: Sequence[int] = (), cores: Sequence[int] = ()) -> None:
        self._threads = tuple(threads) if CURRENT_CORE and 0 < len(threads) == len(cores) - 1 else ()
        self._cores, self._caller = tuple(cores), -1

    def __bool__(self) -> bool:
        return bool(self._threads)

    def make_way(self) -> None:
        """Give each a core of its own that is not the caller's. Costs a system call each where the caller has moved."""
        here = CURRENT_CORE() if CURRENT_CORE else -1
        if here == self._caller:
            return
        if here not in self._cores:  # the process may use other cores than when the session was opened
            self.let_go()
            return
        self._caller, own = here, self._cores.index(here)
        try:
            for thread, core in zip(self._threads, (*self._cores[own + 1 :], *self._cores[:own]), strict=True):
                os.sched_setaffinity(thread, {core})
        except OSError as e:  # not allowed to, a thread that has gone, or a core taken away
            logger.warning("a runtime's threads wake where the kernel puts them, which may be slower: %s", e.strerror)
            self.let_go()

    def let_go(self) -> None:
        """From now on they wake where the kernel puts them."""
        threads, self._threads = self._threads, ()
        for thread in threads:
            try:
                os.sched_setaffinity(thread, os.sched_getaffinity(0))
            except OSError:
                continue


class Opening:
    """Around the opening of a session of so many threads; afterwards `helpers` are those that were made.

    The threads of two sessions that are opened at once cannot be told apart: both go without.
    """

    _lock, _under_way, _begun = threading.Lock(), 0, 0

    def __init__(self, threads: int) -> None:
        self.helpers = Helpers()
        self._cores = sorted(os.sched_getaffinity(0)) if CURRENT_CORE else []
        self._threads = threads

    def __enter__(self) -> Opening:
        with Opening._lock:
            Opening._under_way += 1
            Opening._begun += 1
            self._number, self._is_alone = Opening._begun, Opening._under_way == 1
        self._before = _tasks() if self._is_wanted else set()
        return self

    def __exit__(self, *_: object) -> None:
        with Opening._lock:
            Opening._under_way -= 1
            is_alone = self._is_alone and self._number == Opening._begun
        if self._is_wanted and is_alone:
            ours = {thread.native_id or 0 for thread in threading.enumerate()}
            self.helpers = Helpers(sorted(_tasks() - self._before - ours), self._cores)

    @property
    def _is_wanted(self) -> bool:
        return 1 < self._threads == len(self._cores)


def _tasks() -> set[int]:
    return {int(task) for task in os.listdir(_TASKS)}
