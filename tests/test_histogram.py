"""Histograms: exact merging, the stated error against exact values, and what is refused."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.telemetry.histogram import (
    HistogramBuilder,
    merge,
    merge_all,
    problem,
    quantile,
    relative_error,
)
from edgekit.telemetry.messages import Histogram
from edgekit.telemetry.recorder import INFER_SCALE

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)
SHAPES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "bimodal": lambda r: np.concatenate([r.normal(2.0, 0.05, 9_000), r.normal(900.0, 20.0, 1_000)]).clip(0.01),
    "heavy tail": lambda r: r.pareto(1.1, 10_000) + 0.5,
    "constant": lambda r: np.full(10_000, 7.25),
    "narrow": lambda r: r.uniform(10.0, 10.001, 10_000),
    "with zeros": lambda r: np.concatenate([np.zeros(4_000), r.exponential(3.0, 6_000)]),
    "all zeros": lambda r: np.zeros(1_000),
    "12 decades": lambda r: 10.0 ** r.uniform(-6, 6, 10_000),
    "subnormal to huge": lambda r: np.array([5e-324, 1e-300, 1.0, 1e300, 1.7e308]),
}
samples = st.lists(st.floats(min_value=0.0, max_value=1e12), min_size=1, max_size=60)


def build(values: np.ndarray | list[float], **limits: int) -> Histogram:
    builder = HistogramBuilder(**limits)
    for value in values:
        builder.record(float(value))
    histogram = builder.histogram()
    assert histogram is not None
    return histogram


def exact(values: np.ndarray | list[float], q: float) -> float:
    ordered = sorted(float(v) for v in values)
    return ordered[max(1, math.ceil(q * len(ordered))) - 1]


@pytest.mark.parametrize("shape", SHAPES)
def test_quantiles_stay_within_the_stated_error_of_the_exact_samples(shape: str) -> None:
    values = SHAPES[shape](np.random.default_rng(7))
    histogram = build(values)
    bound = relative_error(histogram) + 1e-12
    for q in QUANTILES:
        assert quantile(histogram, q) == pytest.approx(exact(values, q), rel=bound, abs=0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_merged_windows_give_the_same_histogram_as_all_samples_at_once(shape: str) -> None:
    values = SHAPES[shape](np.random.default_rng(3))
    whole = build(values)
    parts = [build(part) for part in np.array_split(np.random.default_rng(1).permutation(values), 4)]
    merged = merge_all(parts)
    assert merged is not None
    assert (merged.counts, merged.offset, merged.zero_count) == (whole.counts, whole.offset, whole.zero_count)
    assert (merged.scale, merged.count, merged.min, merged.max) == (whole.scale, whole.count, whole.min, whole.max)
    assert merged.sum == pytest.approx(whole.sum)


MANY = int(os.environ.get("EDGEKIT_SAMPLES", "200000"))
"""Ten million under `make soak-fleet`."""
FLEETS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "bimodal": lambda r: np.where(r.random(MANY) < 0.9, r.normal(2.0, 0.05, MANY), r.normal(900.0, 20.0, MANY)),
    "heavy tail": lambda r: r.pareto(1.1, MANY) + 0.5,
    "constant": lambda r: np.full(MANY, 7.25),
    "12 decades": lambda r: 10.0 ** r.uniform(-6, 6, MANY),
}


@pytest.mark.parametrize("shape", FLEETS)
def test_a_fleets_percentiles_from_merged_windows_are_those_of_its_samples(shape: str) -> None:
    """Windows of a thousand samples, at the scale that devices send."""
    values = FLEETS[shape](np.random.default_rng(5)).clip(1e-6)
    windows = []
    for part in np.array_split(values, MANY // 1000):
        builder = HistogramBuilder(max_scale=INFER_SCALE)
        builder.record_many(part)
        windows.append(builder.histogram())
    merged = merge_all(window for window in windows if window is not None)
    assert merged is not None
    assert merged.count == MANY
    values.sort()
    for q in (0.5, 0.9, 0.99, 0.999):
        wanted = values[math.ceil(q * MANY) - 1]
        assert quantile(merged, q) == pytest.approx(wanted, rel=relative_error(merged) + 1e-12), q


def test_a_true_fleet_percentile_is_not_the_average_of_percentiles() -> None:
    # 1,000 samples near 10 ms and 10 near 1,900 ms: averaging the p95s gives 955 ms, the truth is 10 ms.
    merged = merge(build([10.0] * 1_000), build([1_900.0] * 10))
    assert quantile(merged, 0.95) == pytest.approx(10.0, rel=0.03)


def test_the_bounds_in_the_documentation_hold() -> None:
    for scale, bound in ((5, 0.0108), (4, 0.0217), (3, 0.0433), (2, 0.0864)):
        assert relative_error(Histogram(scale=scale, offset=0, counts=(), sum=0, count=0, min=0, max=0)) == (
            pytest.approx(bound, abs=5e-5)
        )


def test_three_decades_of_milliseconds_fit_with_two_percent_error() -> None:
    histogram = build(np.geomspace(1.01, 1_000.0, 5_000))
    assert len(histogram.counts) <= 160
    assert relative_error(histogram) <= 0.0217


def test_a_value_on_a_bucket_edge_belongs_to_the_bucket_below_it() -> None:
    # The data model's buckets are (lower, upper]: at scale 0, 4.0 is in (2, 4], bucket 1.
    histogram = build([4.0], max_scale=0)
    assert (histogram.offset, histogram.counts) == (1, (1,))


def test_constant_samples_are_reported_exactly() -> None:
    assert quantile(build([3.14159] * 99), 0.5) == 3.14159


@pytest.mark.parametrize("bad", [-0.001, -math.inf, math.inf, math.nan])
def test_negative_and_non_finite_samples_are_refused(bad: float) -> None:
    builder = HistogramBuilder()
    with pytest.raises(ValueError, match="finite"):
        builder.record(bad)
    with pytest.raises(ValueError, match="finite"):
        builder.record_many([1.0, bad])
    assert builder.histogram() is None


def test_a_quantile_of_nothing_or_outside_the_range_is_refused() -> None:
    empty = Histogram(scale=0, offset=0, counts=(), sum=0.0, count=0, min=0.0, max=0.0)
    with pytest.raises(ValueError, match="0 samples"):
        quantile(empty, 0.5)
    with pytest.raises(ValueError, match=r"q=1\.5"):
        quantile(build([1.0]), 1.5)


def test_parts_that_disagree_are_named() -> None:
    good = build([1.0, 2.0])
    assert problem(good) is None
    wrong_count = Histogram(scale=0, offset=0, counts=(1, 1), sum=3.0, count=5, min=1.0, max=2.0)
    wrong_order = Histogram(scale=0, offset=0, counts=(2,), sum=3.0, count=2, min=9.0, max=2.0)
    assert "do not add up" in (problem(wrong_count) or "")
    assert "above max" in (problem(wrong_order) or "")


@given(samples, samples)
@settings(max_examples=60, deadline=None)
def test_merging_is_exact_and_commutes(a: list[float], b: list[float]) -> None:
    one, other, whole = merge(build(a), build(b)), merge(build(b), build(a)), build(a + b)
    assert (one.scale, one.offset, one.counts) == (other.scale, other.offset, other.counts)
    assert (one.scale, one.offset, one.counts) == (whole.scale, whole.offset, whole.counts)
    assert (one.count, one.min, one.max) == (whole.count, whole.min, whole.max)
    assert problem(one) is None


@given(samples, st.floats(min_value=0.0, max_value=1.0))
@settings(max_examples=100, deadline=None)
def test_any_quantile_of_any_samples_is_within_the_bound(values: list[float], q: float) -> None:
    histogram = build(values)
    assert quantile(histogram, q) == pytest.approx(exact(values, q), rel=relative_error(histogram) + 1e-9, abs=0.0)


def test_recording_costs_a_microsecond_or_less_on_average() -> None:
    values = np.random.default_rng(0).gamma(2.0, 3.0, 20_000).tolist()
    costs = []
    for _ in range(5):
        builder = HistogramBuilder()
        start = time.perf_counter()
        for value in values:
            builder.record(value)
        costs.append((time.perf_counter() - start) / len(values))
    assert min(costs) <= 1e-6
