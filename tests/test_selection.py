"""The decision is a function of measurements and limits: hard limits first, then proven gains only, with reasons."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bench.record import Conditions, Latency, Measurement, Settings, Start
from edgekit.errors import NoUsableArtifact, UsageError
from edgekit.score import needed_gain
from edgekit.selection import Limits, Selection, score_terms, select, standings, why_not

MIB = 2**20


def _latency(p50: float, *, spread: float = 0.01, count: int = 1000, p99: float | None = None) -> Latency:
    return Latency(
        sample_count=count,
        mean_ms=p50,
        min_ms=p50 * 0.9,
        p50_ms=p50,
        p50_low_ms=p50 * (1 - spread),
        p50_high_ms=p50 * (1 + spread),
        p90_ms=p50 * 1.1 if count >= 64 else None,
        p99_ms=(p99 or p50 * 1.3) if count >= 662 else None,
        max_ms=p50 * 2,
    )


def _row(artifact: str = "standard", p50: float = 10.0, *, threads: int = 1, runtime: str = "onnxruntime", **changes):
    latency = changes.pop("latency", None) or _latency(p50)
    values = {
        "model": "m",
        "artifact": artifact,
        "artifact_sha256": artifact.encode().hex().ljust(64, "0"),
        "precision": "float32" if artifact == "standard" else "int8",
        "size_bytes": 4 * MIB if artifact == "standard" else MIB,
        "settings": Settings(runtime=runtime, runtime_version="1", threads=threads, spinning=False),
        "latency": latency,
        "start": Start(import_ms=100, load_ms=20, first_ms=10),
        "peak_memory_bytes": 100 * MIB,
        "throughput_qps": 1000 / latency.mean_ms,
        "accuracy_value": 1.0,
        "accuracy_ratio": 1.0,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


def _reason(selection: Selection, artifact: str) -> str:
    return next(r.reason for r in selection.rejections if r.candidate.startswith(artifact))


def test_the_faster_is_selected_and_the_slower_has_its_numbers():
    selection = select([_row(p50=12.5), _row("flash", p50=8.0)], Limits())
    assert selection.artifact == "flash"
    assert _reason(selection, "standard") == "typically 12.5 ms: 1.56x worse than the selected"
    assert any("1.56x as fast as the standard at its best" in reason for reason in selection.reasons)


def test_flash_that_is_slower_loses_and_is_called_slower():
    selection = select([_row(p50=12.5), _row("flash-dynamic", p50=72.9)], Limits())
    assert selection.artifact == "standard"
    assert any("as fast as Flash at its best (flash-dynamic" in reason for reason in selection.reasons)


def test_a_gain_that_is_not_proven_leaves_the_standard():
    close = [_row(latency=_latency(10.0, spread=0.05)), _row("flash", latency=_latency(9.5, spread=0.05))]
    selection = select(close, Limits())
    assert selection.artifact == "standard"
    words = "typically 9.50 ms: 5.3% better, not surely more than 3%; ties go to the simpler"
    assert _reason(selection, "flash") == words
    assert any("leads by less than can be proven" in reason for reason in selection.reasons)


def test_a_proven_gain_below_the_threshold_does_not_count():
    close = [_row(latency=_latency(10.0, spread=0.0001)), _row("flash", latency=_latency(9.8, spread=0.0001))]
    assert select(close, Limits()).artifact == "standard"
    assert select(close, Limits(min_gain=0.01)).artifact == "flash"


def test_ties_go_to_the_more_accurate():
    rows = [_row("flash-a", p50=10.0, accuracy_ratio=0.992), _row("flash-b", p50=10.1, accuracy_ratio=0.999)]
    selection = select(rows, Limits())
    assert selection.artifact == "flash-b"
    assert "ties go to the more accurate" in _reason(selection, "flash-a")


@pytest.mark.parametrize(
    ("one_ms", "two_ms", "threads"), [(0.0192, 0.0184, 1), (0.022, 0.0184, 1), (0.024, 0.0184, 2), (1.92, 1.84, 2)]
)
def test_further_threads_must_gain_more_than_their_handing_over_may_cost_another_day(one_ms, two_ms, threads):
    """5 µs a thread: nothing beside 2 ms, a quarter of 20 µs."""
    rows = [_row(latency=_latency(ms, spread=0.001), threads=n) for ms, n in ((one_ms, 1), (two_ms, 2))]
    selection = select(rows, Limits())
    assert selection.settings.threads == threads
    if one_ms < 0.02:
        assert "not surely more than 27%" in selection.rejections[0].reason
    second = standings(rows, Limits())[1]
    assert second.surely == (threads == 2)
    assert (second.behind > 1.03) == (threads == 2), "who may still be chosen is not put out of a search"
    assert (second.behind_at_best > 1.03) == (threads == 2)


def test_what_further_threads_gain_too_little_over_is_no_excuse_for_a_slower_artifact():
    rows = [_row(p50=0.022), _row("flash", p50=0.0192), _row("flash", p50=0.0184, threads=2)]
    rows = [msgspec.structs.replace(row, latency=_latency(row.latency.p50_ms, spread=0.001)) for row in rows]
    assert select(rows, Limits()).artifact == "flash"


def test_ties_go_to_fewer_threads():
    assert select([_row(threads=4, p50=9.9), _row(threads=1, p50=10.0)], Limits()).settings.threads == 1


@pytest.mark.parametrize(
    ("row", "limits", "words"),
    [
        ({"failure": "killed (SIGKILL)"}, {}, "killed (SIGKILL)"),
        ({"fit": False, "why_unfit": "mAP 0"}, {}, "build marked it unfit: mAP 0"),
        ({"accuracy_ratio": 0.912}, {}, "keeps 91.2% of the standard's accuracy, 99.0% required"),
        ({"accuracy_ratio": None}, {}, "accuracy is not known (not measured); an accuracy floor of 0 accepts that"),
        ({"accuracy_ratio": None, "accuracy_note": "no Pillow"}, {}, "accuracy is not known (no Pillow)"),
        ({"peak_memory_bytes": 147 * MIB}, {"memory_bytes": 100 * MIB}, "peaks at 147 MiB, 100 MiB allowed"),
        ({"peak_memory_bytes": None}, {"memory_bytes": 100 * MIB}, "could not be measured on this system"),
        ({"throughput_qps": 31.25}, {"qps": 50}, "answers 31.2 queries/s, 50 required"),
        ({"latency": _latency(10, p99=28.79)}, {"latency_ms": 15}, "p99 28.8 ms, 15 ms allowed"),
        ({"latency": _latency(20, count=50)}, {"latency_ms": 15}, "even its median, 20.0 ms, is above"),
        ({"latency": _latency(10, count=50)}, {"latency_ms": 15}, "p99 not supported (50 samples, 662 needed)"),
        (
            {"latency": _latency(10, count=50)},
            {"latency_ms": 15, "latency_percentile": "p90"},
            "p90 not supported (50 samples, 64 needed)",
        ),
    ],
)
def test_each_hard_limit_rejects_with_its_numbers(row, limits, words):
    assert words in (why_not(_row(**row), Limits(**limits)) or "kept")


def test_limits_that_are_kept_reject_nothing():
    limits = Limits(latency_ms=15, qps=50, memory_bytes=100 * MIB, accuracy_floor=1.0)
    assert why_not(_row(), limits) is None
    assert why_not(_row(latency=_latency(10, count=20)), Limits(latency_ms=15, latency_percentile="p50")) is None
    assert why_not(_row(accuracy_ratio=None), Limits(accuracy_floor=0)) is None


def test_a_hard_limit_outweighs_any_gain():
    rows = [_row(p50=50), _row("flash", p50=1, accuracy_ratio=0.5)]
    assert select(rows, Limits()).artifact == "standard"


def test_when_nothing_fits_every_candidate_has_its_reason():
    rows = [_row(p50=50), _row("flash", p50=30), _row("broken", failure="dies")]
    with pytest.raises(NoUsableArtifact) as error:
        select(rows, Limits(latency_ms=5))
    assert [name for name, _ in error.value.rejections] == [row.candidate for row in rows]
    assert all(row.candidate in str(error.value) for row in rows)


def test_no_measurements_at_all_is_no_artifact_either():
    with pytest.raises(NoUsableArtifact, match="there are no candidates"):
        select([], Limits())


def test_memory_takes_the_smallest():
    rows = [_row(p50=1, peak_memory_bytes=200 * MIB), _row("flash", p50=20, peak_memory_bytes=50 * MIB)]
    selection = select(rows, Limits(objective="memory"))
    assert selection.artifact == "flash"
    assert _reason(selection, "standard").startswith("peak 200 MiB: 4.00x worse")


def test_throughput_takes_the_most_queries():
    rows = [_row(p50=10, throughput_qps=90.0), _row("flash", p50=10, throughput_qps=180.0)]
    assert select(rows, Limits(objective="throughput")).artifact == "flash"


def test_the_weighted_score_is_what_is_documented():
    standard = _row(p50=20, peak_memory_bytes=100 * MIB, accuracy_ratio=1.0)
    flash = _row("flash", p50=10, peak_memory_bytes=200 * MIB, accuracy_ratio=0.99)
    assert score_terms(standard, [standard, flash]) == {
        "throughput": 0.5,
        "memory": 1.0,
        "accuracy": 1.0,
        "deployability": (0.25 + 1.0) / 2,
    }
    # 0.4 * 0.5 + 0.3 * 1 + 0.2 * 1 + 0.1 * 0.625 = 0.7625 against 0.4 + 0.15 + 0.198 + 0.1 = 0.848
    selection = select([standard, flash], Limits(objective="balanced"))
    assert selection.artifact == "flash"
    assert "score 0.763" in _reason(selection, "standard") or "score 0.762" in _reason(selection, "standard")


def test_other_weights_decide_otherwise():
    rows = [_row(p50=20, peak_memory_bytes=100 * MIB), _row("flash", p50=10, peak_memory_bytes=200 * MIB)]
    weights = {"throughput": 0.1, "memory": 0.7, "accuracy": 0.1, "deployability": 0.1}
    assert select(rows, Limits(objective="balanced", weights=weights)).artifact == "standard"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(objective="speed"), "latency, throughput, memory, balanced"),
        (Limits(latency_percentile="p95"), "p50, p90, p99"),
        (Limits(weights={"throughput": 1.0}), "add up to 1"),
        (Limits(weights={"throughput": 0.9, "memory": 0.9, "accuracy": 0.2, "deployability": 0.1}), "add up to 1"),
    ],
)
def test_limits_that_make_no_sense_are_usage_errors(limits, words):
    with pytest.raises(UsageError, match=words):
        select([_row()], limits)


def test_doubtful_conditions_are_among_the_reasons():
    row = _row(conditions=Conditions(judged_bad=("the clocks are throttled",)))
    assert "doubtful conditions: the clocks are throttled" in select([row], Limits()).reasons


def test_a_selection_survives_its_json():
    selection = select([_row(), _row("flash", p50=5)], Limits(latency_ms=50))
    assert msgspec.json.decode(msgspec.json.encode(selection), type=Selection) == selection


ROWS = st.lists(
    st.builds(
        lambda name, p50, spread, threads, accuracy, peak: _row(
            name,
            threads=threads,
            latency=_latency(p50, spread=spread),
            accuracy_ratio=accuracy,
            peak_memory_bytes=peak * MIB,
        ),
        st.sampled_from(["standard", "flash-a", "flash-b"]),
        st.floats(0.01, 1000),
        st.floats(0, 0.5),
        st.sampled_from([1, 2, 4]),
        st.one_of(st.none(), st.floats(0.5, 1.0)),
        st.integers(10, 2000),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row.candidate,
)


@given(ROWS, st.sampled_from(["latency", "throughput", "memory", "balanced"]), st.integers(50, 2000))
def test_whatever_is_measured_the_choice_keeps_the_limits_and_all_others_have_reasons(rows, objective, mib):
    limits = Limits(objective=objective, memory_bytes=mib * MIB)
    try:
        selection = select(rows, limits)
    except NoUsableArtifact as none:
        assert len(none.rejections) == len(rows)  # noqa: PT017 - both outcomes are right
        assert all(why_not(row, limits) for row in rows)
        return
    chosen = next(
        r for r in rows if r.artifact == selection.artifact and r.settings.threads == selection.settings.threads
    )
    assert why_not(chosen, limits) is None
    names = {rejection.candidate for rejection in selection.rejections}
    assert names == {row.candidate for row in rows} - {chosen.candidate}
    assert all(rejection.reason for rejection in selection.rejections)


@given(ROWS)
def test_nothing_usable_is_surely_faster_than_the_selected(rows):
    limits = Limits(accuracy_floor=0)
    selection = select(rows, limits)
    chosen = next(
        r for r in rows if r.artifact == selection.artifact and r.settings.threads == selection.settings.threads
    )
    best = min(rows, key=lambda row: row.latency.p50_ms)
    assert chosen.latency.p50_low_ms <= best.latency.p50_high_ms * (1 + needed_gain(best, chosen, limits)) * (1 + 1e-9)


def _paired(artifact: str, p50: float, load: list[float], *, threads: int = 1, ratio: float = 1.0):
    """A row of one run of bench in which the machine was disturbed: round i took load[i] times as long for all."""
    rounds = tuple(p50 * factor for factor in load)
    latency = msgspec.structs.replace(
        _latency(p50), p50_low_ms=min(rounds), p50_high_ms=max(rounds), round_p50_ms=rounds
    )
    return _row(artifact, threads=threads, latency=latency, run_id="one run", accuracy_ratio=ratio)


LOAD = [1.0, 3.0] * 6


def test_of_two_that_are_tied_with_an_inaccurate_third_the_simpler_may_not_be_the_slower():
    """Both standards overlap with flash under load, yet one beats the other in every round."""
    flash = _row("flash", latency=_latency(9.5, spread=0.6), accuracy_ratio=0.995)
    slow, fast = _paired("standard", 14.0, LOAD), _paired("standard", 10.0, LOAD, threads=2)
    selection = select([flash, slow, fast], Limits())
    assert (selection.artifact, selection.settings.threads) == ("standard", 2)


def test_a_lead_in_every_round_counts_for_the_weighted_score_too():
    slow, fast = _paired("standard", 20.0, LOAD), _paired("flash", 10.0, LOAD)
    assert select([slow, fast], Limits(objective="balanced")).artifact == "flash"


def test_equal_memory_goes_to_the_one_that_is_surely_faster():
    slow, fast = _paired("standard", 20.0, LOAD), _paired("flash", 10.0, LOAD)
    assert select([slow, fast], Limits(objective="memory")).artifact == "flash"


def test_standings_name_the_leader_first_and_tell_proof_from_guess():
    rows = [
        _paired("standard", 10.0, LOAD),
        _paired("flash", 9.0, LOAD),
        _row("other", latency=_latency(9.1, spread=0.6)),
    ]
    leader, *rest = standings(rows, Limits())
    assert leader.candidate.startswith("flash")
    assert leader.behind == 1
    places = {standing.candidate.split()[0]: standing for standing in rest}
    assert places["standard"].surely
    assert places["standard"].behind == pytest.approx(10 / 9)
    assert not places["other"].surely
    assert not places["other"].surely_near


def test_equal_speed_is_proven_too():
    first, second = standings([_paired("standard", 10.0, LOAD), _paired("flash", 10.1, LOAD)], Limits())
    assert first.candidate.startswith("standard")
    assert second.surely_near
    assert not second.surely


def test_who_breaks_a_limit_has_no_standing_but_missing_samples_break_none():
    rows = [_row(latency=_latency(10.0, count=20)), _row("flash", accuracy_ratio=0.5)]
    (only,) = standings(rows, Limits(latency_ms=20))
    assert only.candidate.startswith("standard")
    assert standings(rows, Limits(latency_ms=5)) == []


@pytest.mark.parametrize(
    ("theirs", "at_best"),
    [([12.0, 13.0, 11.0], 1.1), ([9.0, 30.0, 30.0], 0.9), ([12.0, 12.0, 12.0], 1.2)],
)
def test_the_kindest_round_tells_whether_few_rounds_agree(theirs, at_best):
    best, other = (
        _row(name, latency=msgspec.structs.replace(_latency(p50), round_p50_ms=tuple(rounds)), run_id="one run")
        for name, p50, rounds in (("flash", 10.0, [10.0] * 3), ("standard", 12.0, theirs))
    )
    _, place = standings([best, other], Limits())
    assert place.behind == pytest.approx(1.2)
    assert place.behind_at_best == pytest.approx(at_best)


def test_not_measured_in_turns_the_kindest_round_is_the_whole():
    _, place = standings([_paired("flash", 10.0, [1.0] * 3), _row(p50=15.0)], Limits())
    assert place.behind_at_best == pytest.approx(1.5)
