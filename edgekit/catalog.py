"""The boards and models edgekit knows, from `devices/` and `models/`: in a checkout first, else the installed copy."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import msgspec

from edgekit.artifact import UNKNOWN, sha256_of
from edgekit.board import Board
from edgekit.config import NAME_PATTERN
from edgekit.errors import ArtifactError, CatalogError
from edgekit.manifest import Model, Source, problem_in
from edgekit.profiles import board_tables as board_tables
from edgekit.profiles import data_folder as data_folder
from edgekit.strict import read_toml

MANIFEST_NAME = "model.toml"
FORMATS = {".onnx": "onnx", ".tflite": "tflite"}
"""Suffix of a model file -> its format."""


def load_boards() -> tuple[Board, ...]:
    """Every board profile, by id. Raises CatalogError for the first file that does not hold."""
    return tuple(load_board(path) for path in sorted(data_folder("devices").glob("*.toml")))


def load_board(path: Path) -> Board:
    """One board profile. Raises CatalogError naming the file, the key and the nearest known key."""
    board = read_toml(path, Board, error=CatalogError)
    if board.id != path.stem or not re.match(NAME_PATTERN, board.id):
        raise CatalogError(path, "id", f"'{board.id}' must be the file's own name, of a-z, 0-9, '_' and '-'")
    return board


def load_models() -> tuple[Model, ...]:
    """Every model of the catalog, by name. Raises CatalogError for the first manifest that does not hold."""
    return tuple(load_manifest(path) for path in sorted(data_folder("models").glob(f"*/{MANIFEST_NAME}")))


def load_model(name_or_path: str) -> Model:
    """The model of that name; or of a manifest's folder; or of a user's own .onnx or .tflite file.

    Raises CatalogError for an unknown name (with the nearest known ones), ArtifactError for a file that is not there.
    """
    path = Path(name_or_path)
    if path.suffix.lower() in FORMATS:
        return _bare_model(path)
    if (path / MANIFEST_NAME).is_file():
        return load_manifest(path / MANIFEST_NAME)
    folder = data_folder("models")
    if re.match(NAME_PATTERN, name_or_path) and (folder / name_or_path / MANIFEST_NAME).is_file():
        return load_manifest(folder / name_or_path / MANIFEST_NAME)
    known = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))
    near = difflib.get_close_matches(name_or_path, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"edgekit knows {', '.join(known) or 'none'}."
    raise CatalogError(name_or_path, None, f"no such model; {hint} Your own model: give its .onnx or .tflite file")


def load_manifest(path: Path) -> Model:
    """One `model.toml`. Raises CatalogError naming the file and the key."""
    model = read_toml(path, Model, error=CatalogError)
    if problem := problem_in(model):
        raise CatalogError(path, *problem)
    if not re.match(NAME_PATTERN, model.name):
        raise CatalogError(path, "name", f"'{model.name}' must be 1 to 63 of a-z, 0-9, '_' and '-'")
    return msgspec.structs.replace(model, folder=path.resolve().parent)


def _bare_model(path: Path) -> Model:
    """A model with nothing declared: the session will say what its tensors are."""
    try:
        sha256, size_bytes = sha256_of(path), path.stat().st_size
    except FileNotFoundError as e:
        raise ArtifactError(path, "no such file") from e
    except OSError as e:
        raise ArtifactError(path, f"cannot be read: {e.strerror}") from e
    name = re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower())[:63].strip("-") or "model"
    source = Source(
        file=str(path.resolve()),
        sha256=sha256,
        size_bytes=size_bytes,
        format=FORMATS[path.suffix.lower()],
        precision=UNKNOWN,
    )
    return Model(
        name=name,
        version=sha256[:12],
        task="tensors",
        summary=f"your own file {path.name}",
        source=source,
        metric="agreement",
        folder=path.resolve().parent,
    )
