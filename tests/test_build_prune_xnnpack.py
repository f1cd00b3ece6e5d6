"""XNNPACK's conditions for sparse kernels, each broken alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.prune_xnnpack import why_not_sparse


def network(*, stem=None, deep=None, middle=(), zeros=0.75, point=(1, 1), end="GlobalAveragePool"):
    """Stem, depthwise, pointwise, global average: what the sparse kernels were made for."""
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(8, 8, *point))
    weight.reshape(-1)[: round(zeros * weight.size)] = 0
    stem = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], **(stem or {})}
    deep = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 8, **(deep or {})}
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["s"], **stem),
        helper.make_node("Relu", ["s"], ["sr"]),
        helper.make_node("Conv", ["sr", "deep"], ["d"], **deep),
        *(helper.make_node(kind, ["d"], [f"k{i}"]) for i, kind in enumerate(middle)),
        helper.make_node("Conv", ["d", "point"], ["p"], kernel_shape=point),
        helper.make_node(end, ["p"], ["y"]),
    ]
    constants = {"stem": np.ones((8, 3, 3, 3)), "deep": np.ones((8, 1, *deep["kernel_shape"])), "point": weight}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("options", [{}, {"zeros": 2 / 3}, {"deep": {"kernel_shape": [5, 5], "pads": [2] * 4}}])
def test_what_the_kernels_were_made_for_passes(options):
    assert why_not_sparse(network(**options)) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"zeros": 0.5}, "50% of its 1x1 weights are zero; XNNPACK wants 67%"),
        ({"stem": {"strides": [1, 1]}}, "does not begin with a 3x3 convolution"),
        ({"stem": {"pads": [0, 0, 1, 1]}}, "padded by 1 on each side"),
        ({"deep": {"pads": [0, 0, 1, 1]}}, "depthwise convolution 'd' is not 3x3 or 5x5, padded alike"),
        ({"deep": {"kernel_shape": [7, 7], "pads": [3] * 4}}, "depthwise convolution 'd' is not 3x3 or 5x5"),
        ({"middle": ["Softmax"]}, "Softmax stands between its convolutions"),
        ({"point": (3, 3)}, "convolution 'p' is 3x3; only 1x1 is sparse"),
        ({"end": "Relu"}, "no convolutional network that ends in a global average"),
    ],
)
def test_each_broken_condition_is_named(options, reason):
    assert reason in why_not_sparse(network(**options))
