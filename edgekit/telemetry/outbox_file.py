"""The SQLite file below an outbox: what waits survives power cuts, and a damaged file is set aside, never fatal.

WAL with synchronous=FULL: a commit is on the disk when it returns. One process at a time (exclusive locking). Not
thread-safe: its owner holds a lock. Opening checks the whole file, so it belongs on a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.files import sync_folder

WAL_BYTES = 1024 * 1024
"""The write-ahead log is poured into the file when it has grown to this."""
_PAGE_BYTES = 4096
_VERSION = 1
_SPARE_PAGES = 256
"""Free pages left in the file before it is shrunk: a file that grew in an outage must not stay large."""
_OVERHEAD_BYTES = 48
_SCHEMA = """
CREATE TABLE IF NOT EXISTS item(
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, epoch INTEGER, seq INTEGER, added_s REAL NOT NULL,
    bytes INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS window ON item(epoch, seq) WHERE epoch IS NOT NULL;
CREATE TABLE IF NOT EXISTS fact(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One waiting message."""

    number: int
    topic: str
    payload: bytes
    added_s: float
    "Monotonic; minus infinity when a process before this one stored it."
    window: tuple[int, int] | None = None
    "(epoch, seq) of a window; None for any other message."
    oldest_seq: int | None = None
    "The lowest sequence number of its epoch that still waits, when it was read."

    @property
    def cost_bytes(self) -> int:
        """What it takes in the file, about."""
        return len(self.payload) + len(self.topic) + _OVERHEAD_BYTES


class OutboxBroken(Exception):
    """The file cannot be used now; what waits stays in memory. The text says why."""


@dataclass(slots=True)
class Facts:
    """What is remembered beside the messages."""

    collector: bool = False
    "A collector has acknowledged windows of this device."
    dropped: dict[str, int] = field(default_factory=dict)
    set_aside: int = 0
    "Damaged files found so far."


class OutboxFile:
    """An open file. Numbers below 0 are of processes before this one."""

    def __init__(self, path: Path, *, check: bool = True) -> None:
        """Raises OutboxBroken where it can be neither opened nor set aside."""
        self.path = path
        self.facts = Facts()
        self.is_replacement = False
        "It was begun in place of a damaged one."
        self.bytes_written = 0
        self.count, self.bytes = 0, 0
        self._committed_changes = 0
        self._db: sqlite3.Connection
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._load(check)
            except (sqlite3.DatabaseError, ValueError, TypeError) as e:
                if isinstance(e, sqlite3.OperationalError):  # busy, full, not allowed: no damage
                    raise
                self._set_aside()
        except (sqlite3.Error, OSError) as e:
            raise OutboxBroken(f"{path}: {e}") from e

    def _load(self, check: bool) -> None:
        is_new = not self.path.exists()
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0.0)
        try:
            self._prepare(check, is_new)
        except BaseException:
            self._db.close()
            raise
        self._wal = Path(f"{self.path}-wal")
        self._wal_bytes = self._wal_size()

    def _prepare(self, check: bool, is_new: bool) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA auto_vacuum=INCREMENTAL")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        run("PRAGMA wal_autocheckpoint=0")
        run("PRAGMA cache_size=-1024")
        version = run("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise ValueError(f"written by a newer edgekit (format {version})")
        if check and not is_new and (found := run("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise ValueError(found)
        if version < _VERSION:
            self._db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={_VERSION};COMMIT;")
            sync_folder(self.path.parent)
        (newest,) = run("SELECT max(number) FROM item").fetchone()
        self._base = 0 if newest is None else newest + 1
        facts = dict(run("SELECT name, value FROM fact"))
        dropped = {name.partition(":")[2]: value for name, value in facts.items() if name.startswith("dropped:")}
        self.facts = Facts(bool(facts.get("collector")), dropped, facts.get("set_aside", 0))
        run("BEGIN IMMEDIATE")
        self._recount()
        self._committed_changes = self._db.total_changes

    def _set_aside(self) -> None:
        """Move the damaged file away (over the last one) and begin an empty one."""
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{self.path}.damaged{suffix}")
        kept = self.facts
        self._load(check=False)
        self.facts, self.is_replacement = Facts(kept.collector, kept.dropped, kept.set_aside + 1), True

    def begin_again(self) -> None:
        """The file turned out to be damaged: set it aside. Raises OutboxBroken."""
        try:
            self._db.close()
            self._set_aside()
        except (sqlite3.Error, OSError) as e:
            raise OutboxBroken(f"{self.path}: {e}") from e

    @property
    def has_changed(self) -> bool:
        """Something was removed since the last commit."""
        return self._db.total_changes != self._committed_changes

    def read(self, after: int, up_to: int, limit: int) -> list[Item]:
        """The oldest items with after < number <= up_to."""
        rows = self._db.execute(
            "SELECT number, topic, payload, added_s, epoch, seq FROM item WHERE number > ? AND number <= ? "
            "ORDER BY number LIMIT ?",
            (max(after + self._base, -(2**62)), up_to + self._base, limit),
        ).fetchall()
        return [
            Item(
                number - self._base,
                topic,
                payload,
                added_s if number >= self._base else float("-inf"),
                None if epoch is None else (epoch, seq),
            )
            for number, topic, payload, added_s, epoch, seq in rows
        ]

    def oldest(self, epoch: int) -> int | None:
        """The lowest sequence number of an epoch."""
        row = self._db.execute("SELECT min(seq) FROM item WHERE epoch = ?", (epoch,)).fetchone()
        return None if row[0] is None else int(row[0])

    def remove(self, number: int) -> bool:
        """Take one away with the next commit; whether it was there."""
        before = self.count
        self._delete("number = ?", (number + self._base,))
        return self.count < before

    def remove_acknowledged(self, epoch: int, seq: int) -> list[int]:
        """Take away the windows of an epoch up to `seq`; their numbers."""
        where = (epoch, seq)
        rows = self._db.execute("SELECT number FROM item WHERE epoch = ? AND seq <= ?", where).fetchall()
        if rows:
            self._delete("epoch = ? AND seq <= ?", where)
        return [number - self._base for (number,) in rows]

    def make_room(self, wanted_bytes: int, max_bytes: int) -> list[int]:
        """Take the oldest away until `wanted_bytes` more fit; their numbers."""
        gone: list[int] = []
        while self.count and self.bytes + wanted_bytes > max_bytes:
            rows = self._db.execute("SELECT number, bytes FROM item ORDER BY number LIMIT 64").fetchall()
            for number, cost in rows:
                if self.bytes + wanted_bytes <= max_bytes:
                    break
                self._db.execute("DELETE FROM item WHERE number = ?", (number,))
                self.count, self.bytes = self.count - 1, self.bytes - cost
                gone.append(number - self._base)
        return gone

    def commit(self, items: Iterable[Item], facts: Mapping[str, int]) -> None:
        """Add items, remember facts, and put everything since the last commit on the disk. All or nothing."""
        try:
            for item in items:
                epoch, seq = item.window or (None, None)
                row = (item.number + self._base, item.topic, epoch, seq, item.added_s, item.cost_bytes, item.payload)
                self._db.execute("INSERT INTO item VALUES(?, ?, ?, ?, ?, ?, ?)", row)
                self.count, self.bytes = self.count + 1, self.bytes + item.cost_bytes
            self._db.executemany("INSERT OR REPLACE INTO fact VALUES(?, ?)", facts.items())
            self._db.execute("COMMIT")
            self._account()
            self._db.execute("BEGIN IMMEDIATE")
            self._committed_changes = self._db.total_changes
        except sqlite3.OperationalError:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """What was taken away since the last commit waits again: it is sent twice rather than never."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._db.execute("BEGIN IMMEDIATE")
        self._recount()

    def _recount(self) -> None:
        self.count, self.bytes = self._db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM item").fetchone()

    def _account(self) -> None:
        """Count what was written, and keep the log and the file small."""
        size = self._wal_size()
        self.bytes_written += max(0, size - self._wal_bytes)
        if size >= WAL_BYTES:
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            if free > _SPARE_PAGES:
                # Not execute: that would step once, which frees one page.
                self._db.executescript(f"PRAGMA incremental_vacuum({free - _SPARE_PAGES // 2})")
            pages = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[1]
            self.bytes_written += max(0, pages) * _PAGE_BYTES
            size = self._wal_size()
        self._wal_bytes = size

    def close(self) -> None:
        """Close; what was not committed is forgotten."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._db.close()

    def _delete(self, where: str, values: tuple[int, ...]) -> None:
        rows = self._db.execute(f"SELECT count(*), coalesce(sum(bytes), 0) FROM item WHERE {where}", values).fetchone()
        self._db.execute(f"DELETE FROM item WHERE {where}", values)
        self.count, self.bytes = self.count - rows[0], self.bytes - rows[1]

    def _wal_size(self) -> int:
        return self._wal.stat().st_size if self._wal.exists() else 0
