"""From a standard artifact to the set of artifacts worth benching: what is made, in which order, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
import onnx

from edgekit.artifact import STANDARD, Accuracy, Artifact
from edgekit.build import (
    ahead,
    ahead_openvino,
    convert_recipe,
    further,
    plain,
    prune_recipe,
    recurrent,
    search,
    smooth,
    store,
)
from edgekit.build.quantize import dynamic_int8, matmul_share
from edgekit.build.rewrite import shifts_as_depthwise
from edgekit.build.same import difference
from edgekit.build.samples import Options
from edgekit.build.workshop import NOT_SLOWER, Draft, Progress, Refusal, Workshop
from edgekit.config import Home
from edgekit.device.probe import Facts
from edgekit.errors import ArtifactError
from edgekit.fetch import standard_artifact
from edgekit.manifest import Model

OPTIMIZED, STATIC, DYNAMIC = "standard-optimized", "flash-int8-static", "flash-int8-dynamic"
OPENVINO, RECURRENT = "flash-int8-openvino", "flash-int8-recurrent"
FURTHER = (smooth.recipe(), prune_recipe.recipe(), *convert_recipe.recipes())
SAME = 1e-4
"""How much the optimised standard may differ from the standard."""


class Report(NamedTuple):
    """What a build gave: the standard artifact first, then those made from it, and why others were not made."""

    artifacts: list[Artifact]
    refused: dict[str, str]
    is_cached: bool
    "True when nothing had to be made."
    compiled: Mapping[str, str] = {}
    "What was compiled ahead of time for the artifact of that name, or why it was not."


def build(
    model: Model,
    *,
    home: Home,
    facts: Facts | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> list[Artifact]:
    """The standard artifact and every artifact made from it, unfit ones included (`record.fit` is False).

    Args:
        facts: the device to build for; None is this machine.
        progress: called with what is being done and the share of the whole that is done, 0..1.

    Raises:
        ArtifactError: the standard is not ONNX, damaged, too large, holds NaN, or the disk is full.
        UsageError, CatalogError, InputError: options or data that do not fit the model.
        FetchError: the standard artifact cannot be had.
    """
    return report(model, home=home, facts=facts, options=options, progress=progress).artifacts


def report(
    model: Model,
    *,
    home: Home,
    facts: Facts | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """As `build`, with the reason for each artifact that was not made."""
    standard = standard_artifact(model, home)
    if standard.record.format != "onnx":
        raise ArtifactError(standard.path, f"is {standard.record.format}; this version builds from ONNX only")
    cpu = facts.cpu if facts else None
    with Workshop(model, standard, home, cpu, options or Options(), progress) as shop:
        return _make_all(shop, standard)


def _make_all(shop: Workshop, standard: Artifact) -> Report:
    made: list[Artifact] = []
    refused: dict[str, str] = {}
    is_cached = True
    ends = (0.2, 0.55, 0.65, 0.8, 0.9)
    for (recipe, precision, draw), start, end in zip(_RECIPES, (0.0, *ends), ends, strict=False):
        shop.step(recipe, start, end)
        key, folder = shop.key(recipe), shop.folder(recipe)
        make = partial(_finished, shop, recipe, precision, draw, key)
        artifact, why, is_new = store.once(folder, key, make)
        is_cached &= not is_new
        if artifact is None:
            refused[shop.name(recipe)] = why
        else:
            made.append(artifact)
    artifacts = [_with_accuracy(standard, made), *made]
    shop.step("saving optimised forms", 0.9, 0.95)
    saved, is_new = _save_optimized(shop, artifacts, refused)
    compiled = {name: found.text for name, found in ahead_openvino.compile_ahead(shop, artifacts).items()}
    shop.step("further forms", 0.95, 1.0)
    others, is_newer = further.make_all(shop, FURTHER, refused)
    shop.step("done", 1.0, 1.0)
    return Report([*artifacts, *saved, *others], refused, is_cached and not (is_new or is_newer), compiled)


def _save_optimized(shop: Workshop, artifacts: list[Artifact], refused: dict[str, str]) -> tuple[list[Artifact], bool]:
    """The artifacts worth loading as onnxruntime saved them, and whether any had to be made now."""
    found, is_new = [], False
    for i, twin in enumerate(artifacts):
        shop.advance(i / len(artifacts))
        name = twin.record.name + ahead.SUFFIX
        folder = shop.home.artifacts(shop.model.name) / name
        has_better = twin.record.name == STANDARD and any(a.record.name == shop.name(OPTIMIZED) for a in artifacts)
        elsewhere = twin.record.bound_to.get("runtime", ahead.RUNTIME) != ahead.RUNTIME
        if not twin.record.fit or elsewhere or has_better:
            store.forget(folder)  # of a build before, when there was reason to make it
            continue
        key = ahead.key(shop, twin)
        artifact, why, was_tried = store.once(folder, key, partial(ahead.save_optimized, shop, twin))
        is_new |= was_tried
        if artifact is None:
            refused[name] = why
        else:
            found.append(artifact)
    return found, is_new


def _finished(shop: Workshop, recipe: str, precision: str, draw: Callable[[Workshop], Draft], key: str) -> Artifact:
    """Raises Refusal."""
    return shop.finish(recipe, precision, draw(shop), key)


def _optimized(shop: Workshop) -> Draft:
    """The float graph, cleaned and rewritten; refused unless it computes the same and is not slower here."""
    if not shop.rewrites:
        raise Refusal("nothing to rewrite: what remains the runtime does itself when it loads the standard")
    model = onnx.ModelProto.FromString(shop.graph.SerializeToString())
    shifts_as_depthwise(model)
    path = shop.on_disk(model, "optimized")
    feeds = shop.samples.feeds[:4] or (shop.feed,)
    worst = difference((shop.standard.path, shop.settings), (path, shop.opened_as(path)), feeds)
    if not worst <= SAME:
        raise Refusal(f"its outputs differ from the standard's by {worst:.1e}")
    shop.advance(0.5)
    speed = shop.time(path)
    if speed.own_ms > NOT_SLOWER * speed.standard_ms:
        raise Refusal(f"slower than the standard here: {speed.own_ms:.3g} against {speed.standard_ms:.3g} ms")
    return Draft(model, {**shop.graph_recipe, "checked": f"equals the standard within {worst:.0e}"}, speed=speed)


def _dynamic(shop: Workshop) -> Draft:
    """INT8 weights in matrix products, for models that consist of them."""
    share = matmul_share(shop.graph)
    if share < 0.5:
        raise Refusal(
            f"{100 * share:.0f} % of its weights are in matrix products, the only thing that dynamic INT8 speeds up"
        )
    try:
        made = dynamic_int8(shop.graph, shop.target.types)
    except ArtifactError as e:
        raise Refusal(e.problem) from e
    return Draft(made, {**shop.graph_recipe, "quantised": "dynamic: weights of matrix products"})


_RECIPES: tuple[tuple[str, str, Callable[[Workshop], Draft]], ...] = (
    (OPTIMIZED, "float32", _optimized),
    (STATIC, "int8", search.static),
    (RECURRENT, "int8", partial(recurrent.on_top_of, STATIC)),
    (OPENVINO, "int8", plain.for_openvino),
    (DYNAMIC, "int8-dynamic", _dynamic),
)


def _with_accuracy(standard: Artifact, made: list[Artifact]) -> Artifact:
    """The standard artifact with its own accuracy, as found when the others were measured against it."""
    measured: Accuracy | None = next((a.record.accuracy for a in made if a.record.accuracy), None)
    if measured is None or measured.standard_value is None:
        return standard
    own = msgspec.structs.replace(measured, value=measured.standard_value, per_output_sqnr_db={})
    return msgspec.structs.replace(standard, record=msgspec.structs.replace(standard.record, accuracy=own))
