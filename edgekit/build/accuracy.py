"""How much of the standard's quality an artifact keeps: the task's metric, and the noise on every output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from edgekit.artifact import Accuracy
from edgekit.build import pairs
from edgekit.errors import ArtifactError, UsageError
from edgekit.manifest import Model
from edgekit.pipeline.data import Sample
from edgekit.pipeline.metrics import run_samples, score
from edgekit.runtimes.session import SessionSettings, open_session

WORST_DB = -200.0
Outputs = Mapping[str, np.ndarray[Any, Any]]


class Reference(NamedTuple):
    """The standard's outputs on the evaluation samples, and what they are worth."""

    model: Model
    samples: Sequence[Sample]
    outputs: Sequence[Outputs]
    metric: str
    value: float


def refer(model: Model, path: Path, settings: SessionSettings, samples: Sequence[Sample]) -> Reference:
    """Run the standard artifact over the evaluation samples. Without labels the metric is agreement with itself."""
    return rate(model, samples, _run(model, path, settings, samples))


def rate(model: Model, samples: Sequence[Sample], outputs: Sequence[Outputs]) -> Reference:
    """The standard's outputs for these samples as a reference. Raises UsageError when they are worth nothing."""
    metric = model.metric or "agreement"
    value = _score(model, metric, samples, outputs, outputs)
    if value <= 0:
        raise UsageError(f"{model.name}: the standard itself scores {value:.3f} {metric}: check data and labels")
    return Reference(model, samples, outputs, metric, value)


def measure(reference: Reference, path: Path, settings: SessionSettings, isa: str) -> Accuracy:
    """The artifact at `path` against the standard, with the runtime that will serve it.

    Raises ArtifactError when its outputs are not the standard's by name and shape: no metric could read them.
    """
    outputs = _run(reference.model, path, settings, reference.samples)
    for before, after in zip(reference.outputs, outputs, strict=True):
        for name, value in before.items():
            if name not in after:
                raise ArtifactError(path, f"gives {', '.join(after)}, the standard also '{name}'")
            if after[name].shape != value.shape:
                shapes = f"{list(after[name].shape)}, the standard's {list(value.shape)}"
                raise ArtifactError(path, f"its output '{name}' has shape {shapes}")
    return judge(reference, outputs, settings.runtime, isa)


def judge(reference: Reference, outputs: Sequence[Outputs], runtime: str, isa: str) -> Accuracy:
    """Outputs for the reference's samples, however they came to be, against the standard's."""
    return Accuracy(
        metric=reference.metric,
        value=_score(reference.model, reference.metric, reference.samples, outputs, reference.outputs),
        standard_value=reference.value,
        sample_count=len(reference.samples),
        per_output_sqnr_db={name: sqnr_db(reference.outputs, outputs, name) for name in outputs[0]},
        runtime=runtime,
        isa=isa,
    )


def why_unfit(accuracy: Accuracy, floor: float) -> str | None:
    """Why an artifact must not be selected, or None. Per output: one that is mostly noise spoils the others."""
    ratio = accuracy.ratio
    if ratio is None or ratio < floor:
        kept = "nothing" if ratio is None else f"{100 * ratio:.1f} %"
        return f"keeps {kept} of the standard's {accuracy.metric}, the floor is {100 * floor:g} %"
    for name, noise in accuracy.per_output_sqnr_db.items():
        if noise is not None and noise <= 0:
            return f"output '{name}' is more noise than signal ({noise:.1f} dB)"
    return None


def sqnr_db(reference: Sequence[Outputs], outputs: Sequence[Outputs], name: str) -> float | None:
    """Signal to quantisation-noise ratio over all samples, in dB; None when every value is the same.

    Not lower than `WORST_DB`, which also stands for outputs of another shape, NaN and a reference of zeros.
    """
    signal = noise = 0.0
    for before, after in zip(reference, outputs, strict=True):
        a, b = np.asarray(before[name], np.float64), np.asarray(after[name], np.float64)
        if a.shape != b.shape or not np.isfinite(b).all():
            return WORST_DB
        signal += float(np.sum(a * a))
        noise += float(np.sum((a - b) ** 2))
    if noise == 0:
        return None
    return max(WORST_DB, 10 * math.log10(signal / noise)) if signal else WORST_DB


def _run(model: Model, path: Path, settings: SessionSettings, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    session = open_session(path, settings)
    try:
        return run_samples(model, session.run, samples)
    finally:
        session.close()


def _score(
    model: Model, metric: str, samples: Sequence[Sample], outputs: Sequence[Outputs], reference: Sequence[Outputs]
) -> float:
    if metric == "top1" and not model.postprocess:
        return _plain_top1(samples, outputs)
    if metric == pairs.METRIC:
        return pairs.similarity(samples, outputs)
    return score(msgspec.structs.replace(model, metric=metric), samples, outputs, reference=reference)


def _plain_top1(samples: Sequence[Sample], outputs: Sequence[Outputs]) -> float:
    """Of a bare model: the largest value of its first output against a class number."""
    right = 0
    for sample, output in zip(samples, outputs, strict=True):
        if sample.label is None:
            raise UsageError("metric top1 needs labels: give --labels FILE.npy with one class number a sample")
        try:
            right += int(np.argmax(next(iter(output.values())))) == int(sample.label)
        except ValueError as e:
            raise UsageError(f"label '{sample.label}' is not a class number") from e
    return right / len(samples)
