"""Measurements on disk, reused while they still speak of the same artifact, runtime, settings, machine and conditions.

One SQLite file a model, readable with any SQLite tool (the column `measurement` is JSON). A format has a file of its
own, so a release that was rolled back finds what it wrote. WAL with synchronous=FULL: what `save` returned from
survives a power cut, and several benches may write at the same time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import lasting
from edgekit.bench.record import Measurement, Settings
from edgekit.errors import ConfigError
from edgekit.strict import read_json

logger = logging.getLogger(__name__)

VERSION = 1
FILE = f"measurements-{VERSION}.sqlite3"
_WAIT_S = 10.0
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS measurement(
    artifact_sha256 TEXT NOT NULL, settings TEXT NOT NULL, device TEXT NOT NULL, conditions TEXT NOT NULL,
    taken_at_unix_ms INTEGER NOT NULL, doubtful_count INTEGER NOT NULL, measurement TEXT NOT NULL,
    PRIMARY KEY(artifact_sha256, settings, device, conditions)) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
_PUT = """
INSERT INTO measurement VALUES(:sha256, :settings, :device, :conditions, :taken_at, :doubtful, :measurement)
ON CONFLICT DO UPDATE SET taken_at_unix_ms = excluded.taken_at_unix_ms, measurement = excluded.measurement,
    doubtful_count = CASE excluded.doubtful_count WHEN 0 THEN 0 ELSE measurement.doubtful_count + 1 END
WHERE excluded.taken_at_unix_ms >= measurement.taken_at_unix_ms AND excluded.measurement != measurement.measurement
"""
_GET = """
SELECT measurement, doubtful_count FROM measurement
WHERE artifact_sha256 = ? AND settings = ? AND device = ? AND conditions = ?
"""
_DECODER = msgspec.json.Decoder(Measurement)


class Stored(NamedTuple):
    """A measurement, and how often in a row its candidate was measured under doubtful conditions."""

    measurement: Measurement
    doubtful_count: int


def save(folder: Path, measurements: Sequence[Measurement]) -> int:
    """Keep them durably, all or none; of the same candidate, machine and conditions the later one stays.

    Returns how many were new or replaced an earlier one. Raises ConfigError when the disk does not let us.
    """
    with _opened(folder) as db:
        return _put(db, measurements)


def load(
    folder: Path, candidates: Sequence[Candidate], device: Mapping[str, str], under: Mapping[str, str]
) -> dict[str, Stored]:
    """Candidate name -> its measurement, for those that have a valid one; one of another release counts as none.

    Args:
        under: the lasting conditions (see `conditions.lasting`). Raises ConfigError when the file cannot be used.
    """
    found: dict[str, Stored] = {}
    with _opened(folder) as db:
        for candidate in candidates:
            key = _key(candidate.artifact.record.sha256, to_record(candidate.settings), device, under)
            row = db.execute(_GET, key).fetchone()
            if row is not None and (measurement := _decoded(row[0])) is not None:
                found[candidate.name] = Stored(measurement, row[1])
    return found


def load_all(folder: Path) -> list[Measurement]:
    """Every readable measurement of the model, oldest first. Makes no file. Raises ConfigError as `load` does."""
    if not (folder / FILE).is_file() and not any(folder.glob("*.json")):
        return []
    with _opened(folder) as db:
        rows = db.execute("SELECT measurement FROM measurement ORDER BY taken_at_unix_ms").fetchall()
    return [measurement for (text,) in rows if (measurement := _decoded(text)) is not None]


def _put(db: sqlite3.Connection, measurements: Sequence[Measurement]) -> int:
    before = db.total_changes
    with _transaction(db):
        db.executemany(_PUT, [_row(measurement) for measurement in measurements])
        return db.total_changes - before


def _row(measurement: Measurement) -> dict[str, str | int]:
    m = measurement
    sha256, settings, device, conditions = _key(m.artifact_sha256, m.settings, m.device, lasting(m.conditions))
    return {
        "sha256": sha256,
        "settings": settings,
        "device": device,
        "conditions": conditions,
        "taken_at": m.taken_at_unix_ms,
        "doubtful": int(bool(m.conditions.judged_bad)),
        "measurement": msgspec.json.encode(m).decode(),
    }


def _key(
    sha256: str, settings: Settings, device: Mapping[str, str], under: Mapping[str, str]
) -> tuple[str, str, str, str]:
    """Same texts for the same artifact, runtime version and settings, machine, and conditions."""
    way = msgspec.to_builtins(settings, order="deterministic")
    if settings.batch == 1:
        del way["batch"]  # as before there were batches: what was measured then still holds
    where, state = (msgspec.json.encode(value, order="deterministic").decode() for value in (device, under))
    return sha256, msgspec.json.encode(way).decode(), where, state


def _decoded(text: str) -> Measurement | None:
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:  # written by another release: measure again
        return None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """The file, made where there is none; a damaged one is set aside, and what it held is measured again."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(_sound(path)) as db:
            _adopt(db, folder)
            yield db
    except (OSError, sqlite3.Error) as e:
        raise ConfigError(path, None, f"measurements cannot be kept or read: {e}") from e


def _sound(path: Path) -> sqlite3.Connection:
    before = _inode(path)
    try:
        return _connect(path)
    except sqlite3.DatabaseError as e:
        if isinstance(e, sqlite3.OperationalError):  # busy, full, not allowed: no damage
            raise
        if _inode(path) == before:  # else another bench has set it aside by now
            _set_aside(path, str(e))
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError for what is no store of ours."""
    db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT_S)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"its format is {version}, not {VERSION}")
        else:
            (told,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if told != "ok":
                raise sqlite3.DatabaseError(told.replace("\n", " "))
    except BaseException:
        db.close()
        raise
    return db


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _set_aside(path: Path, why: str) -> None:
    """Out of the way but not lost, with its journal."""
    target = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    logger.warning("%s is damaged (%s): set aside as %s, measuring anew", path, why, target.name)
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):  # a journal need not be there
            os.replace(f"{path}{suffix}", f"{target}{suffix}")


def _adopt(db: sqlite3.Connection, folder: Path) -> None:
    """Take over what earlier releases kept as a JSON file each, once."""
    files = sorted(folder.glob("*.json"))
    if not files:
        return
    found = []
    for file in files:
        try:
            found.append(read_json(file, Measurement))
        except ConfigError as e:
            logger.warning("an old measurement is dropped: %s", e)
    _put(db, found)
    for file in files:  # after the commit: a power cut in between means to adopt them again, which changes nothing
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
