"""Are the updated as good as the others: what is proven, what is not, and that a busy minute judges nobody."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from edgekit.provision.compare import Bounds, compare, figures
from edgekit.provision.evidence import (
    KEPT_WINDOWS,
    NONE,
    Evidence,
    Window,
    is_wholly_after,
    pool,
    sample_count,
    stretch_count,
    with_window,
)
from edgekit.provision.figure import Answer, Figure, decisive, overall
from edgekit.telemetry.histogram import HistogramBuilder, merge_all, quantile
from edgekit.telemetry.messages import LaneMetrics, Metrics

LANE = ("pi", "m", "realtime")
WITHIN, WORSE, OPEN = Answer.WITHIN, Answer.WORSE, Answer.OPEN


def windows(
    seed: int,
    *,
    scale: float = 1.0,
    count: int = 40,
    requests: int = 60,
    busy: Callable[[int], float] = lambda _at: 1.0,
    start: int = 0,
    failed: int = 0,
    shadow: tuple[int, int] = (0, 0),
) -> list[Window]:
    """`count` stretches of log-normal latencies around 3 ms times `scale` times how busy that stretch was."""
    rng, made = np.random.default_rng(seed), []
    for at in range(start, start + count):
        builder = HistogramBuilder(max_scale=4)
        builder.record_many(3.0 * scale * busy(at) * rng.lognormal(0.0, 0.1, requests))
        made.append(Window(at, requests, failed, *shadow, builder.histogram()))
    return made


def by_name(found: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in found}


def answers(updated: list[Window], others: list[Window], **bounds: float) -> dict[str, Answer]:
    return {name: f.answer for name, f in by_name(compare(LANE, updated, others, Bounds(**bounds))).items()}


def test_equal_devices_are_proven_equal_and_a_slowed_one_is_proven_worse():
    others = windows(1, requests=180)
    assert set(answers(windows(2), others).values()) == {WITHIN}
    slowed = answers(windows(2, scale=1.3), others)
    assert (slowed["p50"], slowed["p99"]) == (WORSE, WORSE)


@pytest.mark.parametrize(("scale", "expected"), [(0.7, WITHIN), (1.0, WITHIN), (1.2, WORSE), (2.0, WORSE)])
def test_the_ratio_is_found_within_its_interval(scale: float, expected: Answer):
    p50 = by_name(compare(LANE, windows(3, scale=scale), windows(4), Bounds()))["p50"]
    assert p50.value == pytest.approx(scale, rel=0.03)
    assert p50.low < scale * 1.02
    assert p50.high > scale * 0.98
    assert p50.answer is expected


def test_it_seldom_errs_over_many_fleets():
    """99 % intervals: of 60 equal pairs hardly any may be called worse, of 60 slowed by 30 % hardly any missed."""
    called = [answers(windows(i, count=20), windows(1000 + i, count=20, requests=120))["p50"] for i in range(60)]
    missed = [answers(windows(i, scale=1.3, count=20), windows(1000 + i, count=20))["p50"] for i in range(60)]
    assert called.count(WORSE) <= 1
    assert missed.count(WORSE) >= 59


def test_a_busy_stretch_that_hits_both_sides_does_not_widen_the_interval():
    def busy(at: int) -> float:
        return 2.0 if at % 5 == 0 else 1.0

    hit = by_name(compare(LANE, windows(5, busy=busy), windows(6, busy=busy), Bounds()))["p50"]
    calm = by_name(compare(LANE, windows(5), windows(6), Bounds()))["p50"]
    assert hit.answer is WITHIN
    assert hit.high - hit.low < 2.5 * (calm.high - calm.low)


def test_samples_of_another_time_are_compared_too_but_each_side_draws_for_itself():
    def busy(at: int) -> float:
        return 2.0 if at % 5 == 0 else 1.0

    apart = by_name(compare(LANE, windows(5, busy=busy), windows(6, busy=busy, start=1000), Bounds()))["p99"]
    beside = by_name(compare(LANE, windows(5, busy=busy), windows(6, busy=busy), Bounds()))["p99"]
    assert apart.value == pytest.approx(beside.value, rel=0.1)
    assert apart.high - apart.low >= beside.high - beside.low


def test_only_stretches_that_both_sides_have_are_compared():
    """The others had a calm past before the updated devices began: it must not count against these."""
    others = [*windows(1, scale=0.5, count=40), *windows(2, count=40, start=40)]
    p50 = by_name(compare(LANE, windows(3, count=40, start=40), others, Bounds()))["p50"]
    assert p50.value == pytest.approx(1.0, rel=0.03)
    assert p50.samples == (2400, 2400)


@pytest.mark.parametrize(
    ("count", "requests", "samples"), [(40, 16, 662), (5, 1000, 662), (0, 0, 662), (7, 100, 1)], ids=str
)
def test_with_too_few_samples_or_stretches_nothing_is_said(count: int, requests: int, samples: int):
    found = by_name(compare(LANE, windows(1, count=count, requests=requests), windows(2), Bounds(samples=samples)))
    assert (found["p50"].answer, found["p99"].answer) == (OPEN, OPEN)
    assert found["p50"].value is None
    assert "p50 has only" in found["p50"].text


def test_a_tail_in_a_gap_is_open_until_there_are_plenty_of_samples_and_then_taken_for_equal():
    """One request in a hundred is three times slower: the p99 lies between the two kinds, and jumps."""

    def tailed(seed: int, count: int, factor: float = 3.0) -> list[Window]:
        rng, made = np.random.default_rng(seed), []
        for at in range(count):
            builder = HistogramBuilder(max_scale=4)
            slow = np.where(rng.random(50) < 0.01, factor, 1.0)
            builder.record_many(3.0 * slow * rng.lognormal(0.0, 0.1, 50))
            made.append(Window(at, 50, latency=builder.histogram()))
        return made

    few = [answers(tailed(i, 16), tailed(100 + i, 16))["p99"] for i in range(12)]
    many = [answers(tailed(i, 80), tailed(100 + i, 80))["p99"] for i in range(12)]
    assert few.count(OPEN) >= 8
    assert many.count(WITHIN) >= 6
    assert WORSE not in few + many
    worse_tail = [Window(w.at, w.requests, latency=w.latency) for w in windows(9, count=80, scale=1.0)]
    heavier = [replace(w, latency=merge_all([w.latency, slow_tail()])) for w in worse_tail]
    assert answers(heavier, windows(10, count=80))["p99"] is WORSE


def slow_tail():
    builder = HistogramBuilder(max_scale=4)
    builder.record_many([12.0] * 3)
    return builder.histogram()


def test_a_percentile_is_that_of_all_samples_and_no_mean_of_percentiles():
    """Half the stretches are ten times slower: the mean of their p50s is no latency that anyone had."""
    mixed = [*windows(1, count=20), *windows(2, count=21, scale=10.0, start=20)]
    merged = merge_all(w.latency for w in mixed)
    assert merged is not None
    p50 = by_name(compare(LANE, mixed, windows(3, count=41), Bounds()))["p50"]
    assert p50.value == pytest.approx(quantile(merged, 0.5) / 3.0, rel=0.1)


def test_histograms_of_different_scale_are_compared_at_the_coarser():
    builder = HistogramBuilder(max_scale=0)
    builder.record_many(3.0 * np.random.default_rng(1).lognormal(0.0, 0.1, 60))
    coarse = [Window(at, 60, latency=builder.histogram()) for at in range(40)]
    p50 = by_name(compare(LANE, coarse, windows(2), Bounds()))["p50"]
    assert p50.value == pytest.approx(1.0, rel=0.35)


def test_zero_latencies_are_counted_and_break_nothing():
    builder = HistogramBuilder(max_scale=4)
    builder.record_many([0.0] * 50 + [3.0] * 10)
    zeros = [Window(at, 60, latency=builder.histogram()) for at in range(40)]
    p50 = by_name(compare(LANE, zeros, windows(2), Bounds()))["p50"]
    assert p50.value < 1.0
    assert math.isfinite(p50.high)


@pytest.mark.parametrize(
    ("failed", "others_failed", "expected"),
    [(0, 0, WITHIN), (2, 2, OPEN), (6, 0, WORSE), (0, 6, WITHIN)],
)
def test_failed_requests_are_compared_as_shares(failed: int, others_failed: int, expected: Answer):
    found = by_name(compare(LANE, windows(1, failed=failed), windows(2, failed=others_failed), Bounds()))
    assert found["failed requests"].answer is expected


def test_no_failure_among_few_requests_proves_little():
    few = by_name(compare(LANE, windows(1, count=10, requests=20), windows(2), Bounds(samples=100)))
    assert few["failed requests"].answer is OPEN
    assert few["failed requests"].high > 0.01


def test_shadow_agreement_is_judged_where_enough_was_shadowed_and_awaited_nowhere():
    names = [f.name for f in compare(LANE, windows(1, shadow=(1, 1)), windows(2), Bounds())]
    assert "disagreement" not in names
    agreeing = windows(2, shadow=(20, 20))
    assert answers(windows(1, shadow=(20, 20)), agreeing)["disagreement"] is WITHIN
    assert answers(windows(1, shadow=(18, 20)), agreeing)["disagreement"] is WORSE


# --- lanes together ---


def test_one_lane_that_is_worse_stops_and_all_must_be_within():
    others = {LANE: windows(1), ("pi", "n", "realtime"): windows(2)}
    good = figures({LANE: windows(3), ("pi", "n", "realtime"): windows(4)}, others, Bounds())
    assert overall(good) is WITHIN
    bad = figures({LANE: windows(3), ("pi", "n", "realtime"): windows(4, scale=1.5)}, others, Bounds())
    assert overall(bad) is WORSE
    assert decisive(bad).text.startswith("n on pi: p")
    silent = figures({LANE: windows(3)}, others, Bounds())
    assert overall(silent) is OPEN
    assert "n on pi: p50 has only 0 samples against 2400 in 0 windows" in [figure.text for figure in silent]


def test_a_lane_of_few_requests_is_not_awaited_but_may_stop():
    small = ("pi", "m", "tolerant")
    others = {LANE: windows(1), small: windows(2, requests=1)}
    assert overall(figures({LANE: windows(3), small: windows(4, requests=1)}, others, Bounds())) is WITHIN
    failing = windows(4, requests=2, failed=2)
    found = figures({LANE: windows(3), small: failing}, {**others, small: windows(2, requests=2)}, Bounds(samples=70))
    assert overall(found) is WORSE


def test_a_model_that_only_the_new_release_has_is_compared_with_nothing():
    assert figures({("pi", "new", "realtime"): windows(1)}, {}, Bounds()) == ()


def test_kinds_of_boards_are_never_mixed():
    updated = {("pi5", "m", "realtime"): windows(1)}
    others = {("pi5", "m", "realtime"): windows(2), ("pi4", "m", "realtime"): windows(3, scale=4.0)}
    found = [f for f in figures(updated, others, Bounds()) if f.lane[0] == "pi5"]
    assert overall(found) is WITHIN


def test_figures_tell_both_sides_the_interval_and_the_bound():
    p50 = by_name(compare(("Pi 5", "m", "tolerant"), windows(1, scale=1.3), windows(2), Bounds()))["p50"]
    assert p50.text.startswith("m (tolerant) on Pi 5: p50 is 1.3")
    assert p50.text.endswith("2400 samples against 2400), the bound is 1.10x")
    share = by_name(compare(("", "m", "realtime"), windows(1, failed=6), windows(2), Bounds()))["failed requests"]
    assert share.text.startswith("m: failed requests is +10.00 points against the others (+")


@pytest.mark.parametrize(
    ("updated", "name", "brief"),
    [
        (windows(1), "p50", r"p50 1\.0\dx \(\d\.\d\d to \d\.\d\d\), at most 1\.10x"),
        (windows(1, failed=6), "failed requests", r"failed requests \+10\.00 \(\+\d+\.\d\d at most\), bound \+1\.00"),
        (windows(1, count=3), "p99", "p99: 180 samples against 2400 in 3 windows"),
        (windows(1, count=3), "failed requests", "failed requests: 180 samples against 2400"),
    ],
    ids=["ratio", "points", "few", "few-points"],
)
def test_a_brief_form_fits_beside_a_bar(updated: list[Window], name: str, brief: str):
    found = by_name(compare(LANE, updated, windows(2), Bounds()))[name].brief
    assert re.fullmatch(brief, found), found
    assert len(found) < 60


def test_the_same_input_gives_the_same_answer():
    assert compare(LANE, windows(1), windows(2), Bounds()) == compare(LANE, windows(1), windows(2), Bounds())


def test_nothing_to_compare_decides_nothing():
    assert overall(()) is OPEN
    assert decisive(()) is None


# --- evidence ---


def window(seq: int, *, epoch: int = 1, historical: bool = False, **lane: int) -> Metrics:
    lanes = (LaneMetrics(model="m", **{"requests": 5} | lane),)
    given = {"epoch": epoch, "seq": seq, "t_unix_ms": 0, "t_mono_ms": 0, "window_ms": 10_000}
    return Metrics(lanes=lanes, historical=historical, **given)


def test_a_window_counts_once_and_late_ones_not_at_all():
    evidence = NONE
    for metrics in (window(1), window(1), window(0), window(2), window(3, historical=True), window(0, epoch=2)):
        evidence = with_window(evidence, metrics, 100.0)
    assert len(evidence.lanes["m/realtime"]) == 3
    assert evidence.last == (2, 0)


def test_errors_and_refusals_are_both_failures():
    evidence = with_window(NONE, window(0, errors=2, rejected=3), 105.0)
    assert evidence.lanes["m/realtime"][0] == Window(10, 5, 5)


def test_evidence_is_bounded():
    evidence = NONE
    for seq in range(KEPT_WINDOWS + 30):
        evidence = with_window(evidence, window(seq), seq * 10.0)
    kept = evidence.lanes["m/realtime"]
    assert (len(kept), kept[-1].at, kept[0].at) == (KEPT_WINDOWS, KEPT_WINDOWS + 29, 30)


def test_a_window_that_holds_the_switch_judges_nobody():
    assert not is_wholly_after(window(0), received_s=109.0, since_s=100.0)
    assert is_wholly_after(window(0), received_s=110.0, since_s=100.0)


def test_pooling_keeps_kinds_and_lanes_apart_and_counts_the_thinnest_lane():
    rich = Evidence({"a/b/realtime": tuple(windows(1, count=2)), "n/realtime": tuple(windows(2, count=1))})
    pooled = pool([("pi", rich), ("pi", rich), ("x86", rich)])
    assert {lane: len(found) for lane, found in pooled.items()} == {
        ("pi", "a/b", "realtime"): 4,
        ("pi", "n", "realtime"): 2,
        ("x86", "a/b", "realtime"): 2,
        ("x86", "n", "realtime"): 1,
    }
    assert (sample_count(rich), sample_count(NONE)) == (60, 0)
    assert (stretch_count(rich), stretch_count(NONE)) == (1, 0)
    silent = Evidence({"m/realtime": (*windows(1, count=3), Window(99, 5))})
    assert stretch_count(silent) == 3
