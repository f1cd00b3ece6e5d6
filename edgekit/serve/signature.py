"""Which tensors a served model takes and gives, checked before a byte is allocated for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from edgekit.errors import ConfigError, InputError
from edgekit.manifest import Dimension, Model, TensorSpec

MAX_WARM_SHAPES = 64
"""Every one of them costs inferences before ready and may keep memory for good, so many are a mistake."""

BATCH = "batch"
Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs by name; `axes` holds the allowed sizes of every axis that is still named."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Axes
    batch_axis: str | None = None
    "The first axis of every input, where the artifact leaves it open for batching."
    batch_sizes: tuple[int, ...] = (1,)
    "Those that are run; requests of any size up to the largest are taken."
    state: Mapping[str, str] = field(default_factory=dict)
    "Input -> the output that feeds it at the next step; within a sequence the daemon keeps it."
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    "Inputs that need not be sent."

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

    def check_names(self, names: Iterable[str], *, in_sequence: bool = False) -> None:
        """Raises InputError naming the inputs that are missing."""
        missing = {spec.name for spec in self.inputs}.difference(names, self.constants)
        if in_sequence:
            missing -= self.state.keys()
        if missing:
            raise InputError(", ".join(sorted(missing)), "missing; the model needs every input")

    def check_arrays(self, arrays: Mapping[str, np.ndarray], *, in_sequence: bool = False) -> None:
        """Raises InputError unless every input is there with its dtype and an allowed shape."""
        self.check_names(arrays, in_sequence=in_sequence)
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
        sizes = self.axes[dimension]
        if dimension == self.batch_axis:
            return f"{dimension} (1 to {max(sizes)})"
        return f"{dimension} ({' or '.join(map(str, sizes))})"

    def one_item(self) -> Signature:
        """The same with the batch's axis at 1."""
        if self.batch_axis is None:
            return self
        inputs = tuple(msgspec.structs.replace(spec, shape=(1, *spec.shape[1:])) for spec in self.inputs)
        axes = {name: sizes for name, sizes in self.axes.items() if name != self.batch_axis}
        return replace(self, inputs=inputs, axes=axes, batch_axis=None, batch_sizes=(1,))

    def shapes(self) -> Iterator[tuple[TensorSpec, ...]]:
        """The inputs at every combination of the sizes that are run; one when nothing is dynamic."""
        run = {name: self.batch_sizes if name == self.batch_axis else sizes for name, sizes in self.axes.items()}
        for chosen_sizes in itertools.product(*run.values()):
            chosen = dict(zip(run, chosen_sizes, strict=True))
            yield tuple(
                TensorSpec(
                    name=spec.name,
                    dtype=spec.dtype,
                    shape=tuple(d if isinstance(d, int) else chosen[d] for d in spec.shape),
                )
                for spec in self.inputs
            )


def signature_of(
    model: Model,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    overrides: Mapping[str, int],
    batch_sizes: tuple[int, ...] = (1,),
) -> Signature:
    """The tensors as the session has them, its open axes named and bounded as the manifest declares.

    With several `batch_sizes` the first axis of every input, where it is open in all of them, is the batch's.
    Raises ConfigError for an open axis without declared sizes, and for more than `MAX_WARM_SHAPES` combinations.
    """
    declared = {spec.name: spec.shape for spec in model.inputs}
    named = tuple(_with_names(spec, declared.get(spec.name, ())) for spec in inputs)
    is_batched = len(batch_sizes) > 1 and all(spec.shape and isinstance(spec.shape[0], str) for spec in named)
    if is_batched:
        named = tuple(msgspec.structs.replace(spec, shape=(BATCH, *spec.shape[1:])) for spec in named)
    axes: dict[str, tuple[int, ...]] = {}
    for spec in named:
        for axis in spec.shape:
            if axis == BATCH and is_batched:
                axes[axis] = tuple(range(1, batch_sizes[-1] + 1))
            elif isinstance(axis, str):
                sizes = (overrides[axis],) if axis in overrides else model.axes.get(axis, ())
                if not sizes:
                    raise ConfigError(model.name, f"axes.{axis}", "give the size of this dynamic axis")
                axes[axis] = sizes
    count = math.prod(len(batch_sizes if is_batched and name == BATCH else sizes) for name, sizes in axes.items())
    if count > MAX_WARM_SHAPES:
        raise ConfigError(model.name, "axes", f"{count} combinations of sizes, at most {MAX_WARM_SHAPES} can be warm")
    dtypes = {spec.name: spec.dtype for spec in named}
    return Signature(
        inputs=named,
        outputs=tuple(outputs),
        axes=axes,
        batch_axis=BATCH if is_batched else None,
        batch_sizes=batch_sizes if is_batched else (1,),
        state=model.state,
        constants={name: np.array(value, dtypes[name]) for name, value in model.constants.items() if name in dtypes},
    )


def _with_names(spec: TensorSpec, declared: Sequence[Dimension]) -> TensorSpec:
    """A session names axes as the file's author did; the manifest's names, at the same places, are the ones to show."""
    if len(declared) != len(spec.shape):
        return spec
    pairs = zip(spec.shape, declared, strict=True)
    shape = tuple(name if isinstance(size, str) and isinstance(name, str) else size for size, name in pairs)
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=shape)
