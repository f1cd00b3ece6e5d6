"""What the overview says in words: who is worst and why, and which versions are in the field. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgekit.fleet import Fleet
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip
from edgekit_tui.rows import LIVE, Row, RowKey

FULL_RATIO, FAILING_RATIO = 0.92, 0.05


@dataclass(frozen=True, slots=True)
class Offender:
    """A row with what is wrong with it."""

    row: Row
    weight: float
    "The worse, the more."
    why: str
    ink: str


def offenders(rows: Iterable[Row], now_s: float, glyphs: Glyphs, *, most: int = 200) -> list[Offender]:
    """The rows that something is wrong with, worst first; a device that is gone counts once."""
    found: list[Offender] = []
    gone: set[tuple[str, str]] = set()
    for row in rows:
        if row.state in ("offline", "stale"):
            if (row.site, row.device) in gone:
                continue
            gone.add((row.site, row.device))
        one = _offence(row, now_s, glyphs)
        if one is not None:
            found.append(one)
    found.sort(key=lambda one: (-one.weight, one.row.key))
    return found[:most]


def _offence(row: Row, now_s: float, glyphs: Glyphs) -> Offender | None:
    """The worst that is wrong with a row; None for a healthy one."""
    over = row.p99_ms / row.limit_ms if row.p99_ms is not None and row.limit_ms else 0.0
    if row.state == "offline":
        silent = f" for {draw.age(now_s - row.last_seen_s)}" if row.last_seen_s else ""
        return Offender(row, 100.0, f"offline{silent}{': ' if row.reason else ''}{row.reason}", "bad")
    if row.state == "stale":
        return Offender(row, 90.0, f"silent for {draw.age(now_s - row.last_seen_s)}", "bad")
    if over > 1:
        hot = ", throttled" if row.throttled else ""
        p99, limit = draw.ms(row.p99_ms, glyphs), draw.ms(row.limit_ms, glyphs)
        return Offender(row, 50.0 + min(over, 30.0), f"p99 {p99} ms, limit {limit}{hot}", "bad")
    if (row.failed_ratio or 0.0) >= FAILING_RATIO:
        return Offender(row, 40.0, f"{(row.failed_ratio or 0) * 100:.0f}% of requests fail", "bad")
    if row.throttled:
        heat = f" at {row.temperature_c:.0f} degrees" if row.temperature_c is not None else ""
        return Offender(row, 30.0, f"throttled{heat}", "warn")
    if row.dropped:
        return Offender(row, 25.0, f"{draw.count(row.dropped)} messages dropped", "warn")
    if (row.memory_ratio or 0.0) >= FULL_RATIO:
        return Offender(row, 20.0, f"memory {(row.memory_ratio or 0) * 100:.0f}% used", "warn")
    if row.state != "online":
        return Offender(row, 10.0, row.state, "warn")
    return None


def offender_lines(found: Sequence[Offender], width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[RowKey, Line]]]:
    """A header, and a line for each."""
    name = min(22, max(10, width // 4))
    model = min(18, max(0, width // 5))
    items: list[tuple[RowKey, Line]] = []
    for one in found:
        row = one.row
        line: Line = (
            (draw.state_glyph(row.state, glyphs) + " ", draw.state_ink(row.state)),
            (draw.fit(row.device, name, glyphs) + "  ", "strong"),
            (draw.fit(row.model, model, glyphs) + "  ", "model"),
            (draw.fit(one.why, max(0, width - name - model - 6), glyphs), one.ink),
        )
        items.append((row.key, line))
    header = f"  {draw.fit('device', name, glyphs)}  {draw.fit('model', model, glyphs)}  what is wrong"
    return ((header[:width], "head"),), items


def versions(fleet: Fleet, rows: Sequence[Row], width: int, height: int, glyphs: Glyphs) -> Lines:
    """Artifacts, boards and software in the field: how many devices have each, as bars."""
    live = [device for device in fleet.devices.values() if device.presence in LIVE and device.birth]
    artifacts = Counter(row.artifact for row in rows if row.artifact and row.state not in ("offline", "stale"))
    software: Counter[str] = Counter()
    for device in live:
        assert device.birth is not None
        software.update(f"{name} {version}" for name, version in device.birth.versions.items())
    boards = Counter(device.birth.board for device in live if device.birth)
    parts = (("artifacts", artifacts), ("boards", boards), ("software", software))
    shown = _rooms([len(counted) for _, counted in parts], height - len(parts) if height else 15)
    lines: list[Line] = []
    for (title, counted), room in zip(parts, shown, strict=True):
        more = len(counted) - room
        lines.append(((title, "section"), (f"  {more} more not shown" if more > 0 else "", "faint")))
        lines += [_share(name, n, max(counted.values()), width, glyphs) for name, n in counted.most_common(room)]
    return tuple(clip(line, width, glyphs) for line in (lines[:height] if height else lines))


def _rooms(wanted: Sequence[int], height: int) -> list[int]:
    """How many lines each part gets: one after the other in turn, none more than it wants."""
    given = [0] * len(wanted)
    while sum(given) < height and given != list(wanted):
        hungry = [i for i, n in enumerate(wanted) if given[i] < n]
        given[min(hungry, key=lambda i: given[i])] += 1
    return given


def _share(name: str, n: int, most: int, width: int, glyphs: Glyphs) -> Line:
    bar = max(0, min(16, width - 28))
    text = width - bar - 8
    filled = max(1, round(n / most * bar)) if bar else 0
    return (
        (draw.fit(name, text, glyphs) + " ", "text"),
        (draw.number(n, glyphs).rjust(5) + " ", "strong"),
        (glyphs.full * filled, "hush"),
    )
