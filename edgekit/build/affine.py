"""Scale and shift by constants, folded into the convolutions before or after them. Exact but for float rounding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from edgekit.build.edit import Graph, attribute, set_input


class Affine(NamedTuple):
    """y = x * scale + shift, each a scalar or one value a channel, float32 of shape (1,) or (C,)."""

    node: onnx.NodeProto
    source: str
    scale: np.ndarray
    shift: np.ndarray


def read_affine(graph: Graph, node: onnx.NodeProto) -> Affine | None:
    """`node` as a scale or shift by a constant per channel (axis 1 of a 4-D tensor), or None."""
    if node.op_type == "BatchNormalization":
        return _read_batch_norm(graph, node)
    if node.op_type not in ("Mul", "Add", "Sub", "Div") or len(node.input) != 2:
        return None
    left, right = node.input
    swapped = graph.is_constant(left)
    source, name = (right, left) if swapped else (left, right)
    array = graph.constant(name)
    if array is None or graph.is_constant(source) or array.dtype != np.float32:
        return None
    if (swapped and node.op_type in ("Sub", "Div")) or not _is_per_channel(array):
        return None
    value, zero, one = array.reshape(-1), np.zeros(1, np.float32), np.ones(1, np.float32)
    if node.op_type == "Mul":
        return Affine(node, source, value, zero)
    if node.op_type == "Div":
        return Affine(node, source, 1 / value, zero) if np.all(value != 0) else None
    return Affine(node, source, one, value if node.op_type == "Add" else -value)


def _read_batch_norm(graph: Graph, node: onnx.NodeProto) -> Affine | None:
    """Inference-time batch normalisation with constant statistics as a scale and shift."""
    arrays = [graph.constant(name) for name in node.input[1:5]]
    if any(array is None or array.dtype != np.float32 for array in arrays) or len(node.output) > 1:
        return None
    gamma, beta, mean, variance = [np.asarray(array, np.float64) for array in arrays]
    scale = gamma / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
    return Affine(node, node.input[0], scale.astype(np.float32), (beta - mean * scale).astype(np.float32))


def _is_per_channel(array: np.ndarray) -> bool:
    shape = array.shape
    return array.size == 1 or (len(shape) in (3, 4) and shape[-1] == shape[-2] == 1 and array.size == shape[-3])


def fold_into_producer(graph: Graph) -> int:
    """Convolution, then scale or shift: into its weights and bias. Returns how many were folded in this pass."""
    for node in graph.nodes:
        affine = read_affine(graph, node)
        conv = graph.producer.get(affine.source) if affine else None
        if affine is None or conv is None or graph.only_reader(affine.source) is None:
            continue
        if not is_float_conv(graph, conv):
            continue
        weight = graph.constant(conv.input[1])
        assert weight is not None
        bias = bias_of(graph, conv)
        if affine.scale.size not in (1, bias.size) or affine.shift.size not in (1, bias.size):
            continue
        scale = np.broadcast_to(affine.scale, bias.shape)
        axis = 0 if conv.op_type == "Conv" else 1
        spread = scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        _set_weights(graph, conv, weight * spread, bias * scale + affine.shift)
        result = node.output[0]
        graph.replace_nodes([node], [])
        graph.producer[affine.source].output[0] = result
        graph.rewire()
        return 1
    return 0


def fold_into_consumers(graph: Graph) -> int:
    """Scale or shift, then only convolutions: into their weights and bias, where padding allows it.

    Zero padding commutes with a scale but not with a shift. Returns how many were folded in this pass.
    """
    for node in graph.nodes:
        affine = read_affine(graph, node)
        readers = graph.consumers.get(node.output[0], [])
        if affine is None or not readers or node.output[0] in graph.outputs:
            continue
        if node.op_type == "Mul" and _swap_with_shift(graph, affine, readers[0]):
            return 1
        if not all(_takes_input(graph, conv, node.output[0], affine) for conv in readers):
            continue
        if not np.any(affine.shift) or not any(_pads(conv) for conv in readers):
            for conv in readers:
                _absorb(graph, conv, affine)
            graph.redirect(node.output[0], affine.source)
            graph.replace_nodes([node], [])
            return 1
    return 0


def _swap_with_shift(graph: Graph, affine: Affine, add: onnx.NodeProto) -> bool:
    """x * c + d becomes (x + d / c) * c, so that the scale stands before the convolutions and can go into them."""
    product, after = affine.node.output[0], read_affine(graph, add)
    if after is None or add.op_type != "Add" or graph.only_reader(product) is None or not np.all(affine.scale):
        return False
    result = add.output[0]
    readers = graph.consumers.get(result, [])
    if not readers or result in graph.outputs or not all(_takes_input(graph, r, result, affine) for r in readers):
        return False
    ratio = after.shift / affine.scale
    if not np.all(np.abs(ratio) < 1e4):  # a scale near zero would move all precision into the shift
        return False
    shift = graph.constant(next(name for name in add.input if graph.is_constant(name)))
    scale = graph.constant(next(name for name in affine.node.input if graph.is_constant(name)))
    assert shift is not None
    assert scale is not None
    moved = graph.add_constant(f"{result}.shift", (shift / scale).astype(np.float32))
    between = f"{result}.shifted"
    graph.replace_nodes(
        [affine.node, add],
        [
            helper.make_node("Add", [affine.source, moved], [between], name=between),
            helper.make_node("Mul", [between, graph.add_constant(f"{result}.scale", scale)], [result], name=result),
        ],
    )
    return True


def _takes_input(graph: Graph, conv: onnx.NodeProto, name: str, affine: Affine) -> bool:
    """Whether `conv` is a plain convolution of `name` that can absorb `affine`."""
    if conv.op_type != "Conv" or conv.input[0] != name or list(conv.input).count(name) != 1:
        return False
    if not is_float_conv(graph, conv):
        return False
    channels = input_channels(graph, conv)
    return affine.scale.size in (1, channels) and affine.shift.size in (1, channels)


def input_channels(graph: Graph, conv: onnx.NodeProto) -> int:
    """Channels of a convolution's input, all groups together."""
    weight = graph.constant(conv.input[1])
    assert weight is not None
    return int(weight.shape[1]) * int(attribute(conv, "group", 1))


