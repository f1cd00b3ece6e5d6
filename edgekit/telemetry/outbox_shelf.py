"""An outbox's file, however it fares: opened late, full, unwritable or damaged, it never raises and says why."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.telemetry.outbox_file import Facts, Item, OutboxBroken, OutboxFile

logger = logging.getLogger(__name__)


class Shelf:
    """What of an outbox lies on the disk. Thread-safe; a caller may hold `lock` over several calls."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self.problem: str | None = None
        "Why nothing can be put on the disk now; None when it can."
        self._path = path
        self._file: OutboxFile | None = None
        self._facts_written: Mapping[str, int] = {}

    def open(self) -> Facts | None:
        """Open and check the file, which takes a while when it is large; None when that failed."""
        try:
            file = OutboxFile(self._path)
        except OutboxBroken as e:
            self._say(str(e))
            return None
        with self.lock:
            self._adopt(file)
        return file.facts

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def count(self) -> int:
        return self._file.count if self._file else 0

    @property
    def bytes_written(self) -> int:
        return self._file.bytes_written if self._file else 0

    @property
    def set_aside(self) -> int:
        """Damaged files found so far."""
        return self._file.facts.set_aside if self._file else 0

    def read(self, after: int, up_to: int, limit: int) -> list[Item]:
        """The oldest items with after < number <= up_to."""
        with self.lock:
            if self._file is None:
                return []
            try:
                return self._file.read(after, up_to, limit)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return []

    def oldest(self, epoch: int) -> int | None:
        """The lowest sequence number of an epoch; None when there is none, 0 when that cannot be known now."""
        with self.lock:
            if self._file is None:
                return None
            try:
                return self._file.oldest(epoch)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return 0

    def take(self, number: int) -> bool:
        """Remove one with the next commit; whether it was there."""
        with self.lock:
            if self._file is None:
                return False
            try:
                return self._file.remove(number)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return False

    def acknowledged(self, epoch: int, seq: int) -> list[int]:
        """Remove the windows of an epoch up to `seq` with the next commit; their numbers."""
        with self.lock:
            if self._file is None:
                return []
            try:
                return self._file.remove_acknowledged(epoch, seq)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return []

    def has_news(self, facts: Mapping[str, int]) -> bool:
        """Whether anything but new items waits for a commit."""
        with self.lock:
            return self._file is not None and (facts != self._facts_written or self._file.has_changed)

    def make_room(self, wanted_bytes: int, max_bytes: int) -> list[int]:
        """Remove the oldest with the next commit, until `wanted_bytes` more fit; their numbers."""
        with self.lock:
            if self._file is None:
                return []
            try:
                return self._file.make_room(wanted_bytes, max_bytes)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return []

    def commit(self, items: Sequence[Item], facts: Mapping[str, int]) -> bool:
        """Put items and everything since the last commit on the disk; whether it is there now."""
        with self.lock:
            if self._file is None:
                return False
            changed = {k: v for k, v in facts.items() if self._facts_written.get(k) != v}
            try:
                self._file.commit(items, changed)
            except sqlite3.DatabaseError as e:
                self._mend(e)
                return False
            self._facts_written, self.problem = dict(facts), None
            return True

    def close(self) -> None:
        with self.lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _adopt(self, file: OutboxFile) -> None:
        if file.is_replacement:
            logger.error("%s was damaged: it is set aside as %s.damaged and a new one begun", self._path, self._path)
        self._file, self._facts_written, self.problem = file, {}, None

    def _mend(self, error: sqlite3.DatabaseError) -> None:
        """A file that cannot be written now is tried again; one that is damaged is set aside."""
        assert self._file is not None
        if isinstance(error, sqlite3.OperationalError):
            self._say(f"{self._path}: {error}")
            return
        try:
            self._file.begin_again()
        except OutboxBroken as e:
            self._say(str(e))
            return
        self._adopt(self._file)

    def _say(self, problem: str) -> None:
        if self.problem is None:
            logger.error("the outbox cannot use its file and keeps what comes in memory: %s", problem)
        self.problem = problem
