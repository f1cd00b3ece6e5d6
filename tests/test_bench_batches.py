"""Batches among the candidates: who takes them, which need not be started, and what a choice makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import store
from edgekit.bench.batches import SIZES, batch_axis, why_one_item
from edgekit.bench.candidates import CPU_PROVIDERS, Candidate, candidates, in_batches, to_record, to_session
from edgekit.bench.conditions import conditions, lasting, this_device
from edgekit.bench.spared import Known, why_spared
from edgekit.catalog import load_model
from edgekit.choose import Space, choose, find_candidates, guess
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.device.probe import probe
from edgekit.errors import ArtifactError, UsageError
from edgekit.fetch import all_artifacts
from edgekit.limits import Limits
from edgekit.manifest import Data, Model, Source, TensorSpec
from edgekit.runtimes.batches import why_mixed
from edgekit.runtimes.session import SessionSettings

onnx = pytest.importorskip("onnx", reason="the tiny models of these tests are made with onnx")
pytest.importorskip("onnxruntime")

THROUGHPUT = Limits(objective="throughput", accuracy_floor=0)


def net(path: Path, shape: tuple = ("n", 64), *, width: int = 512, seed: int = 0) -> Path:
    """Three large matrices: with a single item they are read for one multiplication each, so batches gain much."""
    make, dice = onnx.helper, np.random.default_rng(seed)
    nodes, weights, name, size = [], [], "x", shape[-1]
    for i in range(3):
        values = (dice.standard_normal((size, width)) / size**0.5).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, f"w{i}"))
        nodes.append(make.make_node("MatMul", [name, f"w{i}"], [f"y{i}"]))
        name, size = f"y{i}", width
    x = make.make_tensor_value_info("x", 1, list(shape))
    y = make.make_tensor_value_info("y2", 1, [shape[0], width])
    graph = make.make_graph(nodes, "net", [x], [y], initializer=weights)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    return net(tmp_path_factory.mktemp("mine") / "mine.onnx")


@pytest.fixture(scope="module")
def facts():
    return probe()


def declared(*shapes: tuple, axes: dict | None = None, **more) -> Model:
    inputs = tuple(TensorSpec(name=f"x{i}", dtype="float32", shape=shape) for i, shape in enumerate(shapes))
    source = Source(file="m.tflite", sha256="a" * 64, size_bytes=1, format="tflite")
    return Model(name="m", version="1", task="t", inputs=inputs, axes=axes or {}, source=source, **more)


def tflite(**axes: int) -> Artifact:
    record = ArtifactRecord(
        model="m", name="standard", file="m", format="tflite", precision="float32", sha256="a", size_bytes=1, axes=axes
    )
    return Artifact(record=record, path=Path("m.tflite"))


# Which axis counts items


@pytest.mark.parametrize("shapes", [[("n", 3)], [("n", 3), ("n", 4)], [("n", 3), ()], [("n", "side")]])
def test_the_leading_axis_that_all_inputs_share_counts_the_items(shapes):
    axis = batch_axis(declared(*shapes, axes={"n": (1, 4, 8)}), tflite())
    assert axis is not None
    assert axis.inputs == tuple(f"x{i}" for i, shape in enumerate(shapes) if shape)
    assert axis.sizes(SIZES) == (1, 4, 8)


@pytest.mark.parametrize("shapes", [[(1, 3)], [("n", 3), (1, 4)], [("n", 3), ("m", 4)], [()], [(4, 3)]])
def test_without_one_it_takes_one_item_at_a_time(shapes):
    assert batch_axis(declared(*shapes), tflite()) is None


def test_what_an_artifact_or_the_user_fixed_is_no_longer_open():
    model = declared(("n", 3), axes={"n": (1, 4)})
    assert batch_axis(model, tflite(n=1)) is None
    assert batch_axis(model, tflite(), {"n": 4}) is None
    assert batch_axis(model, tflite(), {"x0[0]": 4}) is None
    assert batch_axis(model, tflite(), {"side": 4}) is not None


def test_a_stateful_models_next_query_needs_its_last_answer():
    out = (TensorSpec(name="s", dtype="float32", shape=("n", 3)),)
    model = declared(("n", 3), axes={"n": (1, 4)})
    stateful = msgspec.structs.replace(model, outputs=out, state={"x0": "s"})
    assert batch_axis(stateful, tflite()) is None
    assert why_one_item(stateful) == "it keeps state from query to query"


def test_a_file_that_leaves_it_open_takes_batches_though_a_request_is_one_item(mine, tmp_path):
    """The manifest's 1 says what a request is; the file says what a query may hold."""
    model = load_model(str(mine))
    (artifact,) = all_artifacts(model, Home(tmp_path))
    single = msgspec.structs.replace(model, inputs=(TensorSpec(name="x", dtype="float32", shape=(1, 64)),))
    four = msgspec.structs.replace(model, inputs=(TensorSpec(name="x", dtype="float32", shape=(4, 64)),))
    for one, takes in ((model, True), (single, True), (four, False)):
        axis = batch_axis(one, artifact)
        assert (axis is not None) is takes
    fixed = load_model(str(net(tmp_path / "fixed.onnx", (1, 64))))
    assert batch_axis(fixed, *all_artifacts(fixed, Home(tmp_path))) is None


