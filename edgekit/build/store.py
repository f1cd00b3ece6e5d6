"""Where built artifacts lie: the file first, its record last, so that a kill at any point leaves no broken artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from edgekit.artifact import RECORD_NAME, Artifact, ArtifactRecord, save_record
from edgekit.errors import ArtifactError, CatalogError, EdgekitError
from edgekit.files import write_atomic
from edgekit.strict import read_json

KEY = "key"
REFUSAL_NAME = "refused.json"


def key_of(parts: Mapping[str, str]) -> str:
    """Hex SHA-256 over everything an artifact depends on."""
    text = "\n".join(f"{name}={value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def find(folder: Path, key: str) -> Artifact | None:
    """The artifact in `folder` if it was made from the same things and its file is whole."""
    try:
        record = read_json(folder / RECORD_NAME, ArtifactRecord, error=CatalogError)
        artifact = Artifact(record=record, path=folder / record.file)
        if record.recipe.get(KEY) != key:
            return None
        artifact.verify()
    except EdgekitError:  # no record, or a damaged one, or a damaged file: it is built again
        return None
    return artifact


def write_model(path: Path, model: onnx.ModelProto) -> None:
    """Serialise and write atomically. Raises ArtifactError: over 2 GiB, disk full."""
    try:
        write_atomic(path, model.SerializeToString())
    except ValueError as e:
        raise ArtifactError(path, "would be larger than 2 GiB") from e
    except OSError as e:
        raise ArtifactError(path, f"cannot be written: {e.strerror or e}") from e


def save(folder: Path, record: ArtifactRecord) -> Artifact:
    """Write the record of a file that is already in place, then remove what it no longer names.

    Raises ArtifactError (disk full, …).
    """
    try:
        save_record(folder, record)
        for other in folder.iterdir():
            if other.name not in (record.file, RECORD_NAME):
                other.unlink(missing_ok=True)
    except OSError as e:
        raise ArtifactError(folder / RECORD_NAME, f"cannot be written: {e.strerror or e}") from e
    return Artifact(record=record, path=folder / record.file)


class Refusal(Exception):
    """This artifact is not worth making or cannot be made from this model; others may be."""


def once(folder: Path, key: str, make: Callable[[], Artifact]) -> tuple[Artifact | None, str, bool]:
    """What was made or refused from the things of `key` before, else what `make` makes of them now.

    (the artifact or None, why there is none, whether it was tried now). A Refusal is remembered.
    """
    if reason := refusal(folder, key):
        return None, reason, False
    if (known := find(folder, key)) is not None:
        return known, "", False
    try:
        return make(), "", True
    except Refusal as e:
        refuse(folder, key, str(e))
        return None, str(e), True


def refuse(folder: Path, key: str, reason: str) -> None:
    """Remember that nothing was made from these things, and why; drop what was made from others."""
    try:
        forget(folder)
        write_atomic(folder / REFUSAL_NAME, json.dumps({KEY: key, "reason": reason}).encode())
    except OSError as e:
        raise ArtifactError(folder, f"cannot be written: {e.strerror or e}") from e


def refusal(folder: Path, key: str) -> str | None:
    """Why nothing was made from the things of `key`, if that was found out before."""
    try:
        known = json.loads((folder / REFUSAL_NAME).read_bytes())
    except (OSError, ValueError):  # never refused, or a damaged note: it is tried again
        return None
    return str(known.get("reason")) if isinstance(known, dict) and known.get(KEY) == key else None


def forget(folder: Path) -> None:
    """Remove an artifact that is no longer what would be built."""
    if not folder.is_dir():
        return
    try:
        (folder / RECORD_NAME).unlink(missing_ok=True)  # first: without it the rest is no artifact
        for other in folder.iterdir():
            other.unlink()
    except OSError as e:
        raise ArtifactError(folder, f"cannot be removed: {e.strerror or e}") from e
