"""One window in a few figures, as plots and tables show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edgekit.telemetry.histogram import quantile
from edgekit.telemetry.messages import Histogram, LaneMetrics, Metrics


class WindowPoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One window of one device: all its models merged, or one of them."""

    at_s: float
    "Receiver's clock; for a historical window the device's, which was synced."
    requests: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    sample_count: int
    qps: float
    memory_available_bytes: int | None
    temperature_c: float | None


def window_point(
    window: Metrics, lanes: Iterable[LaneMetrics], latency: Histogram | None, *, at_s: float
) -> WindowPoint:
    """The point of `window` that counts `lanes` of it; `latency` is theirs, merged."""
    requests, errors = 0, 0
    for lane in lanes:
        requests, errors = requests + lane.requests, errors + lane.errors
    measured = latency if latency is not None and latency.count else None
    return WindowPoint(
        at_s=at_s,
        requests=requests,
        errors=errors,
        p50_ms=quantile(measured, 0.50) if measured else None,
        p99_ms=quantile(measured, 0.99) if measured else None,
        sample_count=measured.count if measured else 0,
        qps=requests * 1000 / window.window_ms if window.window_ms > 0 else 0.0,
        memory_available_bytes=window.system.memory_available_bytes,
        temperature_c=window.system.temperature_c,
    )
