"""What the fleet screen shows: one row for each model on each device. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from edgekit.fleet import Device, Fleet, Presence
from edgekit.points import WindowPoint
from edgekit.ships import Ship, Ships
from edgekit.telemetry.histogram import quantile
from edgekit.telemetry.messages import Histogram, LaneMetrics, ModelState
from edgekit_tui.standing import fetched, reason, standing
from edgekit_tui.traces import Trace, follow

RowKey = tuple[str, str, str]
LIVE = (Presence.ONLINE, Presence.LATE)


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    trend_ratio: float | None = None
    "The p99 of the last window against that of the median window."
    throttled: bool = False
    dropped: int = 0
    "Messages this device lost since its start, by its own word."
    release: str = ""
    "What runs there; empty: none, or it takes no releases."
    update: str = ""
    "How far its update is, in a word; empty: it takes no releases."
    update_reason: str = ""
    "In the device's own words."
    update_fetched_ratio: float | None = None
    "Set while it fetches."

    @property
    def key(self) -> RowKey:
        return self.site, self.device, self.model

    @property
    def is_over(self) -> bool:
        """Its p99 is over the limit set for the model."""
        return self.limit_ms is not None and self.p99_ms is not None and self.p99_ms > self.limit_ms

    @property
    def memory_ratio(self) -> float | None:
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A device with what was made of it."""

    device: Device
    rows: tuple[Row, ...]
    traces: Mapping[str, Trace]
    "By model; empty for a device that never served but one."
    ship: Ship | None = None
    "Its wish and report; None for a device without an updater."


Book = Mapping[tuple[str, str], Entry]
NO_SHIPS: Ships = {}


def book_of(
    fleet: Fleet, previous: Book, give_way: Callable[[], object] = lambda: None, ships: Ships = NO_SHIPS
) -> dict[tuple[str, str], Entry]:
    """An entry for every device; that of a device whose values are the same as in `previous` is taken over."""
    book: dict[tuple[str, str], Entry] = {}
    for key, device in fleet.devices.items():
        known, ship = previous.get(key), ships.get(key)
        if known is None or known.device is not device or known.ship is not ship:
            give_way()
            known = _entry(device, known, ship)
        book[key] = known
    return book


def percentile(histogram: Histogram | None, q: float) -> float | None:
    """The quantile, or None when nothing was measured."""
    return quantile(histogram, q) if histogram is not None and histogram.count else None


def _entry(device: Device, known: Entry | None, ship: Ship | None) -> Entry:
    metrics, traces = device.last_metrics, dict(known.traces) if known else {}
    served = {state.model: state for state in device.birth.models} if device.birth else {}
    measured = {lane.model for lane in metrics.lanes} if metrics else set()
    names = [*served, *sorted(measured - set(served))]
    if metrics is not None and (len(names) > 1 or traces):  # of two models that become one, that one is followed on
        traces = {name: follow(traces.get(name), name, metrics, at_s=device.last_seen_s) for name in names}
    rows = tuple(_row(device, name, served.get(name), traces.get(name), ship) for name in names or [""])
    return Entry(device=device, rows=rows, traces=traces, ship=ship)


def _row(device: Device, model: str, served: ModelState | None, trace: Trace | None, ship: Ship | None) -> Row:
    metrics = device.last_metrics
    lanes = tuple(lane for lane in metrics.lanes if lane.model == model) if metrics else ()
    latency = trace.latency if trace else device.latency
    readings = metrics.system if metrics else None
    available = readings.memory_available_bytes if readings else None
    total = readings.memory_total_bytes if readings else None
    requests = sum(lane.requests for lane in lanes)
    live = device.presence in LIVE
    history = trace.points if trace else device.history
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
        history=history,
        qps=requests * 1000 / metrics.window_ms if metrics and live and metrics.window_ms > 0 else None,
        failed_ratio=failed(lanes) / requests if requests else None,
        memory_used_bytes=total - available if total is not None and available is not None else None,
        memory_total_bytes=total,
        temperature_c=readings.temperature_c if readings else None,
        last_seen_s=device.last_seen_s,
        latency=latency,
        accuracy_ratio=served.accuracy_ratio if served else None,
        trend_ratio=_trend(history),
        throttled=bool(readings and readings.throttled),
        dropped=sum(metrics.outbox.dropped.values()) if metrics else 0,
        release=ship.running if ship else "",
        update=standing(ship).word if ship else "",
        update_reason=reason(ship) if ship else "",
        update_fetched_ratio=fetched(ship) if ship else None,
    )


def _state(device: Device, served: ModelState | None) -> str:
    if device.presence is not Presence.ONLINE:
        return str(device.presence.value)
    if device.last_metrics and device.last_metrics.system.throttled:
        return "throttled"
    return served.state if served and served.state != "ready" else "online"


def failed(lanes: Iterable[LaneMetrics]) -> int:
    """Errors and rejections."""
    return sum(lane.errors + lane.rejected for lane in lanes)


def _trend(history: Sequence[WindowPoint]) -> float | None:
    known = [point.p99_ms for point in history if point.p99_ms is not None]
    middle = sorted(known)[len(known) // 2] if known else 0.0
    return known[-1] / middle if middle > 0 else None
