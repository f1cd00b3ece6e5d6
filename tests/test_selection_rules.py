"""Whatever was measured and whatever is required: what is chosen keeps every limit, and every other has its reason."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.bench.record import Latency, Measurement, Settings, Start
from edgekit.bench.stats import SAMPLES_FOR_P90, SAMPLES_FOR_P99
from edgekit.errors import NoUsableArtifact, UsageError
from edgekit.limits import OBJECTIVES, PERCENTILES, WEIGHTS, Limits, check_limits
from edgekit.score import score_terms
from edgekit.selection import select, standings, why_not

MIB = 1 << 20


def latency(p50: float, count: int = 1000) -> Latency:
    return Latency(
        sample_count=count,
        mean_ms=p50,
        min_ms=p50 * 0.9,
        p50_ms=p50,
        p50_low_ms=p50 * 0.99,
        p50_high_ms=p50 * 1.01,
        p90_ms=p50 * 1.1 if count >= SAMPLES_FOR_P90 else None,
        p99_ms=p50 * 1.3 if count >= SAMPLES_FOR_P99 else None,
        max_ms=p50 * 2,
    )


def row(artifact: str = "standard", p50: float = 10.0, **more: Any) -> Measurement:
    blank: dict[str, Any] = {
        "model": "m",
        "artifact": artifact,
        "artifact_sha256": artifact.encode().hex().ljust(64, "0"),
        "precision": "float32" if artifact == "standard" else "int8",
        "size_bytes": MIB,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": latency(p50),
        "start": Start(import_ms=100, load_ms=20, first_ms=10),
        "peak_memory_bytes": 100 * MIB,
        "throughput_qps": 1000 / p50,
        "accuracy_value": 1.0,
        "accuracy_ratio": 1.0,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(blank | more))


# One limit at a time


@pytest.mark.parametrize(
    ("measured", "limits", "reason"),
    [
        ({"failure": "died with SIGILL"}, {}, "died with SIGILL"),
        ({"latency": None}, {}, "was not measured"),
        ({"fit": False, "why_unfit": "keeps 80 %"}, {}, "build marked it unfit: keeps 80 %"),
        ({"fit": False}, {}, "build marked it unfit: no reason given"),
        ({}, {"memory_bytes": 99 * MIB}, "peaks at 100 MiB, 99 MiB allowed"),
        ({"peak_memory_bytes": None}, {"memory_bytes": MIB}, "its peak memory could not be measured on this system"),
        ({"accuracy_ratio": 0.985}, {}, "keeps 98.5% of the standard's accuracy, 99.0% required"),
        ({"accuracy_ratio": None}, {}, "its accuracy is not known (not measured); an accuracy floor of 0 accepts that"),
        ({"accuracy_ratio": None, "accuracy_note": "no data"}, {}, "its accuracy is not known (no data)"),
        ({}, {"latency_ms": 12.0}, "p99 13.0 ms, 12 ms allowed"),
        ({}, {"latency_ms": 9.0, "latency_percentile": "p50"}, "p50 10.0 ms, 9 ms allowed"),
        ({}, {"latency_ms": 10.5, "latency_percentile": "p90"}, "p90 11.0 ms, 10.5 ms allowed"),
        ({"latency": latency(10.0, 100)}, {"latency_ms": 5.0}, "even its median, 10.0 ms, is above the 5 ms allowed"),
        (
            {"latency": latency(10.0, 100)},
            {"latency_ms": 20.0},
            "p99 not supported (100 samples, 662 needed): bench --samples 662 gets them",
        ),
        ({}, {"qps": 101.0}, "answers 100.0 queries/s, 101 required"),
        ({}, {"qps": 1e6}, "answers 100.0 queries/s, 1000000 required"),
        ({"throughput_qps": None}, {"qps": 1.0}, "answers 0.0 queries/s, 1 required"),
    ],
)
def test_a_limit_that_is_not_kept_is_told_with_its_numbers(measured: dict, limits: dict, reason: str) -> None:
    found = why_not(row(**measured), Limits(**limits))
    assert found is not None
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("measured", "limits"),
    [
        ({}, {}),
        ({}, {"memory_bytes": 100 * MIB}),
        ({}, {"latency_ms": 13.0}),
        ({}, {"qps": 100.0}),
        ({"accuracy_ratio": 0.99}, {}),
        ({"accuracy_ratio": None}, {"accuracy_floor": 0.0}),
        ({"accuracy_ratio": 0.1}, {"accuracy_floor": 0.0}),
        ({"latency": latency(10.0, 64)}, {"latency_ms": 11.0, "latency_percentile": "p90"}),
        ({"peak_memory_bytes": None}, {}),
    ],
)
def test_a_limit_that_is_just_kept_is_kept(measured: dict, limits: dict) -> None:
    assert why_not(row(**measured), Limits(**limits)) is None


# All together


CANDIDATES = st.lists(
    st.tuples(
        st.sampled_from(["standard", "flash-a", "flash-b", "flash-c"]),
        st.floats(0.5, 100),
        st.sampled_from([1, 2, 4]),
        st.integers(10, 300),
        st.sampled_from([0.9, 0.985, 0.995, 1.0, None]),
        st.sampled_from([100, 1000]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda c: (c[0], c[2]),
)
LIMITS = st.builds(
    Limits,
    latency_ms=st.one_of(st.none(), st.floats(1, 120)),
    latency_percentile=st.sampled_from(sorted(PERCENTILES)),
    qps=st.one_of(st.none(), st.floats(1, 500)),
    memory_bytes=st.one_of(st.none(), st.integers(20 * MIB, 250 * MIB)),
    accuracy_floor=st.sampled_from([0.0, 0.9, 0.99]),
    objective=st.sampled_from(OBJECTIVES),
)


def rows(candidates: list[Any]) -> list[Measurement]:
    return [
        row(
            artifact,
            p50,
            settings=Settings(runtime="onnxruntime", runtime_version="1", threads=threads, spinning=False),
            peak_memory_bytes=mib * MIB,
            accuracy_ratio=accuracy,
            latency=latency(p50, count),
            failure="crashed" if failed else None,
        )
        for artifact, p50, threads, mib, accuracy, count, failed in candidates
    ]


@settings(max_examples=80)
@given(CANDIDATES, LIMITS)
def test_the_chosen_keeps_every_limit_and_each_other_has_one_reason(candidates: list[Any], limits: Limits) -> None:
    measured = rows(candidates)
    usable = [m for m in measured if why_not(m, limits) is None]
    if not usable:
        with pytest.raises(NoUsableArtifact) as error:
            select(measured, limits)
        assert {name for name, _ in error.value.rejections} == {m.candidate for m in measured}
        return
    selection = select(measured, limits)
    chosen = next(m for m in measured if (m.artifact, m.settings) == (selection.artifact, selection.settings))
    assert why_not(chosen, limits) is None
    assert [r.candidate for r in selection.rejections].count(chosen.candidate) == 0
    assert sorted(r.candidate for r in selection.rejections) == sorted(m.candidate for m in measured if m is not chosen)
    assert all(r.reason for r in selection.rejections)
    assert selection.reasons[0].startswith("p50 ")


@settings(max_examples=30)
@given(CANDIDATES.filter(lambda c: len(c) <= 4), LIMITS)
def test_the_choice_does_not_depend_on_the_order_of_measuring(candidates: list[Any], limits: Limits) -> None:
    measured = rows(candidates)
    if not any(why_not(m, limits) is None for m in measured):
        return
    found = {
        (s.artifact, s.settings.threads) for s in (select(list(order), limits) for order in permutations(measured))
    }
    if len({m.latency.p50_ms for m in measured if m.latency}) == len(measured):
        assert len(found) == 1


@settings(max_examples=60)
@given(CANDIDATES, LIMITS)
def test_a_looser_limit_never_leaves_less_to_choose_from(candidates: list[Any], limits: Limits) -> None:
    looser = msgspec.structs.replace(
        limits,
        latency_ms=None if limits.latency_ms is None else limits.latency_ms * 2,
        qps=None if limits.qps is None else limits.qps / 2,
        memory_bytes=None if limits.memory_bytes is None else limits.memory_bytes * 2,
        accuracy_floor=limits.accuracy_floor / 2,
    )
    for measured in rows(candidates):
        if measured.accuracy_ratio is not None and why_not(measured, limits) is None:
            assert why_not(measured, looser) is None


@settings(max_examples=40)
@given(CANDIDATES)
def test_the_leader_stands_first_and_nobody_is_ahead_of_it(candidates: list[Any]) -> None:
    measured, limits = rows(candidates), Limits(accuracy_floor=0.0)
    found = standings(measured, limits)
    usable = [m for m in measured if m.failure is None]
    assert len(found) == len(usable)
    if found:
        assert found[0].behind == 1.0
        assert all(standing.behind >= 1.0 for standing in found)
        best = min(usable, key=lambda m: m.latency.p50_ms if m.latency else 0.0)
        assert found[0].candidate in {m.candidate for m in usable if m.latency and best.latency}


@pytest.mark.parametrize(
    ("objective", "better"),
    [
        ("latency", {"p50": 5.0}),
        ("throughput", {"throughput_qps": 500.0}),
        ("memory", {"peak_memory_bytes": 40 * MIB}),
    ],
)
def test_each_objective_looks_at_its_own_figure(objective: str, better: dict[str, Any]) -> None:
    flash = row("flash", **({"p50": 10.0} | better))
    selection = select([row(), flash], Limits(objective=objective))
    assert selection.artifact == "flash"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "speed"}, "objective 'speed' is not one of latency, throughput, memory, balanced"),
        ({"latency_percentile": "p95"}, "percentile 'p95' is not one of p50, p90, p99"),
        ({"weights": {"throughput": 1.0}}, "weights must name throughput, memory, accuracy, deployability"),
        ({"weights": dict(WEIGHTS) | {"memory": 0.9}}, "and add up to 1"),
    ],
)
def test_limits_that_make_no_sense_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        check_limits(Limits(**change))
    assert words in str(error.value)


def test_the_default_weights_add_up() -> None:
    check_limits(Limits())
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


# What the words say


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "best for latency"),
        ({"objective": "balanced"}, "best balanced score"),
        ({"latency_ms": 40.0, "latency_percentile": "p90"}, "best for latency with p90 within 40 ms"),
        ({"qps": 50.0}, "best for latency with at least 50 items/s"),
        ({"memory_bytes": 128 * MIB, "qps": 9.5}, "best for latency with at least 9.5 items/s, at most 128 MiB"),
    ],
)
def test_the_first_reason_names_the_aim_and_each_limit(limits: dict[str, Any], words: str) -> None:
    assert select([row()], Limits(**limits)).reasons[0].endswith(f"at 99 % confidence), {words}")


@pytest.mark.parametrize(
    ("objective", "flash", "words"),
    [
        ("latency", {"p50": 10.0}, "typically 10.0 ms: as good as the selected"),
        ("latency", {"p50": 10.04}, "typically 10.0 ms: as good as the selected"),
        ("latency", {"p50": 10.06}, "typically 10.1 ms: 1.01x worse than the selected"),
        ("throughput", {"throughput_qps": 50.0}, "50.0 queries/s: 2.00x worse than the selected"),
        ("throughput", {"throughput_qps": None}, "0.0 queries/s: worse than the selected"),
        ("memory", {"peak_memory_bytes": 200 * MIB}, "peak 200 MiB: 2.00x worse than the selected"),
    ],
)
def test_who_lost_has_the_figure_that_the_objective_looks_at(objective: str, flash: dict, words: str) -> None:
    selection = select([row(), row("flash", **flash)], Limits(objective=objective))
    assert [r.reason for r in selection.rejections] == [words]


def test_what_the_samples_do_not_support_is_said_once_and_only_then() -> None:
    few = select([row(latency=latency(10.0, 100))], Limits()).reasons
    assert [r for r in few if "p99" in r] == ["p99 not supported (100 samples, 662 needed)"]
    assert not [r for r in select([row()], Limits()).reasons if "p99" in r]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_score_is_spelt_out_where_it_decides(objective: str) -> None:
    told = [r for r in select([row()], Limits(objective=objective)).reasons if r.startswith("score ")]
    words = "0.4 × 1.00 throughput + 0.3 × 1.00 memory + 0.2 × 1.00 accuracy + 0.1 × 1.00 deployability"
    spelt = [f"score 1.000 = {words}; 1 is the best of what keeps the limits"]
    assert told == (spelt if objective == "balanced" else [])


def test_a_median_that_may_be_just_at_the_bound_may_still_keep_it() -> None:
    few = row(latency=latency(10.0, 100))
    assert "not supported" in (why_not(few, Limits(latency_ms=9.9)) or "")
    assert "even its median" in (why_not(few, Limits(latency_ms=9.89)) or "")


# The weighted score


def terms(one: Measurement, *others: Measurement) -> dict[str, float]:
    return {name: round(value, 4) for name, value in score_terms(one, [one, *others]).items()}


def test_each_term_is_a_share_of_the_best_of_what_keeps_the_limits() -> None:
    start = Start(import_ms=200, load_ms=40, first_ms=20)
    best = row("flash", 5.0, accuracy_ratio=0.96)
    one = row(peak_memory_bytes=400 * MIB, size_bytes=4 * MIB, start=start, accuracy_ratio=0.72)
    assert terms(best, one) == {"throughput": 1.0, "memory": 1.0, "accuracy": 1.0, "deployability": 1.0}
    assert terms(one, best) == {"throughput": 0.5, "memory": 0.25, "accuracy": 0.75, "deployability": 0.375}


def test_what_was_not_measured_earns_nothing_and_breaks_nothing() -> None:
    unknown = row("flash", throughput_qps=None, peak_memory_bytes=None, accuracy_ratio=None, start=None, size_bytes=0)
    found = terms(unknown, row())
    assert (found["throughput"], found["memory"], found["accuracy"]) == (0.0, 0.0, 0.0)
    assert found["deployability"] == 0.5  # all for its size, nothing for its start
    assert terms(unknown) == {"throughput": 0.0, "memory": 1.0, "accuracy": 0.0, "deployability": 1.0}
    for objective in ("memory", "balanced", "throughput"):
        limits = Limits(objective=objective, accuracy_floor=0.0)
        assert select([unknown, row()], limits).artifact == "standard"


# Batches


def batch(size: int, p50: float, artifact: str = "standard", **more: Any) -> Measurement:
    way = Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False, batch=size)
    return row(artifact, p50, settings=way, **more)


ITEMS = Limits(objective="throughput")


def test_items_a_second_decide_not_queries() -> None:
    one, eight = batch(1, 10.0), batch(8, 40.0)
    assert select([one, eight], ITEMS).settings.batch == 8
    assert (one.items_per_s, eight.items_per_s) == (100.0, 200.0)
    selection = select([one, eight], ITEMS)
    assert selection.reasons[1] == "answers 200.0 items/s in batches of 8"
    assert selection.rejections[0].reason == "100.0 queries/s: 2.00x worse than the selected"
    assert select([one, batch(8, 85.0)], ITEMS).settings.batch == 1


@pytest.mark.parametrize(
    ("objective", "batches"), [("latency", False), ("memory", False), ("throughput", True), ("balanced", True)]
)
def test_where_throughput_counts_for_nothing_a_query_holds_one_item(objective: str, batches: bool) -> None:
    why = why_not(batch(2, 1.0), Limits(objective=objective))
    assert why == (None if batches else f"for {objective} a query holds one item")


def test_a_latency_bound_is_on_the_whole_query() -> None:
    eight = batch(8, 40.0)
    bound = msgspec.structs.replace(ITEMS, latency_ms=30.0, latency_percentile="p50")
    assert why_not(eight, bound) == "p50 40.0 ms for a query of 8 items, 30 ms allowed"
    few = batch(8, 40.0, latency=latency(40.0, 20))
    p99 = msgspec.structs.replace(bound, latency_percentile="p99")
    assert why_not(few, p99) == "even its median, 40.0 ms for a query of 8 items, is above the 30 ms allowed"


def test_items_a_second_are_what_a_rate_is_about() -> None:
    eight = batch(8, 40.0)
    assert why_not(eight, msgspec.structs.replace(ITEMS, qps=200.0)) is None
    words = "answers 200.0 items/s in batches of 8, 201 required"
    assert why_not(eight, msgspec.structs.replace(ITEMS, qps=201.0)) == words


def test_of_batches_that_are_tied_the_smaller_is_kept_even_before_fewer_threads() -> None:
    two = Settings(runtime="onnxruntime", runtime_version="1", threads=2, spinning=False)
    assert select([batch(8, 40.0), batch(4, 20.1)], ITEMS).settings.batch == 4
    small = row(settings=two, p50=5.02)
    assert select([batch(8, 40.0), small], ITEMS).settings == two


def test_a_lead_over_another_batch_is_proven_by_the_items_of_their_rounds() -> None:
    """Round by round an item is a tenth faster in the larger batch, while the machine slows to a half."""
    slow = [1.0 + 0.1 * i for i in range(10)]
    ours, theirs = (
        msgspec.structs.replace(latency(p50), round_p50_ms=tuple(p50 * s for s in slow)) for p50 in (36.0, 10.0)
    )
    rounds = [batch(8, 36.0, latency=ours, run_id="r"), batch(2, 10.0, latency=theirs, run_id="r")]
    first, second = standings(rounds, ITEMS)
    assert first.candidate.endswith("batch 8")
    assert second.surely
    assert second.behind == pytest.approx(10 / 9)
    assert second.behind_at_best == pytest.approx(10 / 9)
    kind = msgspec.structs.replace(theirs, round_p50_ms=(9.5, *theirs.round_p50_ms[1:]))
    _, kinder = standings([rounds[0], batch(2, 10.0, latency=kind, run_id="r")], ITEMS)
    assert kinder.behind_at_best == pytest.approx(9.5 / 9)


def test_rounds_of_another_run_tell_nothing_of_who_was_kind_to_whom() -> None:
    """Paired with another run's rounds, one of them would be a tie."""
    ours, theirs = (
        row(name, p50, run_id=name, latency=msgspec.structs.replace(latency(p50), round_p50_ms=rounds))
        for name, p50, rounds in (("flash", 5.0, (5.0,) * 10), ("standard", 10.0, (5.0, *(10.0,) * 9)))
    )
    assert standings([ours, theirs], Limits())[1].behind_at_best == pytest.approx(2.0)
    together = [msgspec.structs.replace(one, run_id="r") for one in (ours, theirs)]
    assert standings(together, Limits())[1].behind_at_best == pytest.approx(1.0)


