"""The same models in OpenVINO give the same answers; what it cannot do is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.device.probe import probe
from edgekit.errors import ArtifactError, InputError, RuntimeUnavailable
from edgekit.runtimes.session import SessionSettings, open_session

pytest.importorskip("openvino")

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models/digits/digits.onnx"


def _open(path=DIGITS, **settings):
    return open_session(path, SessionSettings(runtime="openvino", **settings))


def test_it_agrees_with_onnxruntime():
    pytest.importorskip("onnxruntime")
    mine, other = _open(), open_session(DIGITS, SessionSettings())
    assert [spec.shape for spec in mine.inputs] == [spec.shape for spec in other.inputs]
    inputs = {mine.inputs[0].name: np.random.default_rng(0).random(mine.inputs[0].shape, dtype=np.float32)}
    (a,), (b,) = mine.run(inputs).values(), other.run(inputs).values()
    np.testing.assert_allclose(a, b, atol=1e-4)
    assert list(mine.run(inputs)) == list(other.run(inputs))


def test_a_float_model_is_computed_in_float_unless_asked_otherwise():
    assert "float32" in str(_open()._model.get_property("INFERENCE_PRECISION_HINT"))
    if {"avx512_bf16", "amx_bf16"} & set(probe().cpu.features or ()):
        lower = _open(session_options={"INFERENCE_PRECISION_HINT": "bf16"})
        assert "bfloat16" in str(lower._model.get_property("INFERENCE_PRECISION_HINT"))
    else:
        with pytest.raises(RuntimeUnavailable, match=r"HINT bf16 was asked for, but here it computes in f32"):
            _open(session_options={"INFERENCE_PRECISION_HINT": "bf16"})


def test_threads_are_what_the_settings_say():
    assert _open(threads=1)._model.get_property("INFERENCE_NUM_THREADS") == 1


def test_outputs_are_copies():
    session = _open()
    name = session.inputs[0].name
    (first,) = session.run({name: np.zeros(session.inputs[0].shape, np.float32)}).values()
    kept = first.copy()
    session.run({name: np.ones(session.inputs[0].shape, np.float32)})
    np.testing.assert_array_equal(first, kept)


def test_placement_and_version_are_told():
    session = _open()
    assert session.runtime_version[:2] == "20"
    assert session.placement({}).ops_by_provider["CPU"] >= 3
    assert session.active_providers == ("CPU",)


def test_outputs_answer_to_the_files_own_names(tmp_path):
    """Identity nodes are fused away, and the port that is left carries every name that it ever had."""
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    nodes = [
        make.make_node("Add", ["x", "x"], ["a_first_name"]),
        make.make_node("Identity", ["a_first_name"], ["the_output"]),
    ]
    graph = make.make_graph(
        nodes,
        "g",
        [make.make_tensor_value_info("x", 1, [4])],
        [make.make_tensor_value_info("the_output", 1, [4])],
    )
    path = tmp_path / "named.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    session = _open(path)
    assert list(session.run({"x": np.ones(4, np.float32)})) == ["the_output"]


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeUnavailable, match="device NPU is not there; it finds"):
        _open(delegate="NPU")


def test_wrong_inputs_and_broken_files_are_said(tmp_path):
    session = _open()
    with pytest.raises(InputError):
        session.run({session.inputs[0].name: np.zeros((1, 1), np.float32)})
    (tmp_path / "text.onnx").write_text("not a model at all, whatever its name may say")
    with pytest.raises(ArtifactError, match="is a text file"):
        _open(tmp_path / "text.onnx")


def test_closing_twice_is_harmless():
    session = _open()
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({})
