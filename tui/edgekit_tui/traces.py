"""Latency by model, for devices that serve several: `fleet.Device` keeps all models of a device merged. Pure."""

from __future__ import annotations

import msgspec

from edgekit.fleet import HISTORY_WINDOWS
from edgekit.points import WindowPoint, window_point
from edgekit.telemetry.histogram import merge_all
from edgekit.telemetry.messages import Histogram, Metrics


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
    older, windows = before.older, before.newer_windows + 1
    newer = merge_all(half for half in (before.newer, latency) if half is not None)
    if windows >= HISTORY_WINDOWS // 2:  # where `fleet.fold` begins a new half
        older, newer, windows = newer, None, 0
    return Trace(
        window=window,
        points=(*before.points, window_point(metrics, lanes, latency, at_s=at_s))[-HISTORY_WINDOWS:],
        older=older,
        newer=newer,
        newer_windows=windows,
    )
