"""Whose turn it is to run a session: one thread's at a time."""

from __future__ import annotations

import threading


class Turn:
    """A lock that knows who holds it, and of whom to tell that it would wait for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @property
    def is_mine(self) -> bool:
        """The calling thread has it: in a callback, or in a signal handler that interrupted it."""
        return self._owner == threading.get_ident()

    def take(self, timeout_s: float = -1) -> bool:
        """Wait for it, at most so long, 0 not at all; below 0 for ever. Whether it was had."""
        taken = self._lock.acquire(timeout=timeout_s) if timeout_s else self._lock.acquire(blocking=False)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def leave(self) -> None:
        self._owner = None
        self._lock.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.leave()