def _pads(conv: onnx.NodeProto) -> bool:
    auto = attribute(conv, "auto_pad", b"NOTSET")
    return auto not in (b"NOTSET", b"VALID") or any(attribute(conv, "pads", ()))


def _absorb(graph: Graph, conv: onnx.NodeProto, affine: Affine) -> None:
    """conv(x * scale + shift) as a convolution of x."""
    weight = graph.constant(conv.input[1])
    assert weight is not None
    bias, channels = bias_of(graph, conv), input_channels(graph, conv)
    groups, inner = channels // weight.shape[1], weight.shape[1]
    scale = np.broadcast_to(affine.scale, (channels,)).reshape(groups, 1, inner, *[1] * (weight.ndim - 2))
    shift = np.broadcast_to(affine.shift, (channels,)).reshape(groups, 1, inner, *[1] * (weight.ndim - 2))
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    added = (grouped * shift).sum(axis=tuple(range(2, grouped.ndim)), dtype=np.float64).reshape(-1)
    _set_weights(graph, conv, (grouped * scale).reshape(weight.shape), (bias + added).astype(np.float32))


def is_float_conv(graph: Graph, conv: onnx.NodeProto) -> bool:
    """A convolution with constant float32 weights (and bias, if any) that nothing else has been fused into."""
    if conv.op_type not in ("Conv", "ConvTranspose") or conv.domain not in ("", "ai.onnx"):
        return False
    if conv.op_type == "ConvTranspose" and attribute(conv, "group", 1) != 1:
        return False
    constants = [graph.constant(name) for name in conv.input[1:] if name]
    return all(array is not None and array.dtype == np.float32 for array in constants)


def bias_of(graph: Graph, conv: onnx.NodeProto) -> np.ndarray:
    """The bias, zeros when there is none, shape (output channels,)."""
    weight = graph.constant(conv.input[1])
    assert weight is not None
    if len(conv.input) > 2 and conv.input[2]:
        bias = graph.constant(conv.input[2])
        assert bias is not None
        return bias
    return np.zeros(weight.shape[0 if conv.op_type == "Conv" else 1], np.float32)


def _set_weights(graph: Graph, conv: onnx.NodeProto, weight: np.ndarray, bias: np.ndarray) -> None:
    """Give `conv` its own copy of changed weights: another node may share the old ones."""
    stem = conv.input[1]
    set_input(conv, 1, graph.add_constant(f"{stem}.folded", weight.astype(np.float32)))
    set_input(conv, 2, graph.add_constant(f"{stem}.bias", bias.astype(np.float32)))
