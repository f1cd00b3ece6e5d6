"""Whether XNNPACK would run a pruned graph with its sparse kernels in LiteRT, and if not, which condition it breaks.

Source of the conditions: the README of LiteRT's XNNPACK delegate, sparse inference. They hold for float convolutions
from the stem to the global average, and ask for more zeros than 2:4 leaves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from edgekit.build.edit import Graph, attribute

LEAST_ZEROS = 2 / 3
"""Of the weights of all 1x1 convolutions together."""
_BETWEEN = ("Add", "Mul", "Relu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "LeakyRelu", "Elu", "Abs", "Neg")


def why_not_sparse(model: onnx.ModelProto) -> str | None:
    """The first condition that `model` breaks, or None when XNNPACK would take it with its weights stored sparsely."""
    graph = Graph(model)
    convolutions = [node for node in graph.nodes if node.op_type == "Conv"]
    if not convolutions or not any(node.op_type == "GlobalAveragePool" for node in graph.nodes):
        return "it is no convolutional network that ends in a global average"
    stem, zeros, weights = convolutions[0], 0, 0
    if _shape(graph, stem)[1:] != (3, 3, 3) or _list(stem, "strides", 1) != [2, 2] or _list(stem, "pads", 0) != [1] * 4:
        return "it does not begin with a 3x3 convolution of 3 channels, stride 2, padded by 1 on each side"
    for node in graph.nodes:
        if node.op_type == "GlobalAveragePool":
            break
        if node is stem:
            continue
        if node.op_type != "Conv":
            if node.op_type not in _BETWEEN:
                return f"{node.op_type} stands between its convolutions"
            continue
        kernel = _shape(graph, node)[2:]
        if attribute(node, "group", 1) > 1:
            half = kernel[0] // 2 if kernel else 0
            if kernel not in ((3, 3), (5, 5)) or _list(node, "pads", 0) != [half] * 4:
                return f"depthwise convolution '{node.output[0]}' is not 3x3 or 5x5, padded alike on all sides"
            continue
        if kernel != (1, 1):
            return f"convolution '{node.output[0]}' is {'x'.join(map(str, kernel))}; only 1x1 is sparse"
        weight = graph.constant(node.input[1])
        zeros += 0 if weight is None else int(weight.size - np.count_nonzero(weight))
        weights += 0 if weight is None else weight.size
    share = zeros / max(weights, 1)
    return None if share >= LEAST_ZEROS else f"{share:.0%} of its 1x1 weights are zero; XNNPACK wants {LEAST_ZEROS:.0%}"


def _shape(graph: Graph, node: onnx.NodeProto) -> tuple[int, ...]:
    weight = graph.constant(node.input[1])
    return () if weight is None else weight.shape


def _list(node: onnx.NodeProto, name: str, default: int) -> list[Any]:
    return list(attribute(node, name, [default] * (4 if name == "pads" else 2)))
