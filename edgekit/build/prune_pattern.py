"""The 2:4 pattern: which layers a sparse kernel can take, how weights lie in groups of four, what a file really holds.

Source of the pattern: NVIDIA's TensorRT developer guide, structured sparsity: for every output channel and every pixel
of the kernel, of four neighbouring input channels at least two weights are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.artifact import LayerSparsity
from edgekit.build.edit import Graph, attribute
from edgekit.build.placement import COMPUTE
from edgekit.errors import ArtifactError

GROUP, KEPT = 4, 2
ALIGNED = 32
"""Sparse INT8 kernels take whole tiles of input channels. Source: cuSPARSELt, supported dimensions of INT8."""
MORE_THAN = 64
"""Input channels that a layer needs above this for a sparse kernel of the DLA. Source: NVIDIA's DLA FAQ."""


class Layer(NamedTuple):
    """A product of something computed with constant weights, named by its first output."""

    name: str
    kind: str
    source: str
    "The tensor it multiplies."
    weight: str
    bias: str | None
    "The constant that is added, by the layer itself or by the Add that follows; None when there is none."
    channels: int
    "Input channels, along which the groups of four lie."
    why_not: str | None
    "Why no sparse kernel takes it, or None when it is eligible."


def layers(graph: Graph) -> list[Layer]:
    """Every layer with constant weights, in the graph's order."""
    found = []
    for node in graph.nodes:
        weight = _stored(graph, node.input[1]) if node.op_type in COMPUTE else None
        if weight is None or (node.op_type == "MatMul" and weight.ndim != 2):
            continue
        rows, depth = matrix(node, weight).shape
        channels = weight.shape[1] if node.op_type == "Conv" else depth
        grouped = node.op_type == "Conv" and attribute(node, "group", 1) > 1
        found.append(
            Layer(
                node.output[0],
                node.op_type,
                node.input[0],
                node.input[1],
                _bias(graph, node, rows),
                channels,
                _why_not(channels, grouped=grouped),
            )
        )
    return found


def _why_not(channels: int, *, grouped: bool) -> str | None:
    if grouped:
        return "grouped or depthwise"
    if channels <= MORE_THAN:
        return f"{channels} input channels; sparse kernels need more than {MORE_THAN}"
    if channels % ALIGNED:
        return f"{channels} input channels, no multiple of {ALIGNED}"
    return None


def _bias(graph: Graph, node: onnx.NodeProto, rows: int) -> str | None:
    if node.op_type != "MatMul":
        own = node.input[2] if len(node.input) > 2 else ""
        return own if own and _is_bias(graph, own, rows) else None
    add = graph.only_reader(node.output[0])
    if add is None or add.op_type != "Add":
        return None
    other = next((name for name in add.input if name != node.output[0]), "")
    return other if _is_bias(graph, other, rows) and len(graph.consumers.get(other, [])) == 1 else None


def _is_bias(graph: Graph, name: str, rows: int) -> bool:
    value = graph.constant(name)
    return value is not None and value.size == rows == value.shape[-1] and value.dtype == np.float32


def matrix(node: onnx.NodeProto, weight: np.ndarray) -> np.ndarray:
    """Weights as (outputs, pixels × input channels), the input channels of one pixel side by side."""
    if node.op_type == "Conv":
        return np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    return weight if node.op_type == "Gemm" and attribute(node, "transB", 0) else weight.T


def from_matrix(node: onnx.NodeProto, values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The way back from `matrix`: an array of the shape of `like`."""
    if node.op_type == "Conv":
        pixels = values.reshape(like.shape[0], *like.shape[2:], like.shape[1])
        return np.ascontiguousarray(np.moveaxis(pixels, -1, 1))
    return values if node.op_type == "Gemm" and attribute(node, "transB", 0) else np.ascontiguousarray(values.T)


def is_two_of_four(values: np.ndarray) -> bool:
    """Whether of every four neighbours in every row at most two are not zero. `values`: (outputs, multiple of 4)."""
    return bool((np.count_nonzero(values.reshape(-1, GROUP), axis=1) <= KEPT).all())


def sparsity_of(path: Path) -> dict[str, LayerSparsity]:
    """What the weights of a written file really hold, layer by layer; quantised weights as the integers they are.

    Raises ArtifactError for a file that cannot be read.
    """
    try:
        graph = Graph(onnx.load(str(path)))
    except (OSError, ValueError) as e:
        raise ArtifactError(path, f"cannot be read again: {e}") from e
    found = {}
    for layer in layers(graph):
        node, stored = graph.producer[layer.name], _stored(graph, layer.weight)
        assert stored is not None
        values = matrix(node, stored)
        grouped = values.shape[1] % GROUP == 0 and layer.channels % GROUP == 0
        found[f"{layer.kind} {_plain(layer.name)}"] = LayerSparsity(
            zeros=float(1 - np.count_nonzero(values) / values.size),
            weights=int(values.size),
            two_of_four=grouped and is_two_of_four(values),
            why_not_eligible=layer.why_not,
        )
    return found


def _stored(graph: Graph, name: str) -> np.ndarray | None:
    """The constant behind `name`: itself, or the integers that a DequantizeLinear reads."""
    producer = graph.producer.get(name)
    if producer is not None and producer.op_type == "DequantizeLinear":
        return graph.constant(producer.input[0])
    return graph.constant(name)


def _plain(name: str) -> str:
    return name.removesuffix(".float")


def broken(found: Mapping[str, LayerSparsity]) -> list[str]:
    """The eligible layers of a file that are not 2:4, by name."""
    return [name for name, layer in found.items() if layer.why_not_eligible is None and not layer.two_of_four]


def summary(found: Mapping[str, LayerSparsity]) -> str:
    """In words, for a recipe: how many layers are 2:4, and which share of all weights is zero."""
    eligible = [layer for layer in found.values() if layer.why_not_eligible is None]
    weights = sum(layer.weights for layer in found.values())
    zeros = sum(layer.zeros * layer.weights for layer in found.values())
    proven = sum(layer.two_of_four for layer in eligible)
    return (
        f"2:4 in {proven} of {len(eligible)} eligible layers (of {len(found)}), "
        f"{100 * zeros / max(weights, 1):.0f} % of all weights are zero"
    )