# Candidates


def test_each_size_is_a_candidate_with_a_name_of_its_own_and_one_item_needs_no_axis(mine, tmp_path):
    model = load_model(str(mine))
    found = find(model, tmp_path, batches=(1, 4), threads=(1,))
    assert [c.name for c in found] == ["standard · onnxruntime 1t", "standard · onnxruntime 1t batch 4"]
    assert [c.settings.axes for c in found] == [{"x[0]": 1}, {"x[0]": 4}]
    assert [c.settings.one_item() for c in found] == [found[0].settings] * 2
    assert [to_session(to_record(c.settings)) for c in found] == [c.settings for c in found]


def find(model: Model, folder: Path, runtimes=("onnxruntime",), **more) -> list[Candidate]:
    return candidates(model, all_artifacts(model, Home(folder)), cores=2, runtimes=list(runtimes), **more)


def test_larger_batches_are_for_the_runtimes_that_are_named_and_not_for_what_is_fixed(mine, tmp_path):
    pytest.importorskip("openvino")
    both = find(
        load_model(str(mine)), tmp_path, ("onnxruntime", "openvino"), batches=(1, 2), batched_in=("onnxruntime",)
    )
    assert {(c.settings.runtime, c.settings.batch) for c in both} == {
        ("onnxruntime", 1), ("onnxruntime", 2), ("openvino", 1),
    }  # fmt: skip
    assert {c.settings.batch for c in find(load_model("digits"), tmp_path, batches=(1, 2))} == {1}
    assert find(load_model("digits"), tmp_path, batches=(2,)) == []
    by_user = find(load_model(str(mine)), tmp_path, batches=(1, 2), axes={"n": 3})
    assert {(c.settings.batch, c.settings.axes["n"]) for c in by_user} == {(1, 3)}


def test_a_twin_that_is_fixed_at_one_item_leaves_the_larger_batches_to_its_original(mine, tmp_path):
    model = load_model(str(mine))
    (artifact,) = all_artifacts(model, Home(tmp_path))
    path = net(tmp_path / "twin.onnx", (1, 64))
    changes = {"name": "standard-ort", "twin_of": "standard", "bound_to": {"runtime": "onnxruntime"}}
    twin = Artifact(record=msgspec.structs.replace(artifact.record, **changes), path=path)
    found = candidates(
        model, [artifact, twin], cores=1, threads=[1], runtimes=["onnxruntime", "tflite"], batches=(1, 2)
    )
    assert [(c.artifact.record.name, c.settings.batch) for c in found] == [("standard", 2), ("standard-ort", 1)]


def test_a_damaged_file_is_a_row_of_its_own_and_no_end_of_all(mine, tmp_path):
    model = load_model(str(mine))
    (artifact,) = all_artifacts(model, Home(tmp_path))
    (tmp_path / "torn.onnx").write_bytes(mine.read_bytes()[:100])
    torn = msgspec.structs.replace(artifact, path=tmp_path / "torn.onnx")
    found = candidates(model, [torn], cores=1, threads=[1], runtimes=["onnxruntime"], batches=(1, 2))
    assert [c.settings.batch for c in found] == [1]


