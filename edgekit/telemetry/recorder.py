"""What the served models did in the current window, counted by many threads and drained by one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import msgspec

from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram, LaneMetrics

INFER_SCALE, QUEUE_SCALE = 4, 1
"""Finest resolution sent: within 2.2 % of an inference time, 17.2 % of a wait. Finer would cost bytes and say little:
a p99 of a thousand samples is itself less certain."""
_DIGITS = 3
"""1 µs, for sum, min and max on the wire."""


@dataclass(slots=True)
class _Lane:
    infer_ms: HistogramBuilder = field(default_factory=lambda: HistogramBuilder(max_scale=INFER_SCALE))
    queue_ms: HistogramBuilder = field(default_factory=lambda: HistogramBuilder(max_scale=QUEUE_SCALE))
    requests: int = 0
    errors: int = 0
    rejected: int = 0
    cache_hits: int = 0
    batch_sizes: dict[str, int] = field(default_factory=dict)
    shadow_agreed: int = 0
    shadow_total: int = 0


class Recorder:
    """One window of measurements. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[tuple[str, str, str], _Lane] = {}

    def observe(
        self,
        *,
        model: str,
        lane: str,
        artifact: str,
        infer_ms: float,
        queue_ms: float | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Add one answered request. Raises ValueError for a negative or non-finite time."""
        with self._lock:
            here = self._lane(model, lane, artifact)
            here.infer_ms.record(infer_ms)
            if queue_ms is not None:
                here.queue_ms.record(queue_ms)
            here.requests += 1
            if batch_size is not None and batch_size > 1:
                size = str(batch_size)
                here.batch_sizes[size] = here.batch_sizes.get(size, 0) + 1

    def count(
        self, *, model: str, lane: str, artifact: str, errors: int = 0, rejected: int = 0, cache_hits: int = 0
    ) -> None:
        """Add requests that were not inferred: failed, turned away, or answered from the cache."""
        with self._lock:
            here = self._lane(model, lane, artifact)
            here.errors += errors
            here.rejected += rejected
            here.cache_hits += cache_hits
            here.requests += errors + rejected + cache_hits

    def shadow(self, *, model: str, lane: str, artifact: str, agreed: bool) -> None:
        """Add an answer that was compared with the standard artifact's."""
        with self._lock:
            here = self._lane(model, lane, artifact)
            here.shadow_total += 1
            here.shadow_agreed += agreed

    def take(self) -> tuple[LaneMetrics, ...]:
        """What was recorded since the last call; lanes without requests are left out."""
        with self._lock:
            lanes, self._lanes = self._lanes, {}
        return tuple(
            LaneMetrics(
                model=model,
                lane=lane,
                artifact=artifact,
                requests=found.requests,
                errors=found.errors,
                rejected=found.rejected,
                cache_hits=found.cache_hits,
                batch_sizes=found.batch_sizes,
                shadow_agreed=found.shadow_agreed,
                shadow_total=found.shadow_total,
                queue_ms=_rounded(found.queue_ms.histogram()),
                infer_ms=_rounded(found.infer_ms.histogram()),
            )
            for (model, lane, artifact), found in sorted(lanes.items())
            if found.requests or found.shadow_total
        )

    def _lane(self, model: str, lane: str, artifact: str) -> _Lane:
        key = (model, lane, artifact)
        if (found := self._lanes.get(key)) is None:
            found = self._lanes[key] = _Lane()
        return found


def _rounded(histogram: Histogram | None) -> Histogram | None:
    if histogram is None:
        return None
    low, high = round(histogram.min, _DIGITS), round(histogram.max, _DIGITS)
    return msgspec.structs.replace(histogram, sum=round(histogram.sum, _DIGITS), min=low, max=high)
