"""Messages that wait for the broker's acknowledgement, in memory: byte-capped, oldest dropped first, drops counted.

The caller is one lock away from many threads: every method may be called from any of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_BYTES = 4 * 1024 * 1024
"""About 7,000 windows of 600 bytes: 19 hours at the default window."""


@dataclass(frozen=True, slots=True)
class Item:
    """One waiting message."""

    number: int
    topic: str
    payload: bytes
    added_s: float
    "Monotonic."


class Outbox:
    """A queue that survives the connection, not the process."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._lock = threading.Lock()
        self._items: OrderedDict[int, Item] = OrderedDict()
        self._max_bytes, self._bytes, self._next = max_bytes, 0, 0
        self._dropped: dict[str, int] = {}
        self._bytes_sent = 0

    def append(self, topic: str, payload: bytes, *, now_s: float) -> None:
        """Add one; the oldest make room. One larger than the whole outbox is itself dropped, and counted."""
        with self._lock:
            if len(payload) > self._max_bytes:
                self._count("too large")
                return
            while self._bytes + len(payload) > self._max_bytes:
                _, oldest = self._items.popitem(last=False)
                self._bytes -= len(oldest.payload)
                self._count("outbox full")
            self._items[self._next] = Item(self._next, topic, payload, now_s)
            self._next += 1
            self._bytes += len(payload)

    def after(self, number: int, limit: int) -> list[Item]:
        """The oldest items with a higher number, at most `limit`."""
        if limit <= 0:
            return []
        found = []
        with self._lock:
            for item in self._items.values():
                if item.number > number:
                    found.append(item)
                if len(found) == limit:
                    break
        return found

    def delivered(self, number: int) -> None:
        """Forget one that the broker has acknowledged."""
        with self._lock:
            if item := self._items.pop(number, None):
                self._bytes -= len(item.payload)
                self._bytes_sent += len(item.payload)

    def drop(self, number: int, reason: str) -> None:
        """Give one up, for a reason that is counted and published."""
        with self._lock:
            if item := self._items.pop(number, None):
                self._bytes -= len(item.payload)
                self._count(reason)

    @property
    def depth(self) -> int:
        with self._lock:
            return len(self._items)

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many were lost since the start, by reason."""
        with self._lock:
            return dict(self._dropped)

    @property
    def bytes_sent(self) -> int:
        with self._lock:
            return self._bytes_sent

    def _count(self, reason: str) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + 1
