"""The search finds what a sweep finds, in less time, and keeps a row of everybody."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.bench.candidates import candidates
from edgekit.bench.run import Plan
from edgekit.bench.search import search
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import all_artifacts
from edgekit.limits import Limits
from edgekit.selection import standings

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


def _burner(path: Path, steps: int) -> Path:
    """A model whose time grows with `steps`: so many multiplications of a 64 x 64 matrix."""
    make = onnx.helper
    nodes = [make.make_node("MatMul", [f"x{i}" if i else "x", "w"], [f"x{i + 1}"]) for i in range(steps)]
    nodes.append(make.make_node("Identity", [f"x{steps}"], ["y"]))
    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    tensors = [make.make_tensor_value_info(name, 1, (64, 64)) for name in ("x", "y")]
    graph = make.make_graph(nodes, "burner", tensors[:1], tensors[1:], initializer=[weight])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    return path


def _field(tmp_path: Path, *steps: int, cores: int = 1):
    """One model in several sizes, as candidates of one another: m10 does ten multiplications."""
    found = []
    for count in steps:
        model = load_model(str(_burner(tmp_path / f"m{count}.onnx", count)))
        (artifact,) = all_artifacts(model, Home(tmp_path))
        record = msgspec.structs.replace(artifact.record, name=f"m{count}")
        named = [msgspec.structs.replace(artifact, record=record)]
        found += candidates(model, named, cores=cores, runtimes=["onnxruntime"])
    return model, found


def _by_latency(rows, final=True):
    return standings(rows, Limits(accuracy_floor=0))


PLAN = Plan(seconds=0.6, seed=3)


def test_the_fastest_is_measured_to_the_end_and_the_far_ones_are_not(tmp_path):
    model, found = _field(tmp_path, 400, 40, 200, 1600)
    rows = search(model, found, PLAN, budget_s=1.5, judge=_by_latency)
    assert [row.artifact for row in rows] == ["m400", "m40", "m200", "m1600"]
    by_name = {row.artifact: row for row in rows}
    assert not by_name["m40"].rough
    assert by_name["m40"].ops_by_provider
    assert all(by_name[name].rough for name in ("m400", "m200", "m1600"))
    assert _by_latency(rows)[0].candidate.startswith("m40 ")
    for row in rows:
        assert row.latency is not None
        assert row.latency.sample_count >= 8
        assert row.start is not None
        assert sys.platform != "linux" or row.peak_memory_bytes


def test_who_cannot_win_puts_nobody_out(tmp_path):
    """The fastest is too inaccurate: the second is found as if it were not there."""
    model, found = _field(tmp_path, 20, 100, 300)
    allowed = lambda rows, final: _by_latency([row for row in rows if row.artifact != "m20"])  # noqa: E731
    rows = {row.artifact: row for row in search(model, found, PLAN, budget_s=1.0, judge=allowed)}
    assert rows["m20"].rough
    assert not rows["m100"].rough


def test_the_leader_gets_the_samples_that_its_percentile_needs(tmp_path):
    model, found = _field(tmp_path, 20, 300)
    plan = Plan(seconds=0.2, min_samples=662, seed=1)
    rows = search(model, found, plan, budget_s=0.5, judge=_by_latency)
    assert rows[0].latency is not None
    assert rows[0].latency.p99_ms is not None


def test_a_candidate_that_fails_is_a_row_and_the_search_goes_on(tmp_path):
    model, found = _field(tmp_path, 20, 300)
    _, (third,) = _field(tmp_path, 40)
    third.artifact.path.write_bytes(b"no model at all")
    rows = search(model, [third, *found], PLAN, budget_s=1.0, judge=_by_latency)
    assert rows[0].failure is not None
    assert not rows[0].rough
    assert not rows[1].rough


def test_when_nobody_may_win_each_is_still_measured(tmp_path):
    model, found = _field(tmp_path, 20, 40)
    rows = search(model, found, PLAN, budget_s=0.3, judge=lambda rows, final: [])
    assert all(row.latency is not None for row in rows)


def test_no_more_workers_live_than_memory_holds(tmp_path):
    model, found = _field(tmp_path, 20, 1600)
    plan = Plan(seconds=0.2, at_once=1, seed=1)
    rows = search(model, found, plan, budget_s=0.5, judge=_by_latency)
    assert [row.artifact for row in rows if not row.rough] == ["m20"]


def test_the_time_is_kept_when_two_are_equally_fast(tmp_path):
    """No proof will ever come: the budget ends it."""
    model, found = _field(tmp_path, 100, 101)
    began = time.monotonic()
    search(model, found, PLAN, budget_s=1.0, judge=_by_latency)
    assert time.monotonic() - began < 1.0 + 10.0  # starting three processes on a busy machine


def test_more_threads_are_not_started_where_they_cannot_save_a_candidate(tmp_path):
    model, (fast, _) = _field(tmp_path, 20, cores=2)
    _, slow = _field(tmp_path, 1600, cores=2)
    rows = search(model, [fast, *slow], PLAN, budget_s=0.5, judge=_by_latency)
    assert [row.settings.threads for row in rows] == [1, 1, 2]
    assert rows[1].failure is None
    assert rows[2].failure is not None
    assert rows[2].failure.startswith("not started: with one thread it is ")
