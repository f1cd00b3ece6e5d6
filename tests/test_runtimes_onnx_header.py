"""The header reader sees what onnxruntime sees, and survives whatever bytes it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import ArtifactError
from edgekit.runtimes.onnx_header import read_header

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models/digits/digits.onnx"


def _by_onnxruntime(path: Path):
    pytest.importorskip("onnxruntime")
    from edgekit.runtimes import onnx

    session = onnx.ort.InferenceSession(path)
    return [onnx._spec(node) for node in session.get_inputs()], [node.name for node in session.get_outputs()]


@pytest.mark.parametrize("name", ["digits.onnx", "digits-int8.onnx"])
def test_inputs_and_outputs_are_those_that_onnxruntime_reports(name):
    inputs, outputs = _by_onnxruntime(DIGITS.parent / name)
    header = read_header(DIGITS.parent / name)
    assert list(header.inputs) == inputs
    assert [spec.name for spec in header.outputs] == outputs


@pytest.mark.data
def test_inputs_of_real_models_are_those_that_onnxruntime_reports(data_dir):
    for path in (data_dir / "mnist/mnist.onnx", data_dir / "efficientnet_lite0/efficientnet_lite0_f32.onnx"):
        assert list(read_header(path).inputs) == _by_onnxruntime(path)[0]


def test_weights_that_old_files_list_as_inputs_are_not_inputs(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(DIGITS)
    before = read_header(DIGITS).inputs
    weight = model.graph.initializer[0]
    model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    onnx.save(model, tmp_path / "old.onnx")
    assert read_header(tmp_path / "old.onnx").inputs == before


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 20_000), byte=st.integers(0, 255), cut=st.integers(0, 20_000))
def test_damage_is_an_error_or_harmless_but_never_a_crash(at, byte, cut, tmp_path_factory):
    data = bytearray(DIGITS.read_bytes())
    data[at % len(data)] = byte
    path = tmp_path_factory.mktemp("damage") / "m.onnx"
    path.write_bytes(bytes(data[: len(data) - cut % len(data)]))
    try:
        header = read_header(path)
    except ArtifactError:
        return
    assert all(spec.shape is not None for spec in header.inputs)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_an_error_or_a_header(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "m.onnx"
    path.write_bytes(data)
    try:
        read_header(path)
    except ArtifactError as error:
        assert "m.onnx" in str(error)  # noqa: PT017 - both outcomes are right
