"""Several requests in one inference: only where it is the same and pays, and nobody who is alone waits for others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgekit.catalog import load_model
from edgekit.config import BatchConfig, Home, ModelConfig
from edgekit.errors import InputError
from edgekit.fetch import all_artifacts
from edgekit.serve.batching import Batching, Window, joined, sizes_up_to
from edgekit.serve.engine import Engine
from edgekit.serve.job import Job
from edgekit.serve.opening import load_lane
from edgekit.serve.plan import pinned_plan
from edgekit.serve.routes import _config
from edgekit.telemetry.recorder import Recorder

onnx = pytest.importorskip("onnx", reason="the models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

WIDTH = 768


def save(path: Path, nodes: list, *, shape: list, weights: dict[str, np.ndarray] | None = None) -> Path:
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    initial = [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = onnx.helper.make_graph(nodes, "m", tensors[:1], tensors[1:], initial)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def perceptron(path: Path, first: int | str) -> Path:
    """Two matrices that are read from memory whether for one item or for eight."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((WIDTH, WIDTH)) / 30).astype(np.float32) for i in range(2)}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w0"], ["h"]), onnx.helper.make_node("MatMul", ["h", "w1"], ["y"])]
    return save(path, nodes, shape=[first, WIDTH], weights=weights)


def centred(path: Path) -> Path:
    """y = x less the mean of the whole tensor: an item's answer depends on the items beside it."""
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0),
        onnx.helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return save(path, nodes, shape=["n", 8])


@pytest.fixture
def serve(tmp_path: Path):
    engines: list[Engine] = []

    def start(path: Path, recorder: Recorder | None = None, **batch: object) -> Engine:
        model = load_model(str(path))
        wanted = ModelConfig(name=str(path), artifact="standard", batch=BatchConfig(**batch) if batch else None)
        plan = pinned_plan(model, wanted, all_artifacts(model, Home(tmp_path)), threads=1)
        engine = Engine()
        engine.add(model.name, "1").lane = load_lane(plan, recorder)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        assert engine.close()


def x(value: float, items: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.full((items, WIDTH), value, np.float32)}


def hold(engine: Engine, name: str) -> Callable[[], None]:
    """Keep the lane's thread until the returned function is called."""
    begun, gate = threading.Event(), threading.Event()

    def done(_: object) -> None:
        begun.set()
        assert gate.wait(10)

    engine.find(name).submit(Job(inputs=x(0), done=done), None)
    assert begun.wait(5)
    return gate.set


# Pure: sizes, windows


def test_sizes_are_few_and_end_with_the_largest_wanted():
    assert [sizes_up_to(n) for n in (1, 2, 3, 8, 12)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4, 8), (1, 2, 4, 8, 12)]


def test_a_batch_is_padded_a_little_or_cut_to_the_size_below():
    batching = Batching(sizes=(1, 2, 4, 8, 16), preferred=8, window_ms=2)
    assert [batching.take(n) for n in (1, 2, 3, 5, 6, 7, 9, 12, 15, 16, 40)] == [1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 16]
    assert [batching.size_for(n) for n in (1, 3, 9, 16)] == [1, 4, 16, 16]


def test_items_are_joined_in_order_and_the_padding_is_a_valid_item():
    whole = joined([{"x": np.array([[1.0], [2.0]])}, {"x": np.array([[3.0]])}], 4)
    assert whole["x"].tolist() == [[1], [2], [3], [3]]


def test_a_client_alone_never_waits_and_one_left_alone_waits_once():
    window = Window(Batching(sizes=(1, 2, 4, 8), preferred=4, window_ms=2.0))
    for _ in range(3):
        assert window.wait_ms(1, waited_ms=0.0, slack_ms=1e9) == 0
        assert window.close(1, 0, waited_ms=0.0, slack_ms=1e9) == "alone"
    assert window.close(1, 2, waited_ms=0.0, slack_ms=1e9) == "alone"  # two more have come meanwhile
    assert window.wait_ms(1, waited_ms=0.0, slack_ms=1e9) == 2.0
    assert window.wait_ms(1, waited_ms=1.5, slack_ms=1e9) == 0.5
    assert window.wait_ms(3, waited_ms=0.0, slack_ms=1e9) == 0, "as many as there were about"
    assert window.close(1, 0, waited_ms=2.0, slack_ms=1e9) == "window"
    assert window.wait_ms(1, waited_ms=0.0, slack_ms=1e9) == 0, "the others have gone"


