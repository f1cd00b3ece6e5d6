"""The shape of a latency histogram as bars over a logarithmic axis, with p50 and p99 marked. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgekit.telemetry.messages import Histogram
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.rows import percentile

EIGHTHS = " ▁▂▃▄▅▆▇█"
LEAST_SPAN = 1.6
"A fleet whose samples all lie close together still gets an axis that spans this factor."


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis of `columns` cells."""

    low: float
    high: float
    columns: int

    def position(self, value: float) -> float:
        """Where a value lies, in cells from the left edge; those outside lie on the edge."""
        inside = min(max(value, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low) * self.columns

    def column(self, value: float) -> int:
        """The cell a value falls into."""
        return min(self.columns - 1, int(self.position(value)))

    def value(self, column: float) -> float:
        return self.low * float((self.high / self.low) ** (column / self.columns))


def axis_of(histogram: Histogram, columns: int) -> Axis:
    """From the 0.5th percentile to the largest sample, so that one early outlier does not squeeze the rest."""
    low = max(percentile(histogram, 0.005) or 0.0, histogram.max / 1e5, 1e-6)
    high = max(histogram.max, low * LEAST_SPAN)
    return Axis(low / 1.02, high * 1.02, columns)


def rebin(histogram: Histogram, axis: Axis) -> list[float]:
    """Samples for each cell of the axis; a bucket is spread evenly over the cells, and parts of cells, it covers."""
    counts = [0.0] * axis.columns
    counts[0] += histogram.zero_count
    width = 2.0**-histogram.scale
    for i, n in enumerate(histogram.counts, histogram.offset):
        if not n:
            continue
        left, right = axis.position(2.0 ** (i * width)), axis.position(2.0 ** ((i + 1) * width))
        if right - left < 1e-9:
            counts[min(axis.columns - 1, int(left))] += n
            continue
        for column in range(int(left), min(axis.columns, math.ceil(right))):
            counts[column] += n * (min(right, column + 1) - max(left, column)) / (right - left)
    return counts


def distribution(histogram: Histogram | None, width: int, height: int, glyphs: Glyphs, ink: str = "spark") -> Lines:
    """Bars for the samples at each latency; the cells of p50 and p99 stand in their own inks."""
    if histogram is None or not histogram.count or width < 12 or height < 3:
        return ((("no measurements yet" if width >= 12 else "", "faint"),),)
    axis, rows = axis_of(histogram, width), height - 1
    counts = rebin(histogram, axis)
    # a square root keeps the thin tail visible beside the peak
    top = math.sqrt(max(counts))
    levels = [math.ceil(math.sqrt(n) / top * rows * 8) if n else 0 for n in counts]
    marked = {
        axis.column(percentile(histogram, 0.50) or 0.0): "p50",
        axis.column(percentile(histogram, 0.99) or 0): "p99",
    }
    lines = []
    for row in range(rows):
        floor = (rows - 1 - row) * 8
        spans: list[tuple[str, str]] = []
        for column, level in enumerate(levels):
            filled = min(8, max(0, level - floor))
            char = EIGHTHS[filled] if glyphs.unicode else ("#" if filled > 3 else " ")
            if column in marked and not filled:
                char = glyphs.limit if row % 2 == 0 else " "
            spans.append((char, marked.get(column, ink)))
        lines.append(joined(spans))
    return (*lines, _ticks(axis, glyphs))


def joined(spans: list[tuple[str, str]]) -> Line:
    """Neighbours of one ink as one span."""
    out: list[tuple[str, str]] = []
    for text, ink in spans:
        if out and out[-1][1] == ink:
            out[-1] = (out[-1][0] + text, ink)
        else:
            out.append((text, ink))
    return tuple(out)


def _ticks(axis: Axis, glyphs: Glyphs) -> Line:
    """Latencies below the bars, about every sixteen cells."""
    last = draw.ms(axis.value(axis.columns), glyphs)
    text = ""
    for column in range(0, axis.columns, 16):
        label = draw.ms(axis.value(column), glyphs)
        if column + len(label) < axis.columns - len(last):
            text = text.ljust(column) + label
    return ((text.ljust(axis.columns - len(last)) + last, "axis"),)
