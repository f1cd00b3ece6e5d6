"""The pruned INT8 artifact: as many layers 2:4 as the accuracy floor lets be, proven from the file, for TensorRT alone.

On a CPU no runtime here has a kernel that skips zero weights: the file is measured beside its unpruned twin, its record
says what came of it, and only a device with the TensorRT provider is offered it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx

from edgekit.artifact import Accuracy, Artifact, LayerSparsity
from edgekit.build import accuracy, inspect, prune, store
from edgekit.build.calibrate import Calibration
from edgekit.build.edit import Graph
from edgekit.build.further import Made, Recipe, keep
from edgekit.build.plain import inputs_of, multiplied
from edgekit.build.prune_moments import Feed
from edgekit.build.prune_pattern import broken, sparsity_of, summary
from edgekit.build.prune_quantize import quantize_symmetrically
from edgekit.build.prune_xnnpack import why_not_sparse
from edgekit.build.race import race
from edgekit.build.search import check_feeds
from edgekit.build.workshop import Refusal, Workshop
from edgekit.errors import ArtifactError
from edgekit.runtimes.ahead import SPARSE_PROVIDER, why_not_here

NAME = "flash-int8-2of4"
BOUND_TO: Mapping[str, str] = {"runtime": "onnxruntime", "provider": SPARSE_PROVIDER}
Quantize = Callable[[onnx.ModelProto], onnx.ModelProto]
HELD_OUT = 8
"""Samples that tell which layers hurt and are not fitted to: on those that are, every layer looks harmless."""


class _Trial(NamedTuple):
    model: onnx.ModelProto
    accuracy: Accuracy | None
    fit: bool


def recipe(solutions: Mapping[str, prune.Solution] | None = None) -> Recipe:
    """As `further` makes it. `solutions`: those of `solved`, if they are known already."""
    return Recipe(NAME, partial(_artifact, solutions=solutions), lambda shop: shop.key(NAME), _absent)


def _absent(shop: Workshop) -> str | None:
    """Why it is not made: neither asked for nor of use here."""
    known = store.find(shop.folder(NAME), shop.key(NAME))
    if shop.options.prune or known is not None or why_not_here(BOUND_TO) is None:
        return None
    return f"no runtime here has a kernel that gains from 2:4 ({SPARSE_PROVIDER} does); --prune makes it all the same"


def solved(shop: Workshop) -> dict[str, prune.Solution]:
    """Each layer that a sparse kernel takes, 2:4. Raises Refusal: no such layer, no calibration data."""
    check_feeds(shop)
    shop.advance(0.0, "pruning: what each layer can do without")
    try:
        return prune.alone(shop.spelled_out, with_mirrors(_parts(shop)[0]), shop.advance)
    except ArtifactError as e:
        raise Refusal(e.problem) from e


def _parts(shop: Workshop) -> tuple[Sequence[Feed], Sequence[Feed]]:
    """The samples to fit to and those held out; when there are few, all are both."""
    feeds = shop.samples.pruning
    return (feeds[:-HELD_OUT], feeds[-HELD_OUT:]) if len(feeds) >= 3 * HELD_OUT else (feeds, feeds)


def with_mirrors(feeds: Sequence[Feed]) -> list[Feed]:
    """The feeds and, of pictures, their mirror images: what the untouched graph makes of those is as good a teacher."""
    mirrored = []
    for feed in feeds:
        if all(
            value.ndim == 4 and value.dtype.kind == "f" and min(value.shape[1], value.shape[3]) <= 3
            for value in feed.values()
        ):
            mirrored.append(
                {name: value[..., ::-1] if value.shape[1] <= 3 else value[:, :, ::-1] for name, value in feed.items()}
            )
    return [*feeds, *mirrored]


def _artifact(shop: Workshop, key: str, solutions: Mapping[str, prune.Solution] | None = None) -> Artifact:
    solutions = solved(shop) if solutions is None else solutions
    model = shop.spelled_out
    eligible = prune.eligible_layers(model)
    quantize = quantizer(shop, model)
    order = _harmless_first(model, solutions, _parts(shop)[1])
    count = _most_layers(shop, quantize, model, solutions, order)
    chosen = frozenset(order[:count])
    pruned = prune.with_solutions(model, solutions, chosen)
    best = _trial(shop, quantize(pruned))
    path = shop.on_disk(best.model, "pruned")
    twin = shop.on_disk(quantize(model), "unpruned")
    own_ms, twin_ms = _side_by_side(shop, path, twin)
    said = {
        **shop.graph_recipe,
        "pruned": f"2:4 by second order over {len(_parts(shop)[0])} samples, no labels; {count} of {len(eligible)}"
        " layers that a sparse kernel takes, those that hurt least first, as many as the accuracy floor lets be",
        "left over": f"outputs of pruned layers differ by {max(solutions[name].error for name in chosen):.1%} at most",
        "quantised": "static, Q/DQ on inputs and weights of what multiplies, int8 × int8, symmetric, per channel",
        "sparse kernels": f"none on this CPU: {own_ms:.2f} ms, its unpruned twin {twin_ms:.2f} ms in onnxruntime",
        "sparse in LiteRT": f"not made: {why_not_sparse(pruned) or 'this version writes no sparse encoding'}",
    }
    contents = inspect.contents(path)  # as this CPU runs it; the integer kernels are TensorRT's
    made = Made(
        NAME,
        best.model.SerializeToString(),
        "onnx",
        "int8",
        {**said, "holds": summary(sparsity_of(path))},
        shop.opened_as(path),
        accuracy=best.accuracy,
        sparsity=partial(
            _proven, pruned=frozenset(f"{layer.kind} {layer.name}" for layer in eligible if layer.name in chosen)
        ),
        bound_to=BOUND_TO,
        node_counts=contents.node_counts,
        notes=(
            f"for {SPARSE_PROVIDER} with trt_sparsity_enable; nothing here gains from its zeros",
            "accuracy measured with Q/DQ computed as written, not with this CPU's integer kernels",
        ),
    )
    return keep(shop, made, key)


def _proven(path: Path, pruned: frozenset[str]) -> Mapping[str, LayerSparsity]:
    """What the file holds, layer by layer. Raises ArtifactError when a layer that was pruned is not 2:4 in it."""
    found = sparsity_of(path)
    if missing := sorted(pruned & set(broken(found))):
        raise ArtifactError(path, f"{len(missing)} pruned layers are not 2:4 in the file, first {missing[0]}")
    return found


def quantizer(shop: Workshop, model: onnx.ModelProto) -> Quantize:
    """What turns `model`, pruned or not, into INT8 for TensorRT; its ranges are those of the model as it is."""
    names = multiplied(Graph(model))
    calibration = Calibration(model, inputs_of(Graph(model), names), shop.samples.feeds)
    ranges = calibration.ranges(shop.options.method or "minmax")
    return partial(quantize_symmetrically, names=names, ranges=ranges)


def _harmless_first(
    model: onnx.ModelProto, solutions: Mapping[str, prune.Solution], feeds: Sequence[Feed]
) -> list[str]:
    """Layers by what the model's outputs suffer for each weight that goes."""
    hurts = prune.harm(model, solutions, feeds)
    sizes = {name: max(value.size for value in solution.constants.values()) for name, solution in solutions.items()}
    return sorted(solutions, key=lambda name: hurts[name] / sizes[name])


