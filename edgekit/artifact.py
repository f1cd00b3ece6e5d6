"""One file of a model in one format and precision, and the record that says how it came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgekit.errors import ArtifactError, CatalogError
from edgekit.files import write_atomic
from edgekit.strict import read_json

RECORD_NAME = "record.json"
STANDARD = "standard"
UNKNOWN = "unknown"
"""The precision of a user's own file: nobody has declared it, and it is its own standard."""


def is_flash(precision: str) -> bool:
    """Compressed; full precision, whether as published or only rewritten, is the standard's kind."""
    return precision not in ("float32", UNKNOWN)


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """An accuracy as measured with one runtime on one kind of CPU: it belongs to all three."""

    metric: str
    value: float
    "Higher is better, 1.0 is perfect, whatever the metric."
    standard_value: float | None = None
    "The standard artifact's value on the same samples."
    sample_count: int
    per_output_sqnr_db: Mapping[str, float | None] = {}
    "Signal to quantisation-noise ratio against the standard, per output tensor; None when they are identical."
    runtime: str
    isa: str
    "The CPU's INT8-relevant features, such as 'x86_64 avx512_vnni'."

    @property
    def ratio(self) -> float | None:
        """Share of the standard's value that is kept."""
        return self.value / self.standard_value if self.standard_value else None


class LayerSparsity(msgspec.Struct, frozen=True, kw_only=True):
    """What the weights of one layer hold, measured from the written file, after quantisation."""

    zeros: float
    "Share of the weights that is zero, 0..1."
    weights: int
    two_of_four: bool
    "Of every four neighbouring input channels at most two are not zero."
    why_not_eligible: str | None = None
    "Why no sparse kernel would take this layer; None: one would."


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `record.json` beside an artifact says (design: Files, artifact record)."""

    schema: int = 1
    model: str
    name: str
    '"standard", "flash-int8-static", …; unique within the model.'
    file: str
    "Relative to the record's folder."
    format: str
    '"onnx" or "tflite".'
    precision: str
    '"float32", "float16", "int8", "int8-dynamic".'
    sha256: str
    size_bytes: int
    made_from_sha256: str | None = None
    recipe: Mapping[str, str] = {}
    "What was done, in words and numbers, in order."
    tools: Mapping[str, str] = {}
    "Distribution -> version that made it."
    calibration_sha256: str | None = None
    axes: Mapping[str, int] = {}
    "Axes that are fixed in this artifact."
    node_counts: Mapping[str, int] = {}
    "Operator kind -> count, so that an 'INT8' artifact can be checked to hold integer kernels."
    plan: Mapping[str, str] = {}
    "Of mixed precision: node, as `kind output` -> its precision and why."
    sparsity: Mapping[str, LayerSparsity] = {}
    "Of a pruned artifact: layer, as `kind output` -> what its weights really hold."
    accuracy: Accuracy | None = None
    fit: bool = True
    why_unfit: str | None = None
    requires: tuple[str, ...] = ()
    bound_to: Mapping[str, str] = {}
    """What it is for and nothing else: "runtime", and for a runtime's own saved form also "version" and "isa".

    Empty for a portable artifact. Elsewhere such a file may fail, be slow, or answer wrongly.
    """
    twin_of: str | None = None
    "The portable artifact whose optimised form this is; where it runs, its twin need not be tried in that runtime."
    notes: tuple[str, ...] = ()


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A record together with the place of its file on this machine."""

    record: ArtifactRecord
    path: Path

    def verify(self) -> None:
        """Raises ArtifactError when the file is missing or its content is not what the record says."""
        verify_file(self.path, sha256=self.record.sha256, size_bytes=self.record.size_bytes)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def verify_file(path: Path, *, sha256: str, size_bytes: int) -> None:
    """Raises ArtifactError unless `path` holds exactly the promised bytes."""
    try:
        size = path.stat().st_size
        if size != size_bytes:
            raise ArtifactError(path, f"has {size} bytes, expected {size_bytes}")
        actual = sha256_of(path)
    except OSError as e:
        raise ArtifactError(path, f"cannot be read: {e.strerror}") from e
    if actual != sha256:
        raise ArtifactError(path, f"sha256 is {actual[:16]}…, expected {sha256[:16]}…")


def save_record(folder: Path, record: ArtifactRecord) -> None:
    """Write `record.json` atomically, after the artifact's own file is in place."""
    write_atomic(folder / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record), indent=2))


def load_artifacts(model_folder: Path) -> list[Artifact]:
    """Every recorded artifact under `model_folder`/<name>/, by name. A folder without a record is not one yet."""
    found = []
    for path in sorted(model_folder.glob(f"*/{RECORD_NAME}")):
        record = read_json(path, ArtifactRecord, error=CatalogError)
        found.append(Artifact(record=record, path=path.parent / record.file))
    return found