def test_the_chosen_is_compared_with_the_other_kind_at_its_best_whether_it_may_be_chosen_or_not() -> None:
    """Slower is told as slower, without an interval of how fast it is."""
    flashes = [row("flash-a", 8.0, accuracy_ratio=0.9), row("flash-b", 16.0, accuracy_ratio=0.9)]
    (told,) = [r for r in select([row(p50=20.0), *flashes], Limits()).reasons if "Flash" in r]
    assert told == "2.50x slower than Flash at its best (flash-a · onnxruntime 1t)"
    (told,) = [r for r in select([row(p50=4.0), *flashes[::-1]], Limits()).reasons if "Flash" in r]
    assert told == "2.00x as fast as Flash at its best (flash-a · onnxruntime 1t; between 1.96x and 2.04x as fast)"
    for alone in ([row()], [row(), row("flash", latency=None, failure="died")]):
        assert not [r for r in select(alone, Limits()).reasons if "Flash" in r]


def test_of_those_that_are_tied_with_the_best_only_the_equally_accurate_outrun_each_other() -> None:
    """The most accurate is surely slower than one of the others, but no more than tied with the best of all."""
    unsure = msgspec.structs.replace(latency(9.0), p50_low_ms=8.0, p50_high_ms=12.0)
    best = row("flash-best", 9.0, latency=unsure, accuracy_ratio=0.995)
    paired = [
        row(name, p50, run_id="r", accuracy_ratio=ratio, latency=msgspec.structs.replace(latency(p50), round_p50_ms=at))
        for name, p50, ratio, at in (("standard", 10.0, 1.0, (10.0,) * 10), ("flash", 9.2, 0.995, (9.2,) * 10))
    ]
    assert select([best, *paired], Limits()).artifact == "standard"
    equal = [msgspec.structs.replace(one, accuracy_ratio=0.995) for one in paired]
    assert select([best, *equal], Limits()).artifact != "standard"


