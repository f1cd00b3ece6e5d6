"""How good a model's answers are: the manifest's metric over samples, higher is better, 1.0 is perfect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgekit.errors import CatalogError
from edgekit.manifest import Model
from edgekit.pipeline.answers import Answer, Boxes, Labels, Tensors, Text
from edgekit.pipeline.data import Sample
from edgekit.pipeline.pipeline import open_pipeline
from edgekit.pipeline.stateful import Run, run_prepared
from edgekit.pipeline.text import edit_distance

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, Array]

IOU_FLOOR = 0.5
"""A found box counts when its intersection over union with a true one is at least this (ICDAR, PASCAL VOC)."""


_JUDGES: dict[str, tuple[type[Answer], ...]] = {"top1": (Labels, Tensors), "text": (Text,), "boxes": (Boxes,)}
"""Metric -> the kinds of answer that it compares."""


def run_samples(model: Model, run: Run, samples: Sequence[Sample]) -> list[dict[str, Array]]:
    """The outputs for every sample; a stateful model walks each sample's frames from a fresh state."""
    return [run_prepared(model, run, sample.inputs)[0] for sample in samples]


def score(
    model: Model,
    samples: Sequence[Sample],
    outputs: Sequence[Outputs],
    *,
    reference: Sequence[Outputs] | None = None,
) -> float:
    """The manifest's metric. `agreement` compares with `reference`, the standard artifact's outputs.

    Raises CatalogError when the metric needs labels that the samples do not have; ValueError without samples.
    """
    if not samples or len(samples) != len(outputs):
        raise ValueError(f"need as many outputs as samples, and one at least: {len(outputs)}, {len(samples)}")
    metric = model.metric or "agreement"
    if metric == "agreement":
        if reference is None:
            raise ValueError("agreement needs the standard's outputs as reference")
        return agreement(reference, outputs)
    if any(sample.label is None for sample in samples):
        raise CatalogError(model.folder / "model.toml", "metric", f"'{metric}' needs evaluation data with labels")
    if metric == "auc":
        return _frame_auc(model, samples, outputs)
    pipeline = open_pipeline(model)
    answers = [pipeline.postprocess(o, s.context) for o, s in zip(outputs, samples, strict=True)]
    labels = [sample.label for sample in samples]
    if not isinstance(answers[0], _JUDGES[metric]):
        kind = type(answers[0]).__name__.lower()
        raise CatalogError(model.folder / "model.toml", "metric", f"'{metric}' cannot judge {kind}, the model's answer")
    if metric == "top1":
        return top1(answers, labels)
    return text_accuracy(answers, labels) if metric == "text" else boxes_f1(answers, labels)


def top1(answers: Sequence[Answer], labels: Sequence[str]) -> float:
    """Share of samples whose likeliest label is the true one; without label names, whose best class has that number."""
    right = sum(_best(answer) == str(label) for answer, label in zip(answers, labels, strict=True))
    return right / len(labels)


def _best(answer: Answer) -> str:
    if isinstance(answer, Tensors):
        return str(answer.outputs[0].argmax)
    assert isinstance(answer, Labels)  # `score` has looked
    return answer.labels[0].name


def text_accuracy(answers: Sequence[Answer], labels: Sequence[str]) -> float:
    """1 - character error rate over all samples, without white space, which a recogniser sees only as a gap."""
    wrong = total = 0
    for answer, label in zip(answers, labels, strict=True):
        assert isinstance(answer, Text)
        truth = "".join(label.split())
        wrong += edit_distance("".join(answer.text.split()), truth)
        total += len(truth)
    return max(0.0, 1 - wrong / max(total, 1))


def boxes_f1(answers: Sequence[Answer], labels: Sequence[Sequence[tuple[float, float, float, float]]]) -> float:
    """Harmonic mean of precision and recall of boxes, over all samples, at an IoU of `IOU_FLOOR`."""
    hits = found = true = 0
    for answer, rectangles in zip(answers, labels, strict=True):
        assert isinstance(answer, Boxes)
        mine = [_around(box.polygon) for box in answer.boxes]
        hits += _matches(mine, rectangles)
        found += len(mine)
        true += len(rectangles)
    return 2 * hits / (found + true) if found + true else 1.0


def _around(polygon: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    xs, ys = zip(*polygon, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _matches(found: Sequence[tuple[float, ...]], true: Sequence[tuple[float, ...]]) -> int:
    """Pairs of boxes that meet the floor, best first, each box used once."""
    pairs = sorted(
        ((iou(a, b), i, j) for i, a in enumerate(found) for j, b in enumerate(true)), key=lambda pair: -pair[0]
    )
    used_found: set[int] = set()
    used_true: set[int] = set()
    for overlap, i, j in pairs:
        if overlap >= IOU_FLOOR and i not in used_found and j not in used_true:
            used_found.add(i)
            used_true.add(j)
    return len(used_found)


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two rectangles (left, top, right, bottom)."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def _frame_auc(model: Model, samples: Sequence[Sample], outputs: Sequence[Outputs]) -> float:
    scores, truth = [], []
    for sample, output in zip(samples, outputs, strict=True):
        frame_s = sample.context.frame_s
        if frame_s is None:
            raise CatalogError(model.folder / "model.toml", "metric", "'auc' needs a `frames` step in preprocess")
        values = np.asarray(output[model.outputs[0].name], np.float64).reshape(-1)
        middles = (np.arange(len(values)) + 0.5) * frame_s
        scores.append(values)
        truth.append(
            np.any([(start <= middles) & (middles < end) for start, end in sample.label] or [middles < 0], axis=0)
        )
    return auc(np.concatenate(scores), np.concatenate(truth))


def auc(scores: Array, truth: Array) -> float:
    """Area under the ROC curve: the chance that a true one scores above a false one, ties half (Mann-Whitney).

    Raises ValueError when all are true or none is, or a score is not a number.
    """
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        raise ValueError("the area under the ROC curve needs both kinds of samples")
    if not np.isfinite(scores).all():
        return 0.0
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    ranks = mean_rank[place]
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def agreement(reference: Sequence[Outputs], outputs: Sequence[Outputs]) -> float:
    """The worst output's likeness to the reference's, mean over samples.

    For an output that looks like class scores (one vector of two or more, the only output), the share of samples with
    the same best class; for any other the cosine similarity. The worst and not the mean: one collapsed output among
    several good ones is a broken model.
    """
    names = reference[0].keys()
    if any(o.keys() != names for o in (*reference, *outputs)):
        raise ValueError("the outputs have other names than the reference's")
    return min(_likeness([r[n] for r in reference], [o[n] for o in outputs], sole=len(names) == 1) for n in names)


def _likeness(reference: Sequence[Array], outputs: Sequence[Array], *, sole: bool) -> float:
    likeness = []
    for a, b in zip(reference, outputs, strict=True):
        if a.shape != b.shape:
            return 0.0
        left, right = np.asarray(a, np.float64).reshape(-1), np.asarray(b, np.float64).reshape(-1)
        if not np.isfinite(right).all():
            likeness.append(0.0)
        elif sole and 2 <= left.size == a.shape[-1]:
            likeness.append(float(left.argmax() == right.argmax()))
        else:
            likeness.append(_cosine(left, right))
    return float(np.mean(likeness))


def _cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0:
        return float(np.array_equal(a, b))
    return max(0.0, float(a @ b) / lengths)
