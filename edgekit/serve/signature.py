"""Which tensors a served model takes and gives, checked before a byte is allocated for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgekit.errors import ConfigError, InputError
from edgekit.manifest import Dimension, Model, TensorSpec

MAX_WARM_SHAPES = 64
"""Every one of them costs inferences before ready and may keep memory for good, so many are a mistake."""

Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs by name; `axes` holds the allowed sizes of every axis that is still named."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Axes

    def input(self, name: str) -> TensorSpec:
        """Raises InputError naming the inputs that there are."""
        for spec in self.inputs:
            if spec.name == name:
                return spec
        raise InputError(name, f"no such input; the model has {', '.join(spec.name for spec in self.inputs)}")

    def check(self, spec: TensorSpec, shape: Sequence[int], bound: dict[str, int]) -> None:
        """Raises InputError unless `shape` fits; sizes of named axes go into `bound` and must agree across inputs."""
        if len(shape) != len(spec.shape):
            raise InputError(spec.name, f"has shape {list(shape)}, the model takes {self.describe(spec)}")
        for size, dimension in zip(shape, spec.shape, strict=True):
            if size == dimension:
                continue
            if isinstance(dimension, int) or size not in self.axes[dimension]:
                raise InputError(spec.name, f"has shape {list(shape)}, the model takes {self.describe(spec)}")
            if bound.setdefault(dimension, size) != size:
                raise InputError(spec.name, f"has {dimension} = {size} where another input has {bound[dimension]}")

    def check_names(self, names: Iterable[str]) -> None:
        """Raises InputError naming the inputs that are missing."""
        missing = {spec.name for spec in self.inputs}.difference(names)
        if missing:
            raise InputError(", ".join(sorted(missing)), "missing; the model needs every input")

    def check_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raises InputError unless every input is there with its dtype and an allowed shape."""
        self.check_names(arrays)
        bound: dict[str, int] = {}
        for name, array in arrays.items():
            spec = self.input(name)
            if array.dtype.name != spec.dtype:
                raise InputError(name, f"is {array.dtype.name}, the model takes {spec.dtype}")
            self.check(spec, array.shape, bound)

    def describe(self, spec: TensorSpec) -> str:
        """The shape as a person reads it: `[1, 3, height (320 or 640), 320]`."""
        return "[" + ", ".join(self._size(dimension) for dimension in spec.shape) + "]"

    def _size(self, dimension: Dimension) -> str:
        if isinstance(dimension, int):
            return str(dimension)
        return f"{dimension} ({' or '.join(map(str, self.axes[dimension]))})"

    def shapes(self) -> Iterator[tuple[TensorSpec, ...]]:
        """The inputs at every combination of the allowed sizes; one when nothing is dynamic."""
        for sizes in itertools.product(*self.axes.values()):
            chosen = dict(zip(self.axes, sizes, strict=True))
            yield tuple(
                TensorSpec(
                    name=spec.name,
                    dtype=spec.dtype,
                    shape=tuple(d if isinstance(d, int) else chosen[d] for d in spec.shape),
                )
                for spec in self.inputs
            )


def signature_of(
    model: Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, overrides: Mapping[str, int]
) -> Signature:
    """The tensors as the session has them, its open axes named and bounded as the manifest declares.

    Raises ConfigError for an open axis without declared sizes, and for more than `MAX_WARM_SHAPES` combinations.
    """
    declared = {spec.name: spec.shape for spec in model.inputs}
    named = tuple(_with_names(spec, declared.get(spec.name, ())) for spec in inputs)
    axes: dict[str, tuple[int, ...]] = {}
    for spec in named:
        for axis in spec.shape:
            if isinstance(axis, str):
                sizes = (overrides[axis],) if axis in overrides else model.axes.get(axis, ())
                if not sizes:
                    raise ConfigError(model.name, f"axes.{axis}", "give the size of this dynamic axis")
                axes[axis] = sizes
    count = math.prod(len(sizes) for sizes in axes.values())
    if count > MAX_WARM_SHAPES:
        raise ConfigError(model.name, "axes", f"{count} combinations of sizes, at most {MAX_WARM_SHAPES} can be warm")
    return Signature(inputs=named, outputs=tuple(outputs), axes=axes)


def _with_names(spec: TensorSpec, declared: Sequence[Dimension]) -> TensorSpec:
    """A session names axes as the file's author did; the manifest's names, at the same places, are the ones to show."""
    if len(declared) != len(spec.shape):
        return spec
    pairs = zip(spec.shape, declared, strict=True)
    shape = tuple(name if isinstance(size, str) and isinstance(name, str) else size for size, name in pairs)
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=shape)
