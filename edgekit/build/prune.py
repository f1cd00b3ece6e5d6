"""Prunes layers of a float graph to 2:4, what is left of each making up for what was taken.

No labels are needed: the untouched graph says what every layer should give. `alone` solves each layer as if all others
stayed as they are, and `harm` tells how much each one hurts. Fitting each layer to what the pruned ones before it give,
or only its means and spreads, was tried on EfficientNet-Lite0 and kept less: the samples are too few for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from edgekit.build import ort
from edgekit.build import prune_solve as solve
from edgekit.build.edit import Graph
from edgekit.build.prune_moments import Feed, moments_of
from edgekit.build.prune_pattern import Layer, from_matrix, layers, matrix
from edgekit.errors import ArtifactError

Progress = Callable[[float], None]


class Solution(NamedTuple):
    """New constants for one layer."""

    constants: Mapping[str, np.ndarray]
    "Initialiser -> what replaces it: the weights, and the bias where there is one."
    error: float
    "What the layer's outputs differ by, as a share of what they vary by."


def eligible_layers(model: onnx.ModelProto) -> list[Layer]:
    """The layers to prune, in order. Raises ArtifactError: there are none, or two share their weights."""
    graph = Graph(model)
    found = [layer for layer in layers(graph) if layer.why_not is None]
    if not found:
        raise ArtifactError(model.graph.name or "model", "no layer of it has weights that a sparse kernel takes")
    for layer in found:
        if len(graph.consumers[layer.weight]) > 1:
            raise ArtifactError(model.graph.name or "model", f"weight '{layer.weight}' is shared by several layers")
    return found


def by_magnitude(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose eligible layers keep the two largest of every four weights, and nothing makes up for the rest.

    Needs no data, and costs much more accuracy than `prune`; what others are compared with.
    """
    made, graph = _copy(model), Graph(model)
    for layer in eligible_layers(model):
        node, weight = graph.producer[layer.name], _weight(graph, layer)
        values = matrix(node, weight)
        kept = from_matrix(node, np.where(solve.by_magnitude(values), values, 0), weight)
        store(made, {layer.weight: kept})
    return made


def alone(model: onnx.ModelProto, feeds: Sequence[Feed], progress: Progress | None = None) -> dict[str, Solution]:
    """Each eligible layer solved by itself; name of the layer -> its solution."""
    graph, chosen, found = Graph(model), eligible_layers(model), {}
    for layer, moments in zip(chosen, moments_of(model, chosen, feeds), strict=True):
        found[layer.name] = _second_order(graph, layer, moments)
        if progress:
            progress(len(found) / len(chosen))
    return found


def harm(model: onnx.ModelProto, solutions: Mapping[str, Solution], feeds: Sequence[Feed]) -> dict[str, float]:
    """Layer -> what the model's outputs differ by when it alone is pruned, as a share of their size."""
    expected = _outputs(model, feeds)
    size = sum(float(np.sum(np.square(value, dtype=np.float64))) for value in expected)
    found = {}
    for name, solution in solutions.items():
        made = _copy(model)
        store(made, solution.constants)
        apart = (
            np.sum(np.square(a - b, dtype=np.float64)) for a, b in zip(expected, _outputs(made, feeds), strict=True)
        )
        found[name] = float(sum(apart)) / max(size, 1e-30)
    return found


def with_solutions(model: onnx.ModelProto, solutions: Mapping[str, Solution], only: Collection[str]) -> onnx.ModelProto:
    """A copy with the solutions of the layers named in `only` put in as they are."""
    made = _copy(model)
    for name in only:
        store(made, solutions[name].constants)
    return made


def store(model: onnx.ModelProto, constants: Mapping[str, np.ndarray]) -> None:
    """Replace initialisers, in place."""
    for tensor in model.graph.initializer:
        if tensor.name in constants:
            values = np.ascontiguousarray(constants[tensor.name], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _second_order(graph: Graph, layer: Layer, moments: solve.Moments) -> Solution:
    node, weight = graph.producer[layer.name], _weight(graph, layer)
    values = matrix(node, weight).astype(np.float64)
    mask, left = solve.by_second_order(values, moments.gram)
    fitted = solve.fit(left, mask, values, moments.gram)
    constants = {layer.weight: from_matrix(node, fitted, weight)}
    if layer.bias is not None:
        bias = graph.constant(layer.bias)
        assert bias is not None
        constants[layer.bias] = bias + ((values - fitted) @ moments.mean).reshape(bias.shape)
    return Solution(constants, solve.left_over(fitted, values, moments.gram))


def _weight(graph: Graph, layer: Layer) -> np.ndarray:
    weight = graph.constant(layer.weight)
    assert weight is not None
    return weight


def _outputs(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[np.ndarray]:
    session = ort.open_model(model.SerializeToString(), "pruning")
    return [value for feed in feeds for value in ort.run(session, None, feed)]


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made