# The same answers


class Session:
    """Answers each item with what `answer` makes of the whole batch."""

    def __init__(self, answer) -> None:
        self.run = lambda inputs: {"y": answer(inputs["x"])}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda x: 2 * x, None),
        (lambda x: x.repeat(3, axis=0), None),
        (lambda x: (x > 0.5).astype(np.int64), None),
        (lambda x: x.sum(), "output 'y' has shape [] for 4 items"),
        (lambda x: x.sum(axis=0), "output 'y' has shape [3] for 4 items"),
        (lambda x: x[:0], "output 'y' has shape [0, 3] for 4 items"),
        (lambda x: x / np.abs(x).max(), "output 'y' of an item depends on the items beside it"),
        (lambda x: np.cumsum(x, axis=0), "output 'y' of an item depends on the items beside it"),
        (lambda x: x.astype(object), "output 'y' of an item depends on the items beside it"),
    ],
)
def test_a_batch_is_one_only_where_each_item_is_answered_as_alone(answer, why):
    session, inputs = Session(answer), {"x": np.random.default_rng(0).random((4, 3)), "scalar": np.array(7)}
    assert why_mixed(session, inputs, session.run(inputs), 4) == why


# What need not be started


def kin(batch: int, threads: int = 1, name: str = "a", **more) -> Candidate:
    record = ArtifactRecord(model="m", name=name, file="m", format="onnx", precision="int8", sha256="", size_bytes=1)
    way = SessionSettings(providers=CPU_PROVIDERS, threads=threads, axes={"x[1]": 1}, **more).with_batch(["x"], batch)
    return Candidate(artifact=Artifact(record=record, path=Path("m")), settings=way)


def seen(query_ms: float, batch: int = 1, threads: int = 1, mib: int | None = None, **more) -> Known:
    peak = None if mib is None else mib * 2**20
    return Known(candidate=kin(batch, threads, **more), query_ms=query_ms, peak_bytes=peak)


BEST = seen(1.0, name="best")


@pytest.mark.parametrize(
    ("mine", "known", "why"),
    [
        (kin(2), [seen(2.3)], None),
        (kin(2), [seen(2.5)], "one at a time it is 2.5x slower than best · onnxruntime 1t"),
        (kin(8), [seen(9.8, 2)], "in batches of 2 it is 4.9x slower"),
        (kin(8), [seen(9.4, 2)], None),
        (kin(2, 2), [seen(4.7)], None),
        (kin(2, 2), [seen(4.9)], "one at a time it is 4.9x slower"),
        (kin(1, 4), [seen(4.9)], "with one thread it is 4.9x slower"),
        (kin(4, 2), [seen(10.0, 4)], "with one thread it is 2.5x slower"),
        (kin(1, 4), [seen(9.0, 1, 2)], None),
        (kin(2), [seen(9.0, 4)], None),
        (kin(2), [seen(9.0, name="b")], None),
        (kin(2), [seen(9.0, runtime="openvino")], None),
    ],
)
def test_who_cannot_catch_up_by_its_items_and_threads_is_not_started(mine, known, why):
    found = why_spared(mine, known, BEST)
    assert found is None if why is None else (found or "").startswith(f"not started: {why}")


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ([seen(1.0), seen(3.0, 2)], None),  # one impression may be of a bad moment
        ([seen(1.0), seen(3.0, 2), seen(3.8, 4)], None),
        ([seen(1.0), seen(1.9, 2), seen(12.0, 4)], None),
        (
            [seen(1.0), seen(3.0, 2), seen(3.9, 4)],
            "not started: in batches of 2 and 4 an item takes 0.975 ms at best, 1.00 ms one at a time",
        ),
        ([seen(1.0, threads=2), seen(3.0, 2, threads=2), seen(8.0, 4, threads=2)], None),  # of other threads
        ([seen(3.0, 2), seen(8.0, 4)], None),
        (
            [seen(1.0), seen(1.2, 2), seen(3.6, 4), seen(4.6, 7)],
            "not started: in batches of 4 and 7 an item takes 0.657 ms at best, 0.600 ms in batches of 2",
        ),
    ],
)
def test_two_doublings_that_gained_nothing_are_the_last(known, why):
    found = why_spared(kin(8), known[::-1], None)
    assert found is None if why is None else (found or "").startswith(why)


