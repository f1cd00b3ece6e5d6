"""Messages that wait to be delivered: byte-capped, oldest dropped first, drops counted; on disk where a path is given.

A message is first held in memory and may be sent at once; what still waits after `commit_s` goes to the disk, all in
one write. So a device whose windows are acknowledged promptly writes nothing, and a power cut costs at most the last
`commit_s`. Windows are kept until a collector acknowledges them once one ever has; without a collector, and for other
messages, the broker's acknowledgement is delivery. Every method may be called from any thread; `append` never waits
for the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from edgekit.telemetry.messages import OutboxState
from edgekit.telemetry.outbox_file import Item as Item
from edgekit.telemetry.outbox_shelf import Shelf

DEFAULT_BYTES = 4 * 1024 * 1024
"""In memory: about 6,000 windows of 600 bytes, 17 hours at the default window."""
DISK_BYTES = 64 * 1024 * 1024
"""On disk: 11 days."""
COMMIT_S = 10.0
FIRST_RESEND_S, LONGEST_RESEND_S = 30.0, 3600.0
"""A window that the broker has and the collector has not acknowledged is sent again after this, ever more rarely."""
NOTHING = -(2**62)
"""Lower than any number."""


class Outbox:
    """A queue that survives the connection; with a `path`, the process and the power too."""

    def __init__(
        self,
        max_bytes: int | None = None,
        *,
        path: Path | None = None,
        commit_s: float = COMMIT_S,
        collector: bool | None = None,
        resend_s: float = FIRST_RESEND_S,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Returns at once: the file is opened in the background, then `on_ready` is called.

        `collector`: whether windows wait for one; None to learn it from the first acknowledgement.
        """
        self._lock = threading.Lock()
        self._items: OrderedDict[int, Item] = OrderedDict()
        self._windows: dict[int, OrderedDict[int, int]] = {}
        self._max_bytes = max_bytes or (DISK_BYTES if path else DEFAULT_BYTES)
        self._held_max_bytes = self._max_bytes if path is None else min(self._max_bytes, DEFAULT_BYTES)
        self._bytes, self._next = 0, 0
        self._dropped: dict[str, int] = {}
        self._bytes_sent = 0
        self._configured, self._collector_seen = collector, False
        self._awaiting: set[int] = set()
        self._awaiting_since_s, self._resend_s, self._first_resend_s = 0.0, resend_s, resend_s
        self._shelf = Shelf(path) if path else None
        self._commit_s, self.on_ready = commit_s, on_ready
        self._began_s = time.monotonic()
        self._dirty, self._closing = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write, name="outbox", daemon=True)
        if path is not None:
            self._writer.start()

    def append(self, topic: str, payload: bytes, *, now_s: float, window: tuple[int, int] | None = None) -> None:
        """Add one; the oldest make room. One larger than the whole outbox is itself dropped, and counted.

        Args:
            window: (epoch, seq) of a window, by which a collector acknowledges it.
        """
        with self._lock:
            item = Item(self._next, topic, payload, now_s, window)
            if item.cost_bytes > self._held_max_bytes:
                self._count("too large")
                return
            while self._bytes + item.cost_bytes > self._held_max_bytes:
                self._forget(next(iter(self._items)))
                self._count("outbox full")
            self._next += 1
            self._items[item.number] = item
            self._bytes += item.cost_bytes
            if window is not None:
                self._windows.setdefault(window[0], OrderedDict())[window[1]] = item.number
        self._dirty.set()

    def after(self, number: int, limit: int, *, up_to: int = 2**62) -> list[Item]:
        """The oldest items with number < theirs <= up_to, at most `limit`."""
        if limit <= 0:
            return []
        with self._lock:
            found = [item for item in self._held(number, limit) if item.number <= up_to]
            newest = self._next - 1
        if self._shelf is not None and number < newest:
            # One that goes to the disk in between is in both.
            merged = {item.number: item for item in (*found, *self._shelf.read(number, up_to, limit))}
            found = [merged[n] for n in sorted(merged)[:limit]]
        return self._with_oldest(found)

    def delivered(self, item: Item) -> None:
        """The broker has it: forget it, unless it is a window that a collector must acknowledge."""
        with self._everything():
            if item.number in self._awaiting:
                return
            if item.window is not None and self.waits_for_collector and self._is_here(item):
                if not self._awaiting:
                    self._awaiting_since_s = time.monotonic()
                self._awaiting.add(item.number)
                self._bytes_sent += len(item.payload)
            elif self._take(item.number):
                self._bytes_sent += len(item.payload)

    def acknowledged(self, epoch: int, seq: int) -> None:
        """A collector has committed everything of `epoch` up to `seq`."""
        with self._everything():
            self._collector_seen = True
            gone = []
            here = self._windows.get(epoch, OrderedDict())
            while here and next(iter(here)) <= seq:
                gone.append(next(iter(here.values())))
                self._forget(gone[-1])
            if self._shelf is not None:
                gone += self._shelf.acknowledged(epoch, seq)
            if gone:
                self._awaiting.difference_update(gone)
                self._awaiting_since_s, self._resend_s = time.monotonic(), self._first_resend_s
        self._dirty.set()

    def overdue(self, now_s: float) -> bool:
        """Whether windows that the broker has must be sent again, since no collector has acknowledged them in time.

        True once for each time they are; the next time comes twice as late.
        """
        with self._lock:
            if not self._awaiting or now_s - self._awaiting_since_s < self._resend_s:
                return False
            self._awaiting_since_s, self._resend_s = now_s, min(2 * self._resend_s, LONGEST_RESEND_S)
            return True

    def doubt(self) -> None:
        """Someone began to listen: what the broker has and no collector acknowledged may be unknown to it."""
        with self._lock:
            self._awaiting_since_s = NOTHING

    def drop(self, number: int, reason: str) -> None:
        """Give one up, for a reason that is counted and published."""
        with self._everything():
            if self._take(number):
                self._count(reason)

    def commit(self) -> bool:
        """Put what waits on the disk now. False when it could not be; the state says why."""
        if self._shelf is None:
            return False
        with self._shelf.lock:
            with self._lock:
                items = list(self._items.values())
            gone = self._shelf.make_room(sum(i.cost_bytes for i in items), self._max_bytes)
            with self._lock:
                self._count("outbox full", len(gone))
                self._awaiting.difference_update(gone)
                facts = self._facts()
            if not self._shelf.commit(items, facts):
                return False
            with self._lock:
                for item in items:
                    if item.number in self._items:
                        self._forget(item.number)
        return True

    def close(self) -> None:
        """Put everything on the disk and end."""
        self._closing.set()
        self._dirty.set()
        if self._writer.is_alive():
            self._writer.join()

    @property
    def is_ready(self) -> bool:  # to read what an earlier process left
        return self._shelf is None or self._shelf.is_open

    @property
    def waits_for_collector(self) -> bool:
        """Whether windows are kept until a collector acknowledges them."""
        return self._collector_seen if self._configured is None else self._configured

    @property
    def newest(self) -> int:
        """The number of the newest item so far; those of earlier processes are below 0."""
        with self._lock:
            return self._next - 1

    @property
    def depth(self) -> int:
        with self._lock:
            return len(self._items) + (self._shelf.count if self._shelf else 0)

    @property
    def unsent(self) -> int:
        """How many the broker does not have, as far as this process knows."""
        return self.depth - len(self._awaiting)

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many were lost since the outbox was made, by reason."""
        with self._lock:
            return dict(self._dropped)

    def state(self) -> OutboxState:
        """How it fares, for the wire."""
        shelf = self._shelf
        written = shelf.bytes_written if shelf else 0
        days = max(time.monotonic() - self._began_s, 3600.0) / 86_400
        return OutboxState(
            depth=self.depth,
            dropped=self.dropped,
            bytes_sent=self._bytes_sent,
            bytes_written=written,
            bytes_written_per_day=round(written / days),
            set_aside=shelf.set_aside if shelf else 0,
            problem=(shelf.problem or "")[:256] if shelf else "",
        )

    def _write(self) -> None:
        """The writer's thread: open the file, then commit what waits `commit_s` after it came."""
        assert self._shelf is not None
        while (facts := self._shelf.open()) is None:
            if self._closing.wait(self._commit_s):
                return
        with self._lock:
            for reason, count in facts.dropped.items():
                self._count(reason, count)
            self._collector_seen |= facts.collector
        self.on_ready()
        while not self._closing.is_set():
            self._dirty.wait()
            self._closing.wait(self._commit_s)
            self._dirty.clear()
            if self._items or self._shelf.has_news(self._facts()):
                self.commit()
        self.commit()
        self._shelf.close()

    def _everything(self) -> contextlib.ExitStack:
        """Both locks, always in this order."""
        stack = contextlib.ExitStack()
        if self._shelf is not None:
            stack.enter_context(self._shelf.lock)
        stack.enter_context(self._lock)
        return stack

    def _facts(self) -> dict[str, int]:
        facts = {f"dropped:{reason}": count for reason, count in self._dropped.items()}
        aside = self._shelf.set_aside if self._shelf else 0
        return {**facts, "collector": int(self._collector_seen), "set_aside": aside}

    def _held(self, number: int, limit: int) -> list[Item]:
        """The first of those in memory above a number."""
        return list(itertools.islice((item for n, item in self._items.items() if n > number), limit))

    def _is_here(self, item: Item) -> bool:
        return item.number in self._items or bool(self._shelf and self._shelf.read(item.number - 1, item.number, 1))

    def _take(self, number: int) -> bool:
        """Remove one wherever it is; whether it was there."""
        self._awaiting.discard(number)
        if number in self._items:
            self._forget(number)
            return True
        return self._shelf is not None and self._shelf.take(number)

    def _with_oldest(self, items: list[Item]) -> list[Item]:
        """Windows with the oldest of their epoch that waits: a collector learns so what it need not wait for."""
        oldest: dict[int, int] = {}
        for epoch in {item.window[0] for item in items if item.window}:
            with self._everything():
                held = next(iter(self._windows.get(epoch, ())), None)
                on_disk = self._shelf.oldest(epoch) if self._shelf else None
            oldest[epoch] = min((seq for seq in (held, on_disk) if seq is not None), default=0)
        return [replace(item, oldest_seq=oldest[item.window[0]]) if item.window else item for item in items]

    def _forget(self, number: int) -> None:
        """Remove one from memory."""
        item = self._items.pop(number)
        self._bytes -= item.cost_bytes
        if item.window is not None:
            here = self._windows[item.window[0]]
            del here[item.window[1]]
            if not here:
                del self._windows[item.window[0]]

    def _count(self, reason: str, count: int = 1) -> None:
        if count:
            self._dropped[reason] = self._dropped.get(reason, 0) + count
