"""Are the updated devices as good as the others? Proven within the bounds, proven worse, or not decided yet.

Percentiles are those of merged histograms, never means of percentiles. Their uncertainty comes from drawing stretches
of time anew (bootstrap), the same for both sides: requests of one stretch share its hardship and are no independent
samples, and a busy minute that hits both says nothing of the release. Where the others' samples are of another time,
each side draws for itself. Shares
(errors, shadow agreement) use Newcombe's interval for the difference of two proportions, which knows that no error
among few requests proves little. Pure, and the same input gives the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edgekit.bench.stats import MIN_SAMPLES, SAMPLES_FOR_P99
from edgekit.provision.evidence import Lane, Window
from edgekit.provision.figure import Answer, Figure
from edgekit.telemetry.histogram import merge_all
from edgekit.telemetry.messages import Histogram

REPLICATES = 1000
CONFIDENCE = 0.99
SMALL_LANE = 0.05
"""Share of all requests."""
PLENTY = 4
"""Times the least number of samples: then a p99 within its bound that shows no difference is taken for equal. Where one
request in a hundred is much slower than the rest, the p99 falls into the gap, and no number of samples proves more."""
_Z = 2.5758
"""Of the normal distribution for 99 %, two-sided."""
Floats = npt.NDArray[np.float64]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much worse updated devices may be. Ratios are updated / not updated; the last two are differences."""

    p50_ratio: float = 1.10
    p99_ratio: float = 1.20
    failed: float = 0.01
    "Of the requests, more than on the others."
    disagreed: float = 0.02
    "Of the shadowed requests, more than on the others."
    samples: int = SAMPLES_FOR_P99
    "At least, on either side, before a p99 is spoken of; 0: telemetry judges nothing."
    shadow_samples: int = 100
    "With fewer on either side, agreement is not judged, and nobody waits for it."


def compare(lane: Lane, updated: Sequence[Window], others: Sequence[Window], bounds: Bounds) -> tuple[Figure, ...]:
    """Every figure of one lane: p50, p99, requests that failed, and disagreement where enough were shadowed."""
    counts = (sum(w.samples for w in updated), sum(w.samples for w in others))
    found = [
        *_latencies(lane, updated, others, bounds, counts),
        _share(lane, "failed requests", [(w.failed, w.requests) for w in updated],
               [(w.failed, w.requests) for w in others], bounds.failed, bounds.samples),
    ]  # fmt: skip
    sides = [[(w.shadow_total - w.shadow_agreed, w.shadow_total) for w in side] for side in (updated, others)]
    if min(sum(total for _, total in side) for side in sides) >= max(1, bounds.shadow_samples):
        found.append(_share(lane, "disagreement", sides[0], sides[1], bounds.disagreed, bounds.shadow_samples))
    return tuple(found)


def figures(
    updated: Mapping[Lane, Sequence[Window]], others: Mapping[Lane, Sequence[Window]], bounds: Bounds
) -> tuple[Figure, ...]:
    """Every lane that the others serve too; a lane of few requests on both sides is judged but not waited for."""
    total = [max(1, sum(w.requests for windows in side.values() for w in windows)) for side in (updated, others)]
    found: list[Figure] = []
    for lane in sorted(others):
        sides = updated.get(lane, ()), others[lane]
        shares = [sum(w.requests for w in side) / all_ for side, all_ in zip(sides, total, strict=True)]
        is_small = max(shares) < SMALL_LANE
        found += [f for f in compare(lane, *sides, bounds) if not (is_small and f.answer is Answer.OPEN)]
    return tuple(found)


def _latencies(
    lane: Lane, updated: Sequence[Window], others: Sequence[Window], bounds: Bounds, counts: tuple[int, int]
) -> list[Figure]:
    sides = [_by_time(side) for side in (updated, others)]
    shared = sides[0].keys() & sides[1].keys()
    if len(shared) >= MIN_SAMPLES:
        sides = [{at: side[at] for at in shared} for side in sides]
        counts = (_count(sides[0]), _count(sides[1]))
    enough = min(counts) >= max(1, bounds.samples) and min(map(len, sides)) >= MIN_SAMPLES
    names = (("p50", 0.5, bounds.p50_ratio), ("p99", 0.99, bounds.p99_ratio))
    if not enough:
        few = min(map(len, sides))
        return [_figure(lane, name, None, bound, counts, stretches=few) for name, _, bound in names]
    drawn = _draw(sides[0], sides[1], [q for _, q, _ in names], together=len(shared) >= MIN_SAMPLES)
    is_plenty = min(counts) >= PLENTY * bounds.samples
    return [
        _figure(lane, name, ratios, bound, counts, is_plenty=is_plenty and name == "p99")
        for (name, _, bound), ratios in zip(names, drawn, strict=True)
    ]


