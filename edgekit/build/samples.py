"""The real data a build needs: feeds to calibrate with, and other samples to judge with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

import edgekit
from edgekit.artifact import sha256_of
from edgekit.build import pairs
from edgekit.build.calibrate import Sample as Feed
from edgekit.errors import CatalogError, InputError, UsageError
from edgekit.manifest import Data, Model, TensorSpec
from edgekit.pipeline.data import Sample, calibration, calibration_feeds, evaluation, read_npy
from edgekit.runtimes.axes import OPEN, session_axes
from edgekit.runtimes.onnx_header import read_header
from edgekit.runtimes.session import SessionSettings, check_inputs, open_session

MOST_FEEDS, MOST_SAMPLES, MOST_PRUNING = 32, 1024, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may say beside the model's name."""

    calibration: Path | None = None
    "An .npz with one array per input and a leading sample axis; replaces the manifest's calibration data."
    labels: Path | None = None
    "An .npy with one class number per sample of `calibration`; for spearman, one score per pair of samples."
    metric: str | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    "Axes to fix: the artifacts then take no other size."
    prune: bool = False
    "Make the 2:4 artifact also where no runtime gains from it."
    search_s: float | None = None
    "Seconds to search for a better mix of precisions; None: only where INT8 does not hold the accuracy floor."
    method: str | None = None
    "How calibration picks ranges; None tries minmax, then percentile if accuracy asks for it."


@dataclass(frozen=True, slots=True)
class Samples:
    """`feeds` for calibration, `judged` for accuracy; both empty when there are none."""

    feeds: tuple[Feed, ...]
    judged: tuple[Sample, ...]
    pruning: tuple[Feed, ...] = ()
    "What calibrates, and more of its kind where the manifest has more: pruning fits many numbers."


def settings_for(model: Model, path: Path, fixed: Mapping[str, int]) -> SessionSettings:
    """One thread. Axes: `fixed`, else the manifest's default; of a bare file, what is not fixed stays open."""
    declared = read_header(path).inputs
    there = {str(axis) for spec in declared for axis in spec.shape} | {
        f"{s.name}[{i}]" for s in declared for i in range(len(s.shape))
    }
    if model.inputs:
        return SessionSettings(axes=session_axes(model, {}, fixed))
    left = {str(axis): OPEN for spec in declared for axis in spec.shape if isinstance(axis, str)}
    return SessionSettings(axes=left | {name: size for name, size in fixed.items() if name in there})


def with_options(model: Model, options: Options) -> Model:
    """The manifest as the user's options change it. Raises UsageError for options that do not go together."""
    if options.labels is not None and options.calibration is None:
        raise UsageError("--labels goes with --calibration: one label for each of its samples")
    for path in (options.calibration, options.labels):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: no such file")
    changed = model
    if options.metric is not None:
        changed = msgspec.structs.replace(changed, metric=options.metric)
    if options.calibration is not None:
        data = msgspec.structs.replace(
            changed.data, calibration=str(options.calibration.resolve()), calibration_count=MOST_SAMPLES
        )
        if options.labels is not None:  # the user's own samples judge, not the manifest's
            data = msgspec.structs.replace(data, evaluation=None)
        changed = msgspec.structs.replace(changed, data=data)
    return changed


def gather(model: Model, standard: Path, options: Options) -> Samples:
    """Feeds and samples for `model`, made or read now. Raises CatalogError, UsageError or InputError for unfit data."""
    if model.data.calibration is None:
        return Samples((), tuple(evaluation(model, options.axes)))
    session = open_session(standard, settings_for(model, standard, options.axes))
    try:
        if model.data.evaluation is None:
            samples = list(calibration(model, options.axes))
            _check([sample.inputs for sample in samples], session.inputs)
            return _split(samples, options.labels, unit=2 if model.metric == pairs.METRIC else 1)
        feeds = tuple(calibration_feeds(model, session.run, options.axes))[:MOST_PRUNING]
        _check(feeds, session.inputs)
        return Samples(feeds[:MOST_FEEDS], tuple(evaluation(model, options.axes)), feeds)
    except InputError as e:
        raise UsageError(f"{model.data.calibration}: calibration data that does not fit the model: {e}") from e
    except CatalogError as e:
        if options.calibration is None:
            raise
        raise UsageError(f"--calibration {e}") from e  # the command line named the file, not the catalog
    finally:
        session.close()


def _check(feeds: Sequence[Feed], specs: Sequence[TensorSpec]) -> None:
    """Raises UsageError for none at all, InputError for what the model does not take."""
    if not feeds:
        raise UsageError("the calibration file holds no samples")
    check_inputs(specs, feeds[0])
    for feed in feeds:
        for name, value in feed.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise InputError(name, "holds NaN or infinite values")


def _split(samples: list[Sample], labels: Path | None, unit: int) -> Samples:
    """A user's one set: some samples, evenly taken, calibrate and all others judge; all do both when they are few.

    `unit`: how many neighbours belong together, 2 for pairs.
    """
    if unit > 1 and len(samples) % unit:
        raise UsageError(
            f"{pairs.METRIC} compares samples 1 and 2, 3 and 4, …; there are {len(samples)}, an odd number"
        )
    if labels is not None:
        samples = _labelled(samples, labels, unit)
    if len(samples) < 4 * unit:
        few = tuple(dict(sample.inputs) for sample in samples)[:MOST_FEEDS]
        return Samples(few, tuple(samples), few)
    every = max(2, len(samples) // unit // MOST_FEEDS)
    calibrating = [sample for i, sample in enumerate(samples) if i // unit % every == 0]
    judging = [sample for i, sample in enumerate(samples) if i // unit % every]
    feeds = tuple(dict(sample.inputs) for sample in calibrating)[:MOST_FEEDS]
    return Samples(feeds, tuple(judging), feeds)


def _labelled(samples: list[Sample], path: Path, unit: int) -> list[Sample]:
    try:
        values = read_npy(path)
    except CatalogError as e:
        raise UsageError(f"--labels {path}: {e.problem}") from e
    wanted = len(samples) // unit
    if values.ndim != 1 or len(values) < wanted:
        each = "sample" if unit == 1 else "pair"
        noun = f"{wanted} {each}s" if wanted != 1 else f"the {each}"
        raise UsageError(f"{path}: has shape {list(values.shape)}, expected one label for each of {noun}")
    return [
        Sample(inputs=sample.inputs, label=str(values[i // unit]), context=sample.context)
        for i, sample in enumerate(samples)
    ]


def data_key(data: Data, folder: Path) -> str:
    """What the data depends on, without making it: generators by name and version, files by content."""
    parts = []
    for where, count in ((data.calibration, data.calibration_count), (data.evaluation, data.evaluation_count)):
        if where is None or where.startswith("generator:"):
            parts.append(f"{where} {count} {edgekit.__version__}")
            continue
        path = folder / where
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        parts.append(f"{count} " + " ".join(sha256_of(file) for file in files))
    return "; ".join(parts)
