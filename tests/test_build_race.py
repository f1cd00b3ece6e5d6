"""Races are run in turns and end; grids of integers hold what they are asked to hold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgekit.build import race as module
from edgekit.build.calibrate import Range
from edgekit.build.edit import Graph
from edgekit.build.grids import Grids, Types
from edgekit.build.placement import Placement


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sessions move, each by its own latency; what they did, in order."""
    now, done = [0.0], []

    def opened(path, takes_s):
        def run(_feed):
            now[0] += takes_s
            done.append(path)

        now[0] += takes_s / 10  # loading
        done.append(f"open {path}")
        return SimpleNamespace(run=run, close=lambda: done.append(f"close {path}"))

    monkeypatch.setattr(module, "open_session", opened)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return done


@pytest.mark.parametrize("latencies_s", [(0.001, 0.002), (0.004, 0.001, 0.002), (0.5, 0.25)])
def test_a_race_gives_each_its_own_latency(clock, latencies_s):
    names = [f"m{i}" for i in range(len(latencies_s))]
    assert module.race(names, {}, latencies_s, budget_s=0.1) == pytest.approx([1e3 * s for s in latencies_s])


def test_they_run_in_turns_and_are_closed(clock):
    module.race(["a", "b"], {}, (0.01, 0.01), budget_s=0.05)
    warm = clock.index("a")
    runs = [entry for entry in clock[warm:] if not entry.startswith("close")]
    assert runs[: 2 * module.WARM_UP] == ["a"] * module.WARM_UP + ["b"] * module.WARM_UP
    timed = runs[2 * module.WARM_UP :]
    assert timed == ["a", "b"] * (len(timed) // 2)
    assert clock[-2:] == ["close a", "close b"]


SURE = 14
"""Rounds that all fall to one side: 2^-14 is below `CHANCE`, 2^-13 is not."""


@pytest.mark.parametrize(
    ("latencies_s", "bound", "rounds"),
    [
        ((0.001, 0.002), None, SURE),
        ((0.001, 0.0012), None, module.MOST_RUNS),
        ((0.001, 0.004, 0.0041), None, module.MOST_RUNS),
        ((0.001, 0.0012), 1.1, SURE),
        ((0.001, 0.00101), 1.1, SURE),
    ],
    ids=["clear", "close", "two of three close", "over the bound", "under the bound"],
)
def test_a_race_is_over_once_more_rounds_would_decide_nothing(clock, latencies_s, bound, rounds):
    module.race(["a", "b", "c"][: len(latencies_s)], {}, latencies_s, budget_s=60.0, bound=bound)
    assert clock.count("a") == rounds + module.WARM_UP


def test_a_lead_that_changes_hands_is_not_clear():
    fast, slow = [1.0] * SURE, [2.0] * SURE
    assert module.is_clear([fast, slow])
    assert not module.is_clear([fast[1:], slow[1:]])
    assert not module.is_clear([fast, [*slow[1:], 0.5]])
    assert module.is_clear([fast * 2, [*slow, *slow[1:], 0.5]]), "one head among twenty-eight is no doubt any more"
    assert not module.is_clear([fast])
    assert not module.is_clear([fast, fast], bound=1.0), "neither below nor above"


def test_a_race_ends_by_runs_when_they_are_short_and_by_time_when_they_are_long(clock):
    module.race(["a"], {}, (1e-6,), budget_s=60.0)
    assert clock.count("a") == module.WARM_UP + module.MOST_RUNS
    clock.clear()
    module.race(["b"], {}, (10.0,), budget_s=0.1)
    assert clock.count("b") == module.WARM_UP + 5  # fewer say nothing


def test_they_are_closed_even_when_one_fails(monkeypatch):
    closed = []

    def opened(path, _settings):
        return SimpleNamespace(run=lambda _: 1 / 0, close=lambda: closed.append(path))

    monkeypatch.setattr(module, "open_session", opened)
    with pytest.raises(ZeroDivisionError):
        module.race(["a", "b"], {}, (None, None))
    assert closed == ["a", "b"]


def test_a_race_of_loading_opens_in_turns(clock):
    found = module.load_race(["a", "b"], (0.05, 0.02))
    assert found == pytest.approx([5.0, 2.0])
    assert clock == ["open a", "close a", "open b", "close b"] * module.LOADS


def grids(types=None):
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])], [])
    return Grids(Graph(helper.make_model(graph)), Placement(), {"x": Range(-1.0, 1.0)}, types or Types())


SPANS = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@pytest.mark.parametrize("types", [Types(), Types(activation=np.int8)], ids=["uint8", "int8"])
@given(SPANS, SPANS)
def test_a_grid_holds_zero_exactly_and_its_ends_within_a_step(types, a, b):
    low, high = min(a, b), max(a, b)
    made = grids(types)
    grid = made.spread(low, high)
    assert made.low <= grid.zero <= made.high
    for value in (low, 0.0, high):
        step = np.clip(np.rint(value / grid.scale) + grid.zero, made.low, made.high)
        assert abs((step - grid.zero) * grid.scale - value) <= 1.01 * grid.scale + 1e-9
    assert (np.rint(0.0 / grid.scale) + grid.zero - grid.zero) * grid.scale == 0.0


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [(0.0, 255.0, 1.0, 0), (-128.0, 127.0, 1.0, 128), (-1.0, 0.0, 1 / 255, 255), (2.0, 5.1, 0.02, 0)],
)
def test_grids_by_hand(low, high, scale, zero):
    grid = grids().spread(low, high)
    assert grid.scale == pytest.approx(scale, rel=1e-6)
    assert grid.zero == zero


def test_a_tensor_that_is_always_zero_has_a_grid():
    grid = grids().spread(0.0, 0.0)
    assert grid.scale > 0
    assert grid.zero == 0


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-3.0, 3.0), (-0.5, 1.5)])
def test_an_exact_grid_ends_where_it_is_told_to_saturate(low, high):
    made = grids()
    grid = made.exact(low, high)
    ends = [(step - grid.zero) * grid.scale for step in (made.low, made.high)]
    assert ends == pytest.approx([low, high], abs=0.51 * grid.scale)