def test_a_query_that_takes_too_long_already_grows_no_further():
    known = [seen(20.0), seen(31.0, 2)]
    assert why_spared(kin(4), known, None, bound_ms=31.0) is None
    why = "not started: a query of 2 items takes 31.0 ms already, 25 ms allowed"
    assert why_spared(kin(4), known, None, bound_ms=25.0) == why
    assert why_spared(kin(2), known[:1], None, bound_ms=25.0) is None


def test_what_would_not_fit_is_foretold_from_how_the_peak_grew():
    known = [seen(1.0, mib=60), seen(1.2, 2, mib=70)]
    assert why_spared(kin(4), known, None, memory_bytes=90 * 2**20) is None
    why = "not started: it would peak at 90 MiB, 80 MiB allowed"
    assert why_spared(kin(4), known, None, memory_bytes=80 * 2**20) == why
    untold = [seen(1.0, mib=60), seen(1.2, 2)]
    assert why_spared(kin(4), untold, None, memory_bytes=1) is None
    shrunk = [seen(1.0, mib=90), seen(1.2, 2, mib=70)]
    assert why_spared(kin(4), shrunk, None, memory_bytes=70 * 2**20) is None


def test_what_failed_with_few_items_is_not_tried_with_more():
    failed = Known(candidate=kin(2), query_ms=0.0, failure="not for batches: it depends")
    why = "not started: in batches of 2 it failed: not for batches: it depends"
    for known in ([failed], [seen(1.0), failed]):
        assert why_spared(kin(4), known, BEST) == why
    assert why_spared(kin(1, 2), [Known(candidate=kin(1), query_ms=0.0, failure="died")], BEST) is None
    assert why_spared(kin(2), [Known(candidate=kin(4), query_ms=0.0, failure="died")], BEST) is None


# From a model to a choice


def test_where_throughput_counts_the_batch_is_chosen_with_the_rest_and_kept_by_its_size(mine, tmp_path, facts):
    model, home = load_model(str(mine)), Home(tmp_path)
    space = Space(runtimes=["onnxruntime"], threads=[1])
    chosen = choose(model, THROUGHPUT, home=home, facts=facts, seconds=0.2, space=space)
    assert chosen.settings.batch > 1
    assert chosen.settings.axes == {"x[0]": chosen.settings.batch}
    assert f"in batches of {chosen.settings.batch}" in chosen.reasons[1]
    assert "for a query of" in chosen.reasons[0]
    assert len(chosen.rejections) == len(SIZES) - 1
    found = find_candidates(model, home, facts, space.under(THROUGHPUT))
    kept = store.load(home.measurements("mine"), found, this_device(), lasting(conditions()))
    assert {"standard · onnxruntime 1t", "standard · onnxruntime 1t batch 2"} <= kept.keys()
    for name, (row, _) in kept.items():
        assert row.candidate == name
        assert row.items_per_s == pytest.approx(row.throughput_qps * row.settings.batch)
    assert guess(model, THROUGHPUT, home=home, facts=facts, space=space).settings.batch == chosen.settings.batch
    for objective in ("latency", "memory"):
        one = choose(
            model, msgspec.structs.replace(THROUGHPUT, objective=objective),
            home=home, facts=facts, seconds=0.2, space=replace(space, axes={"n": 1}),
        )  # fmt: skip
        assert one.settings.batch == 1


def test_where_the_batch_counts_for_nothing_an_own_files_first_axis_needs_a_size_as_any_other(mine, tmp_path, facts):
    model, space = load_model(str(mine)), Space(runtimes=["onnxruntime"], threads=[1])
    with pytest.raises(ArtifactError, match="give it with --axis 'n=VALUE'"):
        choose(model, Limits(), home=Home(tmp_path), facts=facts, seconds=0.2, space=space)