@pytest.mark.parametrize(
    ("ratio", "virtue"), [(0.9985, "more accurate"), (0.9995, "simpler"), (1.0, "simpler"), (None, "more accurate")]
)
def test_a_tie_is_told_by_the_virtue_that_decided_it(ratio: float | None, virtue: str) -> None:
    tied = row("flash", 9.8, accuracy_ratio=ratio)
    selection = select([row(), tied], Limits(accuracy_floor=0.0))
    assert selection.artifact == "standard"
    assert selection.rejections[0].reason.endswith(f"ties go to the {virtue}")
    kept = f"flash · onnxruntime 1t leads by less than can be proven; the {virtue} is kept"
    assert selection.reasons[1] == kept


def test_the_selection_carries_the_figures_of_the_chosen() -> None:
    chosen = row("flash", 5.0, peak_memory_bytes=70 * MIB, accuracy_ratio=0.995, device={"cpu": "x"})
    selection = select([row(), chosen], Limits())
    assert (selection.p50_ms, selection.p99_ms, selection.peak_memory_bytes) == (5.0, 6.5, 70 * MIB)
    assert (selection.accuracy_ratio, selection.device, selection.precision) == (0.995, {"cpu": "x"}, "int8")
    assert (selection.artifact_sha256, selection.model, selection.is_prior) == (chosen.artifact_sha256, "m", False)


def test_what_a_search_stopped_early_wins_only_where_it_is_the_best_of_all() -> None:
    """Its few samples prove no tie: they only tell that it is worth measuring to the end."""
    early = row("flash", 5.0, rough=True)
    assert select([row(), early], Limits()).artifact == "flash"
    tied = row("flash", 9.9, rough=True)
    assert select([row("flash-b", 9.8), row("standard", 20.0), tied], Limits()).artifact == "flash-b"


@pytest.mark.parametrize(("measured", "model"), [([row(failure="died")], "m"), ([], "")])
def test_when_nothing_is_left_the_model_is_named(measured: list[Measurement], model: str) -> None:
    with pytest.raises(NoUsableArtifact) as error:
        select(measured, Limits())
    assert error.value.model == model
    assert len(error.value.rejections) == len(measured)


def test_flash_against_the_standard_is_told_by_the_item() -> None:
    (told,) = [r for r in select([batch(1, 10.0), batch(4, 20.0, "flash")], ITEMS).reasons if "as fast" in r]
    assert told.startswith("2.00x as fast as the standard at its best (standard · onnxruntime 1t; between ")