def _most_layers(
    shop: Workshop,
    quantize: Quantize,
    model: onnx.ModelProto,
    solutions: Mapping[str, prune.Solution],
    order: Sequence[str],
) -> int:
    """How many of `order` can go before the floor is broken: all if they can, else by halving. Raises Refusal: none."""
    low, high = 0, len(order) + 1
    count = len(order)
    while low + 1 < high:
        shop.advance(1 - (high - low) / (len(order) + 1), f"pruning: {count} of {len(order)} layers")
        is_fit = _trial(shop, quantize(prune.with_solutions(model, solutions, order[:count]))).fit
        low, high = (count, high) if is_fit else (low, count)
        count = (low + high) // 2
    if low == 0:
        raise Refusal(f"no layer can be 2:4 within {100 * shop.model.accuracy_floor:g} % of the standard")
    return low


def _trial(shop: Workshop, model: onnx.ModelProto) -> _Trial:
    measured = shop.measure(shop.on_disk(model, "trial"), as_written=True)
    fits = measured is None or accuracy.why_unfit(measured, shop.model.accuracy_floor) is None
    return _Trial(model, measured, fits)


def _side_by_side(shop: Workshop, pruned: Path, twin: Path) -> tuple[float, float]:
    own, other = race([pruned, twin], shop.feed, [shop.opened_as(pruned), shop.opened_as(twin)])
    return own, other
