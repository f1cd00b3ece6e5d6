"""The panels of the device screen. Pure: a device in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgekit.fleet import Device, FleetEvent
from edgekit.telemetry.messages import Histogram, LaneMetrics, ModelState
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line
from edgekit_tui.ink import clip, right_align
from edgekit_tui.plot import Series, legend, plot
from edgekit_tui.rows import Row, percentile

EVENT_INKS: Mapping[str, str] = {
    "started": "good", "stopping": "warn", "selection": "accent", "throttled": "warn", "memory": "bad",
    "rollback": "bad", "error": "bad",
}  # fmt: skip
LANE_TITLES = ("model", "lane", "req/s", "err", "rej", "hits", "queue p50", "p99", "infer p50", "p99")
LANE_WIDTHS = (16, 9, 6, 5, 5, 5, 9, 7, 9, 7)
FACT_LINES = 40


def heading(row: Row, device: Device, width: int, glyphs: Glyphs, now_s: float) -> tuple[Line, ...]:
    """Who it is and how it is, in two lines."""
    ink = draw.state_ink(row.state)
    seen = f"seen {draw.age(now_s - device.last_seen_s)} ago" if now_s - device.last_seen_s >= 1 else "seen now"
    left: Line = ((f"{draw.state_glyph(row.state, glyphs)} {row.state}", ink), ("  ", "text"), (row.device, "strong"))
    left = clip((*left, (f"  {row.site}", "faint")), max(1, width - len(seen) - 1), glyphs)
    missing = f"{draw.count(device.gaps)} missing" if device.gaps else "none missing"
    windows = f"epoch {device.epoch}  {draw.count(device.windows)} windows, {missing}"
    board: Line = clip(((row.board or "board not told yet", "text"),), max(1, width - len(windows) - 1), glyphs)
    if device.reason:
        board = clip(((device.reason, "warn"), ("  ", "text"), *board), width, glyphs)
    second = right_align(board, ((windows, "warn" if device.gaps else "faint"),), width)
    return right_align(left, ((seen, "faint"),), width), second


def latency_plot(device: Device, limit_ms: float | None, width: int, height: int, glyphs: Glyphs) -> tuple[Line, ...]:
    """p50 and p99 of each window over time, with the limit the model must keep."""
    series = (
        Series(name="p99", ink="p99", points=tuple((p.at_s, p.p99_ms) for p in device.history), mark="*"),
        Series(name="p50", ink="p50", points=tuple((p.at_s, p.p50_ms) for p in device.history), mark="o"),
    )
    all_time = device.latency
    spans = list(legend(series, glyphs))
    if limit_ms is not None:
        spans += [(glyphs.limit * 2 + " ", "limit"), ("limit ", "faint"), (draw.ms(limit_ms, glyphs), "limit")]
    count = f"n {draw.count(all_time.count)}" if all_time else "n 0"
    top = right_align(tuple(spans), ((count, "faint"),), width)
    return (top, *plot(series, width, height - 1, glyphs=glyphs, limit=limit_ms))


def lanes(device: Device, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
    """The last window of each model and lane."""
    metrics = device.last_metrics
    if metrics is None:
        return ((("no window received yet", "faint"),),)
    if not metrics.lanes:
        return ((("no requests in the last window", "faint"),),)
    first = max(6, min(28, width - sum(LANE_WIDTHS[1:]) - len(LANE_WIDTHS)))
    widths = (first, *LANE_WIDTHS[1:])
    head = tuple(
        (draw.fit(t, w, glyphs, right=i > 1) + " ", "head") for i, (t, w) in enumerate(zip(LANE_TITLES, widths))
    )
    return (head, *(_lane(lane, metrics.window_ms, widths, glyphs) for lane in metrics.lanes))


def _lane(lane: LaneMetrics, window_ms: int, widths: Sequence[int], glyphs: Glyphs) -> Line:
    def part(histogram: Histogram | None, q: float) -> str:
        return draw.ms(percentile(histogram, q), glyphs)

    cells = (
        (lane.model, "model"), (lane.lane, "text"),
        (draw.number(lane.requests * 1000 / window_ms if window_ms > 0 else None, glyphs), "text"),
        (draw.number(lane.errors, glyphs), "bad" if lane.errors else "faint"),
        (draw.number(lane.rejected, glyphs), "warn" if lane.rejected else "faint"),
        (draw.number(lane.cache_hits, glyphs), "text" if lane.cache_hits else "faint"),
        (part(lane.queue_ms, 0.5), "p50"), (part(lane.queue_ms, 0.99), "p99"),
        (part(lane.infer_ms, 0.5), "p50"), (part(lane.infer_ms, 0.99), "p99"),
    )  # fmt: skip
    return tuple((draw.fit(t, w, glyphs, right=i > 1) + " ", ink) for i, ((t, ink), w) in enumerate(zip(cells, widths)))


def system(device: Device, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
    """Memory, temperature, processor and the state of the telemetry itself."""
    metrics = device.last_metrics
    if metrics is None:
        return ((("no window received yet", "faint"),),)
    now, outbox = metrics.system, metrics.outbox
    trend = max(0, width - 44)
    lines: list[Line] = []
    total, available = now.memory_total_bytes, now.memory_available_bytes
    if total and available is not None:
        used = (total - available) / total
        text = f" {draw.bytes_(total - available, glyphs)} of {draw.bytes_(total, glyphs)}"
        lines.append((("memory  ", "faint"), *draw.bar(used, 14, glyphs, draw.load_ink(used)), (text.ljust(20), "text"),
                      (draw.spark([_used(total, p.memory_available_bytes) for p in device.history], trend, glyphs), "load")))  # fmt: skip
    if now.temperature_c is not None:
        heat = draw.heat_ink(now.temperature_c)
        degrees = f" {now.temperature_c:.1f} {'°C' if glyphs.unicode else 'C'}" + (
            " throttled" if now.throttled else ""
        )
        lines.append((("heat    ", "faint"), *draw.bar(now.temperature_c / 100, 14, glyphs, heat), (degrees.ljust(20), heat),
                      (draw.spark([p.temperature_c for p in device.history], trend, glyphs), heat)))  # fmt: skip
    if now.cpu_percent is not None:
        ratio = now.cpu_percent / 100
        lines.append(
            (
                ("cpu     ", "faint"),
                *draw.bar(ratio, 14, glyphs, draw.load_ink(ratio)),
                (f" {now.cpu_percent:.0f} %", "text"),
            )
        )
    more: list[tuple[str, str]] = []
    if now.power_mw is not None:
        more += [("power ", "faint"), (f"{now.power_mw / 1000:.1f} W  ", "text")]
    if now.rss_bytes is not None:
        more += [("daemon ", "faint"), (f"{draw.bytes_(now.rss_bytes, glyphs)}  ", "text")]
    dropped = sum(outbox.dropped.values())
    more += [("outbox ", "faint"), (f"{outbox.depth} waiting", "text" if outbox.depth < 10 else "warn")]
    if dropped:
        why = ", ".join(f"{reason} {n}" for reason, n in outbox.dropped.items())
        more.append((f", {draw.count(dropped)} dropped ({why})", "bad"))
    return tuple(clip(line, width, glyphs) for line in (*lines, tuple(more)))


def _used(total: int, available: int | None) -> float | None:
    return None if available is None else float(total - available)


def selection(device: Device, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
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
        clip(((state.model, "model"), (f"  {state.artifact}", "strong")), width - 8, glyphs),
        ((state.state, ink),),
        width,
    )
    how = "  ".join(part for part in (state.precision, state.runtime, state.settings) if part)
    yield clip(((how, "faint"),), width, glyphs)
    figures = [f"{name} {draw.ms(value, glyphs)} ms" for name, value in
               (("p50", state.benched_p50_ms), ("p99", state.benched_p99_ms), ("limit", state.latency_limit_ms)) if value is not None]  # fmt: skip
    if state.accuracy_ratio is not None:
        figures.append(f"accuracy {state.accuracy_ratio:.1%}")
    if figures:
        yield clip((("benched  ", "faint"), ("  ".join(figures), "text")), width, glyphs)
    for reason in state.reasons:
        yield from _bullet(reason, glyphs.check, "good", width, glyphs)
    for candidate, why in state.rejections:
        yield from _bullet(f"{candidate}: {why}", glyphs.cross, "bad", width, glyphs)


def _bullet(text: str, mark: str, ink: str, width: int, glyphs: Glyphs) -> Iterable[Line]:
    for i, part in enumerate(draw.wrap(text, max(1, width - 2), glyphs)):
        yield ((f"{mark} " if i == 0 else "  ", ink), (part, "text" if ink == "good" else "faint"))


def facts(device: Device, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
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


def events(recent: Sequence[FleetEvent], width: int, height: int, glyphs: Glyphs, now_s: float, *, named: bool) -> tuple[
    Line, ...
]:  # fmt: skip
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
