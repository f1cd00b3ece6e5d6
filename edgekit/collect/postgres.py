"""The history in a PostgreSQL that exists already: collectors share it, each with sites of its own.

A site is the shard, so a device's sequence never splits. A collector holds an advisory lock on each of its sites for
as long as its session lives: what it commits, it commits over that session, so one that was cut off can store nothing
after another one took its site over. Commits are synchronous whatever the server's default: an `ack` is a promise.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from edgekit.collect.history import Window, as_stored, numbers, page_of, read_secret, rollup_of
from edgekit.collect.ledger import Page
from edgekit.collect.rollup import LEVELS_S, Place, Rollup, at_level, merge
from edgekit.errors import ConfigError, UnreachableError

logger = logging.getLogger(__name__)

MIGRATIONS = (
    """
    CREATE TABLE edgekit_site(id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        rolled BIGINT NOT NULL DEFAULT 0);
    CREATE TABLE edgekit_device(id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        site INTEGER NOT NULL REFERENCES edgekit_site, device TEXT NOT NULL, UNIQUE(site, device));
    CREATE TABLE edgekit_page(device INTEGER, epoch BIGINT, next BIGINT NOT NULL, ahead BYTEA, lost BYTEA,
        seen_ms BIGINT NOT NULL, PRIMARY KEY(device, epoch));
    CREATE TABLE edgekit_window(site INTEGER, number BIGINT, device INTEGER NOT NULL, epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL, at_ms BIGINT NOT NULL, received_ms BIGINT NOT NULL, payload BYTEA NOT NULL,
        PRIMARY KEY(site, number));
    CREATE TABLE edgekit_event(number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device INTEGER NOT NULL,
        received_ms BIGINT NOT NULL, payload BYTEA NOT NULL);
    CREATE TABLE edgekit_rollup(level_s INTEGER, start_s BIGINT, device INTEGER, model TEXT, lane TEXT, artifact TEXT,
        payload BYTEA NOT NULL, PRIMARY KEY(level_s, start_s, device, model, lane, artifact));
    """,
)
"""What brings a database from one version to the next, in order. Never edited once released; only added to."""
_ALL, _MIGRATING = 0, -1
"""Second keys of our advisory locks beside those of the sites; the first is of the schema that holds our tables."""


def schema_script() -> str:
    """All of it as one script, for a server on which collectors may not create tables."""
    version = "CREATE TABLE IF NOT EXISTS edgekit_schema(version INTEGER NOT NULL);"
    return f"BEGIN;\n{version}\n{''.join(MIGRATIONS)}\nINSERT INTO edgekit_schema VALUES({len(MIGRATIONS)});\nCOMMIT;\n"


class Postgres:
    """The open history of some sites (none given: of all). See `history.History`."""

    def __init__(self, address: str, *, sites: Sequence[str] = (), password_file: Path | None = None) -> None:
        """Raises ConfigError (not ours, a site that another collector has), UnreachableError (no such server)."""
        self.errors: tuple[type[Exception], ...] = (psycopg.Error, UnreachableError)
        self.path = _without_secret(address)
        secret = read_secret(password_file) if password_file else None
        try:
            self._db = psycopg.connect(
                address, password=secret, connect_timeout=10, application_name="edgekit collect",
                client_encoding="utf8",  # else texts of a server in SQL_ASCII would come as bytes
                keepalives_idle=10, keepalives_interval=5, keepalives_count=3,
            )  # fmt: skip
        except psycopg.OperationalError as e:
            raise UnreachableError(self.path, str(e).strip().splitlines()[-1]) from e
        except psycopg.ProgrammingError as e:
            raise ConfigError("--data", None, f"{self.path}: {str(e).strip()}") from e
        try:
            self._migrate()
            self._lock(sites)
            self._load(sites)
        except psycopg.Error as e:
            self.close()
            raise ConfigError(self.path, None, f"cannot be used as a history: {str(e).strip().splitlines()[0]}") from e
        except ConfigError:
            self.close()
            raise

    def device(self, site: str, device: str) -> int:
        key = (site, device)
        if (known := self.devices.get(key)) is not None:
            return known
        if site not in self._sites:
            row = self._db.execute(
                "INSERT INTO edgekit_site(name) VALUES(%s) ON CONFLICT(name) DO UPDATE SET name = excluded.name "
                "RETURNING id", (site,)
            ).fetchone()  # fmt: skip
            assert row is not None
            self._sites[site] = int(row[0])
        row = self._db.execute(
            "INSERT INTO edgekit_device(site, device) VALUES(%s, %s) RETURNING id", (self._sites[site], device)
        ).fetchone()
        assert row is not None
        made = int(row[0])
        self.devices[key], self.names[made] = made, key
        return made

    def page(self, device: int, epoch: int) -> Page:
        row = self._db.execute(
            "SELECT next, ahead, lost FROM edgekit_page WHERE device = %s AND epoch = %s", (device, epoch)
        ).fetchone()
        return page_of(row) if row else Page()

    def commit(
        self,
        windows: Iterable[Window],
        events: Iterable[tuple[int, int, bytes]],
        pages: Mapping[tuple[int, int], Page],
        *,
        now_ms: int,
    ) -> None:
        with self._whole(), self._db.cursor() as cursor:
            words = "COPY edgekit_window(site, number, device, epoch, seq, at_ms, received_ms, payload) FROM STDIN"
            with cursor.copy(words) as copy:
                for window in windows:
                    copy.write_row((self._sites[self.names[window.device][0]], *window))
            cursor.executemany(
                "INSERT INTO edgekit_event(device, received_ms, payload) VALUES(%s, %s, %s)", list(events)
            )
            cursor.executemany(
                "INSERT INTO edgekit_page VALUES(%s, %s, %s, %s, %s, %s) ON CONFLICT(device, epoch) DO UPDATE SET "
                "next = excluded.next, ahead = excluded.ahead, lost = excluded.lost, seen_ms = excluded.seen_ms",
                [
                    (device, epoch, page.next, numbers(page.ahead), numbers(page.lost), now_ms)
                    for (device, epoch), page in pages.items()
                ],
            )

    def unpoured(self) -> Iterator[Window]:
        rows = self._db.execute(
            "SELECT w.number, w.device, w.epoch, w.seq, w.at_ms, w.received_ms, w.payload FROM edgekit_window w "
            "JOIN edgekit_site s ON s.id = w.site WHERE w.number > s.rolled AND s.id = ANY(%s) ORDER BY w.number",
            (self._ids(),),
        )
        for row in rows:
            yield Window._make((*row[:6], bytes(row[6])))

    def windows(self) -> Iterator[Window]:
        """All that are stored of our sites, in the order in which they came."""
        rows = self._db.execute(
            "SELECT number, device, epoch, seq, at_ms, received_ms, payload FROM edgekit_window "
            "WHERE site = ANY(%s) ORDER BY number", (self._ids(),)
        )  # fmt: skip
        for row in rows:
            yield Window._make((*row[:6], bytes(row[6])))

    def pour(self, places: Mapping[Place, Rollup], *, rolled: int) -> None:
        with self._whole(), self._db.cursor() as cursor:
            for level_s in LEVELS_S:
                added = at_level(dict(places), level_s)
                known = self._known(level_s, added)
                cursor.executemany(
                    "INSERT INTO edgekit_rollup VALUES(%s, %s, %s, %s, %s, %s, %s) "
                    "ON CONFLICT(level_s, start_s, device, model, lane, artifact) "
                    "DO UPDATE SET payload = excluded.payload",
                    [
                        (level_s, *place, as_stored(merge(known[place], rollup) if place in known else rollup))
                        for place, rollup in added.items()
                    ],
                )
            cursor.execute("UPDATE edgekit_site SET rolled = %s WHERE id = ANY(%s)", (rolled, self._ids()))

    def rollups(self, level_s: int, *, from_s: float = 0.0, to_s: float = 2**62) -> Iterator[tuple[Place, Rollup]]:
        rows = self._db.execute(
            "SELECT start_s, device, model, lane, artifact, payload FROM edgekit_rollup "
            "WHERE level_s = %s AND start_s >= %s AND start_s < %s AND device = ANY(%s)",
            (level_s, int(from_s), int(to_s), list(self.names)),
        )
        for *place, payload in rows:
            yield Place(*place), rollup_of(bytes(payload))

    def forget_before(self, *, windows_ms: int, rollups_s: Mapping[int, float], pages_ms: int) -> None:
        devices = list(self.names)
        with self._whole():
            run = self._db.execute
            run(
                "DELETE FROM edgekit_window w USING edgekit_site s WHERE s.id = w.site AND s.id = ANY(%s) "
                "AND w.received_ms < %s AND w.number <= s.rolled", (self._ids(), windows_ms)
            )  # fmt: skip
            run("DELETE FROM edgekit_event WHERE received_ms < %s AND device = ANY(%s)", (windows_ms, devices))
            for level_s, before_s in rollups_s.items():
                run(
                    "DELETE FROM edgekit_rollup WHERE level_s = %s AND start_s < %s AND device = ANY(%s)",
                    (level_s, int(before_s), devices),
                )
            run("DELETE FROM edgekit_page WHERE seen_ms < %s AND device = ANY(%s)", (pages_ms, devices))

    def forget(self, site: str, device: str) -> bool:
        number = self.devices.pop((site, device), None)
        if number is None:
            return False
        del self.names[number]
        with self._whole():
            for table in ("page", "window", "event", "rollup"):
                where = sql.SQL("DELETE FROM {} WHERE device = %s").format(sql.Identifier(f"edgekit_{table}"))
                self._db.execute(where, (number,))
            self._db.execute("DELETE FROM edgekit_device WHERE id = %s", (number,))
        return True

    def close(self) -> None:
        """End the session. Its locks go first: the server may notice its end when another collector has asked."""
        with suppress(psycopg.Error):  # the connection may be gone
            self._db.rollback()
            self._db.execute("SELECT pg_advisory_unlock_all()")
        self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is done in it is committed, with what reading or a new device had begun; or none of it."""
        try:
            yield
            self._db.commit()
        except BaseException:
            with suppress(psycopg.Error):  # the connection may be gone, and what was begun with it
                self._db.rollback()
            raise

    def _known(self, level_s: int, places: Mapping[Place, Rollup]) -> dict[Place, Rollup]:
        rows = self._db.execute(
            "SELECT start_s, device, model, lane, artifact, payload FROM edgekit_rollup "
            "WHERE level_s = %s AND start_s = ANY(%s) AND device = ANY(%s)",
            (level_s, list({place.start_s for place in places}), list({place.device for place in places})),
        )
        return {Place(*place): rollup_of(bytes(payload)) for *place, payload in rows}

    def _ids(self) -> list[int]:
        return list(self._sites.values())

    def _migrate(self) -> None:
        """Bring the tables to our version; collectors that start together wait for one another."""
        with self._whole():
            row = self._db.execute("SELECT current_schema()").fetchone()
            self._space = lock_key(f"edgekit {row and row[0]}")
            self._db.execute("SELECT pg_advisory_xact_lock(%s, %s)", (self._space, _MIGRATING))
            found = self._db.execute("SELECT to_regclass('edgekit_schema')").fetchone()
            if not found or found[0] is None:  # asked first: a collector may have no right to create tables
                self._db.execute("CREATE TABLE edgekit_schema(version INTEGER NOT NULL)")
            row = self._db.execute("SELECT max(version) FROM edgekit_schema").fetchone()
            version = int(row[0]) if row and row[0] is not None else 0
            if version > len(MIGRATIONS):
                problem = f"its format is {version}, this edgekit reads {len(MIGRATIONS)}"
                raise ConfigError(self.path, None, problem)
            for migration in MIGRATIONS[version:]:
                self._db.execute(migration.encode())
            if version < len(MIGRATIONS):
                self._db.execute("DELETE FROM edgekit_schema")
                self._db.execute("INSERT INTO edgekit_schema VALUES(%s)", (len(MIGRATIONS),))
        with self._whole():
            self._db.execute("SELECT set_config('synchronous_commit', 'on', false) WHERE "
                             "current_setting('synchronous_commit') = 'off'")  # fmt: skip
            row = self._db.execute("SHOW fsync").fetchone()
        if row and row[0] == "off":
            logger.warning("%s runs with fsync=off: a power cut there can lose what was acknowledged", self.path)

    def _lock(self, sites: Sequence[str]) -> None:
        """Hold our sites until this session ends. Raises ConfigError when another collector has one."""
        wanted = [("pg_try_advisory_lock_shared" if sites else "pg_try_advisory_lock", _ALL, "")]
        wanted += [("pg_try_advisory_lock", lock_key(site), site) for site in sorted(set(sites))]
        with self._whole():
            for function, key, site in wanted:
                row = self._db.execute(f"SELECT {function}(%s, %s)", (self._space, key)).fetchone()
                if not row or not row[0]:
                    whose = f"site {site}" if site else ("all sites" if sites else "some sites of it")
                    problem = f"another collector collects {whose}; end it first, or share with --site"
                    raise ConfigError(self.path, None, problem)

    def _load(self, sites: Sequence[str]) -> None:
        with self._whole():
            every = self._db.execute("SELECT id, name, rolled FROM edgekit_site").fetchall()
            ours = [row for row in every if not sites or row[1] in sites]
            self._sites: dict[str, int] = {name: number for number, name, _ in ours}
            names = {number: name for number, name, _ in ours}
            rows = self._db.execute(
                "SELECT id, site, device FROM edgekit_device WHERE site = ANY(%s)", (self._ids(),)
            ).fetchall()
            self.devices: dict[tuple[str, str], int] = {(names[site], name): number for number, site, name in rows}
            self.names: dict[int, tuple[str, str]] = {number: key for key, number in self.devices.items()}
            newest = self._db.execute(
                "SELECT coalesce(max(number), 0) FROM edgekit_window WHERE site = ANY(%s)", (self._ids(),)
            ).fetchone()
        self.next_number: int = max([int(newest[0]) if newest else 0, *(row[2] for row in ours)]) + 1


def lock_key(name: str) -> int:
    """31 bits of a name's hash, never 0: advisory locks have numbers for names."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (2**31 - 1) + 1


def _without_secret(address: str) -> str:
    """The address for messages. Raises ConfigError when it holds a password: others can read a command's words."""
    parts = urlsplit(address)
    if parts.password is not None or "password=" in parts.query:
        raise ConfigError("--data", None, "passwords come by file: --data-password-file, or ~/.pgpass")
    return address
