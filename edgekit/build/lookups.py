"""A product of one-hot rows with a matrix is a lookup of the matrix's rows: the same numbers, no arithmetic."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgekit.build.edit import Graph, attribute


def one_hot_as_lookup(graph: Graph) -> bool:
    """Equal(indices, 0..n-1), Cast to float, MatMul becomes Gather. True when one was found; call again for the next.

    An index outside 0..n-1 is a row of zeros in both: the table gets one at its end, and indices are clipped to it.
    """
    for product in graph.nodes:
        table = graph.constant(product.input[1]) if product.op_type == "MatMul" else None
        if table is None or table.ndim != 2 or table.dtype != np.float32 or graph.is_constant(product.input[0]):
            continue
        cast = graph.producer.get(product.input[0])
        if cast is None or cast.op_type != "Cast" or attribute(cast, "to") != TensorProto.FLOAT:
            continue
        equal = graph.producer.get(cast.input[0])
        columns = _compared_with_count(graph, equal, len(table)) if equal is not None else None
        if equal is None or columns is None or graph.only_reader(cast.input[0]) is None:
            continue
        if graph.only_reader(product.input[0]) is None:
            continue
        _replace(graph, columns, [equal, cast, product], table)
        return True
    return False


def _compared_with_count(graph: Graph, node: onnx.NodeProto, count: int) -> str | None:
    """The indices, with a last axis of one, if `node` compares them with 0..count-1 along that axis."""
    if node.op_type != "Equal":
        return None
    for indices, steps in (tuple(node.input), tuple(node.input)[::-1]):
        array = graph.constant(steps)
        if array is None or graph.is_constant(indices) or array.size != count or array.shape[-1] != count:
            continue
        if array.dtype not in (np.int32, np.int64) or not np.array_equal(array.reshape(-1), np.arange(count)):
            continue
        if _ends_in_one(graph, indices):
            return str(indices)
    return None


def _ends_in_one(graph: Graph, name: str) -> bool:
    """Whether the last axis of `name` is known to hold one value."""
    made = graph.producer.get(name)
    shape = graph.constant(made.input[1]) if made is not None and made.op_type in ("Reshape", "Unsqueeze") else None
    if made is None or shape is None:
        return False
    return bool(shape.reshape(-1)[-1] == (1 if made.op_type == "Reshape" else -1))


def _replace(graph: Graph, columns: str, gone: list[onnx.NodeProto], table: np.ndarray) -> None:
    result, stem, count = gone[-1].output[0], gone[-1].input[1], len(table)
    kind = next(graph.constant(name) for name in gone[0].input if graph.is_constant(name))
    assert kind is not None
    rows = graph.add_constant(f"{stem}.rows", np.concatenate([table, np.zeros_like(table[:1])]))
    axis = graph.add_constant(f"{result}.last", np.array([-1], np.int64))
    # -1 is the last row too
    ends = [graph.add_constant(f"{result}.{end}", np.array(v, kind.dtype)) for end, v in (("low", -1), ("high", count))]
    flat, clipped = f"{result}.indices", f"{result}.clipped"
    graph.replace_nodes(
        gone,
        [
            helper.make_node("Squeeze", [columns, axis], [flat], name=flat),
            helper.make_node("Clip", [flat, *ends], [clipped], name=clipped),
            helper.make_node("Gather", [rows, clipped], [result], name=result, axis=0),
        ],
    )
