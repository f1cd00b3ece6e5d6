"""Artifacts that need more than a graph and ranges: smoothed, pruned, converted. Each with its record, or why not.

What cannot be made here, because a tool or a kernel is absent, is reported and tried again next time; what was tried
and failed is remembered as every other refusal is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from edgekit.artifact import Accuracy, Artifact, ArtifactRecord, LayerSparsity, sha256_of
from edgekit.build import accuracy, store
from edgekit.build.race import race
from edgekit.build.workshop import NOT_SLOWER, Speed, Workshop, tools
from edgekit.errors import ArtifactError
from edgekit.files import write_atomic
from edgekit.runtimes.session import SessionSettings


class Recipe(NamedTuple):
    """One kind of artifact as this module makes it."""

    name: str
    make: Callable[[Workshop, str], Artifact]
    "Called with the key; raises Refusal."
    key: Callable[[Workshop], str]
    absent: Callable[[Workshop], str | None]
    "Why it is not even tried here and now, or None."


def make_all(shop: Workshop, recipes: tuple[Recipe, ...], refused: dict[str, str]) -> tuple[list[Artifact], bool]:
    """The artifacts of `recipes`, and whether any had to be made now; reasons for others go into `refused`."""
    found, is_new = [], False
    for number, recipe in enumerate(recipes):
        shop.advance(number / len(recipes), recipe.name)
        name, folder = shop.name(recipe.name), shop.folder(recipe.name)
        why = recipe.absent(shop)
        key = recipe.key(shop) if why is None else None
        if key is None:
            refused[name] = why or ""
            continue
        artifact, reason, was_tried = store.once(folder, key, partial(recipe.make, shop, key))
        is_new |= was_tried
        if artifact is None:
            refused[name] = reason
        else:
            found.append(artifact)
    return found, is_new


class Made(NamedTuple):
    """A file that is about to become an artifact, with all that only its maker knows."""

    recipe: str
    data: bytes
    format: str
    precision: str
    said: Mapping[str, str]
    settings: SessionSettings
    "How it is opened to be judged and timed."
    calibrated: bool = True
    accuracy: Accuracy | None = None
    sparsity: Callable[[Path], Mapping[str, LayerSparsity]] | None = None
    "Measures the file as written; raises ArtifactError when it does not hold what it should."
    bound_to: Mapping[str, str] = {}
    node_counts: Mapping[str, int] = {}
    tools: Mapping[str, str] = {}
    axes: Mapping[str, int] = {}
    "Axes that it fixes beside those that the user fixed."
    notes: tuple[str, ...] = ()


def keep(shop: Workshop, made: Made, key: str) -> Artifact:
    """Write the file, measure what it holds, how good and how fast it is, and write its record last."""
    folder, name = shop.folder(made.recipe), shop.name(made.recipe)
    path = folder / f"{name}-{key[:8]}.{made.format}"
    try:
        write_atomic(path, made.data)
    except OSError as e:
        raise ArtifactError(path, f"cannot be written: {e.strerror or e}") from e
    sparsity = made.sparsity(path) if made.sparsity else {}
    measured = made.accuracy or judged(shop, path, made.settings)
    why = accuracy.why_unfit(measured, shop.model.accuracy_floor) if measured else None
    if measured is None and made.precision != "float32":
        why = "no data to measure its accuracy with: give --calibration FILE.npz"
    speed = timed(shop, path, made.settings)
    notes = made.notes
    if speed.own_ms > NOT_SLOWER * speed.standard_ms:
        notes += (f"slower than the standard here: {speed.own_ms:.3g} against {speed.standard_ms:.3g} ms",)
    record = ArtifactRecord(
        model=shop.model.name,
        name=name,
        file=path.name,
        format=made.format,
        precision=made.precision,
        sha256=sha256_of(path),
        size_bytes=path.stat().st_size,
        made_from_sha256=shop.standard.record.sha256,
        recipe={store.KEY: key, **made.said, "speed": str(speed)},
        tools={**tools(), **made.tools},
        calibration_sha256=shop.calibration_sha256 if made.calibrated else None,
        axes={**made.axes, **shop.options.axes},
        node_counts=made.node_counts,
        sparsity=sparsity,
        accuracy=measured,
        bound_to=made.bound_to,
        fit=why is None,
        why_unfit=why,
        notes=notes,
    )
    return store.save(folder, record)


def judged(shop: Workshop, path: Path, settings: SessionSettings) -> Accuracy | None:
    """The file against the standard in the runtime of `settings`; None without evaluation data."""
    if shop.reference is None:
        return None
    return accuracy.measure(shop.reference, path, shop.quick(settings), shop.here)


def timed(shop: Workshop, path: Path, settings: SessionSettings) -> Speed:
    """A short race against the standard in onnxruntime, one thread, both at the size of the feed."""
    sizes = {f"{name}[{i}]": size for name, value in shop.feed.items() for i, size in enumerate(value.shape)}
    own = replace(settings, axes=sizes) if settings.runtime in ("onnxruntime", "openvino") else settings
    return Speed(
        *race([shop.standard.path, path], shop.feed, [replace(shop.settings, axes=sizes), own], bound=NOT_SLOWER)
    )
