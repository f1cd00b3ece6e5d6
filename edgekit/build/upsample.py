"""Nearest-neighbour upsampling of integers as copies of whole pixels, where a runtime would go value by value.

onnxruntime 1.32 takes 1.2 ns a value for Resize on uint8 in its channels-last layout; concatenating a pixel's channels
with themselves, then rows, is memcpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, shape_inference

from edgekit.build.edit import Graph, attribute

_PLAIN = ((b"asymmetric", b"floor"), (b"half_pixel", b"round_prefer_floor"))
"""With a whole factor both of these repeat each value."""


def whole_factors(graph: Graph) -> dict[str, tuple[int, int, int]]:
    """(channels, factor down, factor across) of each Resize that repeats pixels of a single image, by its output."""
    shapes = _shapes(graph.model)
    found = {}
    for node in graph.nodes:
        if node.op_type != "Resize" or attribute(node, "mode", b"nearest") != b"nearest" or len(node.input) < 3:
            continue
        scales, shape = graph.constant(node.input[2]), shapes.get(node.input[0])
        rule = attribute(node, "coordinate_transformation_mode", b"half_pixel")
        rounding = attribute(node, "nearest_mode", b"round_prefer_floor")
        if scales is None or scales.shape != (4,) or shape is None or (rule, rounding) not in _PLAIN:
            continue
        batch, channels = shape[:2]
        whole = scales[0] == scales[1] == 1 and np.all(scales >= 1) and np.all(scales == np.rint(scales))
        if whole and batch == 1 and channels > 0:
            found[node.output[0]] = (channels, int(scales[2]), int(scales[3]))
    return found


def _shapes(model: onnx.ModelProto) -> Mapping[str, tuple[int, ...]]:
    """Shapes of 4-D tensors; 0 for a dynamic axis."""
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    return {
        value.name: tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
        for value in (*inferred.graph.value_info, *inferred.graph.input)
        if len(value.type.tensor_type.shape.dim) == 4
    }


def repeat_pixels(
    graph: Graph, source: str, result: str, channels: int, down: int, across: int
) -> list[onnx.NodeProto]:
    """Nodes from `source` to `result`, (1, C, H, W) to (1, C, H * down, W * across), of any type."""
    made: list[onnx.NodeProto] = []

    def add(kind: str, inputs: list[str], **options: object) -> str:
        name = f"{result}.{kind.lower()}{len(made)}"
        made.append(helper.make_node(kind, inputs, [name], name=name, **options))
        return name

    def reshape(tensor: str, *shape: int) -> str:
        return add("Reshape", [tensor, graph.share_constant(f"{result}.shape", np.array(shape, np.int64))])

    pixels = add("Transpose", [source], perm=[0, 2, 3, 1])
    wide = reshape(add("Concat", [pixels] * across, axis=3), 0, 0, -1, channels)
    rows = reshape(wide, -1, 1, 0, 0)  # one row an entry: possible because there is a single image
    tall = reshape(add("Concat", [rows] * down, axis=1), 1, -1, 0, 0)
    add("Transpose", [tall], perm=[0, 3, 1, 2])
    made[-1].output[0] = result
    return made
