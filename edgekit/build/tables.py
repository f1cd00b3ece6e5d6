"""Embedding tables as INT8: a lookup that copies a quarter of the bytes, and most of a language model's file."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from edgekit.build.edit import Graph, attribute

LEAST_VALUES = 64 * 1024
"""A smaller table is not worth two more nodes."""


def quantize_tables(model: onnx.ModelProto) -> int:
    """Rows are gathered as int8 and dequantised after, with one scale a column. Returns how many tables.

    In place. Only float32 tables of two axes that nothing but lookups of rows reads.
    """
    graph, done = Graph(model), 0
    if graph.opset < 13:  # DequantizeLinear has no axis before
        return 0
    for name in [tensor.name for tensor in model.graph.initializer]:
        outputs = [node.output[0] for node in graph.consumers.get(name, [])]
        table = graph.constant(name)
        if table is None or not outputs or not all(_looks_up_rows(graph, o, name, table) for o in outputs):
            continue
        scales = np.maximum(np.abs(table).max(axis=0) / 127, 1e-10).astype(np.float32)
        stored = graph.add_constant(f"{name}.int8", np.clip(np.rint(table / scales), -127, 127).astype(np.int8))
        scale = graph.add_constant(f"{name}.scale", scales)
        zero = graph.add_constant(f"{name}.zero", np.zeros(len(scales), np.int8))
        for output in outputs:
            _dequantize_after(graph, output, stored, [scale, zero])
        done += len(outputs)
    graph.drop_unread_constants()
    return done


def _dequantize_after(graph: Graph, output: str, stored: str, grid: list[str]) -> None:
    node, rows = graph.producer[output], f"{output}.int8"
    gather = helper.make_node("Gather", [stored, node.input[1]], [rows], name=rows, axis=0)
    axis = _rank(graph, node.input[1])
    assert axis is not None  # `_looks_up_rows` has seen to it
    real = helper.make_node("DequantizeLinear", [rows, *grid], [output], name=f"{rows}.dq", axis=axis)
    graph.replace_nodes([node], [gather, real])


def _looks_up_rows(graph: Graph, output: str, name: str, table: np.ndarray) -> bool:
    node = graph.producer.get(output)  # None: an optional output that is left out, such as an LSTM's first
    if node is None or node.op_type != "Gather" or node.input[0] != name or attribute(node, "axis", 0) != 0:
        return False
    is_table = table.ndim == 2 and table.dtype == np.float32 and table.size >= LEAST_VALUES
    return is_table and _rank(graph, node.input[1]) is not None


def _rank(graph: Graph, name: str) -> int | None:
    """How many axes indices have, which is the axis of the columns in what they look up. None: not known."""
    for value in (*graph.model.graph.input, *graph.model.graph.value_info):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    array = graph.constant(name)
    return None if array is None else array.ndim
