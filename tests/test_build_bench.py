"""How the benchmark of the builder picks, compares with peers and sums up: on given figures, nothing timed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgekit.runtimes.session import SessionSettings

BENCH = Path(__file__).resolve().parent / "bench"


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The benchmark's modules, which find each other in their own folder."""
    names = ("sides", "shared_models", "contenders", "bench_build_picks", "bench_build")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def side(modules, name, ms, *, kept=1.0, kind="own", size=100, int8=False):
    made = modules.sides.Side(name, kind, Path(name), SessionSettings(), kept=kept, is_int8=int8, size_bytes=size)
    made.times_ms = [ms] * 40
    return made


def case(modules, *sides, missing=None, judge=lambda side: side.kept):
    feeds = {one.path: {"x": np.zeros(1, np.float32)} for one in sides}
    return modules.contenders.Case("model", list(sides), feeds, judge, missing or {})


@pytest.fixture
def starts(modules, monkeypatch):
    """Cold starts and widths as a table says: name -> (milliseconds, MiB, p99/p50); later calls take later entries."""

    def plan(table):
        def start_cold(sides, feeds, *, repeats):
            for one in sides:
                cold, peak, _ = table[one.name]
                one.cold_ms, one.peak_bytes = float(cold), peak * 2**20

        class Track:
            def __init__(self, sides, feeds):
                pass

            def heat(self, sides, *, budget_s, least):
                for one in sides:
                    widths = table[one.name][2]
                    width = widths.pop(0) if isinstance(widths, list) else widths
                    one.times_ms = [1.0] * 650 + [float(width)] * 50

        monkeypatch.setattr(modules.bench_build_picks, "start_cold", start_cold)
        monkeypatch.setattr(modules.bench_build_picks, "Track", Track)

    return plan


STANDARD = ("standard", 10.0)


@pytest.mark.parametrize(
    ("table", "chosen", "against"),
    [
        ({"a": (90, 50, 1.0), "b": (90, 50, 1.0)}, "a", {}),
        ({"a": (120, 50, 1.0), "b": (90, 50, 1.0)}, "b", {"a": "is colder: 120 against 100 ms to the first result"}),
        ({"a": (90, 70, 1.0), "b": (90, 50, 1.0)}, "b", {"a": "is hungrier: 70 against 60 MiB at peak"}),
        ({"a": (90, 50, 2.0), "b": (90, 50, 1.0)}, "b", {"a": "is wider: p99/p50 2.00 against 1.20"}),
        ({"a": (101, 61, 1.25), "b": (90, 50, 1.0)}, "a", {}),  # within the noise, and within 1.05
        ({"a": (120, 50, 1.0), "b": (150, 50, 1.0)}, "standard", {"a": "is colder", "b": "is colder"}),
        ({"a": (90, 50, [2.0, 1.0]), "b": (90, 50, 1.0)}, "a", {}),  # a pause hit the first heat only
    ],
    ids=["both hold", "colder", "hungrier", "wider", "in the noise", "neither holds", "second chance"],
)
def test_the_balanced_pick_is_the_fastest_that_holds(modules, starts, table, chosen, against):
    starts({"standard": (100, 60, 1.2), **table})
    standard, a, b = side(modules, *STANDARD), side(modules, "a", 3.0), side(modules, "b", 5.0)
    picked, why = modules.bench_build_picks.balance(case(modules, standard, a, b), [b, a], standard, 700)
    assert picked.name == chosen
    assert list(why) == list(against)
    assert all(why[name].startswith(text) for name, text in against.items())


def test_int8_that_is_not_small_and_what_is_slower_are_not_even_tried(modules, starts):
    starts({"standard": (100, 60, 1.2), "large": (1, 1, 1.0), "slow": (1, 1, 1.0), "small": (1, 1, 1.0)})
    standard = side(modules, *STANDARD)
    large, small = (side(modules, n, ms, size=s, int8=True) for n, ms, s in (("large", 2.0, 41), ("small", 3.0, 40)))
    slow = side(modules, "slow", 11.0)
    of = case(modules, standard, large, small, slow)
    picked, why = modules.bench_build_picks.balance(of, [large, small, slow], standard, 700)
    assert picked is small
    assert why == {"large": "has 0.41 of the standard's size"}
    assert modules.bench_build_picks.balance(of, [slow], standard, 700) == (standard, {})


def test_so_many_wide_ones_are_tried_and_no_more(modules, starts):
    names = [f"n{i}" for i in range(5)]
    starts({"standard": (100, 60, 1.0), **dict.fromkeys(names, (50, 50, 3.0))})
    standard = side(modules, *STANDARD)
    sides = [side(modules, name, 1.0 + i) for i, name in enumerate(names)]
    picked, why = modules.bench_build_picks.balance(case(modules, standard, *sides), sides, standard, 700)
    assert picked is standard
    assert [text.split(":")[0] for text in why.values()] == ["is wider"] * 3 + ["not tried"] * 2


def test_without_enough_samples_for_a_p99_width_is_not_looked_at(modules, starts):
    starts({"standard": (100, 60, 1.0), "a": (50, 50, 9.0)})
    standard, a = side(modules, *STANDARD), side(modules, "a", 3.0)
    assert modules.bench_build_picks.balance(case(modules, standard, a), [a], standard, 100)[0] is a


@pytest.mark.parametrize(
    ("kept", "kind", "fit"),
    [(0.99, "own", True), (0.9899, "own", False), (None, "own", False), (None, "standard", True), (1.2, "peer", True)],
)
def test_fit_is_what_keeps_99_percent(modules, kept, kind, fit):
    assert modules.bench_build_picks.is_fit(side(modules, "a", 1.0, kept=kept, kind=kind)) is fit


