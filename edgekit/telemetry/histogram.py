"""Latency as OpenTelemetry's base-2 exponential histogram: bounded size, exact merging, a stated error.

A quantile read from a merged histogram is the quantile of all its samples together, within `relative_error`;
that is why percentiles are never averaged. The wire form is `messages.Histogram`; values are milliseconds.
Source: OpenTelemetry metrics data model, ExponentialHistogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgekit.telemetry.messages import MAX_BUCKETS, MAX_SCALE, MIN_SCALE, Histogram

BATCH = 512
"""Samples held before numpy sorts them into buckets; amortises its call cost to well under a microsecond each."""


class HistogramBuilder:
    """Collects samples. `record` costs well under a microsecond on average; not thread-safe.

    Starts at `max_scale` and halves its resolution only when the samples span more than `max_buckets` buckets.
    """

    def __init__(self, *, max_scale: int = MAX_SCALE, max_buckets: int = MAX_BUCKETS) -> None:
        if not MIN_SCALE <= max_scale <= MAX_SCALE or not 2 <= max_buckets <= MAX_BUCKETS:
            raise ValueError(f"need {MIN_SCALE} <= max_scale <= {MAX_SCALE} and 2 <= max_buckets <= {MAX_BUCKETS}")
        self._max_buckets = max_buckets
        self._pending: list[float] = []
        self._scale, self._offset = max_scale, 0
        self._counts: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._sum, self._count, self._zero_count = 0.0, 0, 0
        self._min, self._max = math.inf, 0.0

    def record(self, value: float) -> None:
        """Add one sample. Raises ValueError for negative, infinite and NaN."""
        if not 0.0 <= value < math.inf:
            raise ValueError(f"a latency is a finite number of milliseconds from 0 up, got {value!r}")
        self._pending.append(value)
        if len(self._pending) >= BATCH:
            self._flush()

    def record_many(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Add samples at once. Raises ValueError as `record` does, and then adds none of them."""
        batch = np.asarray(values, dtype=np.float64)
        if batch.size and not bool(np.all((batch >= 0.0) & np.isfinite(batch))):
            raise ValueError("latencies are finite numbers of milliseconds from 0 up")
        self._add(batch)

    def histogram(self) -> Histogram | None:
        """What was recorded so far; None before the first sample."""
        self._flush()
        if not self._count:
            return None
        return Histogram(
            scale=self._scale,
            offset=self._offset,
            counts=tuple(self._counts.tolist()),
            sum=self._sum,
            count=self._count,
            min=self._min,
            max=self._max,
            zero_count=self._zero_count,
        )

    def _flush(self) -> None:
        batch, self._pending = self._pending, []
        self._add(np.array(batch, dtype=np.float64))

    def _add(self, batch: npt.NDArray[np.float64]) -> None:
        if not batch.size:
            return
        self._sum += float(batch.sum())
        self._count += batch.size
        self._min, self._max = min(self._min, float(batch.min())), max(self._max, float(batch.max()))
        positive = batch[batch > 0.0]
        self._zero_count += batch.size - positive.size
        if not positive.size:
            return
        # ceil - 1: a value on a bucket's upper edge belongs to that bucket, as the data model says.
        index = np.ceil(np.log2(positive) * 2.0**self._scale).astype(np.int64) - 1
        low, high = int(index.min()), int(index.max())
        if self._counts.size:
            low, high = min(low, self._offset), max(high, self._offset + self._counts.size - 1)
        shift = _shift_to_fit(low, high, self._max_buckets)
        index, low, high = index >> shift, low >> shift, high >> shift
        grown = np.bincount(index - low, minlength=high - low + 1)
        if self._counts.size:
            old = (np.arange(self._counts.size, dtype=np.int64) + self._offset >> shift) - low
            np.add.at(grown, old, self._counts)
        self._scale, self._offset, self._counts = self._scale - shift, low, grown


def merge(a: Histogram, b: Histogram) -> Histogram:
    """The histogram of both sets of samples, at the finer scale that holds them in 160 buckets. Exact."""
    merged = merge_all((a, b))
    assert merged is not None
    return merged


