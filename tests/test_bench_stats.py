"""What samples support: percentiles with enough of them, and intervals that keep their promise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bench.record import Measurement, Settings
from edgekit.bench.stats import MIN_SAMPLES, latency, median_interval, ms, own, paired_ratio, percentile, speed_up


def test_percentile_is_nearest_rank():
    assert percentile([30, 10, 20, 40], 0.5) == 20
    assert percentile([30, 10, 20, 40], 0.75) == 30
    assert percentile([30, 10, 20, 40], 0.76) == 40
    assert percentile([7], 0.01) == 7


@pytest.mark.parametrize(("samples", "q"), [([], 0.5), ([1.0], 0), ([1.0], 1.1)])
def test_percentile_of_nothing_is_refused(samples, q):
    with pytest.raises(ValueError, match="need samples"):
        percentile(samples, q)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_at_least_q_of_the_samples_do_not_exceed_the_percentile(samples, q):
    value = percentile(samples, q)
    assert value in samples
    assert sum(sample <= value for sample in samples) >= q * len(samples) - 1e-9


@pytest.mark.parametrize(("count", "lower"), [(8, 1), (10, 1), (12, 2), (20, 4), (100, 37), (1500, 700)])
def test_the_ranks_of_the_interval_are_those_of_the_binomial(count, lower):
    samples = list(range(1, count + 1))
    random.Random(1).shuffle(samples)
    low, high = median_interval(samples)
    assert low == lower
    assert high == count + 1 - lower


def test_too_few_samples_promise_nothing():
    with pytest.raises(ValueError, match=f"needs {MIN_SAMPLES} samples"):
        median_interval([1.0] * (MIN_SAMPLES - 1))
    with pytest.raises(ValueError, match="got 3"):
        latency([[1.0, 2.0, 3.0]])


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    """2,000 skewed samples of size 30, true median ln 2: at 99 % about 20 misses are expected, 40 would be a lie."""
    source = random.Random(7)
    misses = 0
    for _ in range(2000):
        low, high = median_interval([source.expovariate(1.0) for _ in range(30)])
        misses += not low <= 0.6931 <= high
    assert misses <= 40


@pytest.mark.parametrize(
    ("count", "has_p90", "has_p99"), [(63, False, False), (64, True, False), (661, True, False), (662, True, True)]
)
def test_percentiles_need_their_samples(count, has_p90, has_p99):
    found = latency([[float(i) for i in range(1, count + 1)]])
    assert found.sample_count == count
    assert (found.p90_ms is not None) == has_p90
    assert (found.p99_ms is not None) == has_p99
    assert (found.min_ms, found.max_ms) == (1.0, float(count))


def test_drift_between_rounds_widens_the_interval():
    """A thousand samples a round, each round one step slower: the samples alone would promise far too much."""
    source = random.Random(3)
    rounds = [[10 + step + source.random() * 0.1 for _ in range(1000)] for step in range(12)]
    found = latency(rounds)
    assert found.p50_low_ms < 12
    assert found.p50_high_ms > 20
    assert found.p50_low_ms <= found.p50_ms <= found.p50_high_ms


def test_one_disturbed_round_of_twelve_does_not_widen_it():
    rounds = [[10.0 + 0.01 * i] * 5 for i in range(11)] + [[500.0] * 5]
    found = latency(rounds)
    assert found.p50_high_ms < 11


def _measurement(rounds, run_id: str = "") -> Measurement:
    return Measurement(
        model="m",
        artifact="a",
        artifact_sha256="0",
        precision="float32",
        size_bytes=1,
        settings=Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        latency=latency(rounds) if rounds else None,
        taken_at_unix_ms=1,
        run_id=run_id,
    )


def test_speed_up_says_the_least_and_the_most_that_both_intervals_allow():
    standard, flash = _measurement([[9.0, 10.0, 11.0] * 4]), _measurement([[4.0, 5.0, 6.0] * 4])
    times, least, most = speed_up(standard, flash)
    assert times == 2.0
    assert least == standard.latency.p50_low_ms / flash.latency.p50_high_ms
    assert most == standard.latency.p50_high_ms / flash.latency.p50_low_ms
    assert least < times < most


def test_a_gain_is_proven_round_by_round_although_the_machine_is_disturbed():
    """Half of the rounds run at half speed for both: the intervals overlap, the pairs do not doubt."""
    load = [1.0, 2.0] * 6
    slow = [[10.0 * factor] * 9 for factor in load]
    fast = [[8.0 * factor] * 9 for factor in load]
    _, least, most = speed_up(_measurement(slow, "one run"), _measurement(fast, "one run"))
    assert least == pytest.approx(1.25)
    assert most == pytest.approx(1.25)
    _, least, _ = speed_up(_measurement(slow, "one run"), _measurement(fast, "another run"))
    assert least < 1


def test_rounds_that_were_not_taken_in_turns_are_not_paired():
    found = latency([[float(i)] for i in range(1, 15)], in_turns=12)
    assert found.round_p50_ms == tuple(float(i) for i in range(1, 13))
    assert found.sample_count == 14


def test_two_that_are_equal_are_not_told_apart_by_noise():
    source = random.Random(11)
    wrong = 0
    for _ in range(300):
        first, second = ([[10 * source.uniform(1, 1.3) for _ in range(5)] for _ in range(12)] for _ in range(2))
        _, least, most = speed_up(_measurement(first, "r"), _measurement(second, "r"))
        wrong += least > 1 or most < 1
    assert wrong <= 8


def test_nothing_is_compared_with_a_candidate_that_failed():
    with pytest.raises(ValueError, match="nothing to compare"):
        speed_up(_measurement([[1.0] * 9]), _measurement([]))


@given(st.floats(0.001, 1e5))
def test_milliseconds_keep_the_figures_that_count(value):
    text = ms(value)
    assert float(text) == pytest.approx(value, rel=0.06)
    assert len(text.strip("0.").replace(".", "")) <= 6


def test_the_interval_of_a_paired_ratio_holds_the_true_one_as_often_as_it_says():
    source = random.Random(5)
    missed = 0
    for _ in range(400):
        ratios = [1.05 * source.lognormvariate(0, 0.1) / source.lognormvariate(0, 0.1) for _ in range(40)]
        _, least, most = paired_ratio(ratios)
        missed += not least <= 1.05 <= most
    assert missed <= 12  # 1 % is 4; 12 or more happen once in 2,000


def test_a_tenth_of_disturbed_rounds_does_not_hide_a_lead():
    ratios = [1.05 + 0.001 * (i % 7 - 3) for i in range(36)] + [0.2, 0.3, 4.0, 0.1]
    typical, least, most = paired_ratio(ratios)
    assert typical == pytest.approx(1.05, rel=0.01)
    assert least > 1.03
    assert most < 1.07


def test_waiting_for_a_cpu_is_no_part_of_a_comparison_but_of_the_latency():
    rounds, alone = [[30.0, 31.0, 32.0]] * 12, [[10.0, 10.0, 10.0]] * 12
    found = latency(rounds, own_ms=alone)
    assert found.p50_ms == 31.0
    assert found.typical_ms == 10.0
    assert set(found.round_p50_ms) == {10.0}
    assert found.waited_ratio == pytest.approx(1 - 30 / 93)
    assert latency(rounds).waited_ratio == 0


def test_the_two_clocks_never_make_a_time_negative():
    assert own(1.0, 5.0) == pytest.approx(0.1)
    assert own(5.0, 1.0) == 4.0