def test_a_width_needs_its_samples(modules):
    few = side(modules, "a", 1.0)
    assert few.width is None
    few.times_ms = [1.0] * 655 + [4.0] * 7
    assert few.width == 4.0
    assert few.fresh(2).times_ms == []
    assert few.fresh(2).settings.spinning
    assert few.fresh(2).settings.threads == 2


def row(**changed):
    return {
        "model": "m",
        "threads": 1,
        "standard_ms": 10.0,
        "fastest": {"name": "f", "ms": 2.5, "kept": 1.0},
        "balanced": {"name": "b", "ms": 5.0, "kept": 1.0, "broken": None},
        "best_peer": {"name": "p", "ms": 5.0},
        "peers": {"p": 5.0, "q": None},
        "missing": {},
        "not_balanced": {},
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({}, "geomean_speedup", 4.0),
        ({}, "balanced_geomean_speedup", 2.0),
        ({}, "geomean_vs_best_peer", 2.0),
        ({"best_peer": None}, "geomean_vs_best_peer", 4.0),  # its user keeps the standard
        ({"best_peer": {"name": "p", "ms": 60.0}}, "geomean_vs_best_peer", 4.0),  # here too
        ({"best_peer": {"name": "p", "ms": 2.0}}, "geomean_vs_best_peer", 0.8),
        ({}, "slower_than_standard", 0),
        ({"fastest": {"name": "f", "ms": 10.3, "kept": 1.0}}, "slower_than_standard", 1),
        ({}, "below_accuracy_floor", 0),
        ({"fastest": {"name": "f", "ms": 2.5, "kept": 0.98}}, "below_accuracy_floor", 1),
        ({}, "balanced_violations", 0),
        ({"balanced": {"name": "b", "ms": 5.0, "kept": 1.0, "broken": "is wider"}}, "balanced_violations", 1),
    ],
)
def test_each_figure_of_the_last_line(modules, changed, field, value):
    assert modules.bench_build.headline([row(**changed)], has_widths=True)[field] == value


def test_models_count_once_and_means_are_geometric(modules):
    rows = [row(), row(threads=2, fastest={"name": "f", "ms": 10.0, "kept": 1.0})]
    found = modules.bench_build.headline(rows, has_widths=False)
    assert found["models"] == 1
    assert found["geomean_speedup"] == 2.0
    assert found["balanced_violations"] is None
    assert modules.bench_build.headline([], has_widths=True)["geomean_speedup"] is None


def test_the_summary_names_where_a_peer_is_ahead_and_where_none_is_fit(modules, capsys):
    modules.bench_build.sum_up([row(best_peer={"name": "p", "ms": 2.0}), row(model="n", best_peer=None)])
    out = capsys.readouterr().out
    assert "more than 3 % behind the best peer: m 0.80×" in out
    assert "none fit" in out
    assert "p: 2.0×, ours 4.0× on these 2 models; fit and not slower on 2" in out
    assert "q: 1.0×, ours 4.0× on these 2 models; fit and not slower on 0" in out


def test_a_model_measured_before_is_taken_from_the_results(modules, tmp_path, monkeypatch):
    rows = [row()]
    (tmp_path / "m.json").write_text(json.dumps(rows))
    monkeypatch.setattr(modules.contenders, "prepare", lambda *_: pytest.fail("measured again"))
    options = SimpleNamespace(results=tmp_path, peer_seconds=1, seconds=1, samples=0, threads=[1])
    assert modules.bench_build.measure("m", options, tmp_path) == rows


def test_a_model_is_kept_once_it_is_measured(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.contenders, "prepare", lambda *_: case(modules, side(modules, *STANDARD)))
    monkeypatch.setattr(modules.bench_build, "compare", lambda *_, **__: {"threads": 1})
    options = SimpleNamespace(results=tmp_path / "new", peer_seconds=1, seconds=1, samples=0, threads=[1])
    found = modules.bench_build.measure("m", options, tmp_path)
    assert found == [{"model": "m", "threads": 1}]
    assert json.loads((tmp_path / "new/m.json").read_text()) == found


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.exit('no such operator')", "no such operator"),
        ("import sys; sys.exit(3)", "failed without a word"),
        ("import time; time.sleep(30)", "not done after 1 s"),
    ],
)
def test_a_peer_that_cannot_do_a_model_is_a_row_with_the_reason(modules, tmp_path, monkeypatch, script, reason):
    (tmp_path / "make_peers.py").write_text(script)
    monkeypatch.setattr(modules.contenders, "__file__", str(tmp_path / "contenders.py"))
    (tmp_path / "s.onnx").write_bytes(b"")
    missing = {}
    feeds = [{"x": np.zeros(2, np.float32)}]
    made = modules.contenders._made_by(
        "peer", "ort-static", tmp_path / "s.onnx", tmp_path / "o.onnx", SessionSettings(), feeds, 1.0, missing
    )
    assert made is None
    assert missing == {"peer": reason}


def test_a_peer_without_its_environment_or_without_data_is_said(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.contenders, "PEERS_PYTHON", tmp_path / "absent")
    missing = {}
    for name, kind in (("nncf", "nncf"), ("static", "ort-static")):
        path = tmp_path / "s.onnx"
        modules.contenders._made_by(name, kind, path, path, SessionSettings(), [], 1.0, missing)
    assert missing == {"nncf": "no .venv-peers here; `make .venv-peers` makes it", "static": "no calibration data"}


def test_each_way_is_judged_once(modules):
    asked = []

    def judge(one):
        asked.append(one.name)
        return 0.5

    a = side(modules, "a", 1.0)
    of = case(modules, side(modules, *STANDARD), a, judge=judge)
    assert [of.kept(a), of.kept(a.fresh(2)), of.kept(a)] == [0.5] * 3
    assert asked == ["a"]