def merge_all(histograms: Iterable[Histogram]) -> Histogram | None:
    """The histogram of all their samples together; None for none. Order does not matter but for `sum`'s rounding."""
    parts = tuple(histograms)
    if len(parts) <= 1:
        return parts[0] if parts else None
    filled = [h for h in parts if h.counts]
    scale = min((h.scale for h in filled), default=min(h.scale for h in parts))
    low = min((h.offset >> (h.scale - scale) for h in filled), default=0)
    high = max(((h.offset + len(h.counts) - 1) >> (h.scale - scale) for h in filled), default=-1)
    shift = _shift_to_fit(low, high, MAX_BUCKETS) if filled else 0
    scale, low, high = scale - shift, low >> shift, high >> shift
    counts = [0] * (high - low + 1)
    for h in filled:
        _pour(h, scale, low, counts)
    return Histogram(
        scale=scale,
        offset=low,
        counts=tuple(counts),
        sum=sum(h.sum for h in parts),
        count=sum(h.count for h in parts),
        min=min(h.min for h in parts),
        max=max(h.max for h in parts),
        zero_count=sum(h.zero_count for h in parts),
    )


def quantile(histogram: Histogram, q: float) -> float:
    """The q-quantile by nearest rank, in milliseconds, within `relative_error` of the exact sample.

    Raises ValueError: no samples, or q outside 0 to 1.
    """
    if not histogram.count or not 0.0 <= q <= 1.0:
        raise ValueError(f"need samples and 0 <= q <= 1, got {histogram.count} samples and q={q}")
    rank = max(1, math.ceil(q * histogram.count))
    if rank <= 1:
        return histogram.min
    if rank >= histogram.count:
        return histogram.max
    seen = histogram.zero_count
    if rank <= seen:
        return 0.0
    for i, count in enumerate(histogram.counts):
        seen += count
        if seen >= rank:
            return min(max(_middle(histogram.scale, histogram.offset + i), histogram.min), histogram.max)
    return histogram.max


def relative_error(histogram: Histogram) -> float:
    """The largest relative error of `quantile`: 0.0108 at scale 5, 0.0217 at 4, 0.0433 at 3, 0.0864 at 2."""
    ratio = math.pow(2.0, min(math.pow(2.0, -histogram.scale), 1023.0))
    return (ratio - 1.0) / (ratio + 1.0)


def problem(histogram: Histogram) -> str | None:
    """What is wrong with a histogram from the wire, or None when its parts agree."""
    if sum(histogram.counts) + histogram.zero_count != histogram.count:
        return f"counts and zero_count do not add up to count {histogram.count}"
    if histogram.count and histogram.min > histogram.max:
        return f"min {histogram.min} above max {histogram.max}"
    width = math.pow(2.0, -histogram.scale)
    # The exponents of the smallest and the largest double: no sample can lie outside.
    low, high = histogram.offset * width, (histogram.offset + len(histogram.counts) - 1) * width
    if histogram.counts and not (-1075.0 - width <= low and high < 1024.0):
        return f"offset {histogram.offset} is outside all numbers at scale {histogram.scale}"
    return None


def _middle(scale: int, index: int) -> float:
    """The value of a bucket with the least worst-case relative error: 2lu / (l + u)."""
    width = math.pow(2.0, -scale)
    exponent = index * width
    # l * 2 / (1 + 1/ratio): written so that neither edge overflows where its value would not.
    try:
        return math.pow(2.0, exponent) * (2.0 / (1.0 + math.pow(2.0, -width)))
    except OverflowError:
        return math.inf


def _shift_to_fit(low: int, high: int, max_buckets: int) -> int:
    """By how many scales to go down so that buckets low..high number at most `max_buckets`."""
    shift = 0
    while (high >> shift) - (low >> shift) >= max_buckets:
        shift += 1
    return shift


def _pour(histogram: Histogram, scale: int, low: int, counts: list[int]) -> None:
    """Add a histogram's buckets to `counts`, whose first bucket is `low` at `scale`."""
    shift = histogram.scale - scale
    if shift == 0:
        start = histogram.offset - low
        for i, count in enumerate(histogram.counts, start):
            counts[i] += count
        return
    for i, count in enumerate(histogram.counts, histogram.offset):
        counts[(i >> shift) - low] += count
