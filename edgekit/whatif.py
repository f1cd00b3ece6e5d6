"""What would change a decision: which limit, moved how far, brings which other candidate. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from edgekit.bench.record import Measurement
from edgekit.errors import NoUsableArtifact
from edgekit.limits import OBJECTIVES, Limits
from edgekit.selection import Selection, select

_MIB = 2**20


def what_if(measurements: Sequence[Measurement], limits: Limits, chosen: str | None) -> tuple[str, ...]:
    """Sentences, each naming one changed limit or objective and whom it would bring.

    Args:
        chosen: the candidate that is selected; None when nothing fits.
    """
    lines = []
    for relaxed, words in (
        *_bounds(measurements, limits),
        *_floors(measurements, limits),
        *_rates(measurements, limits),
        *_sizes(measurements, limits),
    ):
        other = _choice(measurements, relaxed)
        if other is not None and other != chosen:
            lines.append(f"{words}: {other}")
    for objective in OBJECTIVES if chosen is not None else ():
        other = _choice(measurements, msgspec.structs.replace(limits, objective=objective))
        if objective != limits.objective and other is not None and other != chosen:
            lines.append(f"for {objective} instead of {limits.objective}: {other}")
    return tuple(lines)


Relaxed = tuple[Limits, str]


def _bounds(measurements: Sequence[Measurement], limits: Limits) -> list[Relaxed]:
    """A latency bound that just lets the next faster candidate of those beyond it pass."""
    if limits.latency_ms is None:
        return []
    field = f"{limits.latency_percentile}_ms"
    values = [getattr(m.latency, field) for m in measurements if m.latency]
    found = _nearest(values, lambda value: value > (limits.latency_ms or 0.0), min)
    if found is None:
        return []
    bound = _to_two_figures(found, math.ceil)
    return [
        (msgspec.structs.replace(limits, latency_ms=bound), f"with {bound:g} ms instead of {limits.latency_ms:g} ms")
    ]


def _floors(measurements: Sequence[Measurement], limits: Limits) -> list[Relaxed]:
    ratios = [m.accuracy_ratio for m in measurements if m.failure is None]
    found = _nearest(ratios, lambda ratio: ratio < limits.accuracy_floor, max)
    if found is None:
        return []
    floor = math.floor(found * 1000) / 1000
    words = f"with {floor:.1%} of the accuracy instead of {limits.accuracy_floor:.1%}"
    return [(msgspec.structs.replace(limits, accuracy_floor=floor), words)]


def _rates(measurements: Sequence[Measurement], limits: Limits) -> list[Relaxed]:
    """A rate that just lets the next slower candidate of those below it pass."""
    qps = limits.qps
    if qps is None:
        return []
    found = _nearest([m.items_per_s for m in measurements if m.latency], lambda rate: 0 < rate < qps, max)
    if found is None:
        return []
    rate = _to_two_figures(found, math.floor)
    words = f"with {rate:.10g} items/s instead of {qps:.10g}"
    return [(msgspec.structs.replace(limits, qps=rate), words)]


def _sizes(measurements: Sequence[Measurement], limits: Limits) -> list[Relaxed]:
    if limits.memory_bytes is None:
        return []
    found = _nearest([m.peak_memory_bytes for m in measurements], lambda b: b > (limits.memory_bytes or 0), min)
    if found is None:
        return []
    mib = math.ceil(found / _MIB)
    words = f"with {mib} MiB instead of {limits.memory_bytes / _MIB:.0f} MiB"
    return [(msgspec.structs.replace(limits, memory_bytes=mib * _MIB), words)]


def _nearest(
    values: Sequence[float | None], is_beyond: Callable[[float], bool], pick: Callable[[list[float]], float]
) -> float | None:
    beyond = [value for value in values if value is not None and is_beyond(value)]
    return pick(beyond) if beyond else None


def _to_two_figures(value: float, rounded: Callable[[float], int]) -> float:
    """Upwards by `math.ceil`: 38.2 -> 39; downwards by `math.floor`: 38.2 -> 38."""
    step = math.pow(10, math.floor(math.log10(value)) - 1)
    return round(rounded(value / step) * step, 9)


def _choice(measurements: Sequence[Measurement], limits: Limits) -> str | None:
    try:
        found: Selection = select(measurements, limits)
    except NoUsableArtifact:
        return None
    name = f"{found.artifact} · {found.settings.label}"
    is_rough = any(row.rough for row in measurements if row.candidate == name)
    return f"{name}, by its first queries" if is_rough else name
