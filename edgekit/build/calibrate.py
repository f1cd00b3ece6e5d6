"""What range each tensor of a float model takes on real data. One sample in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.errors import UsageError

Sample = Mapping[str, np.ndarray]
METHODS = ("minmax", "percentile", "entropy")
_BINS = 2048
_MOST_VALUES = 1 << 16
Progress = Callable[[float], None]


class Range(NamedTuple):
    """The values of a tensor worth representing."""

    low: float
    high: float


class Calibration:
    """The ranges of `tensors` of a float model over `samples`, each way of picking them computed once.

    Raises UsageError for NaN or infinite values on the way, InputError for samples that do not fit the model.
    """

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str], samples: Sequence[Sample]) -> None:
        self._run = _Observed(model, tensors)
        self._tensors, self._samples = tensors, samples
        self._full: dict[str, Range] = {}
        self._counts: dict[str, np.ndarray] = {}

    def ranges(self, method: str = "minmax", progress: Progress | None = None) -> dict[str, Range]:
        """minmax keeps every value; percentile drops 0.01 % at each end; entropy clips where the divergence between
        the clipped and the 8-bit histogram is least (as TensorRT's calibrator does), but never over 0.1 %.
        """
        if method not in METHODS:
            raise UsageError(f"calibration method '{method}' is not one of {', '.join(METHODS)}")
        passes = int(not self._full) + int(method != "minmax" and not self._counts)
        if not self._full:
            self._find_extremes(_part(progress, 0, passes))
        if method == "minmax":
            return self._full
        if not self._counts:
            self._count(_part(progress, passes - 1, passes))
        narrow = _percentile if method == "percentile" else _entropy
        return {name: narrow(self._counts[name], self._full[name]) for name in self._tensors}

    def _find_extremes(self, progress: Progress) -> None:
        lows, highs = dict.fromkeys(self._tensors, np.inf), dict.fromkeys(self._tensors, -np.inf)
        for done, sample in enumerate(self._samples):
            for name, values in self._run(sample):
                # not min() and max(): NaN must come through
                lows[name], highs[name] = np.minimum(lows[name], values.min()), np.maximum(highs[name], values.max())
            progress((done + 1) / len(self._samples))
        for name in self._tensors:
            if not (np.isfinite(lows[name]) and np.isfinite(highs[name])):
                raise UsageError(
                    f"calibration: tensor '{name}' becomes NaN or infinite; check the weights and the data"
                )
        self._full = {name: Range(float(lows[name]), float(highs[name])) for name in self._tensors}

    def _count(self, progress: Progress) -> None:
        """Histograms, of at most `_MOST_VALUES` values per tensor and sample, evenly taken."""
        self._counts = {name: np.zeros(_BINS, np.int64) for name in self._tensors}
        for done, sample in enumerate(self._samples):
            for name, values in self._run(sample):
                low, high = _wide(self._full[name])
                few = values.reshape(-1)[:: max(1, values.size // _MOST_VALUES)].astype(np.float32)
                bins = np.clip((few - low) * (_BINS / (high - low)), 0, _BINS - 1).astype(np.int32)
                self._counts[name] += np.bincount(bins, minlength=_BINS)
            progress((done + 1) / len(self._samples))


def fingerprint(samples: Iterable[Sample]) -> str:
    """SHA-256 over names, types, shapes and values of the samples, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            array = np.ascontiguousarray(sample[name])
            digest.update(f"{name} {array.dtype} {array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


class _Observed:
    """The float model with inner tensors as further outputs."""

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str]) -> None:
        watched = onnx.ModelProto.FromString(model.SerializeToString())
        graph = watched.graph
        self.inputs = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
        known = {value.name for value in graph.output}
        inner = [name for name in tensors if name not in self.inputs]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner if name not in known)
        self.tensors = tensors
        self.inner = inner
        self.session = ort.open_model(watched.SerializeToString(), "calibration")

    def __call__(self, sample: Sample) -> Iterable[tuple[str, np.ndarray]]:
        computed = ort.run(self.session, self.inner, sample) if self.inner else []
        results = dict(zip(self.inner, computed, strict=True))
        for name in self.tensors:
            values = results.get(name, sample.get(name))
            if values is not None and values.size:
                yield name, values


def _part(progress: Progress | None, number: int, parts: int) -> Progress:
    """The progress of one of several passes as a share of them all."""
    return lambda share: progress((number + share) / parts) if progress else None


def _wide(span: Range) -> tuple[float, float]:
    return (span.low, span.high) if span.high > span.low else (span.low - 0.5, span.low + 0.5)


def _percentile(counts: np.ndarray, span: Range, dropped: float = 1e-4) -> Range:
    low, high = _wide(span)
    width = (high - low) / len(counts)
    total = np.cumsum(counts) / max(counts.sum(), 1)
    first = int(np.searchsorted(total, dropped))
    last = int(np.searchsorted(total, 1 - dropped))
    return Range(float(max(span.low, low + first * width)), float(min(span.high, low + (last + 1) * width)))


def _entropy(counts: np.ndarray, span: Range, levels: int = 256) -> Range:
    """Shrink the wider end in 64 steps and keep the window of least divergence."""
    low, high = _wide(span)
    width = (high - low) / len(counts)
    counts = _without_spike(counts, int(-low / width))
    best, best_range = np.inf, span
    for kept in np.linspace(len(counts), levels, 64).astype(int):
        start, stop = _window(counts, kept)
        if counts[start:stop].sum() < 0.999 * counts.sum():
            break  # narrower windows only clip more; past this, what the divergence gains the network loses
        divergence = _divergence(counts, start, stop, levels)
        if divergence < best:
            best, best_range = divergence, Range(float(low + start * width), float(low + stop * width))
    return best_range


def _without_spike(counts: np.ndarray, zero: int) -> np.ndarray:
    """Zeros lose nothing in quantisation, but their spike would outweigh everything else: level it."""
    flat = counts.copy()
    if 0 <= zero < len(flat):
        near = np.concatenate([flat[max(0, zero - 8) : zero], flat[zero + 1 : zero + 9]])
        flat[zero] = min(flat[zero], int(np.median(near)) if near.size else 0)
    return flat


def _window(counts: np.ndarray, kept: int) -> tuple[int, int]:
    """The `kept` neighbouring bins that hold the most values."""
    total = np.concatenate([[0], np.cumsum(counts)])
    start = int(np.argmax(total[kept:] - total[: len(total) - kept]))
    return start, start + kept


def _divergence(counts: np.ndarray, start: int, stop: int, levels: int) -> float:
    clipped = counts[start:stop].astype(np.float64)
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[stop:].sum()
    group = np.arange(stop - start) * levels // (stop - start)
    inside = counts[start:stop].astype(np.float64)
    filled = np.bincount(group, weights=inside > 0, minlength=levels)
    sums = np.bincount(group, weights=inside, minlength=levels)
    coarse = np.where(inside > 0, (sums / np.maximum(filled, 1))[group], 0)
    p, q = clipped / max(clipped.sum(), 1), coarse / max(coarse.sum(), 1)
    mask = p > 0
    return float(np.sum(p[mask] * np.log(p[mask] / np.maximum(q[mask], 1e-12))))
