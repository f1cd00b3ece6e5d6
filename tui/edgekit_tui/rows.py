"""What the fleet screen shows: one row for each model on each device, and the totals above them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgekit.fleet import Device, Fleet, Presence, WindowPoint, merged_latency
from edgekit.telemetry.histogram import merge_all, quantile
from edgekit.telemetry.messages import Histogram, LaneMetrics, ModelState
from edgekit_tui.traces import Trace, follow

RowKey = tuple[str, str, str]
LIVE = (Presence.ONLINE, Presence.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model on one device. None: the device has not told, or has no such sensor."""

    site: str
    device: str
    state: str
    "A presence, or `throttled`, or the model's own state while it is not ready."
    reason: str
    board: str
    model: str
    artifact: str
    precision: str
    runtime: str
    p50_ms: float | None
    p99_ms: float | None
    sample_count: int
    "Behind both percentiles."
    limit_ms: float | None
    history: tuple[WindowPoint, ...]
    "This model's windows, oldest first."
    qps: float | None
    "In the last window."
    failed_ratio: float | None
    "Errors and rejections among the requests of the last window."
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    last_seen_s: float
    "Unix time here."
    latency: Histogram | None = None
    "This model's, behind the percentiles: groups of rows merge it."
    accuracy_ratio: float | None = None
    "Of its artifact against the standard one."
    throttled: bool = False
    dropped: int = 0
    "Messages this device lost since its start, by its own word."

    @property
    def key(self) -> RowKey:
        return self.site, self.device, self.model

    @property
    def memory_ratio(self) -> float | None:
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The fleet in a few figures. Percentiles come from merged histograms, never from averaged percentiles."""

    devices: int
    states: Mapping[str, int]
    models: int
    artifacts: Mapping[str, int]
    "How many live device-model pairs run each artifact."
    p50_ms: float | None
    p99_ms: float | None
    sample_count: int
    qps: float
    failed: int
    "Errors and rejections in the last windows."
    gaps: int
    malformed: int
    last_seen_s: float | None
    "None: nothing was heard yet."
    latency: Histogram | None = None
    "Of all live devices, behind the percentiles."


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A device with what was made of it."""

    device: Device
    rows: tuple[Row, ...]
    traces: Mapping[str, Trace]
    "By model; empty for a device that serves one."


Book = Mapping[tuple[str, str], Entry]


def book_of(fleet: Fleet, previous: Book) -> dict[tuple[str, str], Entry]:
    """An entry for every device; that of a device which is the same value as in `previous` is taken over."""
    book: dict[tuple[str, str], Entry] = {}
    for key, device in fleet.devices.items():
        known = previous.get(key)
        book[key] = known if known is not None and known.device is device else _entry(device, known)
    return book


def totals_of(fleet: Fleet, rows: Iterable[Row]) -> Totals:
    """The totals; counts are of devices, each by its worst row."""
    states: dict[tuple[str, str], str] = {}
    artifacts: Counter[str] = Counter()
    models: set[str] = set()
    for row in rows:
        states.setdefault((row.site, row.device), row.state)
        if row.model:
            models.add(row.model)
        if row.artifact and row.state not in ("offline", "stale"):
            artifacts[row.artifact] += 1
    live = [device for device in fleet.devices.values() if device.presence in LIVE]
    latency = merged_latency(live)
    seen = [d.last_seen_s for d in fleet.devices.values() if d.last_seen_s]
    return Totals(
        devices=len(fleet.devices),
        states=Counter(states.values()),
        models=len(models),
        artifacts=artifacts,
        p50_ms=percentile(latency, 0.50),
        p99_ms=percentile(latency, 0.99),
        sample_count=latency.count if latency else 0,
        qps=sum(device.history[-1].qps for device in live if device.history),
        failed=sum(_failed(device.last_metrics.lanes) for device in live if device.last_metrics),
        gaps=sum(device.gaps for device in fleet.devices.values()),
        malformed=fleet.malformed,
        last_seen_s=max(seen, default=None),
        latency=latency,
    )


def window_latency(fleet: Fleet) -> Histogram | None:
    """Latency over the last window of every live device: one point of the fleet's trend."""
    lanes = (
        lane.infer_ms
        for device in fleet.devices.values()
        if device.presence in LIVE and device.last_metrics is not None
        for lane in device.last_metrics.lanes
    )
    return merge_all(lane for lane in lanes if lane is not None)


def percentile(histogram: Histogram | None, q: float) -> float | None:
    """The quantile, or None when nothing was measured."""
    return quantile(histogram, q) if histogram is not None and histogram.count else None


def _entry(device: Device, known: Entry | None) -> Entry:
    metrics, traces = device.last_metrics, dict(known.traces) if known else {}
    served = {state.model: state for state in device.birth.models} if device.birth else {}
    measured = {lane.model for lane in metrics.lanes} if metrics else set()
    names = [*served, *sorted(measured - set(served))]
    if metrics is not None and len(names) > 1:
        traces = {name: follow(traces.get(name), name, metrics, at_s=device.last_seen_s) for name in names}
    rows = tuple(_row(device, name, served.get(name), traces.get(name)) for name in names or [""])
    return Entry(device=device, rows=rows, traces=traces)


def _row(device: Device, model: str, served: ModelState | None, trace: Trace | None) -> Row:
    metrics = device.last_metrics
    lanes = tuple(lane for lane in metrics.lanes if lane.model == model) if metrics else ()
    latency = trace.latency if trace else device.latency
    readings = metrics.system if metrics else None
    available = readings.memory_available_bytes if readings else None
    total = readings.memory_total_bytes if readings else None
    requests = sum(lane.requests for lane in lanes)
    live = device.presence in LIVE
    return Row(
        site=device.site,
        device=device.device,
        state=_state(device, served),
        reason=device.reason,
        board=device.birth.board if device.birth else "",
        model=model,
        artifact=next((lane.artifact for lane in lanes if lane.artifact), served.artifact if served else ""),
        precision=served.precision if served else "",
        runtime=served.runtime if served else "",
        p50_ms=percentile(latency, 0.50),
        p99_ms=percentile(latency, 0.99),
        sample_count=latency.count if latency else 0,
        limit_ms=served.latency_limit_ms if served else None,
        history=trace.points if trace else device.history,
        qps=requests * 1000 / metrics.window_ms if metrics and live and metrics.window_ms > 0 else None,
        failed_ratio=_failed(lanes) / requests if requests else None,
        memory_used_bytes=total - available if total is not None and available is not None else None,
        memory_total_bytes=total,
        temperature_c=readings.temperature_c if readings else None,
        last_seen_s=device.last_seen_s,
        latency=latency,
        accuracy_ratio=served.accuracy_ratio if served else None,
        throttled=bool(readings and readings.throttled),
        dropped=sum(metrics.outbox.dropped.values()) if metrics else 0,
    )


def _state(device: Device, served: ModelState | None) -> str:
    if device.presence is not Presence.ONLINE:
        return str(device.presence.value)
    if device.last_metrics and device.last_metrics.system.throttled:
        return "throttled"
    return served.state if served and served.state != "ready" else "online"


def _failed(lanes: Iterable[LaneMetrics]) -> int:
    return sum(lane.errors + lane.rejected for lane in lanes)
