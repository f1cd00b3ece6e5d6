"""Windows poured together by time, device, model and lane. What is poured together can be poured together again.

Latencies stay histograms, so a p99 over any span and any group is the p99 of all its samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from edgekit.telemetry import histogram
from edgekit.telemetry.messages import Histogram, LaneMetrics

LEVELS_S = (300, 3600)
"""Lengths of the spans that are kept: five minutes and an hour."""


class Rollup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All windows of one lane of one device in one span."""

    windows: int = 0
    requests: int = 0
    errors: int = 0
    rejected: int = 0
    cache_hits: int = 0
    shadow_agreed: int = 0
    shadow_total: int = 0
    infer_ms: Histogram | None = None
    queue_ms: Histogram | None = None


class Place(NamedTuple):
    """What a rollup is of. `start_s` is a multiple of its level."""

    start_s: int
    device: int
    model: str
    lane: str
    artifact: str


NOTHING = Rollup()


def with_window(rollup: Rollup, lane: LaneMetrics) -> Rollup:
    """The rollup after one more window."""
    return Rollup(
        windows=rollup.windows + 1,
        requests=rollup.requests + lane.requests,
        errors=rollup.errors + lane.errors,
        rejected=rollup.rejected + lane.rejected,
        cache_hits=rollup.cache_hits + lane.cache_hits,
        shadow_agreed=rollup.shadow_agreed + lane.shadow_agreed,
        shadow_total=rollup.shadow_total + lane.shadow_total,
        infer_ms=_merge(rollup.infer_ms, lane.infer_ms),
        queue_ms=_merge(rollup.queue_ms, lane.queue_ms),
    )


def merge(a: Rollup, b: Rollup) -> Rollup:
    """Both together."""
    return Rollup(
        windows=a.windows + b.windows,
        requests=a.requests + b.requests,
        errors=a.errors + b.errors,
        rejected=a.rejected + b.rejected,
        cache_hits=a.cache_hits + b.cache_hits,
        shadow_agreed=a.shadow_agreed + b.shadow_agreed,
        shadow_total=a.shadow_total + b.shadow_total,
        infer_ms=_merge(a.infer_ms, b.infer_ms),
        queue_ms=_merge(a.queue_ms, b.queue_ms),
    )


def merge_all(rollups: Iterable[Rollup]) -> Rollup:
    """All together, whatever they are of."""
    total = NOTHING
    for rollup in rollups:
        total = merge(total, rollup)
    return total


def at_level(places: dict[Place, Rollup], level_s: int) -> dict[Place, Rollup]:
    """The same, poured into longer spans."""
    longer: dict[Place, Rollup] = {}
    for place, rollup in places.items():
        target = place._replace(start_s=place.start_s - place.start_s % level_s)
        longer[target] = merge(longer[target], rollup) if target in longer else rollup
    return longer


def _merge(a: Histogram | None, b: Histogram | None) -> Histogram | None:
    return histogram.merge(a, b) if a is not None and b is not None else a or b
