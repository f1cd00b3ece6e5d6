"""Measurements as one self-contained HTML file with plots: no network, no script, readable in black and white."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, StrMethodFormatter

from edgekit.artifact import is_flash
from edgekit.bench.record import Measurement
from edgekit.bench.soak import Soak
from edgekit.bench.stats import SAMPLES_FOR_P90, SAMPLES_FOR_P99, ms, speed_up
from edgekit.bench.why import Why

_MIB = 2**20
_MOST_LINES = 6
_MOST_KINDS = 8
_GREYS = ("#111111", "#555555", "#999999", "#cccccc")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "oo", "++", "--", "||")
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .3rem;border-top:1px solid #999;padding-top:.8rem}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.15rem .45rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}tr.base td{font-weight:bold}
svg{max-width:100%;height:auto}p.note{color:#444;margin:.2rem 0}
.doubt{border-left:4px solid #111;padding-left:.7rem}
@media print{h2{break-after:avoid}svg{break-inside:avoid}}
"""


def render(
    title: str,
    rows: Sequence[Measurement],
    findings: Sequence[str],
    *,
    base: Measurement | None = None,
    whys: Sequence[Why] = (),
    batches: Mapping[int, Measurement] | None = None,
    soak: Soak | None = None,
) -> str:
    """The whole page.

    Args:
        rows: the bench; those that failed are listed with their reason.
        findings: sentences above the plots.
        base: the row of `rows` that the others are compared with.
        whys: time by operator of a few candidates.
        batches: batch size -> measurement.
        soak: latency and temperature over minutes.
    """
    timed = sorted((row for row in rows if row.latency), key=lambda row: row.latency.p50_ms if row.latency else 0.0)
    device = rows[0].device if rows else {}
    where = f"{device.get('cpu', 'unknown CPU')}, {device.get('cores', '?')} cores, {device.get('architecture', '')}"
    doubts = {doubt.partition(" ")[0]: doubt for row in rows for doubt in row.conditions.judged_bad}.values()
    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(where)}</p>"]
    parts += [f'<p class="doubt">Doubtful conditions: {html.escape(doubt)}</p>' for doubt in doubts]
    parts += [f"<p>{html.escape(line)}</p>" for line in findings if not line.startswith("doubtful conditions")]
    parts += [_heading("Figures"), _table(rows, base)]
    if timed:
        parts += [
            _heading("Distribution of latency"),
            _plot(lambda ax: _distribution(ax, timed), 0.9 + 0.32 * len(timed)),
        ]
        parts += [
            _note("Box: 25th to 75th percentile; whiskers: 5th to 95th; bar: median. All samples, waiting included.")
        ]
        parts += [_heading("Percentiles"), _plot(lambda ax: _percentiles(ax, timed[:_MOST_LINES]), 3.6)]
        needs = f"p90 needs {SAMPLES_FOR_P90}, p99 {SAMPLES_FOR_P99}"
        parts += [_note(f"The fastest {min(_MOST_LINES, len(timed))}. Each curve ends where its samples end: {needs}.")]
        parts += [_heading("Memory at peak"), _plot(lambda ax: _memory(ax, timed), 0.9 + 0.32 * len(timed))]
    parts += _time_by_operator(whys)
    if batches:
        parts += [_heading("Latency against batch size"), _plot(lambda ax: _batches(ax, batches), 3.2)]
    if soak:
        parts += [_heading("Over time"), _plot(lambda ax: _soak(ax, soak), 3.2), _note(soak.finding)]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _time_by_operator(whys: Sequence[Why]) -> list[str]:
    """The plot of those whose runtime tells times, and every one's sentences."""
    if not whys:
        return []
    timed = [why for why in whys if why.profile.has_times]
    plot = [_plot(lambda ax: _operators(ax, timed), 1.6 + 0.5 * len(timed))] if timed else []
    return [
        _heading("Time by operator"),
        *plot,
        *(_note(f"{why.candidate}: {'; '.join(why.sentences)}") for why in whys),
    ]


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _table(rows: Sequence[Measurement], base: Measurement | None) -> str:
    heads = (
        "candidate",
        "p50 ms",
        "p90",
        "p99",
        "samples",
        "vs standard",
        "idle ms",
        "cold ms",
        "peak MiB",
        "MiB",
        "kept",
    )
    lines = ["".join(f"<th>{head}</th>" for head in heads)]
    for row in sorted(rows, key=lambda r: r.latency.p50_ms if r.latency else float("inf")):
        if row.latency is None:
            reason = html.escape(row.failure or "not measured")
            lines.append(f'<td>{html.escape(row.candidate)}</td><td colspan="10">{reason}</td>')
            continue
        cells = (
            row.candidate,
            ms(row.latency.p50_ms),
            "–" if row.latency.p90_ms is None else ms(row.latency.p90_ms),
            "–" if row.latency.p99_ms is None else ms(row.latency.p99_ms),
            str(row.latency.sample_count),
            _against(row, base),
            "–" if row.after_idle_ms is None else ms(row.after_idle_ms),
            f"{row.start.total_ms:.0f}" if row.start else "–",
            f"{row.peak_memory_bytes / _MIB:.0f}" if row.peak_memory_bytes else "–",
            f"{row.size_bytes / _MIB:.2f}",
            "?" if row.accuracy_ratio is None else f"{row.accuracy_ratio:.1%}",
        )
        lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _against(row: Measurement, base: Measurement | None) -> str:
    """How many times faster, with the interval at 99 % confidence."""
    if base is None or base.latency is None or row.latency is None:
        return "–"
    if row is base:
        return "baseline"
    times, least, most = speed_up(base, row)
    return f"{times:.2f}x ({least:.2f} to {most:.2f})"


