"""Which size every dynamic axis of a model's inputs takes, and how to say that one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.errors import ArtifactError
from edgekit.manifest import Dimension, Model, TensorSpec

OPEN = -1
"""As the value of an axis: stays dynamic, each run may use another size (a daemon that batches wants that)."""


def session_axes(model: Model, overrides: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> dict[str, int]:
    """The manifest's shapes as `SessionSettings.axes`: `INPUT[i]` -> size, for every axis of every declared input.

    Args:
        overrides: axis -> size, before the manifest's default (the first allowed value); `OPEN` leaves it dynamic.
            Names that the manifest does not know are handed through: they are the artifact's own.
        fixed: axes that this artifact has built in, with their sizes.

    An axis without a size is left out, so that opening the session says which one is missing.
    """
    chosen = {name: values[0] for name, values in model.axes.items()} | dict(overrides) | dict(fixed or {})
    named = {axis for spec in model.inputs for axis in spec.shape if isinstance(axis, str)}
    sizes = {
        f"{spec.name}[{i}]": axis if isinstance(axis, int) else chosen.get(axis)
        for spec in model.inputs
        for i, axis in enumerate(spec.shape)
    }
    known = {place: size for place, size in sizes.items() if size is not None}
    return known | {name: size for name, size in overrides.items() if name not in named}


def bind(path: Path, inputs: Sequence[TensorSpec], axes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """`inputs` with every dynamic axis replaced by its size in `axes`; an axis set to `OPEN` keeps its name.

    Raises ArtifactError naming the input, the axis and the flag for an axis without a size, a size that contradicts
    a fixed one, and a name that is no axis of this model.
    """
    known = {str(axis) for spec in inputs for axis in spec.shape if isinstance(axis, str)}
    places = {f"{spec.name}[{i}]" for spec in inputs for i in range(len(spec.shape))}
    for name, size in axes.items():
        if name not in known | places:
            there = ", ".join(sorted(known)) or "none"
            raise ArtifactError(path, f"has no dynamic axis '{name}'; its axes: {there}")
        if size < 1 and size != OPEN:
            raise ArtifactError(path, f"axis {name}={size}: a size must be 1 or more")
    return tuple(
        TensorSpec(
            name=spec.name,
            dtype=spec.dtype,
            shape=tuple(_size(path, spec, i, axes) for i in range(len(spec.shape))),
        )
        for spec in inputs
    )


def _size(path: Path, spec: TensorSpec, i: int, axes: Mapping[str, int]) -> Dimension:
    axis, place = spec.shape[i], f"{spec.name}[{i}]"
    chosen = axes.get(place, axes.get(axis) if isinstance(axis, str) else None)
    if isinstance(axis, int):
        if chosen not in (None, OPEN, axis):
            raise ArtifactError(path, f"axis {place} is fixed at {axis}; it cannot be {chosen}")
        return axis
    if chosen is None:
        what = f"axis '{axis}'" if axis != place else f"axis {i}"
        raise ArtifactError(path, f"input '{spec.name}' has no size for its {what}; give it with --axis '{axis}=VALUE'")
    return axis if chosen == OPEN else chosen


def bound_names(declared: Sequence[TensorSpec], bound: Sequence[TensorSpec]) -> dict[str, int]:
    """Axis name -> size, for the names that `bind` has resolved to one and the same size everywhere."""
    sizes: dict[str, set[Dimension]] = {}
    for before, after in zip(declared, bound, strict=True):
        for axis, size in zip(before.shape, after.shape, strict=True):
            if isinstance(axis, str):
                sizes.setdefault(axis, set()).add(size)
    found: dict[str, int] = {}
    for name, values in sizes.items():
        only = next(iter(values))
        if len(values) == 1 and isinstance(only, int):
            found[name] = only
    return found


def unique_names(names: Sequence[str]) -> list[str]:
    """`names` with repeated ones numbered (a, b, b_1), never into a name that another has. The first keeps its own."""
    taken = set(names)
    result: list[str] = []
    for name in names:
        own, number = name, 0
        while own in result or (number and own in taken):
            number += 1
            own = f"{name}_{number}"
        result.append(own)
    return result
