"""Tensors at addresses that stay, for providers that capture graphs: the same answers, each of them to its own inputs.

A graph needs a GPU; the binding is the same on the CPU, which is where it is tried here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes.session import SessionSettings

ort = pytest.importorskip("onnxruntime", reason="the binding is onnxruntime's")
onnx = pytest.importorskip("onnx", reason="the model of these tests is made with onnx")

from edgekit.runtimes import bound  # noqa: E402
from edgekit.runtimes.onnx import OnnxSession  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """s = a + b as float32, n = -c as int64."""
    made, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["s"]), onnx.helper.make_node("Neg", ["c"], ["n"])]
    inputs = [made("a", kind.FLOAT, [2, 3]), made("b", kind.FLOAT, [2, 3]), made("c", kind.INT64, [])]
    outputs = [made("s", kind.FLOAT, [2, 3]), made("n", kind.INT64, [])]
    graph = onnx.helper.make_graph(nodes, "m", inputs, outputs)
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def feeds(value: float) -> dict[str, np.ndarray]:
    a = np.full((2, 3), value, np.float32)
    return {"a": a, "b": a.T.copy().T, "c": np.array(int(value), np.int64)}  # b lies in memory column by column


@pytest.fixture
def captured(path: Path, monkeypatch: pytest.MonkeyPatch) -> OnnxSession:
    """A session that believes its provider captures graphs; the memory is the CPU's."""
    cuda = bound.BoundRun.__init__

    def on_the_cpu(self, *words, device_id, **more):
        cuda(self, *words, device="cpu", device_id=device_id, **more)

    monkeypatch.setattr(bound.BoundRun, "__init__", on_the_cpu)
    monkeypatch.setitem(bound.CAPTURES, "CPUExecutionProvider", "graph")
    return OnnxSession(path, SessionSettings(providers=(("CPUExecutionProvider", {}),)))


@pytest.mark.parametrize(
    ("providers", "device_id"),
    [
        ((("CUDAExecutionProvider", {"enable_cuda_graph": "1"}),), 0),
        ((("CUDAExecutionProvider", {"enable_cuda_graph": "True", "device_id": "1"}),), 1),
        ((("CUDAExecutionProvider", {"enable_cuda_graph": "0"}),), None),
        ((("CUDAExecutionProvider", {}),), None),
        ((("TensorrtExecutionProvider", {"trt_cuda_graph_enable": "1"}), ("CUDAExecutionProvider", {})), 0),
        ((("TensorrtExecutionProvider", {"enable_cuda_graph": "1"}),), None),
        ((("CPUExecutionProvider", {}),), None),
    ],
)
def test_which_providers_capture_graphs_is_read_from_their_own_options(providers, device_id):
    assert bound.capturing_device(SessionSettings(providers=providers)) == device_id


def test_each_answer_is_to_its_own_inputs_and_stays(path):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    specs = OnnxSession(path, SessionSettings())
    run = bound.BoundRun(path, session, specs.inputs, specs.outputs, device="cpu")
    answers = [run.run(feeds(value)) for value in (1.0, 2.0, -3.0)]
    for (total, negative), value in zip(answers, (1.0, 2.0, -3.0), strict=True):
        assert total.tolist() == [[2 * value] * 3] * 2
        assert negative.tolist() == -int(value)
        assert total.flags.owndata


def test_the_callers_arrays_are_not_written_to(path):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    specs = OnnxSession(path, SessionSettings())
    run = bound.BoundRun(path, session, specs.inputs, specs.outputs, device="cpu")
    first = feeds(1.0)
    run.run(first)
    run.run(feeds(5.0))
    assert first["a"].tolist() == [[1.0] * 3] * 2


def test_a_shape_that_is_not_fixed_is_refused_with_the_tensor(path):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    open_axis = TensorSpec(name="a", dtype="float32", shape=("n", 3))
    with pytest.raises(RuntimeUnavailable, match=r"m.onnx: a captured graph has fixed shapes, a is \['n', 3\]"):
        bound.BoundRun(path, session, [open_axis], [], device="cpu")


def test_a_session_whose_provider_captures_runs_bound(path, captured, monkeypatch):
    assert captured._bound is None, "the provider was not asked to"
    monkeypatch.setattr("edgekit.runtimes.onnx.capturing_device", lambda _settings: 0)
    session = OnnxSession(path, SessionSettings())
    assert session._bound is not None
    plain = OnnxSession(path, SessionSettings(providers=(("CPUExecutionProvider", {}),)))
    for value in (4.0, 7.0):
        ours, theirs = session.run(feeds(value)), plain.run(feeds(value))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    session.close()
    assert session._bound is None
