"""The same model over the fleet: merged by artifact and by board, standard against Flash side by side. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edgekit.telemetry.histogram import merge_all
from edgekit.telemetry.messages import Histogram
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.rows import percentile
from edgekit_tui.totals import Cell

FULL_PRECISIONS = ("float32", "fp32", "float", "full")
STANDARD, FLASH = "standard", "flash"
WIDTHS = {"devices": 8, "p50": 8, "p99": 8, "n": 7, "req/s": 7, "over": 5}
"Columns after the name, in cells."


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cells taken together; percentiles come from the merged histogram of all their samples."""

    name: str
    cells: tuple[Cell, ...]
    latency: Histogram | None

    @property
    def p50_ms(self) -> float | None:
        return percentile(self.latency, 0.50)

    @property
    def p99_ms(self) -> float | None:
        return percentile(self.latency, 0.99)

    @property
    def samples(self) -> int:
        return self.latency.count if self.latency else 0

    @property
    def qps(self) -> float:
        return sum(cell.qps for cell in self.cells)

    @property
    def devices(self) -> int:
        """Of one model, which is once on a device."""
        return sum(cell.rows for cell in self.cells)

    @property
    def over(self) -> int:
        """Rows over their limit."""
        return sum(cell.over for cell in self.cells)


def group(name: str, cells: Iterable[Cell]) -> Group:
    """These cells as one."""
    kept = tuple(cells)
    return Group(name=name, cells=kept, latency=merge_all(cell.latency for cell in kept if cell.latency is not None))


def groups(cells: Iterable[Cell], by: Callable[[Cell], str]) -> list[Group]:
    """One group for each value of `by`, by name; cells for which it is empty are left out."""
    parts: dict[str, list[Cell]] = {}
    for cell in cells:
        if name := by(cell):
            parts.setdefault(name, []).append(cell)
    return [group(name, parts[name]) for name in sorted(parts)]


def kind_of(cell: Cell) -> str:
    """Standard or flash; empty while the precision is not told."""
    if not cell.precision:
        return ""
    return STANDARD if cell.precision.lower() in FULL_PRECISIONS else FLASH


def table(title: str, found: Sequence[Group], width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[str, Line]]]:
    """A header and a line for each group."""
    columns = dict(WIDTHS)
    while columns and width - sum(columns.values()) < 18:
        columns.popitem()
    name = width - sum(columns.values())
    header: Line = ((draw.fit(title, name, glyphs), "head"),
                    *((text.rjust(cells), "head") for text, cells in columns.items()))  # fmt: skip
    return header, [(one.name, _line(one, name, columns, glyphs)) for one in found]


def _line(one: Group, name: int, columns: dict[str, int], glyphs: Glyphs) -> Line:
    values = {
        "devices": (draw.count(one.devices), "text"),
        "p50": (draw.ms(one.p50_ms, glyphs), "p50"),
        "p99": (draw.p99_text(one.p99_ms, one.samples, glyphs), "p99"),
        "n": (draw.number(one.samples, glyphs), "faint"),
        "req/s": (draw.number(one.qps, glyphs), "text"),
        "over": (draw.number(one.over, glyphs) if one.over else glyphs.missing, "bad" if one.over else "faint"),
    }
    cells = tuple((values[key][0].rjust(width), values[key][1]) for key, width in columns.items())
    return ((draw.fit(one.name, name, glyphs), "strong"), *cells)


def plain(title: str, found: Sequence[Group], width: int, glyphs: Glyphs) -> Lines:
    """The table without a cursor."""
    header, items = table(title, found, width, glyphs)
    return (header, *(line for _, line in items))


def side_by_side(cells: Sequence[Cell], width: int, glyphs: Glyphs) -> Lines:
    """Standard against Flash on each board, and over all boards that run both: another mix of boards is no gain."""
    name = max(14, width - 56)
    head = f"{draw.fit('board', name, glyphs)}{'standard p50/p99':>20}{'flash p50/p99':>20}{'flash is':>15}"
    lines: list[Line] = [((head[:width], "head"),)]
    gains: list[float] = []
    for board in groups(cells, lambda cell: cell.board):
        kinds = {one.name: one for one in groups(board.cells, kind_of)}
        standard, flash = kinds.get(STANDARD), kinds.get(FLASH)
        gain = _gain(standard, flash)
        gains += [gain] if gain is not None else []
        lines.append((
            (draw.fit(board.name, name, glyphs), "strong"), (_both(standard, glyphs).rjust(20), "p50"),
            (_both(flash, glyphs).rjust(20), "p99"), _verdict(gain),
        ))  # fmt: skip
    mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None
    boards = f"geometric mean of {len(gains)} board{'' if len(gains) == 1 else 's'} that run both"
    return (*lines, ((draw.fit(boards, name + 40, glyphs), "faint"), _verdict(mean)))


def _both(one: Group | None, glyphs: Glyphs) -> str:
    if one is None or not one.samples:
        return glyphs.missing
    return f"{draw.ms(one.p50_ms, glyphs)}/{draw.p99_text(one.p99_ms, one.samples, glyphs)} n{one.devices}"


def _gain(standard: Group | None, flash: Group | None) -> float | None:
    """How many times faster Flash is, by the median; None without both."""
    a = standard.p50_ms if standard else None
    b = flash.p50_ms if flash else None
    return a / b if a and b else None


def _verdict(gain: float | None) -> tuple[str, str]:
    if gain is None:
        return "no comparison".rjust(15), "faint"
    if gain >= 1.02:
        return f"{_times(gain)} faster".rjust(15), "good"
    return (f"{_times(1 / gain)} slower".rjust(15), "bad") if gain <= 1 / 1.02 else ("the same".rjust(15), "text")


def _times(gain: float) -> str:
    """As many figures as it takes not to read as nothing."""
    return f"{gain:.1f}x" if gain >= 1.05 else f"{gain:.2f}x"