def _plot(draw: Callable[[Axes], None], height: float) -> str:
    """An inline SVG whose text stays text; sizes in inches."""
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "edgekit", "font.size": 9, "font.family": "sans-serif"}
    ):
        figure = Figure(figsize=(9, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "<svg" + out.getvalue().partition("<svg")[2]


def _distribution(axes: Axes, rows: Sequence[Measurement]) -> None:
    boxes = []
    for row in rows:
        q = row.latency.quantiles_ms if row.latency else ()
        boxes.append({"label": row.candidate, "whislo": q[2], "q1": q[12], "med": q[25], "q3": q[37], "whishi": q[47], "fliers": []})  # fmt: skip  # noqa: E501
    axes.bxp(boxes, orientation="horizontal", showfliers=False, patch_artist=True, boxprops={"facecolor": "#dddddd"}, medianprops={"color": "#111111", "linewidth": 2})  # fmt: skip  # noqa: E501
    axes.invert_yaxis()
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_xlabel("milliseconds (logarithmic)")


def _percentiles(axes: Axes, rows: Sequence[Measurement]) -> None:
    for i, row in enumerate(rows):
        assert row.latency is not None
        count = row.latency.sample_count
        last = 49 if count >= SAMPLES_FOR_P99 else 45 if count >= SAMPLES_FOR_P90 else 25
        percents = [2 * step for step in range(1, last + 1)]
        values = list(row.latency.quantiles_ms[1 : last + 1])
        if row.latency.p99_ms is not None:
            percents, values = [*percents, 99], [*values, row.latency.p99_ms]
        axes.plot(percents, values, color=_GREYS[i % 3], linestyle=_DASHES[i % len(_DASHES)], label=row.candidate)
    axes.set_xlabel("percentile")
    axes.set_ylabel("milliseconds")
    axes.set_xlim(0, 100)
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.legend(frameon=False, fontsize=8)


def _plain_numbers(axis: Axis) -> None:
    """20 and not 2 × 10¹; of the steps between, those that leave room for one another."""
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(FuncFormatter(_minor_label))


def _minor_label(value: float, _place: int | None = None) -> str:
    """Twice, three and five times a power of ten."""
    first = f"{value:.0e}"[0]
    return f"{value:g}" if first in "235" else ""


def _memory(axes: Axes, rows: Sequence[Measurement]) -> None:
    known = [row for row in rows if row.peak_memory_bytes]
    values = [(row.peak_memory_bytes or 0) / _MIB for row in known]
    hatches = ["////" if is_flash(row.precision) else "" for row in known]
    bars = axes.barh([row.candidate for row in known], values, color="#dddddd", edgecolor="#111111", hatch=hatches)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("MiB; hatched: Flash")


def _operators(axes: Axes, whys: Sequence[Why]) -> None:
    """One stacked bar a candidate; the same kind has the same hatch everywhere."""
    totals: dict[str, float] = {}
    for why in whys:
        for operator in why.profile.operators:
            totals[operator.kind] = totals.get(operator.kind, 0.0) + operator.time_ms
    kinds = sorted(totals, key=lambda kind: -totals[kind])[:_MOST_KINDS]
    lefts = [0.0] * len(whys)
    for i, kind in enumerate([*kinds, "others"]):
        parts = [
            sum(o.time_ms for o in why.profile.operators if (o.kind if o.kind in kinds else "others") == kind)
            for why in whys
        ]
        axes.barh([why.candidate for why in whys], parts, left=lefts, label=kind, color=("#ffffff", "#bbbbbb")[i % 2], edgecolor="#111111", hatch=_HATCHES[i % len(_HATCHES)])  # fmt: skip  # noqa: E501
        lefts = [left + part for left, part in zip(lefts, parts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a query, profiled")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def _batches(axes: Axes, batches: Mapping[int, Measurement]) -> None:
    timed = {size: row.latency for size, row in batches.items() if row.latency}
    axes.plot(list(timed), [figures.p50_ms for figures in timed.values()], "o-", color="#111111", label="a query")
    each = [figures.p50_ms / size for size, figures in timed.items()]
    axes.plot(list(timed), each, "s--", color="#555555", label="an item")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(timed), [str(size) for size in timed])
    axes.set_xlabel("batch size")
    axes.set_ylabel("p50, milliseconds")
    axes.legend(frameon=False)


def _soak(axes: Axes, soak: Soak) -> None:
    at = [window.at_s / 60 for window in soak.windows]
    axes.plot(at, [window.p50_ms for window in soak.windows], "-", color="#111111", label="p50, milliseconds")
    axes.set_xlabel("minutes")
    axes.set_ylabel("p50, milliseconds")
    axes.set_ylim(bottom=0)
    heat = [(t, w.temperature_c) for t, w in zip(at, soak.windows, strict=True) if w.temperature_c is not None]
    if heat:
        other = axes.twinx()
        other.plot([t for t, _ in heat], [c for _, c in heat], "--", color="#777777")
        other.set_ylabel("°C (dashed)")
