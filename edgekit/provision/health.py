"""Does the daemon that now runs do what its release promises? Measured on the device, as a client there sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.bench.stats import SAMPLES_FOR_P90, SAMPLES_FOR_P99, ms, percentile
from edgekit.errors import EdgekitError, ReleaseError
from edgekit.provision.release import Objective

Infer = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(model, inputs by name) -> outputs by name, from the daemon that is judged."""
WARM_COUNT = 10
ROUNDS = 3
"""A bound that is missed is measured again: something else on the device may have been busy. One round must meet it."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one model. A percentile is None without enough samples for it, or when not asked."""

    model: str
    sample_count: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    agreement: float
    "Share of the shipped samples, or likeness over them, on which the answers agree with the shipped ones."
    agreement_count: int
    memory_bytes: int | None
    "VmHWM of the daemon; None where /proc does not tell."


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the guard, as the last line of the check."""

    healthy: bool
    reason: str
    figures: tuple[Figures, ...] = ()


def judge(
    objectives: Sequence[Objective],
    folder: Path,
    infer: Infer,
    *,
    daemon: int | None,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Verdict:
    """Measure every objective of the release in `folder` and compare.

    Args:
        daemon: its process id, for its memory; None: not on this machine.
        seconds: for all models together; the percentiles that this does not allow count as missed.
    """
    figures: list[Figures] = []
    for objective in objectives:
        try:
            found = _measure(objective, folder, infer, daemon, seconds / len(objectives), clock)
        except EdgekitError as e:
            return Verdict(healthy=False, reason=f"{objective.model}: {e}", figures=tuple(figures))
        figures.append(found)
        if reason := why_not(objective, found):
            return Verdict(healthy=False, reason=f"{objective.model}: {reason}", figures=tuple(figures))
    return Verdict(healthy=True, reason="every objective is met", figures=tuple(figures))


def why_not(objective: Objective, figures: Figures) -> str | None:
    """The first objective that is missed, with both figures; None when all are met."""
    if figures.agreement < objective.accuracy:
        kept = f"{figures.agreement:.1%} of {figures.agreement_count} shipped samples"
        return f"agrees with {kept}, the objective is {objective.accuracy:.1%}"
    for name, bound, found, needed in (
        ("p50", objective.p50_ms, figures.p50_ms, SAMPLES_FOR_P90),
        ("p99", objective.p99_ms, figures.p99_ms, SAMPLES_FOR_P99),
    ):
        if bound is not None and found is None:
            return f"{name} needs {needed} samples, there was time for {figures.sample_count}"
        if bound is not None and found is not None and found > bound:
            return f"{name} is {ms(found)} ms of {figures.sample_count} samples, the objective is {ms(bound)} ms"
    memory, limit = figures.memory_bytes, objective.memory_bytes
    if limit is not None and memory is None:
        return "its memory cannot be read here"
    if limit is not None and memory is not None and memory > limit:
        return f"held {memory >> 20} MiB at its peak, the objective is {limit >> 20} MiB"
    return None


def _measure(
    objective: Objective, folder: Path, infer: Infer, daemon: int | None, seconds: float, clock: Callable[[], float]
) -> Figures:
    from edgekit.pipeline.metrics import agreement  # deferred: numpy

    feeds, expected = read_samples(folder / objective.samples)
    end_s = clock() + seconds
    answers = [dict(infer(objective.model, feed)) for feed in feeds]
    try:
        likeness = agreement(expected, answers)
    except ValueError as e:
        raise ReleaseError(objective.model, str(e)) from e
    memory = peak_memory_bytes(daemon)
    figures = Figures(model=objective.model, agreement=likeness, agreement_count=len(feeds), memory_bytes=memory)
    if likeness < objective.accuracy:
        return figures  # how fast the wrong answers come is of no interest
    for i in range(WARM_COUNT):
        infer(objective.model, feeds[i % len(feeds)])
    for _ in range(ROUNDS):
        times_ms = _time(objective, feeds, infer, end_s, clock)
        if len(times_ms) >= figures.sample_count:  # a last round that was cut short says less than the one before
            figures = _with_times(figures, times_ms, peak_memory_bytes(daemon))
        if why_not(objective, figures) is None or clock() >= end_s:
            break
    return figures


def _with_times(figures: Figures, times_ms: Sequence[float], memory_bytes: int | None) -> Figures:
    count = len(times_ms)
    return msgspec.structs.replace(
        figures,
        sample_count=count,
        p50_ms=percentile(times_ms, 0.5) if count >= SAMPLES_FOR_P90 else None,
        p99_ms=percentile(times_ms, 0.99) if count >= SAMPLES_FOR_P99 else None,
        memory_bytes=memory_bytes,
    )


def _time(
    objective: Objective, feeds: Sequence[Mapping[str, Any]], infer: Infer, end_s: float, clock: Callable[[], float]
) -> list[float]:
    """As many latencies as a bounded p99 needs, else enough to tell the median; or as there is time for."""
    needed = SAMPLES_FOR_P99 if objective.p99_ms is not None else SAMPLES_FOR_P90
    times_ms: list[float] = []
    while len(times_ms) < needed and clock() < end_s:
        feed = feeds[len(times_ms) % len(feeds)]
        started = clock()
        infer(objective.model, feed)
        times_ms.append((clock() - started) * 1e3)
    return times_ms


def peak_memory_bytes(process: int | None) -> int | None:
    """VmHWM of a process. Source: proc(5). None when it cannot be read."""
    if process is None:
        return None
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def read_samples(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(feeds, expected outputs), each one inference by tensor name. Raises ReleaseError."""
    from edgekit.errors import CatalogError
    from edgekit.pipeline.data import read_npz

    try:
        arrays = read_npz(path)
    except CatalogError as e:
        raise ReleaseError(path.name, str(e)) from e
    sides: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
    for key, array in arrays.items():
        side, _, name = key.partition(":")
        if side not in sides or not name or not array.ndim:
            raise ReleaseError(path.name, f"'{key}' is neither input:NAME nor output:NAME with a sample axis")
        sides[side][name] = array
    counts = {len(array) for side in sides.values() for array in side.values()}
    if not sides["input"] or not sides["output"] or len(counts) != 1 or 0 in counts:
        raise ReleaseError(path.name, "needs inputs and outputs with one common number of samples")
    feeds, expected = ([{n: a[i] for n, a in side.items()} for i in range(min(counts))] for side in sides.values())
    return feeds, expected


def write_samples(path: Path, feeds: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> None:
    """The counterpart of `read_samples`. All feeds have the same names and shapes."""
    import numpy as np

    arrays = {f"input:{name}": np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
    arrays |= {f"output:{name}": np.stack([answer[name] for answer in outputs]) for name in outputs[0]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
