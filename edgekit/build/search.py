"""Static INT8 by trial: which nodes stay in float because INT8 does not pay there, and which ranges keep accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx

from edgekit.artifact import Accuracy
from edgekit.build import accuracy
from edgekit.build.edit import Graph, attribute
from edgekit.build.mixed import Mixed, Search
from edgekit.build.placement import Placement
from edgekit.build.quantize import StaticInt8
from edgekit.build.race import race
from edgekit.build.workshop import Draft, Refusal, Workshop
from edgekit.errors import ArtifactError

METHODS = ("minmax", "percentile", "entropy")
GAIN = 0.98
"""A variant replaces a simpler one only when its latency is below this share."""


RESCUE_S = 20.0
"""For the search for what costs accuracy, where no way of picking ranges holds the floor and nobody set a time."""


class _Trial(NamedTuple):
    method: str
    model: onnx.ModelProto
    accuracy: Accuracy | None
    corrected: bool = False


def static(shop: Workshop) -> Draft:
    """The fastest placement, then the first calibration method that holds the accuracy floor, else the best one.

    Where none holds it, biases are corrected, then nodes go back to float. With `search_s` a mix that is faster is
    searched in any case. Raises Refusal when nothing of the model can run on integers, or there is nothing to
    calibrate with.
    """
    check_feeds(shop)
    try:
        skip, why = _placement(shop)
        quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, skip=skip)
        best = _calibrated(shop, quantizer)
        mix = _mixed(shop, best, skip)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    plan = quantizer.plan if mix is None else quantizer.place(mix.skip)
    grain = "per channel" if shop.target.types.per_channel else "per tensor"
    recipe = {
        **shop.graph_recipe,
        "quantised": f"static, Q/DQ, {shop.target.why}, {grain}",
        "ranges": f"{best.method} over {len(shop.samples.feeds)} samples",
        "kept in float": _kept(shop, plan) or "nothing",
    }
    if best.corrected:
        recipe["biases"] = "corrected for what rounding the weights shifts on average"
    if why:
        recipe["does not pay"] = why
    told = plan_of(shop, plan)
    if mix is None:
        return Draft(best.model, recipe, calibrated=True, accuracy=best.accuracy, plan=told)
    recipe["search"] = mix.text
    told |= {node: mix.why[name] for node in told if (name := node.split(" ", 1)[1]) in mix.why}
    return Draft(mix.model, recipe, calibrated=True, accuracy=mix.accuracy, plan=told)


def _mixed(shop: Workshop, best: _Trial, skip: Collection[str]) -> Mixed | None:
    """The search for a better mix of precisions, where there is time for one and something to judge it with."""
    if best.accuracy is None:
        return None
    holds = accuracy.why_unfit(best.accuracy, shop.model.accuracy_floor) is None
    seconds = shop.options.search_s if shop.options.search_s is not None else 0.0 if holds else RESCUE_S
    if seconds <= 0:
        return None
    shop.advance(0.9, f"searching a mix, up to {seconds:g} s")
    quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, skip=skip, flexible=True)
    search = Search(shop, quantizer, best.method, corrected=best.corrected, seconds=seconds)
    return search.run(best.model, best.accuracy)


def check_feeds(shop: Workshop) -> None:
    """Raises Refusal, with what to give, when there is no calibration data."""
    if not shop.samples.feeds:
        raise Refusal(
            "no calibration data: give --calibration FILE.npz, one array per input with a leading sample axis"
        )


def _placement(shop: Workshop) -> tuple[Collection[str], str]:
    """The nodes to leave in float because the graph is faster so, and why: by racing it with each group left out."""
    groups = groups_in_doubt(Graph(shop.graph))
    ways: dict[str, tuple[str, ...]] = {"": (), **groups}
    if len(groups) > 1:
        ways[" and ".join(groups)] = tuple(name for names in groups.values() for name in names)
    if len(ways) == 1:
        return (), ""
    few = shop.samples.feeds[:2]
    paths: list[Path | None] = []
    for number, skip in enumerate(ways.values()):
        try:
            made = StaticInt8(shop.graph, few, shop.target.types, skip=skip).make()
        except ArtifactError:  # nothing else can run on integers
            paths.append(None)
            continue
        paths.append(shop.on_disk(made, f"way-{number}"))
    raced = [path for path in paths if path is not None]
    found = iter(race(raced, shop.feed, [shop.opened_as(path) for path in raced], budget_s=0.5 * len(raced)))
    times = {way: next(found) if path is not None else float("inf") for way, path in zip(ways, paths, strict=True)}
    best = min(times, key=lambda way: times[way])
    if times[best] < GAIN * times[""]:
        return ways[best], f"{best} in INT8 ({times['']:.2f} ms with, {times[best]:.2f} ms without)"
    return (), ""


def plan_of(shop: Workshop, plan: Placement) -> dict[str, str]:
    """Each node of the clean graph, as `kind output` -> its precision and the reason, in the graph's order."""
    found = {}
    for node in Graph(shop.graph).nodes:
        name = node.output[0]
        if name in plan.floats:
            text = f"float: {plan.floats[name]}"
        elif name in plan.integer:
            text = "int8"
        else:
            text = "int8: carried out by the grid of the node before"
        found[f"{node.op_type} {name}"] = text
    return found


def groups_in_doubt(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Convolutions whose integer kernels do not always pay, by their outputs.

    First ones read too few channels to fill an integer kernel; depthwise ones multiply too little for what converting
    costs; those of a gate see one pixel.
    """
    given = {value.name for value in graph.model.graph.input}
    first, depthwise, gates = [], [], []
    for node in graph.nodes:
        weight = graph.constant(node.input[1]) if node.op_type == "Conv" else None
        if weight is None:
            continue
        if node.input[0] in given and weight.shape[1] <= 4:
            first.append(node.output[0])
        elif weight.shape[1] == 1 and attribute(node, "group", 1) > 1:
            depthwise.append(node.output[0])
        elif _sees_one_pixel(graph, node.input[0]):
            gates.append(node.output[0])
    named = {"first convolutions": first, "depthwise convolutions": depthwise, "gates": gates}
    return {name: tuple(found) for name, found in named.items() if found}


def _sees_one_pixel(graph: Graph, name: str) -> bool:
    """Whether `name` is a global average, or made of one by convolutions and activations."""
    for _ in range(6):
        node = graph.producer.get(name)
        if node is None:
            return False
        if node.op_type == "GlobalAveragePool":
            return True
        if node.op_type not in ("Conv", "Relu", "HardSigmoid", "Clip", "Sigmoid"):
            return False
        name = node.input[0]
    return False


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
    shop.advance(0.9, "correcting biases")
    model = quantizer.make(best.method, corrected=True)
    measured = shop.measure(shop.on_disk(model, "corrected"))
    if measured is not None and best.accuracy is not None and measured.value > best.accuracy.value:
        return _Trial(best.method, model, measured, corrected=True)
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
