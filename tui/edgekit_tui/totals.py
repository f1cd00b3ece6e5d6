"""The fleet in a few figures: states, throughput, latency by model, board and artifact, what is in the field. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgekit.fleet import Device, Fleet
from edgekit.telemetry.histogram import merge_all
from edgekit.telemetry.messages import Birth, Histogram
from edgekit_tui.kept import Kept
from edgekit_tui.pool import Pool
from edgekit_tui.rows import LIVE, Row, failed, percentile

GONE = ("offline", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All rows of one model, board, artifact and precision."""

    model: str
    board: str
    artifact: str
    precision: str
    rows: int
    latency: Histogram | None
    "Of the devices that are not gone."
    qps: float
    over: int
    "Rows over their limit."
    accuracies: tuple[float, ...] = ()
    "Of the artifact against the standard one, each value once."


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The whole fleet. Percentiles come from merged histograms, never from averaged percentiles."""

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
    cells: tuple[Cell, ...] = ()
    boards: Mapping[str, int] = field(default_factory=dict)
    "Live devices on each board."
    software: Mapping[str, int] = field(default_factory=dict)
    "Live devices with each version of each part."


class Summary:
    """Makes the totals of one view after the other; what did not change since the last one is not taken up again."""

    def __init__(self) -> None:
        self._pool, self._windows = Pool(), Pool()
        self._software: Kept[Birth, tuple[str, ...]] = Kept(_software)

    def totals(self, fleet: Fleet, rows: Sequence[Row], give_way: Callable[[], object] = lambda: None) -> Totals:
        """The totals; states are counted by device, each by its first row. `give_way` is called between the parts."""
        states: dict[tuple[str, str], str] = {}
        for row in rows:
            states.setdefault((row.site, row.device), row.state)
        give_way()
        devices = fleet.devices.values()
        live = [device for device in devices if device.presence in LIVE]
        births = [device.birth for device in live if device.birth is not None]
        software: Counter[str] = Counter()
        for names, n in Counter(self._software.of(births)).items():
            software.update(dict.fromkeys(names, n))
        give_way()
        cells = self._cells(rows, give_way)
        give_way()
        latency = merge_all(cell.latency for cell in cells if cell.latency is not None)
        return Totals(
            devices=len(fleet.devices),
            states=Counter(states.values()),
            models=len({cell.model for cell in cells}),
            artifacts=Counter(row.artifact for row in rows if row.artifact and row.state not in GONE),
            p50_ms=percentile(latency, 0.50),
            p99_ms=percentile(latency, 0.99),
            sample_count=latency.count if latency else 0,
            qps=sum(device.history[-1].qps for device in live if device.history),
            failed=sum(failed(device.last_metrics.lanes) for device in live if device.last_metrics),
            gaps=sum(device.gaps for device in devices),
            malformed=fleet.malformed,
            last_seen_s=max((device.last_seen_s for device in devices), default=0.0) or None,
            latency=latency,
            cells=cells,
            boards=Counter(birth.board for birth in births),
            software=software,
        )

    def window(self, fleet: Fleet) -> Histogram | None:
        """Latency over the last window of every live device: one point of the fleet's trend."""
        lanes = [latency for device in fleet.devices.values() for latency in _last(device)]
        return self._windows.merge(lanes, [0] * len(lanes), 1)[0]

    def _cells(self, rows: Sequence[Row], give_way: Callable[[], object] = lambda: None) -> tuple[Cell, ...]:
        members: dict[tuple[str, str, str, str], list[Row]] = {}
        for row in rows:
            if row.model:
                members.setdefault((row.model, row.board, row.artifact, row.precision), []).append(row)
        histograms: list[Histogram] = []
        group_of: list[int] = []
        for i, of in enumerate(members.values()):
            live = [row.latency for row in of if row.latency is not None and row.state not in GONE]
            histograms += live
            group_of += [i] * len(live)
        give_way()
        merged = self._pool.merge(histograms, group_of, len(members))
        give_way()
        return tuple(
            Cell(
                model=model, board=board, artifact=artifact, precision=precision, rows=len(of), latency=latency,
                qps=sum(row.qps or 0.0 for row in of),
                over=sum(1 for row in of if row.is_over),
                accuracies=tuple(sorted({row.accuracy_ratio for row in of if row.accuracy_ratio is not None})),
            )
            for ((model, board, artifact, precision), of), latency in zip(members.items(), merged, strict=True)
        )  # fmt: skip


def cells_of(rows: Sequence[Row]) -> tuple[Cell, ...]:
    """The cells of some rows."""
    return Summary()._cells(rows)


def _last(device: Device) -> list[Histogram]:
    if device.presence not in LIVE or device.last_metrics is None:
        return []
    return [lane.infer_ms for lane in device.last_metrics.lanes if lane.infer_ms is not None]


def _software(birth: Birth) -> tuple[str, ...]:
    return tuple(f"{name} {version}" for name, version in birth.versions.items())
