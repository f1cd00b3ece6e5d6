"""Many histograms merged at once, group by group: what `merge_all` does, for ten thousand in some ms. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgekit.telemetry.messages import MAX_BUCKETS, Histogram
from edgekit_tui.kept import Kept

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float64]
NONE = np.iinfo(np.int64).max


class Pool:
    """Merges again and again; buckets of a histogram that was there before are not taken apart anew."""

    def __init__(self) -> None:
        self._arrays: Kept[Histogram, Counts] = Kept(lambda one: np.array(one.counts, float))

    def merge(self, histograms: Sequence[Histogram], group_of: Sequence[int], groups: int) -> list[Histogram | None]:
        """The histogram of all samples of each group, as `merge_all` gives it; None for a group without any.

        Args:
            group_of: for each histogram its group, 0 to `groups` - 1.
        """
        counts = self._arrays.of(histograms)
        if not histograms:
            return [None] * groups
        group: Ints = np.fromiter(group_of, np.int64, len(histograms))
        members = np.bincount(group, minlength=groups)
        merged = _buckets(histograms, counts, group, groups)
        count = _summed([h.count for h in histograms], group, groups)
        zeros = _summed([h.zero_count for h in histograms], group, groups)
        total = np.bincount(group, [h.sum for h in histograms], groups)
        low, high = np.full(groups, np.inf), np.zeros(groups)
        np.minimum.at(low, group, [h.min for h in histograms])
        np.maximum.at(high, group, [h.max for h in histograms])
        return [
            Histogram(
                scale=merged[i][0], offset=merged[i][1], counts=merged[i][2], sum=float(total[i]), count=count[i],
                min=float(low[i]), max=float(high[i]), zero_count=zeros[i],
            ) if members[i] else None
            for i in range(groups)
        ]  # fmt: skip


def _summed(values: Sequence[int], group: Ints, groups: int) -> list[int]:
    """Whole numbers added up by group; below 2^53 a double holds them exactly."""
    return np.bincount(group, np.asarray(values, float), groups).astype(np.int64).tolist()  # type: ignore[no-any-return]


def _buckets(
    histograms: Sequence[Histogram], counts: Sequence[Counts], group: Ints, groups: int
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Scale, offset and counts of each group, at the finest scale that all its members and 160 buckets allow."""
    scale: Ints = np.array([h.scale for h in histograms], np.int64)
    first: Ints = np.array([h.offset for h in histograms], np.int64)
    length: Ints = np.array([len(one) for one in counts], np.int64)
    filled = length > 0
    # a histogram without buckets has no say in the scale, unless its whole group is without
    common, lowest = np.full(groups, NONE, np.int64), np.full(groups, NONE, np.int64)
    np.minimum.at(common, group[filled], scale[filled])
    np.minimum.at(lowest, group, scale)
    alone = common == NONE
    common[alone] = np.where(lowest == NONE, 0, lowest)[alone]
    shift = np.maximum(scale - common[group], 0)
    left, right = np.full(groups, NONE, np.int64), np.full(groups, -NONE, np.int64)
    np.minimum.at(left, group[filled], first[filled] >> shift[filled])
    np.maximum.at(right, group[filled], (first[filled] + length[filled] - 1) >> shift[filled])
    left[alone], right[alone] = 0, -1
    while (wide := (right - left) >= MAX_BUCKETS).any():
        common[wide], left[wide], right[wide] = common[wide] - 1, left[wide] >> 1, right[wide] >> 1
    shift = np.maximum(scale - common[group], 0)
    # the index of each bucket's group and place, one after the other; an exponent fits into 32 bits
    begins = first - (np.cumsum(length) - length)
    at = np.arange(int(length.sum()), dtype=np.int32) + np.repeat(begins.astype(np.int32), length)
    at >>= np.repeat(shift.astype(np.int32), length)
    at += np.repeat((group * MAX_BUCKETS - left[group]).astype(np.int32), length)
    flat = np.bincount(at, np.concatenate(counts), groups * MAX_BUCKETS)
    table = flat.astype(np.int64).reshape(groups, MAX_BUCKETS)
    return [(int(common[i]), int(left[i]), tuple(table[i, : right[i] - left[i] + 1].tolist())) for i in range(groups)]
