"""Exact rewrites that runtimes miss: fused activations put back, upsampling as matrix products, gates factored out.

Nothing here approximates: outputs change by float rounding only.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, shape_inference

from edgekit.build.affine import (
    bias_of,
    fold_into_consumers,
    fold_into_producer,
    input_channels,
    is_float_conv,
    read_affine,
)
from edgekit.build.edit import Graph, attribute
from edgekit.build.gelu import restore_gelu
from edgekit.build.gelu_tanh import shorten_tanh_gelu
from edgekit.build.lookups import one_hot_as_lookup
from edgekit.build.moves import drop_whole_slices, scale_before_squeeze

_SIXTH = float(np.float32(1 / 6))


def rewrite(model: onnx.ModelProto, *, gates: bool = True) -> dict[str, int]:
    """Apply every rewrite in place until none applies, and count what was done.

    `gates` False: leave hard-swish and its kin spelled out, which is the form that OpenVINO recognises.
    """
    graph = Graph(model)
    done = {"gelu": restore_gelu(graph), "slice of everything": drop_whole_slices(graph)}
    if gates:
        done["gelu by tanh"] = shorten_tanh_gelu(graph)
        swishes, sigmoids = restore_hard_swish(graph)
        done |= {"hard-swish": swishes, "hard-sigmoid": sigmoids, "gate": factor_residual_gates(graph)}
    for name, step in (
        ("one-hot product as lookup", one_hot_as_lookup),
        ("scale or shift before squeeze", scale_before_squeeze),
        ("scale or shift into convolution", fold_into_producer),
        ("scale or shift into next convolution", fold_into_consumers),
        ("upsampling convolution as pointwise", pointwise_for_transposed),
        ("pointwise before depth-to-space", pointwise_before_shuffle),
    ):
        while step(graph):
            done[name] = done.get(name, 0) + 1
    graph.drop_unread_constants()
    return {name: count for name, count in done.items() if count}


def restore_hard_swish(graph: Graph) -> tuple[int, int]:
    """Add 3, Clip 0..6, divide by 6 becomes HardSigmoid; a product with its own input stays a Mul beside it.

    Returns (hard-swishes, other hard-sigmoids). HardSwish itself is not written: no CPU runtime has a better kernel
    for it than for the pair, which onnxruntime fuses into a preceding convolution.
    """
    swishes = sigmoids = 0
    for name in [node.output[0] for node in graph.nodes if node.op_type == "Clip"]:
        clip = graph.producer[name]
        source = _relu6_of_x_plus_3(graph, clip)
        if source is None:
            continue
        add = graph.producer[clip.input[0]]
        reader = graph.only_reader(clip.output[0])
        if reader is None:
            continue
        gate = f"{clip.output[0]}.gate"
        sigmoid = helper.make_node("HardSigmoid", [source], [gate], name=gate, alpha=_SIXTH, beta=0.5)
        if _divides_by_six(graph, reader):
            sigmoid.output[0] = reader.output[0]
            graph.replace_nodes([add, clip, reader], [sigmoid])
            after = graph.only_reader(sigmoid.output[0])
            is_swish = after is not None and after.op_type == "Mul" and source in after.input
            swishes, sigmoids = swishes + is_swish, sigmoids + (not is_swish)
            continue
        divide = graph.only_reader(reader.output[0]) if reader.op_type == "Mul" and source in reader.input else None
        if divide is None or not _divides_by_six(graph, divide):
            continue
        product = helper.make_node("Mul", [source, gate], [divide.output[0]], name=divide.output[0])
        graph.replace_nodes([add, clip, reader, divide], [sigmoid, product])
        swishes += 1
    return swishes, sigmoids


def _relu6_of_x_plus_3(graph: Graph, clip: onnx.NodeProto) -> str | None:
    """The x of Clip(x + 3, 0, 6), or None."""
    bounds = [graph.scalar(name) for name in clip.input[1:3]]
    add = graph.producer.get(clip.input[0])
    if bounds != [0.0, 6.0] or add is None or add.op_type != "Add" or graph.only_reader(add.output[0]) is None:
        return None
    for x, three in (tuple(add.input), tuple(add.input)[::-1]):
        if graph.scalar(three) == 3.0:
            return str(x)
    return None


def _divides_by_six(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.op_type == "Div":
        return graph.scalar(node.input[1]) == 6.0
    factors = [graph.scalar(name) for name in node.input] if node.op_type == "Mul" else []
    return any(factor is not None and abs(factor - 1 / 6) < 1e-6 for factor in factors)


def factor_residual_gates(graph: Graph) -> int:
    """x + x * g becomes x * (g + 1) where g is one value a channel: one pass over the large tensor less."""
    shapes = _spatial_shapes(graph.model)
    count = 0
    for name in [node.output[0] for node in graph.nodes if node.op_type == "Add"]:
        add = graph.producer[name]
        for x, product in (tuple(add.input), tuple(add.input)[::-1]):
            multiply = graph.producer.get(product)
            if multiply is None or multiply.op_type != "Mul" or x not in multiply.input or product == x:
                continue
            gate = next((i for i in multiply.input if i != x), x)
            if graph.only_reader(product) is None or shapes.get(gate) != (1, 1) or graph.is_constant(gate):
                continue
            one, raised = graph.add_constant(f"{gate}.one", np.ones(1, np.float32)), f"{name}.gate"
            plus = helper.make_node("Add", [gate, one], [raised], name=raised)
            times = helper.make_node("Mul", [x, raised], [name], name=name)
            graph.replace_nodes([add, multiply], [plus, times])
            count += 1
            break
    return count


def _spatial_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """(height, width) of 4-D float tensors where they can be inferred; 0 for a dynamic one."""
    inferred = shape_inference.infer_shapes(model)
    found = {}
    for value in inferred.graph.value_info:
        tensor = value.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.FLOAT and len(tensor.shape.dim) == 4:
            found[value.name] = (tensor.shape.dim[2].dim_value, tensor.shape.dim[3].dim_value)
    return found


def pointwise_for_transposed(graph: Graph) -> bool:
    """ConvTranspose whose kernel equals its stride, as a 1×1 convolution and a depth-to-space; a Relu goes between.

    Each input pixel then makes its own block of output pixels: a matrix product, with an integer kernel too.
    """
    for conv in graph.nodes:
        weight = graph.constant(conv.input[1]) if conv.op_type == "ConvTranspose" else None
        if weight is None or not is_float_conv(graph, conv) or not _makes_blocks(conv, weight):
            continue
        inner, outer, block, _ = weight.shape
        pointwise = weight.transpose(2, 3, 1, 0).reshape(block * block * outer, inner, 1, 1)
        bias = np.tile(bias_of(graph, conv), block * block)
        result, stem = conv.output[0], conv.input[1]
        names = [graph.add_constant(f"{stem}.pointwise", pointwise), graph.add_constant(f"{stem}.tiled", bias)]
        reader, deep = graph.only_reader(result), f"{result}.deep"
        made = [helper.make_node("Conv", [conv.input[0], *names], [deep], name=deep, kernel_shape=[1, 1])]
        gone = [conv]
        if reader is not None and reader.op_type == "Relu":
            made.append(helper.make_node("Relu", [deep], [f"{deep}.relu"], name=f"{deep}.relu"))
            gone, deep, result = [conv, reader], f"{deep}.relu", reader.output[0]
        made.append(helper.make_node("DepthToSpace", [deep], [result], name=result, blocksize=block))
        graph.replace_nodes(gone, made)
        return True
    return False


def _makes_blocks(conv: onnx.NodeProto, weight: np.ndarray) -> bool:
    """Whether output blocks of neighbouring input pixels touch without overlapping."""
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.shape[2] < 2:
        return False
    if attribute(conv, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attribute(conv, "output_shape"):
        return False
    flat = [*attribute(conv, "pads", []), *attribute(conv, "output_padding", [])]
    steady = list(attribute(conv, "strides", [1, 1])) == list(weight.shape[2:])
    return steady and not any(flat) and set(attribute(conv, "dilations", [1])) == {1}


def pointwise_before_shuffle(graph: Graph) -> bool:
    """Depth-to-space, then a 1×1 convolution to few channels: the convolution first, on block-diagonal weights.

    It then runs on the small picture, and the shuffle moves few channels instead of many.
    """
    for shuffle in graph.nodes:
        conv = graph.only_reader(shuffle.output[0]) if shuffle.op_type == "DepthToSpace" else None
        if conv is None or conv.op_type != "Conv" or not _is_pointwise(graph, conv):
            continue
        weight, bias = graph.constant(conv.input[1]), bias_of(graph, conv)
        assert weight is not None
        blocks = int(attribute(shuffle, "blocksize", 1)) ** 2
        outer, inner = weight.shape[:2]
        if outer * 4 > inner or attribute(shuffle, "mode", b"DCR") != b"DCR":
            continue
        spread = np.kron(np.eye(blocks, dtype=np.float32), weight.reshape(outer, inner))[:, :, None, None]
        result, stem = conv.output[0], conv.input[1]
        names = [graph.add_constant(f"{stem}.blocks", spread), graph.add_constant(f"{stem}.b", np.tile(bias, blocks))]
        deep = f"{result}.deep"
        made = [
            helper.make_node("Conv", [shuffle.input[0], *names], [deep], name=deep, kernel_shape=[1, 1]),
            helper.make_node("DepthToSpace", [deep], [result], name=result, blocksize=round(blocks**0.5)),
        ]
        graph.replace_nodes([shuffle, conv], made)
        return True
    return False


def _is_pointwise(graph: Graph, conv: onnx.NodeProto) -> bool:
    weight = graph.constant(conv.input[1])
    if weight is None or not is_float_conv(graph, conv) or weight.shape[2:] != (1, 1):
        return False
    plain = set(attribute(conv, "strides", [1])) == {1} and not any(attribute(conv, "pads", []))
    return plain and attribute(conv, "group", 1) == 1


def shifts_as_depthwise(model: onnx.ModelProto) -> int:
    """Remaining per-channel scale and shift of 4-D tensors as 1×1 depthwise convolutions. Returns how many.

    onnxruntime keeps convolutions in its blocked layout, while a bare Add or Mul by a constant forces two
    reorderings around itself.
    """
    graph, count = Graph(model), 0
    for name in [node.output[0] for node in graph.nodes]:
        node = graph.producer[name]
        channels = _channels_between_convs(graph, node)
        affine = read_affine(graph, node)
        if channels is None or affine is None:
            continue
        scale = np.broadcast_to(affine.scale, (channels,)).reshape(channels, 1, 1, 1)
        shift = np.broadcast_to(affine.shift, (channels,))
        names = [graph.add_constant(f"{node.output[0]}.{kind}", a) for kind, a in (("w", scale), ("b", shift))]
        conv = helper.make_node(
            "Conv", [affine.source, *names], list(node.output), name=node.output[0], group=channels, kernel_shape=[1, 1]
        )
        graph.replace_nodes([node], [conv])
        count += 1
    graph.drop_unread_constants()
    return count


def _channels_between_convs(graph: Graph, node: onnx.NodeProto) -> int | None:
    """Channels of `node`'s output, if every reader is a 2-D convolution: then it stays in the blocked layout."""
    readers = graph.consumers.get(node.output[0], [])
    found = set()
    for reader in readers:
        weight = graph.constant(reader.input[1]) if reader.op_type == "Conv" else None
        if weight is None or weight.ndim != 4 or reader.input[0] != node.output[0]:
            return None
        found.add(input_channels(graph, reader))
    return found.pop() if len(found) == 1 else None
