"""Inks and panels: the one way text gets its colours and onto the screen. Colours live in console.tcss."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines

INKS = (
    "text", "strong", "faint", "track", "title", "section", "key", "accent", "head", "cursor", "model",
    "good", "warn", "bad", "load", "p50", "p99", "spark", "hush", "limit", "axis",
)  # fmt: skip
Draw = Callable[[int, int], Lines]
"Lines for a width and a height in cells; height 0 asks for as many lines as there are."


INK_CLASSES = frozenset(f"ink--{ink}" for ink in INKS)
"What a screen puts into its COMPONENT_CLASSES: the looks are computed once a screen, and not for every widget on it."


class Inked(Widget):
    """A widget that draws spans of (text, ink)."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._inks: dict[str, Style] = {}
        self._looks: dict[tuple[str, bool], Style] = {}
        self._base: Style | None = None
        self._theme = ""

    def ink(self, name: str) -> Style:
        """The style of an ink under the current theme."""
        if name not in self._inks:
            self._inks[name] = self.screen.get_component_rich_style(f"ink--{name}", partial=True)
        return self._inks[name]

    def _forget(self) -> None:
        self._inks.clear()
        self._looks.clear()
        self._base = None

    def base(self, lit: bool = False) -> Style:
        """What lies under the text; `lit`: under the cursor."""
        if self._theme != self.app.theme:
            self._forget()
            self._theme = self.app.theme
        if self._base is None:
            self._base = self.rich_style
        return self._base + Style(bgcolor=self.ink("cursor").bgcolor) if lit else self._base

    def notify_style_update(self) -> None:
        self._forget()
        super().notify_style_update()

    def strip(self, line: Line, width: int, *, lit: bool = False, cells: int | None = None) -> Strip:
        """A line of exactly `width` cells. Args: lit: it is under the cursor. cells: the line's width, where known."""
        base, segments = self.base(lit), []
        for text, ink in line:
            if text:
                look = self._looks.get((ink, lit))
                if look is None:
                    under = Style(bgcolor=base.bgcolor) if lit else Style.null()
                    look = self._looks[ink, lit] = base + self.ink(ink) + under
                segments.append(Segment(text, look))
        return Strip(segments, cells).adjust_cell_length(width, base)


class Panel(Inked):
    """Text drawn by one pure function; it is repainted only when that text differs from what stands there."""

    def __init__(self, *, title: str = "", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = title
        self._draw: Draw = lambda _width, _height: ()
        self._lines: Lines = ()

    def show(self, draw_lines: Draw) -> None:
        """Draw with this function from now on."""
        self._draw = draw_lines
        before = self._lines
        if not self.size.width:
            self.refresh(layout=True)
            return
        self._lines = self._drawn()
        if self._is_auto and len(self._lines) != len(before):
            self.refresh(layout=True)
        elif self._lines != before:
            self.refresh()

    @property
    def _is_auto(self) -> bool:
        return self.styles.height is None or self.styles.height.is_auto

    def _drawn(self) -> Lines:
        width, height = self.content_size
        return self._draw(width, 0 if self._is_auto else height) if width > 0 else ()

    def on_resize(self) -> None:
        self._lines = self._drawn()
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return max(1, len(self._draw(width, 0))) if width > 0 else 1

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return self.strip(line, self.content_size.width)


def right_align(left: Line, right: Line, width: int) -> Line:
    """`left`, then `right` flush with the right edge when both fit; else `left` alone."""
    space = width - draw.width_of(left) - draw.width_of(right)
    return (*left, (" " * space, "text"), *right) if space >= 1 else left


def clip(line: Line, width: int, glyphs: Glyphs) -> Line:
    """`line` cut to `width` cells, with its texts made safe to draw."""
    spans: list[tuple[str, str]] = []
    left = width
    for text, ink in line:
        text = draw.clean(text, not glyphs.unicode)
        cells = draw.width_of(((text, ink),))
        if cells > left:
            spans.append((draw.fit(text, left, glyphs), ink))
            break
        spans.append((text, ink))
        left -= cells
    return tuple(spans)
