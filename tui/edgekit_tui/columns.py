"""The columns of the fleet table: how each is drawn, sorted, and which give way when the screen is narrow. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from rich.cells import cell_len

from edgekit.ships import Ships
from edgekit.telemetry.desired import Step
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line
from edgekit_tui.rows import Row
from edgekit_tui.standing import BY_WORD, STEPS, Standing, mark, words

NARROW = 96
"Below this width columns stand one blank apart, else two."
DRAWN_NAME_CELLS = 40
"A name may be 500 characters; a column never asks for more than this."


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """What drawing a cell needs besides the row."""

    glyphs: Glyphs
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. `sort` gives None for a row that has no such value: those stay last in either direction."""

    id: str
    title: str
    key: str
    "The key that sorts by it."
    sort: Callable[[Row], str | float | None]
    draw: Callable[[Row, int, Pen], Line]
    text: Callable[[Row], str] | None = None
    "Set for the columns that widen to their content."
    least: int
    most: int
    priority: int
    "0 is dropped last."
    right: bool = False
    numeric: bool = False
    "Sorts from high to low at first."


@cache
def columns() -> tuple[Column, ...]:
    """All columns, from left to right."""
    return (
        _named("state", "state", "s", lambda row: row.state, least=11, most=11, priority=1, draw=_state,
               sort=lambda row: draw.SEVERITY.get(row.state, 4)),
        _named("device", "device", "d", lambda row: row.device, least=13, most=DRAWN_NAME_CELLS, priority=0,
               ink="strong"),
        _named("site", "site", "i", lambda row: row.site, least=7, most=20, priority=12),
        _named("board", "board", "b", lambda row: row.board, least=19, most=30, priority=11),
        _named("model", "model", "m", lambda row: row.model, least=14, most=28, priority=3, ink="model"),
        _named("artifact", "artifact", "a", lambda row: row.artifact, least=15, most=30, priority=7),
        _named("release", "release", "e", _release_text, least=11, most=30, priority=8, draw=_release,
               sort=lambda row: natural(row.release) or None),
        Column(id="p50", title="p50", key="5", sort=lambda row: row.p50_ms, draw=_p50, least=6, most=6,
               priority=5, right=True, numeric=True),
        Column(id="p99", title="p99", key="9", sort=lambda row: row.p99_ms, draw=_p99, least=7, most=7,
               priority=2, right=True, numeric=True),
        Column(id="trend", title="trend", key="t", sort=lambda row: row.trend_ratio, draw=_trend, least=8, most=72,
               priority=6, numeric=True),
        Column(id="qps", title="req/s", key="r", sort=lambda row: row.qps, draw=_qps, least=5, most=5, priority=5,
               right=True, numeric=True),
        Column(id="fail", title="fail", key="f", sort=lambda row: row.failed_ratio, draw=_fail, least=5, most=5,
               priority=13, right=True, numeric=True),
        Column(id="memory", title="memory", key="o", sort=lambda row: row.memory_ratio, draw=_memory, least=11, most=18,
               priority=11, numeric=True),
        Column(id="temp", title="temp", key="p", sort=lambda row: row.temperature_c, draw=_temp, least=5, most=5,
               priority=9, right=True, numeric=True),
        Column(id="seen", title="seen", key="n", sort=lambda row: row.last_seen_s, draw=_seen, least=4, most=4,
               priority=4, right=True, numeric=True),
    )  # fmt: skip


def columns_for(ships: Ships) -> tuple[Column, ...]:
    """All columns, that of the releases only where a device reports one."""
    told = any(ship.running for ship in ships.values())
    return tuple(column for column in columns() if told or column.id != "release")


def arrange(every: Sequence[Column], width: int, wanted: dict[str, int]) -> tuple[tuple[Column, int], ...]:
    """The columns that fit into `width` cells and their widths; `wanted` holds the widest text by column id.

    Columns go by priority until the least widths fit; what is left is shared, one cell a turn, in order of priority:
    among the texts until they stand in full, then among the plots and bars.
    """
    kept, gap = list(every), gap_of(width)
    while len(kept) > 1 and _least(kept, gap) > width:
        kept.remove(max(kept, key=lambda column: column.priority))
    widths = {column.id: min(column.least, max(width, 0)) for column in kept}
    spare = width - _least(kept, gap)
    by_priority = sorted(kept, key=lambda column: column.priority)
    for is_text in (True, False):
        growing = [column for column in by_priority if (column.text is not None) is is_text]
        spare = _grow(widths, growing, spare, wanted)
    return tuple((column, widths[column.id]) for column in kept)


def _grow(widths: dict[str, int], growing: Sequence[Column], spare: int, wanted: dict[str, int]) -> int:
    """Share `spare` cells among columns, none beyond what it wants; what is left over."""
    while spare > 0:
        grown = [c for c in growing if widths[c.id] < min(c.most, wanted.get(c.id, c.most))]
        if not grown:
            break
        for column in grown[:spare]:
            widths[column.id] += 1
        spare -= len(grown[:spare])
    return spare


def widest(every: Sequence[Column], rows: Sequence[Row]) -> dict[str, int]:
    """The widest text of each text column over `rows`, its title included."""
    return {
        column.id: max((min(cell_len(column.text(row)), column.most) for row in rows), default=column.least)
        for column in every
        if column.text is not None
    }


