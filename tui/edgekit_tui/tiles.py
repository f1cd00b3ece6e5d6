"""The health of the fleet in the lines above the table. Pure: a view in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.feed import Link, View
from edgekit_tui.ink import right_align
from edgekit_tui.places import ALERTS, OVERVIEW, RELEASES, TOP, Route
from edgekit_tui.totals import Totals

ORDER = ("online", "throttled", "late", "stale", "offline")


def states(totals: Totals, glyphs: Glyphs, *, words: bool) -> Line:
    """Counts by state, those that are zero left out; with words when there is room."""
    spans: list[tuple[str, str]] = []
    for state in (*ORDER, *sorted(set(totals.states) - set(ORDER))):
        if n := totals.states.get(state, 0):
            text = f"{draw.state_glyph(state, glyphs)} {n}" + (f" {state}" if words else "")
            spans += [(text, draw.state_ink(state)), ("  ", "text")]
    return tuple(spans[:-1])


def proportions(totals: Totals, width: int, glyphs: Glyphs) -> Line:
    """The states as one stacked bar; every state present has at least one cell."""
    present = [state for state in (*ORDER, *sorted(set(totals.states) - set(ORDER))) if totals.states.get(state)]
    if not present or width < len(present):
        return ()
    cells = {state: max(1, totals.states[state] * width // totals.devices) for state in present}
    while left := width - sum(cells.values()):
        # from the largest, cell by cell: taken from one alone, the rare states could leave it none
        cells[max(cells, key=lambda state: cells[state])] += 1 if left > 0 else -1
    fill = "━" if glyphs.unicode else ""
    return tuple(((fill or draw.state_glyph(s, glyphs)) * cells[s], draw.state_ink(s)) for s in present)


def fleet_tile(view: View, width: int, glyphs: Glyphs) -> Lines:
    """Devices, models, states."""
    totals = view.totals
    head = ((draw.count(totals.devices), "strong"), (" devices" if totals.devices != 1 else " device", "faint"))
    worded = states(totals, glyphs, words=True)
    line = right_align(head, worded, width)
    for shorter in (head, head[:1]):
        if line == head:
            line = right_align(shorter, states(totals, glyphs, words=False), width)
            line = head if line == shorter else line
    return line, proportions(totals, width, glyphs)


def latency_tile(view: View, width: int, glyphs: Glyphs) -> Lines:
    """True fleet percentiles with their sample count, and the p99 trend."""
    totals = view.totals
    supported = totals.sample_count >= draw.SUPPORTED_P99
    p99 = draw.p99_text(totals.p99_ms, totals.sample_count, glyphs)
    left = (
        ("p50 ", "faint"), (draw.ms(totals.p50_ms, glyphs), "p50"),
        ("  p99 ", "faint"), (p99, "p99" if supported else "faint"), (" ms", "faint"),
    )  # fmt: skip
    line = right_align(left, ((f"n {draw.number(totals.sample_count, glyphs)}", "faint"),), width)
    return line, ((draw.spark([point.p99_ms for point in view.trend], width, glyphs), "spark"),)


def throughput_tile(view: View, width: int, glyphs: Glyphs) -> Lines:
    """Requests a second over the live devices, failures, and the trend."""
    totals = view.totals
    left = ((draw.number(totals.qps, glyphs), "strong"), (" req/s", "faint"))
    failed = (
        ((f"{draw.number(totals.failed, glyphs)} failed", "bad"),) if totals.failed else (("none failed", "faint"),)
    )
    return (
        right_align(left, failed, width),
        ((draw.spark([point.qps for point in view.trend], width, glyphs), "hush"),),
    )


def broker_tile(view: View, width: int, glyphs: Glyphs, now_s: float) -> Lines:
    """The connection, and how old the data is."""
    first = link_line(view.link, glyphs, now_s)
    if draw.width_of(first) + len(view.link.endpoint) + 1 <= width:
        first = right_align(first, ((view.link.endpoint, "faint"),), width)
    second = data_age(view, now_s)
    totals = view.totals
    lost = (
        (totals.gaps, "windows missing"),
        (view.link.overrun, "not taken in time"),
        (totals.malformed, "unreadable"),
    )
    words = ", ".join(f"{draw.number(n, glyphs)} {what}" for n, what in lost if n)
    short = f"{draw.number(sum(n for n, _ in lost), glyphs)} lost" if words else ""
    line = right_align(second, ((words, "warn"),), width)
    return first, line if line != second else right_align(second, ((short, "warn"),), width)


def link_line(link: Link, glyphs: Glyphs, now_s: float) -> Line:
    """The connection in a few words."""
    if link.connected:
        return ((f"{glyphs.states['online']} ", "good"), ("connected", "good"))
    word = "reconnecting" if link.was_connected else "connecting"
    waited = f" {draw.age(now_s - link.since_s)}" if now_s - link.since_s >= 1 else ""
    mark = glyphs.states["offline"] if link.was_connected else glyphs.other_state
    return ((f"{mark} {word}{glyphs.ellipsis}{waited}", "bad" if link.was_connected else "warn"),)


def data_age(view: View, now_s: float) -> Line:
    """How long ago anything was heard; the silence of a broken link is told apart from that of the devices."""
    if view.totals.last_seen_s is None:
        return (("no data yet", "faint"),)
    seconds = now_s - view.totals.last_seen_s
    if not view.link.connected:
        return ((f"data {draw.age(seconds)} old", "bad"),)
    return (
        ("data ", "faint"),
        (f"{draw.age(seconds)}", "warn" if seconds > 30 else "text"),
        (" old" if seconds >= 1 else "", "faint"),
    )


def p50_span(totals: Totals, glyphs: Glyphs) -> Line:
    return ((draw.ms(totals.p50_ms, glyphs), "p50"),)


def p99_span(totals: Totals, glyphs: Glyphs) -> Line:
    supported = totals.sample_count >= draw.SUPPORTED_P99
    return ((draw.p99_text(totals.p99_ms, totals.sample_count, glyphs), "p99" if supported else "faint"),)


def compact(view: View, width: int, glyphs: Glyphs, now_s: float) -> Lines:
    """Two lines for small screens: states and age of the data; percentiles and throughput."""
    totals = view.totals
    left = ((f" {draw.count(totals.devices)} dev  ", "strong"), *states(totals, glyphs, words=width >= 70))
    right = (*data_age(view, now_s), (" ", "text"))
    (latency, _), (throughput, _) = latency_tile(view, 0, glyphs), throughput_tile(view, 0, glyphs)
    second = (
        (" ", "text"),
        *latency,
        (f"  n {draw.number(totals.sample_count, glyphs)}", "faint"),
        ("   ", "text"),
        *throughput,
    )
    spare = width - draw.width_of(second) - 4
    trend = ((draw.spark([p.p99_ms for p in view.trend], min(spare, 24), glyphs), "spark"), (" ", "text"))
    return right_align(left, right, width), right_align(second, trend, width) if spare > 4 else second


def crumbs(path: Route, view: View | None, width: int, glyphs: Glyphs, now_s: float, alerts: int, moment: str) -> Line:
    """Where one is, with the keys of the places as far as there is room; right of it open alerts and the connection."""
    here = path[0].kind if path else OVERVIEW
    link: Line = (*link_line(view.link, glyphs, now_s), (" ", "text")) if view is not None else ()
    then: Line = ((f" {moment} ", "bad"), ("  ", "text")) if moment else ()
    told: Line = ((f"{draw.number(alerts, glyphs)} alert{'s' if alerts > 1 else ''}", "bad"), ("  ", "text"))
    arrow = " › " if glyphs.unicode else " > "
    below = "".join(arrow + draw.clean(place.title, not glyphs.unicode) for place in path[1:])
    rarer = (RELEASES, ALERTS)
    ways = (
        _tabs(tuple(TOP.items()), here, alerts),
        _tabs(tuple((key, kind) for key, kind in TOP.items() if kind not in rarer or kind == here), here, 0),
        _tabs(tuple((key, kind if kind == here else "") for key, kind in TOP.items()), here, 0),
        ((" edgekit ", "title"), ("  ", "text"), (here, "strong")),
    )
    line: Line = ()
    for i, tabs in enumerate(ways):
        right = (*then, *(told if alerts and i else ()), *link)
        room = min(cell_len(below), width - draw.width_of(tabs) - draw.width_of(right) - 1)
        if room >= min(cell_len(below), 12):
            deeper: Line = ((draw.fit(below, room, glyphs), "accent"),) if below else ()
            return right_align((*tabs, *deeper), right, width)
        spare = min(cell_len(below), max(0, width - draw.width_of(tabs) - draw.width_of(then) - 1))
        line = right_align((*tabs, (draw.fit(below, spare, glyphs), "accent")), then, width)
    return line


def _tabs(places: Sequence[tuple[str, str]], here: str, alerts: int) -> Line:
    """Keys and names of places; the alerts' own count stands at their name."""
    spans: list[tuple[str, str]] = [(" edgekit ", "title")]
    for key, kind in places:
        spans += [
            ("  " if kind else " ", "text"),
            (key, "key"),
            (f" {kind}" if kind else "", "strong" if kind == here else "faint"),
        ]
        if kind == ALERTS and alerts:
            spans.append((f" {alerts}", "bad"))
    return tuple(spans)


def nothing_yet(view: View | None, glyphs: Glyphs, *, filtered: str = "") -> Lines:
    """What stands in the table's place while it has no rows: why, and what to do."""
    if view is not None and view.rows and filtered:
        return (), (("no row matches ", "text"), (filtered, "key")), (("escape shows all again", "faint"),)
    if view is None or not view.link.connected:
        endpoint = view.link.endpoint if view else ""
        why = view.link.state if view else ""
        return (
            (),
            ((f"connecting to broker {endpoint}{glyphs.ellipsis}", "warn"),),
            ((why, "faint"),),
            (),
            (("no broker running? start one with  ", "faint"), ("edgekit broker", "key")),
        )
    return (
        (),
        ((f"connected to {view.link.endpoint}", "good"), (", no devices yet", "text")),
        (),
        (("start one with  ", "faint"), ("edgekit run --config edgekit.toml", "key")),
        (("or see everything at once with  ", "faint"), ("make demo", "key")),
    )


def centred(lines: Sequence[Line], width: int, height: int) -> Lines:
    """Lines in the middle of an area."""
    above = max(0, (height - len(lines)) // 3)
    return (*((),) * above, *(((" " * max(0, (width - draw.width_of(line)) // 2), "text"), *line) for line in lines))
