"""Pruning of whole graphs: the pattern holds, what is left makes up for it, and the written file proves it."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import ArtifactRecord, LayerSparsity
from edgekit.build import prune
from edgekit.build.calibrate import Calibration
from edgekit.build.edit import Graph
from edgekit.build.plain import inputs_of, multiplied
from edgekit.build.prune_pattern import broken, is_two_of_four, layers, sparsity_of, summary
from edgekit.build.prune_quantize import quantize_symmetrically
from edgekit.errors import ArtifactError

RNG = np.random.default_rng(17)
WIDE = 96
"""More than 64 channels and a multiple of 32."""


def constant(*shape):
    return (RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make(nodes, constants, shape):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def network():
    """A stem too narrow, two layers that a sparse kernel takes, a depthwise one, and a head behind a global average."""
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["s"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["s"], ["sr"]),
        helper.make_node("Conv", ["sr", "a", "ab"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "deep"], ["d"], kernel_shape=[3, 3], group=WIDE),
        helper.make_node("Conv", ["d", "b"], ["c2"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["m"]),
        helper.make_node("Add", ["m", "hb"], ["y"]),
    ]
    constants = {
        "stem": constant(WIDE, 3, 1, 1),
        "a": constant(WIDE, WIDE, 3, 3),
        "ab": constant(WIDE, 1)[:, 0],
        "deep": constant(WIDE, 1, 3, 3),
        "b": constant(WIDE, WIDE, 1, 1),
        "head": constant(WIDE, 10),
        "hb": constant(10, 1)[:, 0],
    }
    return make(nodes, constants, (1, 3, 8, 8))


@pytest.fixture(scope="module")
def feeds():
    return [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(12)]


@pytest.fixture(scope="module")
def solved(feeds):
    """(model, solutions): the costly part, once."""
    model = network()
    return model, prune.alone(model, feeds)


def run(model, feed):
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]


def error(model, other, feeds):
    pairs = [(run(model, feed), run(other, feed)) for feed in feeds]
    return sum(float(((a - b) ** 2).sum()) for a, b in pairs) / sum(float((a**2).sum()) for a, _ in pairs)


def quantized(model, feeds):
    names = multiplied(Graph(model))
    ranges = Calibration(model, inputs_of(Graph(model), names), feeds).ranges()
    return quantize_symmetrically(model, names, ranges)


@pytest.mark.parametrize(
    ("channels", "attributes", "weight", "why"),
    [
        (96, {}, (8, 96, 1, 1), None),
        (1152, {}, (8, 1152, 1, 1), None),
        (64, {}, (8, 64, 1, 1), "64 input channels; sparse kernels need more than 64"),
        (3, {}, (8, 3, 1, 1), "3 input channels; sparse kernels need more than 64"),
        (112, {}, (8, 112, 1, 1), "112 input channels, no multiple of 32"),
        (96, {"group": 96}, (96, 1, 1, 1), "grouped or depthwise"),
        (128, {"group": 2}, (8, 64, 1, 1), "grouped or depthwise"),
    ],
)
def test_which_layers_a_sparse_kernel_takes(channels, attributes, weight, why):
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1], **attributes)
    (layer,) = layers(Graph(make([node], {"w": np.zeros(weight)}, (1, channels, 4, 4))))
    assert layer.why_not == why


def test_layers_know_their_bias_wherever_it_is_added():
    found = {layer.name: layer.bias for layer in layers(Graph(network()))}
    assert found == {"s": None, "c1": "ab", "d": None, "c2": None, "m": "hb"}


def test_a_batched_product_is_no_layer():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert layers(Graph(make([node], {"w": np.zeros((2, 96, 4))}, (2, 3, 96)))) == []


def test_every_eligible_layer_becomes_two_of_four_and_no_other_changes(solved):
    model, solutions = solved
    assert set(solutions) == {"c1", "c2", "m"}
    made = prune.with_solutions(model, solutions, list(solutions))
    before, after = Graph(model), Graph(made)
    for name in ("stem", "deep"):
        assert (before.constant(name) == after.constant(name)).all()
    for name in ("a", "b"):
        pixels = np.moveaxis(after.constant(name), 1, -1)
        assert is_two_of_four(pixels.reshape(WIDE, -1))
        assert np.count_nonzero(pixels) == pixels.size // 2
    assert is_two_of_four(after.constant("head").T)


def test_making_up_costs_a_fraction_of_what_magnitude_costs(solved, feeds):
    model, solutions = solved
    made, plain = prune.with_solutions(model, solutions, list(solutions)), prune.by_magnitude(model)
    assert error(model, made, feeds) < 0.5 * error(model, plain, feeds)


def test_it_holds_on_samples_that_were_not_seen(solved):
    model, solutions = solved
    unseen = [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
    made = prune.with_solutions(model, solutions, list(solutions))
    assert error(model, made, unseen) < error(model, prune.by_magnitude(model), unseen)


def test_harm_is_what_the_outputs_suffer_when_one_layer_alone_goes(solved, feeds):
    model, solutions = solved
    found = prune.harm(model, solutions, feeds)
    for name in solutions:
        alone = prune.with_solutions(model, solutions, [name])
        assert found[name] == pytest.approx(error(model, alone, feeds), rel=1e-3)


def test_nothing_to_prune_and_shared_weights_are_said():
    narrow = make([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((16, 4))}, (1, 16))
    with pytest.raises(ArtifactError, match="no layer of it has weights that a sparse kernel takes"):
        prune.eligible_layers(narrow)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    with pytest.raises(ArtifactError, match="weight 'w' is shared by several layers"):
        prune.eligible_layers(make(nodes, {"w": np.ones((WIDE, WIDE))}, (1, WIDE)))


def test_the_file_proves_the_pattern_after_quantisation(solved, feeds, tmp_path):
    model, solutions = solved
    path = tmp_path / "pruned.onnx"
    onnx.save(quantized(prune.with_solutions(model, solutions, list(solutions)), feeds), str(path))
    found = sparsity_of(path)
    assert broken(found) == []
    assert set(found) == {"Conv s", "Conv c1", "Conv d", "Conv c2", "MatMul m"}
    assert all(found[name].zeros >= 0.5 for name in ("Conv c1", "Conv c2", "MatMul m"))
    assert found["Conv d"].why_not_eligible == "grouped or depthwise"
    assert found["Conv c1"].weights == 9 * WIDE * WIDE
    assert summary(found).startswith("2:4 in 3 of 3 eligible layers (of 5), ")


def test_one_weight_too_many_is_found_in_the_file(solved, feeds, tmp_path):
    model, solutions = solved
    made = quantized(prune.with_solutions(model, solutions, list(solutions)), feeds)
    tensor = next(t for t in made.graph.initializer if t.name == "b.q")
    values = numpy_helper.to_array(tensor).copy()
    values[5, :4, 0, 0] = 1
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(made, str(tmp_path / "tampered.onnx"))
    assert broken(sparsity_of(tmp_path / "tampered.onnx")) == ["Conv c2"]


def test_a_file_that_cannot_be_read_again_is_said(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read again"):
        sparsity_of(tmp_path / "gone.onnx")


def test_int8_for_tensorrt_has_no_zero_point_but_zero_and_stays_close(feeds):
    model = network()
    made = quantized(model, feeds)
    graph = Graph(made)
    pairs = [node for node in made.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert sum(node.op_type == "QuantizeLinear" for node in pairs) == 5
    assert all(not graph.constant(node.input[2]).any() for node in pairs)
    assert {graph.constant(node.input[2]).dtype for node in pairs} == {np.dtype(np.int8)}
    assert 0 < error(model, made, feeds) < 0.01


def test_the_record_carries_each_layer_and_reads_back():
    layer = LayerSparsity(zeros=0.5, weights=64, two_of_four=True)
    record = ArtifactRecord(
        model="m",
        name="n",
        file="f",
        format="onnx",
        precision="int8",
        sha256="0",
        size_bytes=1,
        sparsity={"Conv c": layer},
    )
    again = msgspec.json.decode(msgspec.json.encode(record), type=ArtifactRecord)
    assert again.sparsity == {"Conv c": layer}