def _by_time(side: Sequence[Window]) -> dict[int, Histogram]:
    """All inferences of each stretch of time."""
    parts: dict[int, list[Histogram]] = {}
    for window in side:
        if window.latency is not None and window.latency.count:
            parts.setdefault(window.at, []).append(window.latency)
    return {at: merged for at, found in sorted(parts.items()) if (merged := merge_all(found)) is not None}


def _count(side: Mapping[int, Histogram]) -> int:
    return sum(h.count for h in side.values())


def _figure(
    lane: Lane,
    name: str,
    found: tuple[float, float, float] | None,
    bound: float,
    counts: tuple[int, int],
    *,
    is_plenty: bool = False,
    stretches: int | None = None,
) -> Figure:
    """`is_plenty`: enough samples for "no difference was found" to count, where the tail never proves its bound."""
    value, low, high = found or (None, None, None)
    answer = Answer.OPEN
    if value is not None and low is not None and high is not None:
        no_difference = is_plenty and low <= 1.0 <= high and value <= bound
        is_within = high <= bound or no_difference
        answer = Answer.WORSE if low > bound else Answer.WITHIN if is_within else Answer.OPEN
    return Figure(
        lane=lane,
        name=name,
        answer=answer,
        value=value,
        low=low,
        high=high,
        bound=bound,
        samples=counts,
        stretches=stretches,
    )


def _draw(
    updated: Mapping[int, Histogram], others: Mapping[int, Histogram], quantiles: Sequence[float], *, together: bool
) -> list[tuple[float, float, float]]:
    """(ratio, lower, upper bound) of each quantile, from stretches of time drawn anew with replacement."""
    every = (*updated.values(), *others.values())
    scale = min(h.scale for h in every)
    first = min((h.offset >> (h.scale - scale) for h in every if h.counts), default=0)
    dice = np.random.default_rng(1)
    logs, weights = [], np.zeros((0, 0))
    for side in (updated, others):
        table = _table([side[at] for at in sorted(side)], scale, first)
        if not together or not weights.size:
            share = np.full(len(side), 1 / len(side))
            weights = dice.multinomial(len(side), share, size=REPLICATES).astype(np.float64)
        totals = np.vstack([table.sum(axis=0), weights @ table])
        logs.append([_log2_quantile(totals, q, scale, first) for q in quantiles])
    found = []
    for mine, theirs in zip(*logs, strict=True):
        ratios = np.exp2(mine - theirs)
        low, high = np.quantile(ratios[1:], ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
        found.append((float(ratios[0]), float(low), float(high)))
    return found


def _table(side: Sequence[Histogram], scale: int, first: int) -> Floats:
    """Stretches × buckets at one scale; zeros go into the lowest bucket, which no latency of a model reaches."""
    shifted = [(h.offset >> (h.scale - scale), ((h.offset + len(h.counts) - 1) >> (h.scale - scale))) for h in side]
    width = max(high for _, high in shifted) - first + 2
    table = np.zeros((len(side), width))
    for row, h in zip(table, side, strict=True):
        row[0] += h.zero_count
        index = ((np.arange(len(h.counts)) + h.offset) >> (h.scale - scale)) - first + 1
        np.add.at(row, index, np.asarray(h.counts, dtype=np.float64))
    return table


def _log2_quantile(totals: Floats, q: float, scale: int, first: int) -> Floats:
    """Of each row, the quantile's logarithm, interpolated within its bucket: steps of a bucket would decide else."""
    sums = totals.cumsum(axis=1)
    rank = np.maximum(1.0, q * sums[:, -1])
    index = (sums >= rank[:, None] - 1e-9).argmax(axis=1)
    rows = np.arange(len(totals))
    inside = totals[rows, index]
    below = sums[rows, index] - inside
    share = np.divide(rank - below, inside, out=np.ones_like(rank), where=inside > 0)
    exponents: Floats = (index - 1 + first + share) * math.pow(2.0, -scale)
    return exponents


def _share(
    lane: Lane,
    name: str,
    updated: Sequence[tuple[int, int]],
    others: Sequence[tuple[int, int]],
    bound: float,
    needed: int,
) -> Figure:
    """The difference of two shares. Source: Newcombe 1998, method 10 (Wilson intervals, squared and added)."""
    (bad, total), (other_bad, other_total) = (
        (sum(b for b, _ in side), sum(t for _, t in side)) for side in (updated, others)
    )
    counts = (total, other_total)
    if min(counts) < max(1, needed):
        return _figure(lane, name, None, bound, counts)
    (p, low, high), (r, other_low, other_high) = _wilson(bad, total), _wilson(other_bad, other_total)
    found = (
        p - r,
        p - r - math.hypot(p - low, other_high - r),
        p - r + math.hypot(high - p, r - other_low),
    )
    return _figure(lane, name, found, bound, counts)


def _wilson(bad: int, total: int) -> tuple[float, float, float]:
    """(share, lower, upper bound) with 99 % confidence."""
    bad = min(bad, total)
    share, z2 = bad / total, _Z * _Z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return share, max(0.0, middle - half), min(1.0, middle + half)
