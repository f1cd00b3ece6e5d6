"""What a layer multiplies: as columns it is the very convolution, and its moments are those of both graphs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build import prune_moments
from edgekit.build.edit import Graph
from edgekit.build.prune_moments import Watched, columns, moments_of, up_to
from edgekit.build.prune_pattern import from_matrix, layers, matrix

RNG = np.random.default_rng(3)


def model(nodes, constants, shape, outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(made, feed):
    return ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 3, 9, 8), (1, 1), {}),
        ((2, 3, 9, 8), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 3, 9, 8), (3, 2), {"strides": [2, 1]}),
        ((1, 2, 11, 11), (3, 3), {"dilations": [2, 2], "pads": [2, 0, 1, 2]}),
        ((1, 3, 9, 8), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 3, 10, 7), (4, 3), {"strides": [3, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 4, 20), (5,), {"strides": [2], "pads": [2, 1]}),
    ],
)
def test_columns_times_weights_is_the_convolution(shape, kernel, attributes):
    weight = RNG.normal(size=(5, shape[1], *kernel)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=kernel, **attributes)
    x = RNG.normal(size=shape).astype(np.float32)
    expected = run(model([node], {"w": weight}, shape), {"x": x})
    found = columns(x, node) @ matrix(node, weight).T
    assert np.allclose(found, np.moveaxis(expected, 1, -1).reshape(-1, 5), atol=1e-5)


def test_of_many_pixels_only_some_are_looked_at():
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])
    seen = columns(RNG.normal(size=(1, 2, 100, 100)), node)
    assert 0.5 * prune_moments.MOST_ROWS < len(seen) < 1.5 * prune_moments.MOST_ROWS


@pytest.mark.parametrize(
    ("kind", "shape", "attributes"),
    [("Conv", (6, 4, 3, 3), {}), ("MatMul", (4, 6), {}), ("Gemm", (6, 4), {"transB": 1}), ("Gemm", (4, 6), {})],
)
def test_weights_come_back_from_their_matrix(kind, shape, attributes):
    node, weight = helper.make_node(kind, ["x", "w"], ["y"], **attributes), RNG.normal(size=shape)
    values = matrix(node, weight)
    assert values.shape[0] == 6
    assert (from_matrix(node, values, weight) == weight).all()


def two_products(first):
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["y"]),
    ]
    return model(nodes, {"a": first, "b": np.eye(4), "bias": np.ones(4)}, (2, 4))


def test_moments_are_those_of_what_the_layer_reads(monkeypatch):
    monkeypatch.setattr(prune_moments, "AT_ONCE", 5)  # over several products
    first = RNG.normal(size=(4, 4))
    made, feeds = two_products(first), [{"x": RNG.normal(size=(2, 4)).astype(np.float32)} for _ in range(7)]
    chosen = layers(Graph(made))
    assert [layer.bias for layer in chosen] == [None, "bias"]
    bare, centred = moments_of(made, chosen, feeds)
    x = np.concatenate([feed["x"] for feed in feeds])
    assert np.allclose(bare.gram, x.T @ x / len(x), atol=1e-5)
    assert not bare.mean.any()
    h = x @ first
    assert np.allclose(centred.mean, h.mean(axis=0), atol=1e-5)
    assert np.allclose(centred.gram, np.cov(h.T, bias=True), atol=1e-4)


def test_behind_a_global_average_the_pixels_in_front_of_it_are_looked_at():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
    ]
    made = model(nodes, {"w": RNG.normal(size=(3, 4)), "b": np.zeros(3)}, (1, 4, 5, 5))
    x = RNG.normal(size=(1, 4, 5, 5)).astype(np.float32)
    (found,) = moments_of(made, layers(Graph(made)), [{"x": x}])
    pixels = np.maximum(x, 0)[0].reshape(4, -1)
    assert np.linalg.matrix_rank(found.gram) == 4
    assert np.allclose(found.gram, np.cov(pixels, bias=True), atol=1e-5)


def test_only_what_makes_the_tensor_is_kept():
    made = two_products(np.eye(4))
    part = up_to(made, ["h"])
    assert [node.output[0] for node in part.graph.node] == ["h"]
    assert [tensor.name for tensor in part.graph.initializer] == ["a"]


def test_an_input_of_the_model_needs_no_session():
    x = np.ones((2, 4), np.float32)
    assert (Watched(two_products(np.eye(4)), ["x"])({"x": x})["x"] == x).all()
