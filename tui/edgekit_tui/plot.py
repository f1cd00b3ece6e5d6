"""Lines over time, drawn with braille dots (2 x 4 a cell) or, without Unicode, one character a cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"Braille dot bits by column and row in the cell; source: Unicode chart U+2800."

LEAST_VALUE = 1e-12
"Of anything plotted; what is less is nothing, and a power of ten of it may be none."
LEAST_SPAN_S = 60.0
"The first points of a plot stand at its right edge instead of being stretched over it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points (Unix time in s, value), oldest first; None breaks the line."""

    name: str
    ink: str
    points: tuple[tuple[float, float | None], ...]
    mark: str = "*"
    "Drawn where there is no Unicode."


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plot's area in cells and what its edges mean."""

    columns: int
    rows: int
    start_s: float
    end_s: float
    top: float
    bottom: float = 0.0
    "Above zero for a logarithmic scale."

    def dot_x(self, at_s: float) -> float:
        return (at_s - self.start_s) / (self.end_s - self.start_s) * (self.columns * 2 - 1)

    def dot_y(self, value: float) -> float:
        """Dots below the upper edge."""
        part = value / self.top
        if self.bottom:
            part = math.log(max(value, self.bottom) / self.bottom) / math.log(self.top / self.bottom)
        return (1 - part) * (self.rows * 4 - 1)


def plot(
    series: Sequence[Series],
    width: int,
    height: int,
    *,
    glyphs: Glyphs,
    limit: float | None = None,
    log_scale: bool = False,
) -> Lines:
    """The series in `width` x `height` cells, from zero up or logarithmic, with a scale on the left and ages below.

    Later series are drawn over earlier ones; `limit` is a dashed line where it fits the scale.
    """
    known = [(at, value) for one in series for at, value in one.points if value is not None]
    if not known or width < 16 or height < 4:
        return ((("" if known else "no measurements yet", "faint"),),)
    highest = max(value for _, value in known)
    shown_limit = limit if limit is not None and limit <= highest * 4 else None
    top = nice_above(max(highest, shown_limit or 0.0) * 1.05)
    positive = [value for _, value in known if value > 0]
    bottom = nice_below(min([*positive, top / 2]) / 1.05) if log_scale and positive else 0.0
    labels = [f"{value:.3g}" for value in (top, math.sqrt(top * bottom) if bottom else top / 2, bottom)]
    margin = max(len(label) for label in labels)
    end = max(at for at, _ in known)
    start = min(end - LEAST_SPAN_S, *(at for at, _ in known))
    frame = Frame(columns=width - margin - 2, rows=height - 2, start_s=start, end_s=end, top=top, bottom=bottom)
    cells: dict[tuple[int, int], tuple[int, str, str]] = {}
    for one in series:
        for x, y in _dots(one.points, frame):
            _set(cells, x, y, one)
    limit_row = round(frame.dot_y(shown_limit)) // 4 if shown_limit is not None else None
    lines = [_row(row, cells, frame, labels, margin, limit_row, glyphs) for row in range(frame.rows)]
    return (*lines, _axis(frame, margin, glyphs), _ages(frame, margin))


def legend(series: Iterable[Series], glyphs: Glyphs) -> Line:
    """Names and last values of the series."""
    spans: list[tuple[str, str]] = []
    for one in series:
        last = next((value for _, value in reversed(one.points) if value is not None), None)
        mark = "━━" if glyphs.unicode else one.mark * 2
        spans += [(f"{mark} ", one.ink), (f"{one.name} ", "faint"), (f"{draw.ms(last, glyphs)}  ", one.ink)]
    return tuple(spans)


def nice_above(value: float) -> float:
    """The least of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is not below `value`; 1 for nothing."""
    if not LEAST_VALUE < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * power >= value), 10 * power)


def nice_below(value: float) -> float:
    """The greatest of 1, 2, 5 times a power of ten that is not above `value`, which is above zero."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (1, 2, 5) if step * power <= value or step == 1)


def _dots(points: Sequence[tuple[float, float | None]], frame: Frame) -> Iterable[tuple[int, int]]:
    """Every dot of a line; between neighbours the line is straight and without holes."""
    before: tuple[float, float] | None = None
    for at, value in points:
        if value is None:
            before = None
            continue
        here = (frame.dot_x(at), frame.dot_y(value))
        yield round(here[0]), round(here[1])
        if before is not None:
            steps = max(1, math.ceil(max(abs(here[0] - before[0]), abs(here[1] - before[1]))))
            for step in range(1, steps):
                part = step / steps
                yield (
                    round(before[0] + (here[0] - before[0]) * part),
                    round(before[1] + (here[1] - before[1]) * part),
                )
        before = here


def _set(cells: dict[tuple[int, int], tuple[int, str, str]], x: int, y: int, series: Series) -> None:
    bits = cells.get((y // 4, x // 2), (0, "", ""))[0]
    cells[y // 4, x // 2] = (bits | DOTS[x % 2][y % 4], series.ink, series.mark)


def _row(
    row: int,
    cells: dict[tuple[int, int], tuple[int, str, str]],
    frame: Frame,
    labels: Sequence[str],
    margin: int,
    limit_row: int | None,
    glyphs: Glyphs,
) -> Line:
    at = {0: labels[0], (frame.rows - 1) // 2: labels[1], frame.rows - 1: labels[2]}
    label = at.get(row, "")
    spans = [(label.rjust(margin) + " ", "axis"), (glyphs.left_axis if label else glyphs.pipe, "axis")]
    for column in range(frame.columns):
        bits, ink, mark = cells.get((row, column), (0, "", ""))
        if bits:
            spans.append((chr(0x2800 + bits) if glyphs.unicode else mark, ink))
        elif row == limit_row:
            spans.append((glyphs.limit, "limit"))
        else:
            spans.append((" ", "axis"))
    return tuple(_joined(spans))


def _joined(spans: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Neighbours of the same ink as one span: fewer escape sequences to send."""
    text, ink = "", ""
    for next_text, next_ink in spans:
        if next_ink == ink:
            text += next_text
            continue
        if text:
            yield text, ink
        text, ink = next_text, next_ink
    yield text, ink


def _axis(frame: Frame, margin: int, glyphs: Glyphs) -> Line:
    rule = [glyphs.rule] * frame.columns
    for part in (0, frame.columns // 2, frame.columns - 1):
        rule[part] = glyphs.tick
    return ((" " * (margin + 1) + glyphs.corner + "".join(rule), "axis"),)


def _ages(frame: Frame, margin: int) -> Line:
    span = frame.end_s - frame.start_s
    left, middle, right = f"-{_span(span)}", f"-{_span(span / 2)}", "last"
    half = frame.columns // 2
    text = left.ljust(max(len(left) + 1, half - len(middle) // 2)) + middle
    text = text.ljust(max(len(text) + 1, frame.columns - len(right))) + right
    return ((" " * (margin + 2) + text[: frame.columns], "axis"),)


def _span(seconds: float) -> str:
    """A length of time, rounded where that changes little: an axis wants 10m, not 9.9m, but 1.7m is not 2m."""
    unit_s, unit = (1, "s") if seconds < 100 else (60, "m") if seconds < 6000 else (3600, "h")
    value = seconds / unit_s
    return f"{round(value)}{unit}" if abs(value - round(value)) <= 0.05 * value else f"{value:.1f}{unit}"
