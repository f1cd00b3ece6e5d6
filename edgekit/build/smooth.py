"""Smoothed static INT8 for transformers: outlying channels of activations lent to the weights, which take them better.

One int8 scale a tensor is spoiled by a few channels of a layer norm that are far larger than the rest. Each channel of
what a product reads is divided by a factor and the matching row of the weights multiplied by it, which changes nothing
in float. Source of the factor: Xiao et al., SmoothQuant (2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from edgekit.artifact import Artifact
from edgekit.build import store
from edgekit.build.edit import Graph, attribute
from edgekit.build.further import Made, Recipe, judged, keep
from edgekit.build.inspect import check_int8, contents
from edgekit.build.prune_moments import Feed, Watched
from edgekit.build.quantize import StaticInt8
from edgekit.build.search import check_feeds
from edgekit.build.workshop import Refusal, Workshop
from edgekit.errors import ArtifactError

NAME, STATIC = "flash-int8-smooth", "flash-int8-static"
STRENGTH = 0.5
"""How much of the difference moves to the weights: 0 none, 1 all."""


def recipe() -> Recipe:
    """As `further` makes it."""
    return Recipe(NAME, _artifact, lambda shop: shop.key(NAME), _absent)


def _absent(shop: Workshop) -> str | None:
    kinds = {node.op_type for node in Graph(shop.graph).nodes}
    return None if kinds >= {"LayerNormalization", "MatMul"} else "smoothing is for transformers; it has no layer norms"


def _artifact(shop: Workshop, key: str) -> Artifact:
    check_feeds(shop)
    model, count = smoothed(shop.graph, shop.samples.feeds)
    if not count:
        raise Refusal("nothing that its products with constant weights read can be smoothed")
    try:
        quantizer = StaticInt8(model, shop.samples.feeds, shop.target.types)
        made = quantizer.make(shop.options.method or "minmax", shop.advance)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    path = shop.on_disk(made, "smooth")
    settings = shop.opened_as(path)
    measured = judged(shop, path, settings)
    plain = store.find(shop.folder(STATIC), shop.key(STATIC))
    if plain is not None and plain.record.fit and plain.record.accuracy and measured:
        before, after = plain.record.accuracy.value, measured.value
        if after <= before:
            raise Refusal(f"does not help: {STATIC} has {before:.4f} {measured.metric}, smoothed it has {after:.4f}")
    held = contents(path)
    check_int8(path, held)
    said = {
        **shop.graph_recipe,
        "smoothed": f"{count} input{'s' * (count > 1)} of products, strength {STRENGTH:g}",
        "quantised": f"static, Q/DQ, {shop.target.why}",
        "ranges": f"{shop.options.method or 'minmax'} over {len(shop.samples.feeds)} samples",
    }
    data = made.SerializeToString()
    kinds = held.node_counts
    return keep(shop, Made(NAME, data, "onnx", "int8", said, settings, accuracy=measured, node_counts=kinds), key)


def smoothed(model: onnx.ModelProto, feeds: Sequence[Feed], strength: float = STRENGTH) -> tuple[onnx.ModelProto, int]:
    """A copy that computes the same in float, and how many tensors were smoothed.

    The division goes into the layer norm where nothing but the products reads it, else before them as a Mul.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = Graph(made)
    groups = _groups(graph)
    peaks = _peaks(model, list(groups), feeds)
    for source, outputs in groups.items():
        weights = [graph.constant(graph.producer[output].input[1]) for output in outputs]
        rows = np.max([np.abs(weight).max(axis=1) for weight in weights if weight is not None], axis=0)
        factors = _factors(peaks[source], rows, strength)
        reading = _divided(graph, source, outputs, factors)
        for output, weight in zip(outputs, weights, strict=True):
            assert weight is not None
            node = graph.producer[output]
            node.input[0] = reading
            node.input[1] = graph.add_constant(
                f"{node.input[1]}.smooth", (weight * factors[:, None]).astype(np.float32)
            )
    graph.replace_nodes([], [])
    graph.drop_unread_constants()
    return made, len(groups)


def _groups(graph: Graph) -> dict[str, list[str]]:
    """Tensor -> the products with constant weights that read it, by their outputs."""
    groups: dict[str, list[str]] = {}
    for node in graph.nodes:
        weight = graph.constant(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and weight.ndim == 2 and weight.dtype == np.float32 and node.input[0] in graph.producer:
            groups.setdefault(node.input[0], []).append(node.output[0])
    return groups


def _peaks(model: onnx.ModelProto, sources: Sequence[str], feeds: Sequence[Feed]) -> Mapping[str, np.ndarray]:
    """The largest size that each channel of each tensor takes on the samples."""
    watched, peaks = Watched(model, sources), dict[str, np.ndarray]()
    for feed in feeds:
        for name, value in watched(feed).items():
            found = np.abs(value).max(axis=tuple(range(value.ndim - 1)))
            peaks[name] = np.maximum(peaks[name], found) if name in peaks else found
    return peaks


def _factors(activations: np.ndarray, rows: np.ndarray, strength: float) -> np.ndarray:
    """What each channel is divided by; 1 where a channel or its weights are always zero."""
    usable = (activations > 0) & (rows > 0)
    ratio = np.where(usable, activations, 1.0) ** strength / np.where(usable, rows, 1.0) ** (1 - strength)
    return np.asarray(np.where(usable, np.clip(ratio, 1e-4, 1e4), 1.0))


def _divided(graph: Graph, source: str, outputs: Sequence[str], factors: np.ndarray) -> str:
    """The tensor that holds `source` divided channel by channel, as cheaply as it can be had."""
    norm = graph.producer[source]
    readers = {reader.output[0] for reader in graph.consumers.get(source, [])}
    is_last = norm.op_type == "LayerNormalization" and attribute(norm, "axis", -1) in (-1,)
    if is_last and readers == set(outputs) and source not in graph.outputs:
        scales = [graph.constant(name) for name in norm.input[1:]]
        if all(values is not None and values.shape == factors.shape for values in scales):
            for position, values in enumerate(scales, start=1):
                assert values is not None
                divided = (values / factors).astype(np.float32)
                norm.input[position] = graph.add_constant(f"{norm.input[position]}.smooth", divided)
            return source
    inverse = graph.add_constant(f"{source}.smooth", (1 / factors).astype(np.float32))
    name = f"{source}.smoothed"
    graph.model.graph.node.append(helper.make_node("Mul", [source, inverse], [name], name=name))
    return name
