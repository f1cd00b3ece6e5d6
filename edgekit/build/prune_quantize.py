"""INT8 for TensorRT: int8 around what multiplies, zero points all 0, since its sparse kernels take nothing else.

Source: TensorRT's developer guide, explicit quantisation: symmetric int8 only. A zero weight stays a zero integer, so
that the 2:4 pattern survives; `prune_pattern.sparsity_of` proves it from the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from edgekit.build.calibrate import Range
from edgekit.build.edit import Graph
from edgekit.build.placement import output_axis

LIMIT = 127


def quantize_symmetrically(
    model: onnx.ModelProto, names: Sequence[str], ranges: Mapping[str, Range]
) -> onnx.ModelProto:
    """A copy in which the nodes of `names` (by their outputs) read int8: weights per output channel, inputs per tensor.

    `ranges`: tensor -> its range, for the first input of each of these nodes.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, added = Graph(made), list[onnx.NodeProto]()
    readings: dict[str, str] = {}
    for name in names:
        node = graph.producer[name]
        source, weight = node.input[0], graph.constant(node.input[1])
        assert weight is not None
        if source not in readings:
            span = ranges[source]
            scale = np.array(max(abs(span.low), abs(span.high), 1e-10) / LIMIT, np.float32)
            readings[source] = _pair(graph, added, source, scale)
        node.input[0] = readings[source]
        node.input[1] = _weights(graph, added, node, weight)
    graph.replace_nodes([], added)
    graph.drop_unread_constants()
    return made


def _pair(graph: Graph, added: list[onnx.NodeProto], source: str, scale: np.ndarray) -> str:
    grid = [graph.share_constant(f"{source}.scale", scale), graph.share_constant("zero.int8", np.array(0, np.int8))]
    stored, reading = f"{source}.q", f"{source}.dq"
    added.append(helper.make_node("QuantizeLinear", [source, *grid], [stored], name=stored))
    added.append(helper.make_node("DequantizeLinear", [stored, *grid], [reading], name=reading))
    return reading


def _weights(graph: Graph, added: list[onnx.NodeProto], node: onnx.NodeProto, weight: np.ndarray) -> str:
    axis = output_axis(node)
    peaks = np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis))
    scales = np.asarray(np.maximum(peaks / LIMIT, 1e-10), np.float32)
    spread = scales.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    stored = graph.add_constant(f"{node.input[1]}.q", np.rint(weight / spread).clip(-LIMIT, LIMIT).astype(np.int8))
    grid = [
        graph.share_constant(f"{stored}.scale", scales),
        graph.share_constant(f"{stored}.zero", np.zeros(len(scales), np.int8)),
    ]
    added.append(
        helper.make_node("DequantizeLinear", [stored, *grid], [f"{stored}.dq"], name=f"{stored}.dq", axis=axis)
    )
    return f"{stored}.dq"
