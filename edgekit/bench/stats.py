"""What a set of latencies supports, and what it does not. Pure arithmetic, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from edgekit.bench.record import Latency, Measurement

SAMPLES_FOR_P90 = 64
SAMPLES_FOR_P99 = 662
"""With one sample above the bound allowed, at 99 % confidence. Source: MLPerf inference rules, early stopping."""
MIN_SAMPLES = 8
"""The fewest whose extremes hold the median with 99 % confidence: 1 - 2 * 0.5 ** 8 = 0.992."""
_CONFIDENCE = 0.99
_ENOUGH_FOR_RANKS = 20
"""From here on the normal approximation of the signed ranks is off by less than one rank."""


def percentile(latencies_ms: Sequence[float], q: float) -> float:
    """Nearest-rank percentile: the smallest sample that at least q of the samples do not exceed.

    Raises ValueError for no samples, or q outside (0, 1].
    """
    if not latencies_ms or not 0 < q <= 1:
        raise ValueError(f"need samples and 0 < q <= 1, got {len(latencies_ms)} samples and q={q}")
    return sorted(latencies_ms)[math.ceil(q * len(latencies_ms)) - 1]


def median_interval(latencies_ms: Sequence[float]) -> tuple[float, float]:
    """The order statistics that hold the true median with at least 99 % confidence, whatever the distribution.

    Raises ValueError for fewer than `MIN_SAMPLES`: their extremes cannot promise it.
    """
    count = len(latencies_ms)
    if count < MIN_SAMPLES:
        raise ValueError(f"the median needs {MIN_SAMPLES} samples or more, got {count}")
    ordered = sorted(latencies_ms)
    rank = _lower_rank(count)
    return ordered[rank - 1], ordered[count - rank]


def _lower_rank(count: int) -> int:
    """The largest r for which P(Binomial(count, 1/2) < r) <= half of the doubt; 1 at least."""
    doubt = (1 - _CONFIDENCE) / 2
    if count > 1000:  # the normal approximation is off by less than one rank here
        return max(1, math.floor(count / 2 - 2.5758 * math.sqrt(count) / 2))
    probability = cumulative = 0.5**count
    rank = 0
    while cumulative <= doubt:
        rank += 1
        probability *= (count - rank + 1) / rank
        cumulative += probability
    return max(1, rank)


def paired_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The typical ratio of rounds that were taken in turns, and its interval with 99 % confidence.

    With enough rounds, by the Walsh averages of the logarithms (Wilcoxon's signed ranks): the same noise acts on both
    sides of a ratio, so it is symmetric, and the interval is a fifth narrower than that of the median alone.
    Raises ValueError for fewer than `MIN_SAMPLES`.
    """
    count = len(ratios)
    if count < _ENOUGH_FOR_RANKS:
        return median(ratios), *median_interval(ratios)
    logs = [math.log(ratio) for ratio in ratios]
    averages = sorted((logs[i] + logs[j]) / 2 for i in range(count) for j in range(i, count))
    spread = 2.5758 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    rank = math.floor(len(averages) / 2 - spread)
    return math.exp(median(averages)), math.exp(averages[rank - 1]), math.exp(averages[len(averages) - rank])


def own(time_ms: float, wait_ms: float) -> float:
    """What of a query's time was its own. Waiting is never more than nine tenths: the two clocks differ a little."""
    return max(time_ms - wait_ms, time_ms / 10)


def latency(
    rounds_ms: Sequence[Sequence[float]],
    *,
    in_turns: int | None = None,
    own_ms: Sequence[Sequence[float]] | None = None,
) -> Latency:
    """The samples of every round as a record; percentiles that they do not support are None.

    The interval of the median takes the rounds as its units where there are enough: the samples of one round share
    what the machine was doing meanwhile, and thousands of them would promise a precision that the next round breaks.

    Args:
        in_turns: how many of the first rounds were taken in turns with others; None is all of them.
        own_ms: the rounds without the time spent waiting for a CPU; None is no waiting.

    Raises ValueError for fewer than `MIN_SAMPLES` samples.
    """
    samples = [sample for taken in rounds_ms for sample in taken]
    count = len(samples)
    medians = [percentile(taken, 0.5) for taken in rounds_ms if taken]
    low, high = median_interval(medians if len(medians) >= MIN_SAMPLES else samples)
    middle = percentile(samples, 0.5)
    alone = rounds_ms if own_ms is None else own_ms
    own_samples = [sample for taken in alone for sample in taken]
    return Latency(
        sample_count=count,
        mean_ms=sum(samples) / count,
        min_ms=min(samples),
        p50_ms=middle,
        p50_low_ms=min(low, middle),
        p50_high_ms=max(high, middle),
        p90_ms=percentile(samples, 0.9) if count >= SAMPLES_FOR_P90 else None,
        p99_ms=percentile(samples, 0.99) if count >= SAMPLES_FOR_P99 else None,
        max_ms=max(samples),
        round_p50_ms=tuple(percentile(taken, 0.5) for taken in alone if taken)[:in_turns],
        quantiles_ms=_quantiles(samples),
        own_p50_ms=percentile(own_samples, 0.5),
        spread_ratio=(percentile(own_samples, 0.95) - percentile(own_samples, 0.05)) / 2 / percentile(own_samples, 0.5),
        waited_ratio=1 - sum(map(sum, alone)) / sum(samples),
    )


def _quantiles(samples: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(samples)
    return tuple(ordered[max(0, math.ceil(step / 50 * len(ordered)) - 1)] for step in range(51))


def speed_up(standard: Measurement, other: Measurement) -> tuple[float, float, float]:
    """How many times faster an item is in `other`: from the medians, and the least and most at 99 % confidence.

    Measured in turns, the two are compared round by round: what slows the machine down slows both, and hides no gain.
    Otherwise by what both intervals allow. Raises ValueError when one of them has no latency.
    """
    if standard.latency is None or other.latency is None:
        raise ValueError(f"nothing to compare: {standard.candidate} or {other.candidate} has no latency")
    mine, its = other.latency, standard.latency
    items = other.settings.batch / standard.settings.batch
    pairs = list(zip(its.round_p50_ms, mine.round_p50_ms, strict=False))
    if standard.run_id and standard.run_id == other.run_id and len(pairs) >= MIN_SAMPLES:
        return paired_ratio([items * theirs / ours for theirs, ours in pairs])
    (low, high), (its_low, its_high) = _own_interval(mine), _own_interval(its)
    return standard.item_ms / other.item_ms, items * its_low / high, items * its_high / low


def _own_interval(figures: Latency) -> tuple[float, float]:
    """Of the median without waiting, by the rounds; where there are too few, as wide as that of the median itself."""
    if len(figures.round_p50_ms) < MIN_SAMPLES:
        share = figures.typical_ms / figures.p50_ms
        return figures.p50_low_ms * share, figures.p50_high_ms * share
    return median_interval(figures.round_p50_ms)


def ms(value: float) -> str:
    """Milliseconds as text with the figures that count: 0.0081, 0.152, 9.99, 21.0, 340."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    return f"{value:.{places}f}"
