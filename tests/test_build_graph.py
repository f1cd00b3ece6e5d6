"""From a file to a clean float graph: what is refused, what is upgraded, which axes stay open."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.edit import Graph
from edgekit.build.graph import clean, inputs_of, read_model, weights
from edgekit.errors import ArtifactError
from edgekit.manifest import TensorSpec

WEIGHT = np.arange(16, dtype=np.float32).reshape(4, 4, 1, 1) / 16


def save(path, nodes, *, opset=17, ir=8, shape=("n", 4, "h", "w"), initializers=(), extra_inputs=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), *extra_inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(initializers),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir), str(path))
    return path


@pytest.fixture
def plain(tmp_path):
    weight = numpy_helper.from_array(WEIGHT, "w")
    return save(tmp_path / "m.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], initializers=[weight])


def test_nan_weights_are_refused_by_name_and_infinities_are_not(tmp_path):
    for value, ok in ((np.nan, False), (-np.inf, True)):
        array = WEIGHT.copy()
        array[1, 2] = value
        node = helper.make_node("Conv", ["x", "w"], ["y"])
        path = save(tmp_path / "m.onnx", [node], initializers=[numpy_helper.from_array(array, "w")])
        if ok:
            assert [name for name, _ in weights(read_model(path))] == ["w"]
        else:
            with pytest.raises(ArtifactError, match="weight 'w' holds NaN"):
                read_model(path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_truncated_model_is_refused_in_one_line(plain, keep):
    raw = plain.read_bytes()
    plain.write_bytes(raw[: int(len(raw) * keep)])
    with pytest.raises(ArtifactError) as caught:
        read_model(plain)
    assert "\n" not in str(caught.value)


def test_more_than_two_gib_of_external_data_is_refused_before_it_is_read(tmp_path):
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [0])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "big.bin"), ("length", "4")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(2 * 1024**3)  # sparse: takes no space
    node = helper.make_node("Add", ["x", "w"], ["y"])
    path = save(tmp_path / "m.onnx", [node], initializers=[tensor])
    with pytest.raises(ArtifactError, match=r"2\.0 GiB with its external data"):
        read_model(path)


def test_external_weights_are_read_with_the_model(tmp_path):
    weight = numpy_helper.from_array(WEIGHT, "w")
    path = save(tmp_path / "m.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], initializers=[weight])
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").is_file()
    np.testing.assert_array_equal(dict(weights(read_model(path)))["w"], WEIGHT)


def test_an_unknown_operator_is_named(tmp_path):
    path = save(tmp_path / "m.onnx", [helper.make_node("Konv", ["x"], ["y"])])
    with pytest.raises(ArtifactError, match="No Op registered for Konv"):
        clean(read_model(path), path, {}, [])


def test_constant_nodes_become_weights_and_the_opset_is_raised(tmp_path):
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHT))
    old = [constant, helper.make_node("Conv", ["x", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", old, opset=11, ir=6)
    notes: list[str] = []
    model, _ = clean(read_model(path), path, {}, notes)
    assert [n.op_type for n in model.graph.node] == ["Conv"]
    assert [t.name for t in model.graph.initializer] == ["w"]
    assert Graph(model).opset == 17
    assert notes == []


def test_weights_listed_as_inputs_are_no_inputs_any_more(tmp_path):
    listed = helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHT.shape)
    weight = numpy_helper.from_array(WEIGHT, "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    path = save(tmp_path / "m.onnx", [node], ir=3, initializers=[weight], extra_inputs=[listed])
    model, _ = clean(read_model(path), path, {}, [])
    assert [value.name for value in model.graph.input] == ["x"]


def test_axes_that_are_given_are_fixed_and_the_others_stay_open_with_a_name(plain):
    model, _ = clean(read_model(plain), plain, {"x[0]": 1, "x[3]": 32}, [])
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value or d.dim_param for d in dims] == [1, 4, "h", 32]


def test_nameless_axes_get_a_name(tmp_path):
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], shape=(None, 4, None, 2))
    model, _ = clean(read_model(path), path, {}, [])
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value or d.dim_param for d in dims] == ["x_0", 4, "x_2", 2]


def test_an_axis_that_contradicts_the_file_is_an_error(plain):
    with pytest.raises(ArtifactError, match=r"axis x\[1\] is fixed at 4"):
        clean(read_model(plain), plain, {"x[1]": 3}, [])


def test_only_operator_sets_in_use_are_kept(plain):
    model, _ = clean(read_model(plain), plain, {}, [])
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]


def test_inputs_are_called_as_the_manifest_calls_them(plain):
    declared = TensorSpec(name="x", dtype="float32", shape=(1, 4, "side", "side"))
    assert inputs_of(plain, [declared]) == (declared,)
    assert inputs_of(plain, [])[0].shape == ("n", 4, "h", "w")
