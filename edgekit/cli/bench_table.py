"""Measurements as a table for people: standard against flash, with what the samples do and do not support."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgekit.artifact import is_flash
from edgekit.bench.record import Latency, Measurement
from edgekit.bench.stats import SAMPLES_FOR_P90, SAMPLES_FOR_P99, ms, speed_up
from edgekit.manifest import Model

_MIB = 2**20
_MIN_WIDTH = 112
_NARROW = ("p50 ms", "p99", "vs standard", "peak MiB")
_WIDE = ("p50 ms", "p90", "p99", "vs standard", "cold ms", "idle ms", "peak MiB", "MiB", "kept")
_ENERGY = "mJ"
"""Of a query; a column only where a sensor tells it."""


STANDARD = ("standard", "standard-ort")
"""The standard artifact, also as onnxruntime saved it optimised: the same computation, only loaded sooner."""


def print_table(model: Model, rows: Sequence[Measurement]) -> None:
    """Draw the table and what it says in sentences on stdout."""
    console = Console()
    if not sys.stdout.isatty():  # a file or pipe has no width; do not fold a table into 80 columns
        console = Console(width=132)
    base = baseline(rows)
    console.print(_table(model, rows, base, wide=console.width >= _MIN_WIDTH))
    for line in findings(rows, base):
        console.print(Text(line), soft_wrap=True)


def baseline(rows: Sequence[Measurement]) -> Measurement | None:
    """The standard artifact at its fastest: what flash must beat. Where nothing runs it, another float32 file."""
    timed = [row for row in rows if row.latency is not None]
    standard = [row for row in timed if row.artifact in STANDARD]
    return min(
        standard or [row for row in timed if not is_flash(row.precision)],
        key=lambda row: row.latency.p50_ms if row.latency else 0.0,
        default=None,
    )


def _table(model: Model, rows: Sequence[Measurement], base: Measurement | None, *, wide: bool) -> Table:
    device = rows[0].device if rows else {}
    title = f"{model.name} on {device.get('cpu', 'this machine')}, {device.get('cores', '?')} cores"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for heading in ("artifact", "runs in"):
        table.add_column(heading, overflow="fold")  # where it is narrow names go on below, figures stay whole
    has_energy = any(row.usage and row.usage.energy_mj is not None for row in rows)
    for heading in (*(_WIDE if wide else _NARROW), *((_ENERGY,) if has_energy else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=_order):
        energy = row.usage.energy_mj if row.usage else None
        table.add_row(*_cells(row, base, wide=wide), *((_number(energy),) if has_energy and row.latency else ()))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else ms(value)


def _order(row: Measurement) -> tuple[bool, float]:
    return (row.latency is None, row.latency.p50_ms if row.latency else 0.0)


def _cells(row: Measurement, base: Measurement | None, *, wide: bool) -> list[Text | str]:
    name = Text(row.artifact, style="bold" if row.artifact == "standard" else "cyan")
    if row.latency is None:
        return [name, row.settings.label, Text("failed", style="red")]
    half = (row.latency.p50_high_ms - row.latency.p50_low_ms) / 2 / row.latency.p50_ms
    peak = f"{row.peak_memory_bytes / _MIB:.0f}" if row.peak_memory_bytes else "–"
    if not wide:
        median, p99 = ms(row.latency.p50_ms), _percentile(row.latency.p99_ms)
        return [name, row.settings.label, median, p99, _against(row, base), peak]
    kept = f"{row.accuracy_ratio:.1%}" if row.accuracy_ratio is not None else "?"
    return [
        name,
        row.settings.label,
        Text.assemble(ms(row.latency.p50_ms), (f" ±{half:.1%}", "dim")),
        _percentile(row.latency.p90_ms),
        _percentile(row.latency.p99_ms),
        _against(row, base),
        f"{row.start.total_ms:.0f}" if row.start else "–",
        _number(row.after_idle_ms),
        peak,
        f"{row.size_bytes / _MIB:.2f}",
        Text(kept, style="yellow" if not row.fit or row.accuracy_ratio is None else ""),
    ]


def _percentile(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(ms(value))


def _against(row: Measurement, base: Measurement | None) -> Text:
    """Speed against the standard at its fastest; red when surely slower, green when surely faster."""
    if base is None or base.latency is None or row.latency is None:
        return Text("–", style="dim")
    if row is base:
        return Text("baseline", style="dim")
    times, least, most = speed_up(base, row)
    if _is_same(times, least, most):
        return Text("the same", style="dim")
    return Text(f"{times:.2f}x faster", style="green") if times > 1 else Text(f"{1 / times:.2f}x slower", style="red")


def _is_same(times: float, least: float, most: float) -> bool:
    """Nothing is proven, or what is proven is less than can be shown."""
    return least <= 1 <= most or abs(times - 1) < 0.005


def findings(rows: Sequence[Measurement], base: Measurement | None) -> list[str]:
    """What the table means, in sentences: failures, flash that is slower, bad conditions, missing samples."""
    lines = [f"failed: {row.candidate}: {row.failure}" for row in rows if row.failure is not None]
    timed = [row for row in rows if row.latency is not None]
    if base is not None:
        lines += _verdicts(timed, base)
    lines += [
        f"unfit: {name}: {why}" for name, why in {row.artifact: row.why_unfit for row in rows if not row.fit}.items()
    ]
    lines += _unsupported([row.latency for row in timed if row.latency])
    doubts = {doubt.partition(" ")[0]: doubt for row in rows for doubt in row.conditions.judged_bad}  # one of a kind
    lines += [f"doubtful conditions: {doubt}" for doubt in doubts.values()]
    return lines


def _verdicts(timed: Sequence[Measurement], base: Measurement) -> list[str]:
    """One line for each flash artifact: at its fastest against the standard at its fastest."""
    best: dict[str, Measurement] = {}
    for row in sorted(timed, key=_order):
        if row.artifact != base.artifact and row.artifact not in STANDARD:
            best.setdefault(row.artifact, row)
    lines = []
    for name, row in best.items():
        times, least, most = speed_up(base, row)
        size = (
            f", {1 - row.size_bytes / base.size_bytes:.0%} smaller" if row.size_bytes < 0.99 * base.size_bytes else ""
        )
        if _is_same(times, least, most):
            lines.append(f"{name} and the standard are equally fast as far as the samples tell{size}")
        elif least > 1:
            lines.append(f"{name} is {times:.2f}x as fast as the standard ({least:.2f}x to {most:.2f}x){size}")
        else:
            what = ": slower Flash is a finding, not a detail" if is_flash(row.precision) else ""
            lines.append(f"{name} is {1 / times:.2f}x slower than the standard{what}{size}")
    return lines


def _unsupported(latencies: Sequence[Latency]) -> list[str]:
    lines = []
    for name, needed, values in (
        ("p90", SAMPLES_FOR_P90, [latency.sample_count for latency in latencies if latency.p90_ms is None]),
        ("p99", SAMPLES_FOR_P99, [latency.sample_count for latency in latencies if latency.p99_ms is None]),
    ):
        if values:
            span = f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"
            lines.append(f"{name} –: not supported ({span} samples); --samples {needed} measures on until it is")
    return lines
