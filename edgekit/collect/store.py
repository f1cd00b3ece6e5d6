"""The collector's history in one SQLite file: windows, events, rollups, and how far each device is.

SQLite and not DuckDB: four small durable commits a second are what SQLite is made for and a column store is not; it is
in Python's standard library, while DuckDB would add 50 MB to the smallest installation; and histograms are merged in
Python either way. WAL with synchronous=FULL: what `commit` returned from survives a power cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from edgekit.collect.history import Window, as_stored, numbers, page_of, rollup_of
from edgekit.collect.ledger import Page
from edgekit.collect.rollup import LEVELS_S, Place, Rollup, at_level, merge
from edgekit.errors import ConfigError

VERSION = 1
_SCHEMA = f"""
CREATE TABLE device(id INTEGER PRIMARY KEY, site TEXT NOT NULL, device TEXT NOT NULL, UNIQUE(site, device));
CREATE TABLE page(
    device INTEGER, epoch INTEGER, next INTEGER NOT NULL, ahead BLOB, lost BLOB, seen_ms INTEGER NOT NULL,
    PRIMARY KEY(device, epoch)) WITHOUT ROWID;
CREATE TABLE window(
    number INTEGER PRIMARY KEY, device INTEGER NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE event(
    number INTEGER PRIMARY KEY, device INTEGER NOT NULL, received_ms INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE rollup(
    level_s INTEGER, start_s INTEGER, device INTEGER, model TEXT, lane TEXT, artifact TEXT, payload BLOB NOT NULL,
    PRIMARY KEY(level_s, start_s, device, model, lane, artifact)) WITHOUT ROWID;
CREATE TABLE fact(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO fact VALUES('rolled', 0);
PRAGMA user_version = {VERSION};
"""


class Store:
    """The open file; one writer at a time. See `history.History`."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is no history of ours, or that another collector has open."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=1.0, check_same_thread=False)
        except (OSError, sqlite3.Error) as e:
            raise ConfigError(path, None, f"cannot be used as a history: {e}") from e
        try:
            known, newest = self._prepare()
        except sqlite3.Error as e:
            self._db.close()
            raise ConfigError(path, None, f"cannot be used as a history: {e}") from e
        except ConfigError:
            self._db.close()
            raise
        self.devices: dict[tuple[str, str], int] = {(site, name): number for number, site, name in known}
        self.names: dict[int, tuple[str, str]] = {number: key for key, number in self.devices.items()}
        self.next_number: int = max(newest, self.rolled) + 1

    def _prepare(self) -> tuple[list[tuple[int, str, str]], int]:
        """The devices that it knows, by number, and its newest window. Raises ConfigError, sqlite3.Error."""
        run = self._db.execute
        run("PRAGMA auto_vacuum=INCREMENTAL")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        run("PRAGMA wal_autocheckpoint=4000")
        run("PRAGMA cache_size=-32768")
        (version,) = run("PRAGMA user_version").fetchone()
        if version == 0:
            self._db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
        elif version != VERSION:
            raise ConfigError(self.path, None, f"its format is {version}, this edgekit reads {VERSION}")
        known = run("SELECT id, site, device FROM device").fetchall()
        (newest,) = run("SELECT coalesce(max(number), 0) FROM window").fetchone()
        return known, int(newest)

    @property
    def rolled(self) -> int:
        """The last window that the rollups contain."""
        (number,) = self._db.execute("SELECT value FROM fact WHERE name = 'rolled'").fetchone()
        return int(number)

    def device(self, site: str, device: str) -> int:
        """The number of a device, made at first sight; durable with the next commit."""
        key = (site, device)
        if (known := self.devices.get(key)) is not None:
            return known
        self._begin()
        made = int(self._db.execute("INSERT INTO device(site, device) VALUES(?, ?)", key).lastrowid or 0)
        self.devices[key], self.names[made] = made, key
        return made

    def page(self, device: int, epoch: int) -> Page:
        """How far an epoch of a device is; an empty page for a new one."""
        row = self._db.execute("SELECT next, ahead, lost FROM page WHERE device = ? AND epoch = ?", (device, epoch))
        if (found := row.fetchone()) is None:
            return Page()
        return page_of(found)

    def commit(
        self,
        windows: Iterable[Window],
        events: Iterable[tuple[int, int, bytes]],
        pages: Mapping[tuple[int, int], Page],
        *,
        now_ms: int,
    ) -> None:
        """Store windows, events (device, received_ms, payload) and how far the devices are: all or nothing."""
        self._begin()
        try:
            run = self._db.executemany
            run("INSERT INTO window VALUES(?, ?, ?, ?, ?, ?, ?)", windows)
            run("INSERT INTO event(device, received_ms, payload) VALUES(?, ?, ?)", events)
            rows = (
                (device, epoch, page.next, numbers(page.ahead), numbers(page.lost), now_ms)
                for (device, epoch), page in pages.items()
            )
            run("INSERT OR REPLACE INTO page VALUES(?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK") if self._db.in_transaction else None
            raise

    def windows(self, *, after: int = 0, device: int | None = None) -> Iterator[Window]:
        """Stored windows in the order in which they came."""
        where, values = ("AND device = ?", (after, device)) if device is not None else ("", (after,))
        for row in self._db.execute(f"SELECT * FROM window WHERE number > ? {where} ORDER BY number", values):
            yield Window(*row)

    def unpoured(self) -> Iterator[Window]:
        """Stored windows that no rollup contains yet."""
        return self.windows(after=self.rolled)

    def pour(self, places: Mapping[Place, Rollup], *, rolled: int) -> None:
        """Add rollups of five minutes to all levels; they contain every window up to `rolled`. All or nothing."""
        self._begin()
        key = "level_s = ? AND start_s = ? AND device = ? AND model = ? AND lane = ? AND artifact = ?"
        try:
            for level_s in LEVELS_S:
                for place, rollup in at_level(dict(places), level_s).items():
                    known = self._db.execute(f"SELECT payload FROM rollup WHERE {key}", (level_s, *place)).fetchone()
                    total = merge(rollup_of(known[0]), rollup) if known else rollup
                    row = (level_s, *place, as_stored(total))
                    self._db.execute("INSERT OR REPLACE INTO rollup VALUES(?, ?, ?, ?, ?, ?, ?)", row)
            self._db.execute("UPDATE fact SET value = ? WHERE name = 'rolled'", (rolled,))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK") if self._db.in_transaction else None
            raise

    def rollups(self, level_s: int, *, from_s: float = 0.0, to_s: float = 2**62) -> Iterator[tuple[Place, Rollup]]:
        """Rollups of one level whose span begins in from_s <= start < to_s."""
        rows = self._db.execute(
            "SELECT start_s, device, model, lane, artifact, payload FROM rollup "
            "WHERE level_s = ? AND start_s >= ? AND start_s < ?",
            (level_s, from_s, to_s),
        )
        for *place, payload in rows:
            yield Place(*place), rollup_of(payload)

    def forget_before(self, *, windows_ms: int, rollups_s: Mapping[int, float], pages_ms: int) -> None:
        """Delete what is older: windows and events received before, rollups by level, pages not touched since."""
        self._begin()
        run = self._db.execute
        newest_old = "SELECT max(number) FROM window WHERE received_ms < ? AND number <= ?"
        run(f"DELETE FROM window WHERE number <= ({newest_old})", (windows_ms, self.rolled))
        run("DELETE FROM event WHERE received_ms < ?", (windows_ms,))
        for level_s, before_s in rollups_s.items():
            run("DELETE FROM rollup WHERE level_s = ? AND start_s < ?", (level_s, before_s))
        run("DELETE FROM page WHERE seen_ms < ?", (pages_ms,))
        run("COMMIT")
        (free,) = run("PRAGMA freelist_count").fetchone()
        if free > 25_000:  # 100 MB
            self._db.executescript("PRAGMA incremental_vacuum(20000)")

    def forget(self, site: str, device: str) -> bool:
        """Delete everything of one device; whether there was anything."""
        number = self.devices.pop((site, device), None)
        if number is None:
            return False
        del self.names[number]
        self._begin()
        for table in ("page", "window", "event", "rollup"):
            self._db.execute(f"DELETE FROM {table} WHERE device = ?", (number,))
        self._db.execute("DELETE FROM device WHERE id = ?", (number,))
        self._db.execute("COMMIT")
        return True

    def close(self) -> None:
        self._db.close()

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
