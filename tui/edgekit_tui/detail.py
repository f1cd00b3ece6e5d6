"""The panels of the device screen. Pure: a device in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgekit.fleet import Device, FleetEvent
from edgekit.telemetry.messages import Histogram, LaneMetrics, Metrics, ModelState
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip, right_align
from edgekit_tui.plot import Series, legend, plot
from edgekit_tui.rows import Row, percentile

EVENT_INKS: Mapping[str, str] = {
    "started": "good", "stopping": "warn", "selection": "accent", "throttled": "warn", "memory": "bad",
    "rollback": "bad", "error": "bad",
}  # fmt: skip
LANE_COLUMNS: Mapping[str, int] = {
    "model": 16, "lane": 9, "req/s": 6, "err": 4, "rej": 4, "hits": 5, "batch": 5, "queue ms": 11, "infer ms": 11,
}  # fmt: skip
"Widths in cells; latencies are p50/p99 of the window."
FACT_LINES = 40
GAUGE_CELLS = 14
REJECTIONS = 8


def heading(row: Row, device: Device, width: int, glyphs: Glyphs, now_s: float) -> Lines:
    """Who it is and how it is, in two lines."""
    ink = draw.state_ink(row.state)
    seen = f"seen {draw.age(now_s - device.last_seen_s)} ago" if now_s - device.last_seen_s >= 1 else "seen now"
    left: Line = ((f"{draw.state_glyph(row.state, glyphs)} {row.state}", ink), ("  ", "text"))
    left = clip((*left, (row.board or "board not told yet", "strong")), max(1, width - len(seen) - 1), glyphs)
    missing = f"{draw.count(device.gaps)} missing" if device.gaps else "none missing"
    windows = (
        f"epoch {device.epoch}  {draw.count(device.windows)} window{'' if device.windows == 1 else 's'}, {missing}"
    )
    models = ", ".join(state.model for state in device.birth.models) if device.birth else ""
    below: Line = (("serves ", "faint"), (models, "model")) if models else ()
    if device.reason:
        below = ((device.reason, "warn"), ("  ", "text"), *below)
    below = clip(below, max(1, width - len(windows) - 1), glyphs)
    second = right_align(below, ((windows, "warn" if device.gaps else "faint"),), width)
    return right_align(left, ((seen, "faint"),), width), second


def latency_plot(row: Row, width: int, height: int, glyphs: Glyphs, log_scale: bool = False) -> Lines:
    """p50 and p99 of each window over time, with the limit the model must keep."""
    series = (
        Series(name="p99", ink="p99", points=tuple((p.at_s, p.p99_ms) for p in row.history), mark="*"),
        Series(name="p50", ink="p50", points=tuple((p.at_s, p.p50_ms) for p in row.history), mark="o"),
    )
    spans = list(legend(series, glyphs))
    if row.limit_ms is not None:
        spans += [(glyphs.limit * 2 + " ", "limit"), ("limit ", "faint"), (draw.ms(row.limit_ms, glyphs), "limit")]
    overall = (("all  p50 ", "faint"), (draw.ms(row.p50_ms, glyphs), "p50"), ("  p99 ", "faint"),
               (draw.p99_text(row.p99_ms, row.sample_count, glyphs), "p99"),
               (f"  n {draw.count(row.sample_count)}", "faint"))  # fmt: skip
    top = right_align(tuple(spans), overall, width)
    return (top, *plot(series, width, height - 1, glyphs=glyphs, limit=row.limit_ms, log_scale=log_scale))


def lanes(device: Device, width: int, glyphs: Glyphs) -> Lines:
    """The last window of each model and lane; the lane's column only where there is more than one."""
    metrics = device.last_metrics
    if metrics is None:
        return ((("no window received yet", "faint"),),)
    if not metrics.lanes:
        return ((("no requests in the last window", "faint"),),)
    several = len({lane.lane for lane in metrics.lanes}) > 1 or width >= 84
    titles = [title for title in LANE_COLUMNS if several or title != "lane"]
    fixed = [LANE_COLUMNS[title] for title in titles[1:]]
    widths = [max(6, min(32, width - sum(fixed) - len(fixed))), *fixed]
    lines = [[(title, "head") for title in titles]]
    lines += [_lane(lane, metrics.window_ms, titles, glyphs) for lane in metrics.lanes]
    return tuple(
        tuple(
            (draw.fit(text, w, glyphs, right=i > several) + " ", ink)
            for i, ((text, ink), w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _lane(lane: LaneMetrics, window_ms: int, titles: Sequence[str], glyphs: Glyphs) -> list[tuple[str, str]]:
    def both(histogram: Histogram | None) -> str:
        return "/".join(draw.ms(percentile(histogram, q), glyphs) for q in (0.50, 0.99))

    batches = sum(lane.batch_sizes.values())
    size = sum(int(size) * n for size, n in lane.batch_sizes.items() if size.isdecimal()) / batches if batches else None
    cells = {
        "model": (lane.model, "model"), "lane": (lane.lane, "text"),
        "req/s": (draw.number(lane.requests * 1000 / window_ms if window_ms > 0 else None, glyphs), "text"),
        "err": (draw.number(lane.errors, glyphs), "bad" if lane.errors else "faint"),
        "rej": (draw.number(lane.rejected, glyphs), "warn" if lane.rejected else "faint"),
        "hits": (draw.number(lane.cache_hits, glyphs), "text" if lane.cache_hits else "faint"),
        "batch": (draw.number(size, glyphs), "text" if size else "faint"),
        "queue ms": (both(lane.queue_ms), "p50"), "infer ms": (both(lane.infer_ms), "p99"),
    }  # fmt: skip
    return [cells[title] for title in titles]


def system(device: Device, width: int, glyphs: Glyphs) -> Lines:
    """Memory, temperature, processor and the state of the telemetry itself."""
    metrics = device.last_metrics
    if metrics is None:
        return ((("no window received yet", "faint"),),)
    now = metrics.system
    lines: list[Line] = []
    total, available = now.memory_total_bytes, now.memory_available_bytes
    if total and available is not None:
        used = (total - available) / total
        text = f"{draw.bytes_(total - available, glyphs)} of {draw.bytes_(total, glyphs)}"
        trend = [_used_ratio(total, point.memory_available_bytes) for point in device.history]
        lines.append(_gauge("memory", used, text, draw.load_ink(used), trend, width, glyphs))
    if now.temperature_c is not None:
        text = f"{now.temperature_c:.1f} {'°C' if glyphs.unicode else 'C'}" + (" throttled" if now.throttled else "")
        heat = [None if point.temperature_c is None else point.temperature_c / 100 for point in device.history]
        lines.append(
            _gauge("heat", now.temperature_c / 100, text, draw.heat_ink(now.temperature_c), heat, width, glyphs)
        )
    if now.cpu_percent is not None:
        ratio = now.cpu_percent / 100
        lines.append(_gauge("cpu", ratio, f"{now.cpu_percent:.0f} %", draw.load_ink(ratio), (), width, glyphs))
    return (*lines, clip(_small_print(metrics, glyphs), width, glyphs))


def _gauge(
    name: str, ratio: float, text: str, ink: str, trend: Sequence[float | None], width: int, glyphs: Glyphs
) -> Line:
    """A name, a level, its value, and how it went."""
    room = max(0, width - GAUGE_CELLS - 29)
    history = draw.spark(trend, room, glyphs, top=1.0) if trend else ""
    return clip(((name.ljust(8), "faint"), *draw.bar(ratio, GAUGE_CELLS, glyphs, ink), (f" {text}".ljust(20), "text"),
                 (history, "hush")), width, glyphs)  # fmt: skip


def _small_print(metrics: Metrics, glyphs: Glyphs) -> Line:
    now, outbox = metrics.system, metrics.outbox
    spans: list[tuple[str, str]] = []
    if now.power_mw is not None:
        spans += [("power ", "faint"), (f"{now.power_mw / 1000:.1f} W  ", "text")]
    if now.rss_bytes is not None:
        spans += [("daemon ", "faint"), (f"{draw.bytes_(now.rss_bytes, glyphs)}  ", "text")]
    spans += [("outbox ", "faint"), (f"{outbox.depth} waiting", "text" if outbox.depth < 10 else "warn")]
    if dropped := sum(outbox.dropped.values()):
        why = ", ".join(f"{reason} {n}" for reason, n in outbox.dropped.items())
        spans.append((f", {draw.count(dropped)} dropped ({why})", "bad"))
    return tuple(spans)


def _used_ratio(total: int, available: int | None) -> float | None:
    return None if available is None else (total - available) / total


def selection(device: Device, width: int, glyphs: Glyphs) -> Lines:
    """What was selected for each model, why, and why not the others."""
    if device.birth is None or not device.birth.models:
        return ((("no birth certificate received yet" if device.birth is None else "serves no model", "faint"),),)
    lines: list[Line] = []
    for state in device.birth.models:
        lines += [*_selected(state, width, glyphs), ()]
    return tuple(lines[:-1])


def _selected(state: ModelState, width: int, glyphs: Glyphs) -> Iterable[Line]:
    ink = "good" if state.state == "ready" else "warn"
    yield right_align(
        clip(((state.model, "model"), (f"  {glyphs.check} ", "good"), (state.artifact, "strong")), width - 8, glyphs),
        ((state.state, ink),),
        width,
    )
    how = "  ".join(part for part in (state.precision, state.runtime, state.settings) if part)
    yield clip(((how, "faint"),), width, glyphs)
    known = (("p50", state.benched_p50_ms), ("p99", state.benched_p99_ms))
    figures = [f"{name} {draw.ms(value, glyphs)} ms" for name, value in known if value is not None]
    if figures:
        yield clip((("benched  ", "faint"), ("  ".join(figures), "text")), width, glyphs)
    if state.latency_limit_ms is not None:
        yield clip((("limit    ", "faint"), (f"{draw.ms(state.latency_limit_ms, glyphs)} ms", "limit")), width, glyphs)
    if state.accuracy_ratio is not None:
        accuracy = f"{state.accuracy_ratio * 100:.1f} % of the standard"
        yield clip((("accuracy ", "faint"), (accuracy, "text")), width, glyphs)
    for reason in state.reasons:
        yield from _bullet(reason, glyphs.dot, "text", width, glyphs)
    for candidate, why in state.rejections[:REJECTIONS]:
        yield from _bullet(f"{candidate}: {why}", glyphs.cross, "bad", width, glyphs)
    if (more := len(state.rejections) - REJECTIONS) > 0:
        yield ((f"  and {more} more; edgekit select --explain tells all", "faint"),)


def _bullet(text: str, mark: str, ink: str, width: int, glyphs: Glyphs) -> Iterable[Line]:
    for i, part in enumerate(draw.wrap(text, max(1, width - 2), glyphs)):
        yield ((f"{mark} " if i == 0 else "  ", ink), (part, "text" if ink == "text" else "faint"))


def facts(device: Device, width: int, glyphs: Glyphs) -> Lines:
    """Versions, then the facts that probe found, one a line."""
    if device.birth is None:
        return ((("no birth certificate received yet", "faint"),),)
    pairs = [*device.birth.versions.items(), *flatten(device.birth.facts)]
    if not pairs:
        return ((("the device told no facts", "faint"),),)
    margin = min(24, max(len(key) for key, _ in pairs[:FACT_LINES]) + 2)
    lines = [
        clip(((draw.fit(k, margin - 1, glyphs) + " ", "faint"), (v, "text")), width, glyphs)
        for k, v in pairs[:FACT_LINES]
    ]
    if len(pairs) > FACT_LINES:
        lines.append(((f"and {len(pairs) - FACT_LINES} more", "faint"),))
    return tuple(lines)


def flatten(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """(name, text) of every fact that is known; nested names joined by blanks, units of the suffix applied."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{name} {key}".strip())
    elif isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            for i, item in enumerate(value):
                yield from flatten(item, f"{name} {i}")
        elif value:
            yield name, ", ".join(str(item) for item in value)
    elif value is not None and value != "":
        yield _unit(name, value)


def _unit(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return name.replace("_", " "), "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return name[: -len("_bytes")].replace("_", " "), draw.bytes_(int(value), draw.UNICODE)
    return name.replace("_", " "), str(value)


def events(
    recent: Sequence[FleetEvent], width: int, height: int, glyphs: Glyphs, now_s: float, *, named: bool
) -> Lines:
    """Newest first; with the device's name where events of several stand together."""
    if not recent:
        return ((("nothing has happened yet", "faint"),),)
    lines = []
    for one in list(reversed(recent))[: height or len(recent)]:
        name: Line = ((draw.fit(one.device, 16, glyphs) + " ", "text"),) if named else ()
        kind = draw.fit(one.event.kind, 10, glyphs)
        spans = ((draw.age(now_s - one.received_s).rjust(4) + " ", "faint"), *name,
                 (kind + " ", EVENT_INKS.get(one.event.kind, "text")), (one.event.text, "text"))  # fmt: skip
        lines.append(clip(spans, width, glyphs))
    return tuple(lines)
