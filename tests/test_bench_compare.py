"""Flash against standard: every figure of the reference articles, and a penalty only where it is proven."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from edgekit.bench.compare import Comparison, compare
from edgekit.bench.counters import Counts
from edgekit.bench.figure import PUBLISHED, Figure, percent
from edgekit.bench.record import Measurement, Settings, Start
from edgekit.bench.run import Plan, cold_starts
from edgekit.bench.stats import latency
from edgekit.bench.why import NO_COUNTERS, Why
from edgekit.catalog import load_model
from edgekit.choose import Space, find_candidates
from edgekit.cli.bench_compare import _side, _value
from edgekit.cli.bench_report import _best_of_each_kind
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.device.probe import probe
from edgekit.errors import UsageError
from edgekit.runtimes.profile import Operator, Profile
from tests.simulated import field_of


def _row(artifact: str, p50: float, *, spread: float = 0.01, start: float = 100.0, failure=None, **changes):
    rounds = [[p50 * (1 - spread), p50, p50 * (1 + spread)] * 4 for _ in range(24)]
    values = {
        "model": "m",
        "artifact": artifact,
        "artifact_sha256": "0",
        "precision": "float32" if artifact == "standard" else "int8",
        "size_bytes": 1000 if artifact == "standard" else 400,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": None if failure else latency(rounds),
        "failure": failure,
        "start": Start(import_ms=start, load_ms=start / 2, first_ms=1, loaded_bytes=50, temporary_bytes=20),
        "after_idle_ms": 2 * p50,
        "peak_memory_bytes": 1000,
        "accuracy_ratio": 1.0,
        "taken_at_unix_ms": 1,
        "run_id": "one",
    }
    return Measurement(**(values | changes))


def _figure(result: Comparison, name: str) -> Figure:
    return next(figure for figure in result.figures if figure.name.strip() == name)


def _why(kinds: dict[str, int], *, faults: float | None = 0.0, counts: Counts | None = None, has_times=True) -> Why:
    """Each operator takes a millisecond."""
    operators = tuple(Operator(kind=kind, is_float=True, count=n, time_ms=float(n)) for kind, n in kinds.items())
    return Why(
        candidate="c",
        query_ms=1.0,
        query_count=10,
        profile=Profile(runtime="litert", operators=operators, has_times=has_times),
        converting_share=None,
        layout_share=None,
        page_faults=faults,
        counts=counts,
        sentences=(),
    )


def _caused(name: str, standard: Why, flash: Why) -> Figure:
    return _figure(compare(_row("standard", 10), _row("flash", 8), whys=(standard, flash)), name)


def test_every_published_figure_has_a_line():
    no_sizes = {"short inputs": "no", "long inputs": "no"}
    whys = (_why({"Conv": 1}), _why({"Conv": 2}))
    result = compare(_row("standard", 10), _row("flash", 8), scenarios=no_sizes, whys=whys)
    assert set(PUBLISHED) <= {figure.name for figure in result.figures}


def test_a_slower_flash_is_a_penalty_found_with_both_figures():
    result = compare(_row("standard", 10), _row("flash", 20))
    figure = _figure(result, "time per task")
    assert figure.is_penalty is True
    assert figure.delta_ratio == pytest.approx(1.0)
    assert "time per task: penalty found, Flash +100%; the articles have +112%" in result.findings


def test_a_faster_flash_has_no_penalty():
    figure = _figure(compare(_row("standard", 10), _row("flash", 5)), "time per task")
    assert figure.is_penalty is False
    assert figure.delta_ratio == pytest.approx(-0.5)


def test_one_cold_start_proves_nothing_and_three_that_do_not_overlap_do():
    standard, flash = _row("standard", 10, start=100), _row("flash", 10, start=200)
    assert _figure(compare(standard, flash), "cold start").is_penalty is None
    again = ([standard.start] * 2, [flash.start] * 2)
    assert _figure(compare(standard, flash, starts=again), "cold start").is_penalty is True
    mixed = ([standard.start] * 2, [standard.start] * 2)
    assert _figure(compare(standard, flash, starts=mixed), "cold start").is_penalty is None
    assert _figure(compare(flash, standard, starts=(again[1], again[0])), "cold start").is_penalty is False


def test_a_wide_spread_is_a_penalty_of_stability():
    result = compare(_row("standard", 10, spread=0.02), _row("flash", 10, spread=0.15))
    figure = _figure(result, "stability")
    assert figure.standard == pytest.approx(0.02)
    assert figure.flash == pytest.approx(0.15)
    assert figure.is_penalty is True


def test_what_was_not_measured_is_none_with_a_note_and_never_a_finding():
    result = compare(_row("standard", 10, start=1), _row("flash", 10, accuracy_ratio=None, accuracy_note="no data"))
    quality = _figure(result, "quality")
    assert quality.standard is None
    assert quality.note == "no data"
    assert not any(line.startswith("quality") for line in result.findings)


def test_scenarios_are_compared_like_the_main_figure():
    scenarios = {"short inputs": (_row("standard", 1), _row("flash", 2)), "long inputs": (_row("standard", 9), _row("flash", 9, failure="out of memory"))}  # fmt: skip  # noqa: E501
    result = compare(_row("standard", 10), _row("flash", 8), scenarios=scenarios)
    assert _figure(result, "short inputs").is_penalty is True
    assert _figure(result, "long inputs").note == "out of memory"


def test_a_pair_that_cannot_be_timed_is_refused():
    with pytest.raises(ValueError, match="out of memory"):
        compare(_row("standard", 10), _row("flash", 8, failure="out of memory"))


@pytest.fixture
def state(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path))
    return Home(tmp_path)


def test_further_cold_starts_are_processes_of_their_own(state):
    model = load_model("digits")
    space = Space(artifacts=["standard"], runtimes=["onnxruntime"], threads=[1])
    (candidate,) = find_candidates(model, state, probe(), space)
    first, second = cold_starts(model, candidate, 2, Plan(seconds=0.05))
    assert first.import_ms > 20
    assert second.import_ms > 20
    assert first.temporary_bytes is not None
    assert first.loaded_bytes is not None


FAST = ["--runtime", "onnxruntime", "--threads", "1", "--seconds", "0.1"]


def test_the_command_prints_the_comparison(state, capsys):
    assert main(["bench", "digits", "--compare", "standard", "int8", *FAST, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["flash"].startswith("int8 ")
    assert {"time per task", "cold start", "size"} <= {figure["name"] for figure in value["figures"]}
    assert main(["bench", "digits", "--compare", "standard", "flash", *FAST]) == 0
    out = capsys.readouterr().out
    assert "+112%" in out
    assert "short inputs –: the model has no size that varies" in out


def test_a_name_that_is_not_there_lists_those_that_are(state, capsys):
    assert main(["bench", "digits", "--compare", "standard", "int4", *FAST]) == 2
    assert "no 'int4' here, only standard, int8" in capsys.readouterr().err


def test_what_rounds_to_nothing_has_no_minus():
    assert [percent(r) for r in (-0.001, 0.0, 0.2, -0.2)] == ["+0%", "+0%", "+20%", "−20%"]


def test_more_operators_are_more_launches():
    figure = _caused("kernel launches", _why({"Conv": 10, "Add": 10}), _why({"Conv": 10, "Mul": 15}))
    assert (figure.standard, figure.flash, figure.is_penalty) == (20, 25, True)
    assert figure.delta_ratio == pytest.approx(0.25)
    assert figure.published_ratio == 0.22


@pytest.mark.parametrize(
    ("name", "field", "published"),
    [("branch mispredictions", "branch_misses", 0.37), ("memory traffic", "cache_misses", 0.40)],
)
def test_what_the_cpu_counts_is_told_for_one_query(name, field, published):
    standard, flash = (_why({"Conv": 1}, counts=Counts(**{field: total})) for total in (1000.0, 900.0))
    figure = _caused(name, standard, flash)
    assert (figure.standard, figure.flash, figure.is_penalty) == (100, 90, False)
    assert figure.published_ratio == published


def test_without_counters_the_line_says_why():
    figure = _caused("branch mispredictions", _why({"Conv": 1}), _why({"Conv": 1}))
    assert (figure.standard, figure.note) == (None, NO_COUNTERS)


@pytest.mark.parametrize(
    ("ours", "theirs", "delta", "penalty"),
    [(0.2, 0.4, 0.0, False), (100.0, 230.0, 1.3, True), (100.0, 90.0, -0.1, False), (0.0, 50.0, None, True)],
)
def test_page_faults_tell_of_memory_that_is_taken_anew(ours, theirs, delta, penalty):
    figure = _caused("allocations", _why({"Conv": 1}, faults=ours), _why({"Conv": 1}, faults=theirs))
    assert figure.delta_ratio == (delta if delta is None else pytest.approx(delta))
    assert figure.is_penalty is penalty


def test_a_system_that_tells_no_page_faults_is_said_to():
    figure = _caused("allocations", _why({"Conv": 1}, faults=None), _why({"Conv": 1}))
    assert figure.note == "this system does not tell page faults"


def test_sparse_decoding_is_a_share_of_the_time_where_it_exists():
    dense, sparse = _why({"Conv": 9}), _why({"Conv": 9, "DENSIFY": 1})
    figure = _caused("sparse decoding", dense, sparse)
    assert (figure.standard, figure.flash, figure.is_penalty) == (0.0, 0.1, True)
    none = _caused("sparse decoding", dense, dense)
    assert (none.flash, none.is_penalty, none.note) == (0.0, False, "nothing is unpacked while a query runs")
    untold = _caused("sparse decoding", dense, _why({"DENSIFY": 3}, has_times=False))
    assert (untold.flash, untold.note) == (None, "3 operators unpack weights; litert times none")


def test_the_standard_is_the_standard_in_every_form_that_it_was_saved():
    found = field_of({"standard 1t": 1.0, "standard-ort 1t": 1.0, "standard-optimized 1t": 1.0, "flash 1t": 1.0})
    assert [c.artifact.record.name for c in _side(found, "standard")] == ["standard", "standard-ort"]
    assert [c.artifact.record.name for c in _side(found, "standard-ort")] == ["standard-ort"]


def test_flash_is_whatever_is_compressed():
    found = field_of({"standard 1t": 1.0, "small 1t": 1.0})
    record = msgspec.structs.replace(found[1].artifact.record, precision="int8")
    found[1] = replace(found[1], artifact=msgspec.structs.replace(found[1].artifact, record=record))
    assert _side(found, "flash") == [found[1]]
    with pytest.raises(UsageError, match="there is no 'flash' here, only standard; make one with edgekit build"):
        _side(found[:1], "flash")


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("ms", 12.345, "12.3 ms"),
        ("bytes", 3 * 2**20, "3.00 MiB"),
        ("±", 0.051, "±5.1%"),
        ("ratio", 0.995, "99.5%"),
        ("operators", 235.0, "235"),
        ("page faults", 0.178, "0.2"),
        ("ms", None, "–"),
    ],
)
def test_each_figure_is_printed_in_its_unit(unit, value, text):
    figure = Figure(name="x", unit=unit, standard=value, flash=value, delta_ratio=None)
    assert _value(figure, value) == text


def test_the_best_of_each_kind_is_profiled_also_in_a_runtime_that_tells_times():
    """LiteRT is fastest but tells no times: the page shows those of the fastest that does."""
    found = field_of({f"a{i} 1t": 1.0 for i in range(4)})
    rows = [
        _row("standard", 10.0, settings=_in("onnxruntime")),
        _row("litert", 5.0, settings=_in("litert"), precision="float32"),
        _row("flash", 4.0, settings=_in("litert")),
        _row("flash", 6.0, settings=_in("openvino")),
    ]
    assert _best_of_each_kind(found, rows) == [found[2], found[1], found[3], found[0]]
    assert _best_of_each_kind(found, [_row("x", 1.0, failure="killed")] * 4) == []


def _in(runtime: str) -> Settings:
    return Settings(runtime=runtime, runtime_version="1", threads=1, spinning=False)
