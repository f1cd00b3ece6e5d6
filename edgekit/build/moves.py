"""What only moves values, out of the way of what computes: slices that keep all, scales and shifts behind a squeeze."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, shape_inference

from edgekit.build.edit import Graph

_SCALES = ("Add", "Mul", "Sub", "Div")


def drop_whole_slices(graph: Graph) -> int:
    """Slices whose result has the shape of their input, which is the input. Returns how many were dropped."""
    names = [node.output[0] for node in graph.nodes if node.op_type == "Slice"]
    if not names:
        return 0
    shapes, count = _static_shapes(graph.model), 0
    for name in names:
        node = graph.producer[name]
        steps = graph.constant(node.input[4]) if len(node.input) > 4 and node.input[4] else np.ones(1)
        if shapes.get(name) is None or shapes.get(name) != shapes.get(node.input[0]) or name in graph.outputs:
            continue
        if steps is None or not np.all(steps == 1):  # backwards is whole, too
            continue
        graph.redirect(name, node.input[0])
        graph.replace_nodes([node], [])
        count += 1
    return count


def scale_before_squeeze(graph: Graph) -> int:
    """Squeeze of a convolution, then a scale or shift a channel: the other way round, where it can be folded into it.

    Returns how many changed places in this pass, which is one at most.
    """
    for squeeze in graph.nodes:
        conv = graph.producer.get(squeeze.input[0]) if squeeze.op_type == "Squeeze" else None
        if conv is None or conv.op_type != "Conv" or graph.only_reader(squeeze.input[0]) is None:
            continue
        scale = graph.only_reader(squeeze.output[0])
        axes = graph.constant(squeeze.input[1]) if len(squeeze.input) > 1 else None
        weight = graph.constant(conv.input[1])
        if scale is None or scale.op_type not in _SCALES or axes is None or weight is None:
            continue
        swapped = graph.is_constant(scale.input[0])
        constant = scale.input[0 if swapped else 1]
        wide = _widened(graph.constant(constant), sorted(int(axis) % weight.ndim for axis in axes), weight.ndim)
        if wide is None:
            continue
        _swap(graph, squeeze, scale, graph.add_constant(f"{constant}.wide", wide), swapped=swapped)
        return 1
    return 0


def _widened(array: np.ndarray | None, axes: list[int], rank: int) -> np.ndarray | None:
    """`array` as it is before axes are squeezed away; None unless it has one value, or one a channel on axis 1."""
    if array is None or axes[0] < 2 or array.ndim > rank - len(axes):
        return None
    full = array.reshape((1,) * (rank - len(axes) - array.ndim) + array.shape)
    if any(size != 1 for axis, size in enumerate(full.shape) if axis != 1):
        return None
    return np.expand_dims(full, tuple(axes))


def _swap(graph: Graph, squeeze: onnx.NodeProto, scale: onnx.NodeProto, constant: str, *, swapped: bool) -> None:
    early, result = f"{scale.output[0]}.early", scale.output[0]
    operands = [constant, squeeze.input[0]] if swapped else [squeeze.input[0], constant]
    made = [
        helper.make_node(scale.op_type, operands, [early], name=early),
        helper.make_node("Squeeze", [early, squeeze.input[1]], [result], name=result),
    ]
    graph.replace_nodes([squeeze, scale], made)


def _static_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes that are known in full."""
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    found = {}
    for value in (*inferred.graph.value_info, *inferred.graph.input):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            found[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return found
