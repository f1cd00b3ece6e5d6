"""Measurements on disk, reused while they still speak of the same artifact, runtime, settings and machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.record import Measurement, Settings
from edgekit.errors import ConfigError
from edgekit.files import write_atomic
from edgekit.strict import read_json


def save(folder: Path, measurements: Sequence[Measurement]) -> None:
    """Write each to a file of its own, atomically; a later one of the same candidate replaces the earlier."""
    for measurement in measurements:
        key = _key(measurement.artifact_sha256, measurement.settings, measurement.device)
        write_atomic(folder / f"{key}.json", msgspec.json.format(msgspec.json.encode(measurement), indent=2))


def load(folder: Path, candidates: Sequence[Candidate], device: Mapping[str, str]) -> dict[str, Measurement]:
    """Candidate name -> its measurement, for those that have a valid one. An unreadable file counts as none."""
    found: dict[str, Measurement] = {}
    for candidate in candidates:
        settings = to_record(candidate.settings)
        path = folder / f"{_key(candidate.artifact.record.sha256, settings, device)}.json"
        if not path.is_file():
            continue
        try:
            found[candidate.name] = read_json(path, Measurement)
        except ConfigError:  # written by another release: measure again
            continue
    return found


def merge(folder: Path, measurements: Sequence[Measurement]) -> int:
    """Add measurements that were taken elsewhere; of the same candidate and machine the later one stays.

    Returns how many were added or replaced an earlier one.
    """
    added = 0
    for measurement in measurements:
        path = folder / f"{_key(measurement.artifact_sha256, measurement.settings, measurement.device)}.json"
        try:
            is_newer = (
                not path.is_file() or read_json(path, Measurement).taken_at_unix_ms < measurement.taken_at_unix_ms
            )
        except ConfigError:
            is_newer = True
        if is_newer and measurement.latency is not None:
            save(folder, [measurement])
            added += 1
    return added


def load_all(folder: Path) -> list[Measurement]:
    """Every readable measurement of the folder, oldest first."""
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(read_json(path, Measurement))
        except ConfigError:
            continue
    return sorted(found, key=lambda measurement: measurement.taken_at_unix_ms)


def _key(sha256: str, settings: Settings, device: Mapping[str, str]) -> str:
    """Same text for the same artifact, runtime version, settings and machine."""
    identity = [sha256, msgspec.to_builtins(settings), dict(device)]
    return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:32]