def test_a_batch_is_closed_by_what_it_says():
    window = Window(Batching(sizes=(1, 2, 4, 8), preferred=4, window_ms=2.0))
    window.close(1, 6, waited_ms=0.0, slack_ms=1e9)
    assert window.wait_ms(2, waited_ms=0.0, slack_ms=0.5) == 0.5
    assert window.wait_ms(4, waited_ms=0.0, slack_ms=1e9) == 0
    assert window.close(8, 0, waited_ms=0.0, slack_ms=1e9) == "full"
    assert window.close(5, 0, waited_ms=0.0, slack_ms=1e9) == "preferred"
    assert window.close(2, 0, waited_ms=0.5, slack_ms=-0.1) == "deadline"
    assert window.closed == {"alone": 1, "full": 1, "preferred": 1, "deadline": 1}


# Real sessions


def test_requests_that_wait_are_answered_in_one_inference_each_with_its_own_rows(serve, tmp_path):
    recorder = Recorder()
    engine = serve(perceptron(tmp_path / "m.onnx", "n"), recorder, max=8, window_ms=50.0)
    lane = engine.find("m").ready_lane()
    assert lane.batching is not None
    config = _config(engine.find("m"))
    assert config["max_batch_size"] == lane.batching.max
    assert config["input"][0]["dims"] == [WIDTH], "where Triton batches, the batch's axis is not part of dims"
    alone = {value: engine.infer("m", x(value)).outputs["y"] for value in range(4)}
    recorder.take()
    let_go = hold(engine, "m")
    answers: dict[int, object] = {}
    waiting = threading.Barrier(5)

    def ask(value: int) -> None:
        waiting.wait()
        answers[value] = engine.infer("m", x(value))

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    waiting.wait()
    time.sleep(0.1)
    let_go()
    for thread in threads:
        thread.join()
    for value, answer in answers.items():
        assert answer.batch == 4
        np.testing.assert_allclose(answer.outputs["y"], alone[value], rtol=1e-4, atol=1e-4)
    assert recorder.take()[0].batch_sizes == {"4": 4}
    assert sum(lane.counts.batches.values()) == 6


def test_a_request_with_several_items_is_one_batch_and_too_many_are_refused(serve, tmp_path):
    engine = serve(perceptron(tmp_path / "m.onnx", "n"), max=4)
    most = engine.find("m").ready_lane().signature.batch_sizes[-1]
    answer = engine.infer("m", x(1, most))
    assert answer.outputs["y"].shape == (most, WIDTH)
    with pytest.raises(InputError, match=rf"the model takes \[batch \(1 to {most}\), {WIDTH}\]"):
        engine.infer("m", x(1, most + 1))


def test_a_model_whose_first_axis_is_fixed_is_served_one_by_one(serve, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    engine = serve(perceptron(tmp_path / "fixed.onnx", 1), max=8)
    assert "no batching: its first axis is fixed" in caplog.text
    assert engine.find("fixed").ready_lane().batching is None
    assert engine.infer("fixed", x(1)).batch == 1


def test_a_model_whose_items_depend_on_each_other_is_served_one_by_one(serve, tmp_path, caplog):
    engine = serve(centred(tmp_path / "centred.onnx"), max=8)
    assert "no batching: output y of an item depends on the items beside it" in caplog.text
    signature = engine.find("centred").ready_lane().signature
    assert signature.inputs[0].shape == (1, 8)


def test_without_the_setting_the_axis_needs_a_size_as_ever(serve, tmp_path):
    model = load_model(str(perceptron(tmp_path / "m.onnx", "n")))
    wanted = ModelConfig(name="m", artifact="standard", axes={"n": 2})
    lane = load_lane(pinned_plan(model, wanted, all_artifacts(model, Home(tmp_path)), threads=1), None)
    assert (lane.batching, lane.signature.inputs[0].shape) == (None, (2, WIDTH))
    assert lane.close(5)


def test_an_item_that_fails_fails_alone(serve, tmp_path):
    table = np.arange(24, dtype=np.float32).reshape(3, 8)
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    path = tmp_path / "lookup.onnx"
    x_in = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])
    y_out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 8])
    graph = onnx.helper.make_graph(nodes, "m", [x_in], [y_out], [onnx.numpy_helper.from_array(table, "table")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    model = load_model(str(path))
    wanted = ModelConfig(name="lookup", artifact="standard", batch=BatchConfig(max=4))
    plan = pinned_plan(model, wanted, all_artifacts(model, Home(tmp_path)), threads=1)
    lane = load_lane(plan, None)
    if lane.batching is None:  # on a disturbed machine batches of so small a model may not pay
        lane.batching = Batching(sizes=(1, 2, 4), preferred=4, window_ms=1)
    outcomes: dict[int, object] = {}
    jobs = [
        Job(inputs={"x": np.array([value], np.float32)}, done=lambda outcome, v=value: outcomes.update({v: outcome}))
        for value in (0, 99, 2)
    ]
    lane._answer(jobs)
    assert [type(outcomes[value]).__name__ for value in (0, 99, 2)] == ["Answer", "ArtifactError", "Answer"]
    assert outcomes[2].outputs["y"].tolist() == [table[2].tolist()]
    assert lane.close(5)