def sort_rows(rows: Sequence[Row], column: Column, *, descending: bool) -> list[Row]:
    """Rows by one column, rows without a value last, equals in the order they came in."""
    # indices and not pairs: ten thousand pairs a second would keep the garbage collector busy
    values = [column.sort(row) for row in rows]
    present = [i for i, value in enumerate(values) if value is not None]
    present.sort(key=values.__getitem__, reverse=descending)  # type: ignore[arg-type]
    if len(present) == len(rows):
        return [rows[i] for i in present]
    return [rows[i] for i in present] + [row for row, value in zip(rows, values, strict=True) if value is None]


def gap_of(width: int) -> int:
    """Blank cells between columns in a table of this width."""
    return 1 if width < NARROW else 2


def _least(kept: Sequence[Column], gap: int) -> int:
    return sum(column.least for column in kept) + gap * (len(kept) - 1)


def _named(
    id: str,
    title: str,
    key: str,
    text: Callable[[Row], str],
    *,
    least: int,
    most: int,
    priority: int,
    ink: str = "text",
    draw: Callable[[Row, int, Pen], Line] | None = None,
    sort: Callable[[Row], str | float | None] | None = None,
) -> Column:
    def plain(row: Row, _width: int, pen: Pen) -> Line:
        return ((text(row) or pen.glyphs.missing, ink if text(row) else "faint"),)

    return Column(
        id=id, title=title, key=key, text=text, least=least, most=most, priority=priority, draw=draw or plain,
        sort=sort or (lambda row: text(row).casefold() or None),
    )  # fmt: skip


def _state(row: Row, _width: int, pen: Pen) -> Line:
    ink = draw.state_ink(row.state)
    return ((f"{draw.state_glyph(row.state, pen.glyphs)} {row.state}", ink),)


@lru_cache(maxsize=4096)
def natural(text: str) -> str:
    """A key that sorts 2.9 before 2.10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(16), text.casefold())


def _release_text(row: Row) -> str:
    how = "" if _standing(row).is_settled else words(row.update, row.update_fetched_ratio)
    return "  " + f"{row.release} {how}".strip()


def _release(row: Row, width: int, pen: Pen) -> Line:
    """What runs, and how far an update is, in fewer words where there is less room; the mark tells it in any case."""
    now, told = _standing(row), _release_text(row)
    if not told.strip():
        return ((f"  {pen.glyphs.missing}", "faint"),)
    if cell_len(told) > width and row.update_fetched_ratio is not None:
        told = f"  {row.release} {row.update_fetched_ratio * 100:.0f}%"
    if cell_len(told) > width and row.release:
        told = f"  {row.release}"
    return ((mark(now, pen.glyphs) + told[1:], "text" if now.is_settled else now.ink),)


def _standing(row: Row) -> Standing:
    return BY_WORD.get(row.update, STEPS[Step.IDLE])


def _p50(row: Row, _width: int, pen: Pen) -> Line:
    return _latency(row.p50_ms, row.sample_count, draw.SUPPORTED_P50, "p50", pen)


def _p99(row: Row, _width: int, pen: Pen) -> Line:
    if row.is_over:
        return (("!" + draw.ms(row.p99_ms, pen.glyphs), "bad"),)
    return _latency(row.p99_ms, row.sample_count, draw.SUPPORTED_P99, "p99", pen)


def _latency(value: float | None, samples: int, needed: int, ink: str, pen: Pen) -> Line:
    """With too few samples behind it a percentile is drawn faint, with a tilde: it is not supported."""
    if value is None:
        return ((pen.glyphs.missing, "faint"),)
    if samples < needed:
        return (("~" + draw.ms(value, pen.glyphs), "faint"),)
    return ((draw.ms(value, pen.glyphs), ink),)


def _trend(row: Row, width: int, pen: Pen) -> Line:
    return (
        (
            draw.spark([point.p99_ms for point in row.history[-width:]], width, pen.glyphs),
            "bad" if row.is_over else "spark",
        ),
    )


def _qps(row: Row, _width: int, pen: Pen) -> Line:
    return ((draw.number(row.qps, pen.glyphs), "text" if row.qps else "faint"),)


def _fail(row: Row, _width: int, pen: Pen) -> Line:
    if not row.failed_ratio:
        return ((pen.glyphs.missing if row.failed_ratio is None else "0%", "faint"),)
    percent = row.failed_ratio * 100
    return ((f"{percent:.0f}%" if percent >= 10 else f"{percent:.1f}%", "bad" if percent >= 1 else "warn"),)


def _memory(row: Row, width: int, pen: Pen) -> Line:
    ratio = row.memory_ratio
    if ratio is None:
        return ((pen.glyphs.missing, "faint"),)
    text = f"{draw.bytes_(row.memory_used_bytes, pen.glyphs)}/{draw.bytes_(row.memory_total_bytes, pen.glyphs)}"
    cells = width - 12
    if cells < 3:
        return ((text, draw.load_ink(ratio) if ratio >= 0.75 else "text"),)
    return (*draw.bar(ratio, cells, pen.glyphs, draw.load_ink(ratio)), (" " + text.rjust(11), "text"))


def _temp(row: Row, _width: int, pen: Pen) -> Line:
    if row.temperature_c is None:
        return ((pen.glyphs.missing, "faint"),)
    return ((f"{row.temperature_c:.0f}" + ("°C" if pen.glyphs.unicode else "C"), draw.heat_ink(row.temperature_c)),)


def _seen(row: Row, _width: int, pen: Pen) -> Line:
    seconds = pen.now_s - row.last_seen_s
    ink = "bad" if row.state in ("stale", "offline") else "warn" if row.state == "late" else "faint"
    return ((draw.age(seconds) if row.last_seen_s else pen.glyphs.missing, ink),)
