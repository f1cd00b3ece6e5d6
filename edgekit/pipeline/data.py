"""A model's calibration and evaluation samples as tensors, from built-in generators, .npz files or folders."""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import CatalogError
from edgekit.manifest import Model, TensorSpec
from edgekit.pipeline.generators import GENERATORS
from edgekit.pipeline.pipeline import Context, open_pipeline
from edgekit.pipeline.stateful import Run, first_state, walk

Array = np.ndarray[Any, Any]

CALIBRATION_SEED, EVALUATION_SEED = 1, 2
"""Different, so that nothing is judged on what it was calibrated with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One input and the truth about it. A stateful model's inputs have a leading frame axis (see `Prepared`)."""

    inputs: dict[str, Array]
    label: Any = None
    "What the metric compares with: a class name, a text, rectangles, spans. None: no label."
    context: Context = field(default_factory=Context)


def calibration(model: Model, axes: Mapping[str, int] | None = None) -> Iterator[Sample]:
    """At most `data.calibration_count` samples; none when the manifest declares no calibration data."""
    return _samples(model, model.data.calibration, model.data.calibration_count, CALIBRATION_SEED, axes)


def evaluation(model: Model, axes: Mapping[str, int] | None = None) -> Iterator[Sample]:
    """At most `data.evaluation_count` samples; none when the manifest declares no evaluation data."""
    return _samples(model, model.data.evaluation, model.data.evaluation_count, EVALUATION_SEED, axes)


