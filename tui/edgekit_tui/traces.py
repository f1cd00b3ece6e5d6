"""Latency by model, for devices that serve several: `fleet.Device` keeps all models of a device merged. Pure."""

from __future__ import annotations

import msgspec

from edgekit.fleet import HISTORY_WINDOWS, WindowPoint
from edgekit.telemetry.histogram import merge_all, quantile
from edgekit.telemetry.messages import Histogram, LaneMetrics, Metrics


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kept windows of one model on one device."""

    window: tuple[int, int]
    "Epoch and sequence number of the newest."
    points: tuple[WindowPoint, ...] = ()
    older: Histogram | None = None
    newer: Histogram | None = None
    newer_windows: int = 0

    @property
    def latency(self) -> Histogram | None:
        """Over the last 60 to 120 windows, as `Device.latency`."""
        return merge_all(half for half in (self.older, self.newer) if half is not None)


def follow(trace: Trace | None, model: str, metrics: Metrics, *, at_s: float) -> Trace:
    """The trace after one more window; the same trace when it holds that window already."""
    window = (metrics.epoch, metrics.seq)
    if trace is not None and trace.window == window:
        return trace
    before = trace or Trace(window=window)
    lanes = tuple(lane for lane in metrics.lanes if lane.model == model)
    latency = merge_all(lane.infer_ms for lane in lanes if lane.infer_ms is not None)
    older, newer, windows = before.older, before.newer, before.newer_windows + 1
    if windows > HISTORY_WINDOWS // 2:
        older, newer, windows = newer, None, 1
    return Trace(
        window=window,
        points=(*before.points, _point(lanes, metrics, latency, at_s))[-HISTORY_WINDOWS:],
        older=older,
        newer=merge_all(half for half in (newer, latency) if half is not None),
        newer_windows=windows,
    )


def _point(lanes: tuple[LaneMetrics, ...], metrics: Metrics, latency: Histogram | None, at_s: float) -> WindowPoint:
    requests = sum(lane.requests for lane in lanes)
    measured = latency is not None and latency.count > 0
    return WindowPoint(
        at_s=at_s,
        requests=requests,
        errors=sum(lane.errors for lane in lanes),
        p50_ms=quantile(latency, 0.50) if latency is not None and measured else None,
        p99_ms=quantile(latency, 0.99) if latency is not None and measured else None,
        sample_count=latency.count if latency is not None else 0,
        qps=requests * 1000 / metrics.window_ms if metrics.window_ms > 0 else 0.0,
        memory_available_bytes=metrics.system.memory_available_bytes,
        temperature_c=metrics.system.temperature_c,
    )
