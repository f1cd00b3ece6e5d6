"""State kept on the device: by sequence, from step to step, not for ever."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import InputError, RequestError
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.engine import Engine
from edgekit.serve.lane import Lane
from edgekit.serve.layout import Layouts
from edgekit.serve.pace import Refused
from edgekit.serve.parameters import Step
from edgekit.serve.protocol import decode_request
from edgekit.serve.sequences import MAX_COUNT, Sequences
from edgekit.serve.signature import signature_of

onnx = pytest.importorskip("onnx", reason="the tiny model of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

SPECS = {"sum": TensorSpec(name="sum", dtype="float32", shape=(1,))}


def step(key: int | str, *, first: bool = False, last: bool = False) -> Step:
    return Step(id=key, is_first=first, is_last=last)


@pytest.fixture
def engine(tmp_path: Path):
    """y = sum + x * gain: a running sum, whose gain is a constant."""
    kind = onnx.TensorProto.FLOAT
    tensors = {name: onnx.helper.make_tensor_value_info(name, kind, [1]) for name in ("x", "sum", "y", "next")}
    gain = onnx.helper.make_tensor_value_info("gain", kind, [])
    nodes = [
        onnx.helper.make_node("Mul", ["x", "gain"], ["xg"]),
        onnx.helper.make_node("Add", ["xg", "sum"], ["next"]),
        onnx.helper.make_node("Identity", ["next"], ["y"]),
    ]
    inputs, outputs = [tensors["x"], tensors["sum"], gain], [tensors["y"], tensors["next"]]
    graph = onnx.helper.make_graph(nodes, "sum", inputs, outputs)
    path = tmp_path / "sum.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    model = Model(
        name="sum", version="1", task="tensors", source=Source(file="x", sha256="0", size_bytes=0),
        state={"sum": "next"}, constants={"gain": 2},
    )  # fmt: skip
    session = open_session(path, SessionSettings())
    signature = signature_of(model, session.inputs, session.outputs, overrides={})
    lane = Lane(model="sum", name="realtime", artifact="standard", session=session, signature=signature, recorder=None)
    lane.warm_up()
    lane.start()
    engine = Engine()
    engine.add("sum", "1").lane = lane
    yield engine
    assert engine.close()


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.array([value], np.float32)}


def test_each_sequence_goes_on_from_where_it_stood(engine):
    def add(key: int | str, value: float, **place: bool) -> float:
        return float(engine.infer("sum", x(value), step=step(key, **place)).outputs["y"][0])

    assert add(1, 1, first=True) == 2
    assert add("b", 10, first=True) == 20
    assert add(1, 1) == 4
    assert add("b", 1) == 22
    assert add(1, 1, last=True) == 6
    with pytest.raises(RequestError, match="no open sequence 1: begin it with sequence_start") as caught:
        add(1, 1)
    assert caught.value.status == 400
    assert add(1, 1, first=True) == 2, "a new start begins with nothing"


def test_outside_of_a_sequence_the_client_carries_the_state_itself(engine):
    answer = engine.infer("sum", x(1) | {"sum": np.array([5], np.float32)})
    assert answer.outputs["next"].tolist() == [7]
    with pytest.raises(InputError, match="input sum: missing"):
        engine.infer("sum", x(1))


def test_the_wire_has_no_state_in_a_sequence(engine):
    signature = engine.find("sum").ready_lane().signature
    body = {
        "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}],
        "parameters": {"sequence_id": 5, "sequence_start": True},
    }
    request = decode_request(json.dumps(body).encode(), None, Layouts(signature))
    assert request.step == step(5, first=True)
    assert [name for name, _ in request.outputs] == ["y"]
    with pytest.raises(InputError, match="sum: missing"):
        decode_request(json.dumps(body | {"parameters": {}}).encode(), None, Layouts(signature))
    with pytest.raises(RequestError, match="keeps no state"):
        decode_request(json.dumps(body).encode(), None, Layouts(replace(signature, state={})))


def test_a_sequence_that_nobody_goes_on_with_expires():
    now = [0.0]
    sequences = Sequences(SPECS, {"sum": "next"}, idle_s=10, clock=lambda: now[0])
    sequences.before(step(1, first=True))
    sequences.after(step(1), {"next": np.array([3], np.float32)})
    now[0] = 9
    assert sequences.before(step(1))["sum"].tolist() == [3]
    now[0] = 19.5
    with pytest.raises(RequestError, match="after 10 s it expires"):
        sequences.before(step(1))
    assert len(sequences) == 0


def test_there_are_only_so_many_at_a_time():
    sequences = Sequences(SPECS, {"sum": "next"})
    for i in range(MAX_COUNT):
        sequences.before(step(i, first=True))
    with pytest.raises(Refused, match=f"{MAX_COUNT} sequences are open"):
        sequences.before(step("one more", first=True))
    sequences.before(step(0, first=True))  # begun again is not one more
    sequences.after(step(0, last=True), {})
    sequences.before(step("one more", first=True))


def test_what_is_kept_is_a_copy_of_what_the_runtime_may_write_over():
    sequences = Sequences(SPECS, {"sum": "next"})
    sequences.before(step(1, first=True))
    left = np.array([3], np.float32)
    sequences.after(step(1), {"next": left})
    left[0] = 99
    assert sequences.before(step(1))["sum"].tolist() == [3]
