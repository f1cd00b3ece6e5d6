"""The fleet table: virtual, so that only the rows on the screen are ever drawn, and of those only what changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from edgekit_tui import draw
from edgekit_tui.columns import Column, Pen, arrange, columns, gap_of, widest
from edgekit_tui.draw import UNICODE, Glyphs, Line
from edgekit_tui.ink import Inked
from edgekit_tui.rows import Row, RowKey

MEASURED_ROWS = 100
"Columns are as wide as the texts of the first rows ask for; they never shrink again."
MARGIN = 2
"Cells left of the first column, for the cursor's mark."
SAME_DEVICE = ("device", "site", "board", "release", "memory", "temp", "state", "seen")
"Columns drawn faint when the row above is of the same device."

UNFADED = ("state", "seen", "device")
"Columns that stay as they are when a device is silent: they are what there is to know of it."


class FleetTable(Inked, ScrollView, can_focus=True):
    """Rows under a fixed header. The cursor stays on its row, whatever the order becomes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("home,g", "edge(-1)", "top", show=False),
        Binding("end,G", "edge(1)", "bottom", show=False),
        Binding("enter", "open", "open", key_display="enter"),
    ]

    class Opened(Message):
        """A row was chosen."""

        def __init__(self, row: Row) -> None:
            self.row = row
            super().__init__()

    class SortAsked(Message):
        """A column's title was clicked."""

        def __init__(self, column_id: str) -> None:
            self.column_id = column_id
            super().__init__()

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._columns = columns()
        self._glyphs = glyphs
        self._rows: Sequence[Row] = ()
        self._cursor: RowKey | None = None
        self._index = 0
        self._now_s = 0.0
        self._is_old = False
        self._sorted: tuple[str, bool] = ("device", False)
        self._wanted: dict[str, int] = {}
        self._gap = 2
        self._layout: tuple[tuple[Column, int], ...] = ()
        self._drawn: dict[int, Line] = {}
        "Lines as they stand on the screen, by screen line."
        self._ready: dict[int, Line] = {}
        "Lines that were made to be compared and are drawn next, while cursor and scrolling are still `_ready_for`."
        self._ready_for = (0, 0)

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self._index] if self._rows else None

    def show(
        self,
        rows: Sequence[Row],
        *,
        now_s: float,
        sorted_by: tuple[str, bool],
        every: tuple[Column, ...] | None = None,
        is_old: bool = False,
    ) -> None:
        """Draw these rows; only lines that differ from what stands on the screen are repainted.

        Args:
            every: the columns there are; all by default.
            is_old: draws all of them faint: with the broker gone, nothing here can be taken for the present.
        """
        every = every or self._columns
        resized = len(rows) != len(self._rows)
        self._is_old = is_old
        self._ready.clear()
        self._rows, self._now_s, self._sorted = rows, now_s, sorted_by
        self._place_cursor()
        wanted = widest(every, rows[:MEASURED_ROWS])
        grown = {key: max(cells, self._wanted.get(key, 0)) for key, cells in wanted.items()}
        if grown != self._wanted or len(every) != len(self._columns):
            self._columns, self._wanted = every, grown
            self._arrange()
        if resized:
            self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._repaint_changes()

    def tick(self, now_s: float) -> None:
        """Let the ages grow."""
        self._now_s = now_s
        self._repaint_changes()

    def select(self, key: RowKey) -> None:
        """Put the cursor on a row."""
        self._cursor = key
        self._place_cursor()
        self._keep_in_sight()
        self._repaint_changes()

    def _place_cursor(self) -> None:
        if self._index < len(self._rows) and self._rows[self._index].key == self._cursor:
            return
        at = self._at_cursor()
        self._index = min(self._index, max(0, len(self._rows) - 1)) if at is None else at
        self._cursor = self._rows[self._index].key if self._rows else self._cursor

    def _at_cursor(self) -> int | None:
        if self._cursor is None:
            return None
        site, device, model = self._cursor
        for i, row in enumerate(self._rows):
            if row.device == device and row.model == model and row.site == site:
                return i
        return None

    def _arrange(self) -> None:
        width = self.outer_size.width - MARGIN - 1  # the scrollbar comes and goes; the columns stay where they are
        self._gap = gap_of(width)
        self._layout = arrange(self._columns, width, self._wanted)
        self._drawn.clear()
        self._ready.clear()
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self._arrange()
        self._keep_in_sight()

    def _repaint_changes(self) -> None:
        self._ready, self._ready_for = {}, (self._index, self.scroll_offset.y)
        for y, line in list(self._drawn.items()):
            new = self._ready[y] = self._line(y)
            if new != line:
                self.refresh(Region(0, y, self.size.width, 1))

    def _line(self, y: int) -> Line:
        """What belongs on screen line `y`."""
        if y == 0:
            return self._header()
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return ()
        row, above = self._rows[index], self._rows[index - 1] if index and y > 1 else None
        same = above is not None and (above.site, above.device) == (row.site, row.device)
        old = self._is_old or row.state in ("stale", "offline")
        pen = Pen(glyphs=self._glyphs, now_s=self._now_s)
        at_cursor = index == self._index
        spans = [((self._glyphs.cursor if at_cursor else " ").ljust(MARGIN), "cursor" if at_cursor else "text")]
        for column, width in self._layout:
            faint = (old and (self._is_old or column.id not in UNFADED)) or (same and column.id in SAME_DEVICE)
            spans += self._cell(column.draw(row, width, pen), width, column, faint)
        return tuple(spans)

    def _cell(self, line: Line, width: int, column: Column, faint: bool) -> Line:
        if faint:
            line = tuple((text, "faint") for text, _ in line)
        gap = " " * self._gap
        if len(line) == 1:
            return ((draw.fit(line[0][0], width, self._glyphs, right=column.right) + gap, line[0][1]),)
        return (*line, (" " * max(0, width - draw.width_of(line)) + gap, "text"))

    def _header(self) -> Line:
        by, descending = self._sorted
        spans = [(" " * MARGIN, "head")]
        for column, width in self._layout:
            mark = (self._glyphs.descending if descending else self._glyphs.ascending) if column.id == by else ""
            title = draw.fit(f"{column.title}{mark}", width, self._glyphs, right=column.right)
            own = "accent" if column.id == by else "head"
            at = title.find(column.key)
            spans += (
                [(title[:at], own), (title[at : at + 1], "key"), (title[at + 1 :], own)] if at >= 0 else [(title, own)]
            )
            spans.append((" " * self._gap, "head"))
        return tuple(spans)

    def render_line(self, y: int) -> Strip:
        known = self._ready.get(y) if self._ready_for == (self._index, self.scroll_offset.y) else None
        line = self._drawn[y] = self._line(y) if known is None else known
        lit = bool(y and self._rows and y - 1 + self.scroll_offset.y == self._index)
        cells = MARGIN + sum(width + self._gap for _, width in self._layout) if line else 0
        return self.strip(line, self.size.width, lit=lit, cells=cells)

    def action_move(self, by: int) -> None:
        self._go(self._index + by)

    def action_page(self, direction: int) -> None:
        self._go(self._index + direction * max(1, self.size.height - 2))

    def action_edge(self, direction: int) -> None:
        self._go(0 if direction < 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        if (row := self.selected) is not None:
            self.post_message(self.Opened(row))

    def _go(self, index: int) -> None:
        if self._rows:
            left, self._index = self._index, min(max(index, 0), len(self._rows) - 1)
            self._cursor = self._rows[self._index].key
            self._keep_in_sight()
            for one in (left, self._index):
                self.refresh(Region(0, one + 1 - self.scroll_offset.y, self.size.width, 1))

    def _keep_in_sight(self) -> None:
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self._index < top:
            self.scroll_to(y=self._index, animate=False)
        elif self._index >= top + height:
            self.scroll_to(y=self._index - height + 1, animate=False)

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self._click_header(event.x - MARGIN)
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self._rows):
            if index == self._index and event.chain == 2:
                self.action_open()
            self._go(index)

    def _click_header(self, x: int) -> None:
        for column, width in self._layout:
            if 0 <= x < width:
                self.post_message(self.SortAsked(column.id))
            x -= width + self._gap
