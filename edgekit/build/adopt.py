"""A file that someone else compiled joins a model's artifacts: copied, hashed, recorded with what it requires."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgekit.artifact import STANDARD, Artifact, ArtifactRecord, load_artifacts, save_record, sha256_of
from edgekit.catalog import FORMATS
from edgekit.config import Home
from edgekit.errors import ArtifactError, UsageError
from edgekit.files import write_atomic
from edgekit.manifest import Model
from edgekit.runtimes.sniff import looks_like, read_head

UNSUPPORTED = {
    ".hef": "is compiled for Hailo and runs through HailoRT only, which this version does not open",
    ".rknn": "is compiled for Rockchip's NPU and runs through RKNN only, which this version does not open",
    ".engine": "is a TensorRT engine, bound to one GPU and release; use the ONNX file with the TensorRT provider",
    ".plan": "is a TensorRT engine, bound to one GPU and release; use the ONNX file with the TensorRT provider",
    ".blob": "is compiled for one accelerator by its vendor's own tool, whose runtime this version does not open",
}
_NAME = re.compile(r"[^a-z0-9_-]+")


def adopt(
    model: Model,
    path: Path,
    *,
    home: Home,
    requires: Sequence[str] = (),
    name: str | None = None,
    precision: str = "int8",
) -> Artifact:
    """`path` as an artifact of `model`, kept in the state folder. The same name again replaces what was there.

    Args:
        requires: shared libraries of the delegate that runs it, `libedgetpu.so.1`.
        name: None makes it from the file's name.

    Raises:
        ArtifactError: no such file, not what its name says, or a kind that no runtime here opens.
        UsageError: a name that belongs to the model already.
    """
    suffix = path.suffix.lower()
    head = read_head(path)
    if suffix in UNSUPPORTED:
        raise ArtifactError(path, UNSUPPORTED[suffix])
    if suffix not in FORMATS:
        raise ArtifactError(path, f"is neither {' nor '.join(FORMATS)}")
    kind = looks_like(head)
    if kind not in ("unknown", "a LiteRT model") or (kind == "a LiteRT model") != (suffix == ".tflite"):
        raise ArtifactError(path, f"is {kind if kind != 'unknown' else 'something else'}, not what its name says")
    chosen = name or _NAME.sub("-", path.stem.lower()).strip("-") or "added"
    taken = {STANDARD, *(artifact.name for artifact in model.artifacts)}
    if chosen in taken or _NAME.search(chosen):
        raise UsageError(f"--name {chosen}: must be of a-z, 0-9, '_' and '-', and none of {', '.join(sorted(taken))}")
    folder = home.artifacts(model.name) / chosen
    built = [a for a in load_artifacts(home.artifacts(model.name)) if a.record.name == chosen and a.record.recipe]
    if built:
        raise UsageError(f"--name {chosen}: `edgekit build` has made an artifact of this name; give another")
    try:
        write_atomic(folder / path.name, path.read_bytes())
        record = ArtifactRecord(
            model=model.name,
            name=chosen,
            file=path.name,
            format=FORMATS[suffix],
            precision=precision,
            sha256=sha256_of(path),
            size_bytes=path.stat().st_size,
            requires=tuple(requires),
            notes=("added by hand; its accuracy is measured where it runs",),
        )
        save_record(folder, record)
    except OSError as e:
        raise ArtifactError(folder, f"cannot be written: {e.strerror or e}") from e
    return Artifact(record=record, path=folder / path.name)
