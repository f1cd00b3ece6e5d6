"""Static INT8 by trial: which nodes stay in float because INT8 does not pay there, and which ranges keep accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import onnx

from edgekit.artifact import Accuracy
from edgekit.build import accuracy
from edgekit.build.edit import Graph
from edgekit.build.placement import Placement
from edgekit.build.quantize import StaticInt8
from edgekit.build.race import race
from edgekit.build.workshop import Draft, Refusal, Workshop
from edgekit.errors import ArtifactError

METHODS = ("minmax", "percentile", "entropy")
GAIN = 0.98
"""A variant replaces a simpler one only when its latency is below this share."""


class _Trial(NamedTuple):
    method: str
    model: onnx.ModelProto
    accuracy: Accuracy | None


def static(shop: Workshop) -> Draft:
    """The fastest placement, then the first calibration method that holds the accuracy floor, else the best one.

    Raises Refusal when nothing of the model can run on integers, or there is nothing to calibrate with.
    """
    check_feeds(shop)
    try:
        skip, why = _placement(shop)
        quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, skip=skip)
        best = _calibrated(shop, quantizer)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    grain = "per channel" if shop.target.types.per_channel else "per tensor"
    recipe = {
        **shop.graph_recipe,
        "quantised": f"static, Q/DQ, {shop.target.why}, {grain}",
        "ranges": f"{best.method} over {len(shop.samples.feeds)} samples",
        "kept in float": _kept(shop, quantizer.plan) or "nothing",
    }
    if why:
        recipe["does not pay"] = why
    return Draft(best.model, recipe, calibrated=True, accuracy=best.accuracy)


def check_feeds(shop: Workshop) -> None:
    """Raises Refusal, with what to give, when there is no calibration data."""
    if not shop.samples.feeds:
        raise Refusal(
            "no calibration data: give --calibration FILE.npz, one array per input with a leading sample axis"
        )


def _placement(shop: Workshop) -> tuple[Collection[str], str]:
    """The nodes to leave in float, and why: first convolutions on few channels, if the graph is faster so."""
    stems = _stems(Graph(shop.graph))
    if not stems:
        return (), ""
    few = shop.samples.feeds[:2]
    paths = [
        shop.on_disk(StaticInt8(shop.graph, few, shop.target.types, skip=skip).make(), name)
        for name, skip in (("all", ()), ("stem-float", stems))
    ]
    everything, without = race(paths, shop.feed, [shop.opened_as(path) for path in paths])
    if without < GAIN * everything:
        return stems, f"first convolution in INT8 ({everything:.2f} ms with, {without:.2f} ms without)"
    return (), ""


def _stems(graph: Graph) -> list[str]:
    """Convolutions of at most four channels, read from the model's input: too few to fill an integer kernel."""
    given = {value.name for value in graph.model.graph.input}
    found = []
    for node in graph.nodes:
        weight = graph.constant(node.input[1]) if node.op_type == "Conv" else None
        if weight is not None and node.input[0] in given and weight.shape[1] <= 4:
            found.append(node.output[0])
    return found


def _calibrated(shop: Workshop, quantizer: StaticInt8) -> _Trial:
    methods = (shop.options.method,) if shop.options.method else METHODS
    best: _Trial | None = None
    for i, method in enumerate(methods):
        shop.advance(i / len(methods), f"calibrating, {method}")
        model = quantizer.make(method, partial(_advance, shop, i, len(methods)))
        measured = shop.measure(shop.on_disk(model, method))
        trial = _Trial(method, model, measured)
        if measured is None or accuracy.why_unfit(measured, shop.model.accuracy_floor) is None:
            return trial
        if best is None or best.accuracy is None or measured.value > best.accuracy.value:
            best = trial
    assert best is not None
    return best


def _advance(shop: Workshop, number: int, of: int, share: float) -> None:
    shop.advance((number + share) / of)


def _kept(shop: Workshop, plan: Placement) -> str:
    """Node kinds that stay in float, with the most frequent reason of each."""
    graph = Graph(shop.graph)
    kinds: Counter[tuple[str, str]] = Counter()
    for name, reason in plan.floats.items():
        kinds[graph.producer[name].op_type, reason] += 1
    return "; ".join(f"{kind} ×{count}: {reason}" for (kind, reason), count in kinds.most_common())