def calibration_feeds(
    model: Model, run: Run, axes: Mapping[str, int] | None = None, *, max_frames: int = 256
) -> Iterator[dict[str, Array]]:
    """Calibration as complete feeds for single inferences, constants and state included.

    The state of a stateful model is the one that `run` (the standard artifact) leaves; at most `max_frames` of its
    frames are taken, evenly over every sample.
    """
    samples = list(calibration(model, axes))
    if not model.is_stateful:
        constants, _ = first_state(model)
        yield from ({**sample.inputs, **constants} for sample in samples)
        return
    total = sum(len(next(iter(sample.inputs.values()))) for sample in samples)
    stride = max(1, -(-total // max_frames))
    at = 0
    for sample in samples:
        for feed, _ in walk(model, run, sample.inputs):
            if at % stride == 0:
                yield feed
            at += 1


def example(
    model: Model, specs: Sequence[TensorSpec], axes: Mapping[str, int] | None = None, batch: int = 1
) -> dict[str, Array]:
    """One realistic feed for a single inference, for timing; noise within the dtype for what declares no data.

    `specs` are the session's own inputs, every axis bound or named in `axes` or in the manifest; with a `batch` of
    several items, of as many samples (those that there are, again and again) one after the other.
    """
    samples = [sample.inputs for sample in itertools.islice(calibration(model, axes), batch)]
    feed: dict[str, Array] = {}
    if samples:
        taken = list(itertools.islice(itertools.cycle(samples), batch))
        feed = {name: np.concatenate([s[name] for s in taken]) if batch > 1 else taken[0][name] for name in taken[0]}
        if model.is_stateful:
            feed = {name: value[len(value) // 2] for name, value in feed.items()}
    if model.inputs:
        constants, state = first_state(model)
        repeated = {name: np.repeat(value, batch, axis=0) if value.ndim else value for name, value in constants.items()}
        feed |= repeated | state
    rng = np.random.default_rng(0)
    chosen = model.default_axes | dict(axes or {})
    return {spec.name: _fitting(feed.get(spec.name), spec, chosen, rng) for spec in specs}


def data_sha256(model: Model, axes: Mapping[str, int] | None = None) -> str | None:
    """Hex SHA-256 over the calibration tensors themselves; None without calibration data."""
    digest = hashlib.sha256()
    count = 0
    for sample in calibration(model, axes):
        count += 1
        for name, value in sorted(sample.inputs.items()):
            digest.update(f"{name} {value.dtype} {value.shape};".encode())
            digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest() if count else None


def _samples(
    model: Model, where: str | None, count: int, seed: int, axes: Mapping[str, int] | None
) -> Iterator[Sample]:
    if where is None:
        return
    bound = model.default_axes | dict(axes or {})
    if where.startswith("generator:"):
        name = where.removeprefix("generator:")
        if name not in GENERATORS:
            problem = f"no generator '{name}'; there are {', '.join(GENERATORS)}"
            raise CatalogError(model.folder / "model.toml", "data", problem)
        made: Iterable[tuple[bytes, Any]] = ((file.raw, file.label) for file in GENERATORS[name](count, seed))
    elif (path := model.folder / where).suffix == ".npz":
        yield from _from_npz(model, path, count)
        return
    else:
        made = _from_folder(path, count)
    pipeline = open_pipeline(model)
    for raw, label in made:
        prepared = pipeline.preprocess(raw, axes=bound)
        yield Sample(inputs=prepared.inputs, label=label, context=prepared.context)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz. Raises CatalogError: no such file, not an .npz, or Python objects inside."""
    found = _load(path, "an .npz of plain arrays")
    if isinstance(found, dict):
        return found
    raise CatalogError(path, None, "not an .npz of plain arrays: it holds a single array")


def read_npy(path: Path) -> Array:
    """The array of an .npy. Raises CatalogError: no such file, not an .npy, several arrays, or Python objects."""
    found = _load(path, "an .npy of one plain array")
    if isinstance(found, dict):
        raise CatalogError(path, None, f"not an .npy of one plain array: it is an .npz of {', '.join(found) or 'none'}")
    return found


def _load(path: Path, wanted: str) -> dict[str, Array] | Array:
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                return {name: found[name] for name in found.files}
            return np.asarray(found)
    except FileNotFoundError as e:
        raise CatalogError(path, None, "no such file") from e
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as e:
        # Of what is no array at all numpy only says that a pickle could be loaded: no advice for us to pass on.
        is_advice = "pickle" in str(e)
        why = ": it holds Python objects" if "Object arrays" in str(e) else "" if is_advice else f": {e}"
        raise CatalogError(path, None, f"not {wanted}{why}") from e


def _from_npz(model: Model, path: Path, count: int) -> Iterator[Sample]:
    """Arrays by input name with a leading sample axis; a sample keeps a batch axis of one."""
    arrays = read_npz(path)
    labels = arrays.pop("labels", None)
    wanted = {spec.name for spec in model.inputs} - set(model.constants) - set(model.state)
    if wanted and wanted != arrays.keys():
        problem = f"holds {', '.join(sorted(arrays)) or 'nothing'}; the model's inputs are {', '.join(sorted(wanted))}"
        raise CatalogError(path, None, problem)
    if not arrays:
        raise CatalogError(path, None, "holds no input arrays")
    lengths = {len(value) if value.ndim else 0 for value in (*arrays.values(), *([] if labels is None else [labels]))}
    if len(lengths) != 1:
        raise CatalogError(path, None, f"arrays of different lengths: {', '.join(map(str, sorted(lengths)))}")
    ranks = {spec.name: len(spec.shape) for spec in model.inputs}
    for i in range(min(count, lengths.pop())):
        inputs = {}
        for name, value in arrays.items():
            has_batch = value.ndim > ranks.get(name, value.ndim)
            inputs[name] = value[i] if has_batch else value[i : i + 1]
        yield Sample(inputs=inputs, label=None if labels is None else str(labels[i]))


def _from_folder(folder: Path, count: int) -> Iterator[tuple[bytes, str | None]]:
    """`<label>/<file>`, or files without a label; in the order of their names."""
    if not folder.is_dir():
        raise CatalogError(folder, None, "no such folder of data")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    for path in paths[:count]:
        yield path.read_bytes(), path.parent.name if path.parent != folder else None


def _fitting(value: Array | None, spec: TensorSpec, axes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """`value` when it already has the session's dtype and shape, else noise that has."""
    shape = tuple(size if isinstance(size, int) else axes.get(size, 1) for size in spec.shape)
    if value is not None and value.dtype == spec.dtype and value.shape == shape:
        return value
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.random(shape, np.float32).astype(dtype)
    if dtype.kind == "b":
        return np.zeros(shape, dtype)
    # Wider integers index tables (token types have a table of two rows) or are masks. Eight-bit tensors are pixels.
    return rng.integers(0, np.iinfo(dtype).max if dtype.itemsize == 1 else 2, shape, dtype)