def test_the_accuracy_of_what_runs_in_batches_is_that_of_its_items(mine, tmp_path, facts):
    dice = np.random.default_rng(1)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "mine.onnx").write_bytes(mine.read_bytes())
    np.savez(folder / "data.npz", x=dice.random((5, 64), np.float32))
    model = msgspec.structs.replace(
        load_model(str(folder / "mine.onnx")),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(1, 64)),),
        data=Data(calibration="data.npz", evaluation="data.npz"),
    )
    space = Space(runtimes=["onnxruntime"], threads=[1], batches=(8,))
    chosen = choose(
        model, Limits(objective="throughput"), home=Home(tmp_path / "h"), facts=facts, seconds=0.1, space=space
    )
    assert (chosen.settings.batch, chosen.accuracy_ratio) == (8, 1.0)


def test_a_prior_is_about_one_item(mine, tmp_path, facts):
    space = Space(runtimes=["onnxruntime"])
    found = guess(load_model(str(mine)), THROUGHPUT, home=Home(tmp_path), facts=facts, space=space)
    assert (found.is_prior, found.settings.batch) == (True, 1)
    assert not [r for r in found.rejections if "batch" in r.candidate]


def test_batches_where_they_count_for_nothing_or_nothing_takes_them_are_refused():
    with pytest.raises(UsageError, match="for the objective latency a query holds one item"):
        Space(batches=(1, 2)).under(Limits())
    assert Space(batches=(1,)).under(Limits()).batches == (1,)
    assert Space().under(Limits()).batches == (1,)
    assert Space().under(Limits(objective="balanced")).batches == SIZES
    weights = {"throughput": 0.0, "memory": 0.5, "accuracy": 0.3, "deployability": 0.2}
    assert Space().under(Limits(objective="balanced", weights=weights)).batches == (1,)


def test_measurements_of_one_item_are_found_under_the_key_they_always_had():
    settings = to_record(SessionSettings(axes={"x[0]": 1}))
    key = store._key("a", settings, {}, {})[1]
    assert list(json.loads(key)) == [name for name in settings.__struct_fields__ if name != "batch"]
    assert key == key.replace(" ", "")
    eight = to_record(SessionSettings().with_batch(["x"], 8))
    assert json.loads(store._key("a", eight, {}, {})[1])["batch"] == 8


# As typed


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "state"))
    return tmp_path


WHICH = ["--runtime", "onnxruntime", "--threads", "1", "--seconds", "0.1"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["digits", "--batch", "2"], "for the objective latency a query holds one item; throughput counts batches"),
        (["digits", "--batch", "0"], "--batch 0: must be a finite number, and more than zero"),
        (
            ["digits", "--objective", "throughput", "--batch", "2", "4"],
            "nothing of digits takes 2 or 4 items at once here: the first axis of its inputs is fixed",
        ),
    ],
)
def test_batches_that_cannot_be_are_one_line(words, problem, state, capsys):
    assert main(["select", *words, *WHICH]) == 2
    assert capsys.readouterr().err == f"edgekit select: {problem}\n"


def test_select_limits_the_batches_and_judges_the_latency_of_the_whole_query(mine, state, capsys):
    words = ["select", str(mine), "--objective", "throughput", "--batch", "1", "8", "--explain", *WHICH]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("selected: standard · onnxruntime 1t batch 8 (precision not declared, ")
    assert "  not      standard · onnxruntime 1t: " in out
    assert main([*words, "--latency-ms", "0.000001", "--percentile", "p50", "--no-measure"]) == 1
    assert "1t batch 8: p50 " in (out := capsys.readouterr().out)
    assert " ms for a query of 8 items, 1e-06 ms allowed" in out
    assert main([*words, "--qps", "1e9", "--no-measure"]) == 1
    assert " items/s in batches of 8, 1000000000 required" in capsys.readouterr().out


def test_bench_sweeps_the_batches_of_a_file_that_takes_them(mine, state, capsys):
    assert main(["bench", str(mine), "--batch", "1", "8", *WHICH]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: standard · onnxruntime 1t"
    assert lines[1].split() == ["batch", "p50", "ms", "ms", "an", "item", "items/s", "peak", "MiB"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "8"]


def test_another_size_changes_that_axis_alone(mine, tmp_path):
    (one,) = find(load_model(str(mine)), tmp_path, threads=(1,))
    (bigger,) = in_batches(load_model(str(mine)), one, [16])
    assert bigger.settings == SessionSettings(batch=16, axes={"x[0]": 16})
    assert bigger.artifact == one.artifact
