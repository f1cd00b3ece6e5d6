"""A user's own model as a manifest: what was said on the command line, kept for the next build.

The folder is whole in itself: the model's file and the samples with their labels are written before the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import verify_file
from edgekit.build import pairs
from edgekit.build.samples import MOST_SAMPLES, Options, with_options
from edgekit.catalog import MANIFEST_NAME, load_manifest
from edgekit.errors import ArtifactError, UsageError
from edgekit.files import write_atomic
from edgekit.manifest import Model
from edgekit.pipeline.data import read_npy, read_npz


def write_manifest(model: Model, options: Options, folder: Path, *, overwrite: bool = False) -> Model:
    """The manifest of a user's own file in `folder`, read back; a build of it makes the same artifacts.

    Raises UsageError: a model of the catalog, something in the way and not `overwrite`, labels that do not fit;
    ArtifactError: the file has changed, or the disk is full.
    """
    path = folder / MANIFEST_NAME
    if model.source.file is None or not Path(model.source.file).is_absolute():
        raise UsageError(f"--write-manifest: {model.name} has a manifest; it is for your own .onnx file")
    if path.exists() and not overwrite:
        raise UsageError(f"--write-manifest: {path} is there already; --overwrite replaces it")
    chosen = with_options(model, options)
    source = model.folder / (model.source.file or "")
    verify_file(source, sha256=model.source.sha256, size_bytes=model.source.size_bytes)
    try:
        file = folder / source.name
        if file.exists() and file.read_bytes() != source.read_bytes():  # another model's, which its manifest names
            file = folder / f"{source.stem}-{model.source.sha256[:8]}{source.suffix}"
        if not file.exists():
            write_atomic(file, source.read_bytes())
        samples = None if options.calibration is None else _write_samples(folder, options, chosen.metric)
        write_atomic(path, _text(chosen, file.name, samples).encode())
    except OSError as e:
        raise ArtifactError(folder, f"cannot be written: {e.strerror or e}") from e
    return load_manifest(path)


def _write_samples(folder: Path, options: Options, metric: str | None) -> str:
    """Inputs and labels in one file, one label a sample: of a pair both have the pair's score.

    Named by content, so that a manifest that is there already stays right until it is replaced.
    """
    assert options.calibration is not None
    arrays: dict[str, Any] = dict(read_npz(options.calibration))
    if options.labels is not None:
        labels, count = read_npy(options.labels), min(len(value) for value in arrays.values())
        each = 2 if metric == pairs.METRIC else 1
        if labels.ndim != 1 or len(labels) * each < count:
            raise UsageError(
                f"{options.labels}: has shape {list(labels.shape)}, expected one label for each of {count}"
            )
        arrays["labels"] = np.repeat(labels, each)[:count]
    content = io.BytesIO()
    np.savez(content, **arrays)
    name = f"samples-{hashlib.sha256(content.getvalue()).hexdigest()[:8]}.npz"
    write_atomic(folder / name, content.getvalue())
    return name


def _text(model: Model, file: str, samples: str | None) -> str:
    """TOML. Its basic strings are JSON's, so JSON writes them."""
    lines = [
        f"name = {json.dumps(model.name)}",
        f"version = {json.dumps(model.version)}",
        f"task = {json.dumps(model.task)}",
        f"summary = {json.dumps(model.summary, ensure_ascii=False)}",
    ]
    if model.metric is not None:
        lines.append(f"metric = {json.dumps(model.metric)}")
    lines += [
        f"accuracy_floor = {model.accuracy_floor}",
        "",
        "[source]",
        f"file = {json.dumps(file, ensure_ascii=False)}",
        f"sha256 = {json.dumps(model.source.sha256)}",
        f"size_bytes = {model.source.size_bytes}",
        f"format = {json.dumps(model.source.format)}",
        f"precision = {json.dumps(model.source.precision)}",
    ]
    if samples is not None:
        lines += ["", "[data]", f"calibration = {json.dumps(samples)}", f"calibration_count = {MOST_SAMPLES}"]
    return "\n".join(lines) + "\n"
