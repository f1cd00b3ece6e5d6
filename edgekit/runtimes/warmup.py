"""Run every configured shape until it no longer gets faster, before anybody's request has to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from edgekit.manifest import TensorSpec

if TYPE_CHECKING:
    from edgekit.runtimes.session import Session

_WINDOW = 5
_STILL_FALLING = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The untimed runs of one shape, timed: the first is the cold one."""

    times_ms: tuple[float, ...]
    stable: bool
    "False: the limit came first and the last runs were still getting faster."

    @property
    def first_ms(self) -> float:
        return self.times_ms[0]


def warm_up(
    session: Session, shapes: Sequence[Mapping[str, np.ndarray]], *, max_runs: int = 100, max_s: float = 10.0
) -> tuple[WarmUp, ...]:
    """Run each set of inputs until stable: the median of the last five runs is not 5 % below that of the five before.

    `max_runs` and `max_s` hold for each set. Raises what `session.run` raises.
    """
    return tuple(_warm_one(session, inputs, max_runs, max_s) for inputs in shapes)


def _warm_one(session: Session, inputs: Mapping[str, np.ndarray], max_runs: int, max_s: float) -> WarmUp:
    times: list[float] = []
    end = time.perf_counter() + max_s
    while True:
        start = time.perf_counter()
        session.run(inputs)
        times.append((time.perf_counter() - start) * 1000)
        if is_stable(times):
            return WarmUp(times_ms=tuple(times), stable=True)
        if len(times) >= max_runs or time.perf_counter() >= end:
            return WarmUp(times_ms=tuple(times), stable=False)


def is_stable(times_ms: Sequence[float]) -> bool:
    """Whether the last runs have stopped getting faster."""
    if len(times_ms) < 2 * _WINDOW:
        return False
    return median(times_ms[-_WINDOW:]) >= _STILL_FALLING * median(times_ms[-2 * _WINDOW : -_WINDOW])


def random_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs that any model should take: floats in [0, 1), 8-bit integers over their range, others 0 or 1.

    Wider integers are mostly indices and masks, for which only 0 and 1 are safe. An axis left open gets size 1.
    """
    generator = np.random.default_rng(seed)
    return {spec.name: _random(spec, generator) for spec in specs}


def _random(spec: TensorSpec, generator: np.random.Generator) -> np.ndarray:
    shape = tuple(axis if isinstance(axis, int) else 1 for axis in spec.shape)
    if spec.dtype == "object":
        return np.full(shape, "a", dtype=object)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return generator.integers(0, 2, shape).astype(dtype)
