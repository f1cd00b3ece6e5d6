"""A list to choose from: a header, lines below it, a cursor that stays on its line. Virtual, like the table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from edgekit_tui.draw import UNICODE, Glyphs, Line
from edgekit_tui.ink import Inked

MARGIN = 2
Items = Sequence[tuple[Hashable, Line]]
DrawItems = Callable[[int], tuple[Line, Items]]
"The header and the lines with their keys, for a width in cells."


class PickList(Inked, ScrollView, can_focus=True):
    """Lines under a fixed header; none for an empty header line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("home,g", "edge(-1)", "top", show=False),
        Binding("end,G", "edge(1)", "bottom", show=False),
        Binding("enter", "open", "open", key_display="enter"),
    ]

    class Chosen(Message):
        """A line was chosen."""

        def __init__(self, key: Hashable) -> None:
            self.key = key
            super().__init__()

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._draw: DrawItems = lambda _: ((), ())
        self._header: Line = ()
        self._items: Items = ()
        self._cursor: Hashable = None
        self._index = 0
        self.follows = False
        "The cursor stays on the last line as lines are added."

    @property
    def selected(self) -> Hashable | None:
        """The key under the cursor."""
        return self._items[self._index][0] if self._items else None

    def show(self, draw_items: DrawItems) -> None:
        """Draw with this function from now on; only lines that differ are repainted."""
        self._draw = draw_items
        self._redraw()

    def on_resize(self) -> None:
        self._redraw()
        self._keep_in_sight(moved=True)
        self.refresh()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def _redraw(self) -> None:
        width = self.outer_size.width - MARGIN - 1
        if width <= 0:
            return
        header, items = self._draw(width)
        before, before_header, index = self._items, self._header, self._index
        self._header, self._items = header, items
        if self.follows:
            self._index = max(0, len(items) - 1)
        elif self._cursor is not None:
            at = next((i for i, (key, _) in enumerate(items) if key == self._cursor), None)
            self._index = min(self._index, max(0, len(items) - 1)) if at is None else at
        if len(items) != len(before):
            self.virtual_size = Size(self.size.width, len(items) + 1)
        moved = self._index != index
        self._keep_in_sight(moved=moved)
        if moved and len(items) != len(before):  # a scrollbar that is not there yet lets nothing scroll
            self.call_after_refresh(self._keep_in_sight, moved=True)
        if header != before_header or len(items) != len(before):
            self.refresh()
            return
        for y in range(1, self.size.height):
            at = y - 1 + self.scroll_offset.y
            if at < len(items) and (items[at] != before[at] or at in (index, self._index)):
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        width, index = self.size.width, y - 1 + self.scroll_offset.y
        if y == 0:
            return self.strip(((" " * MARGIN, "head"), *self._header), width)
        if index >= len(self._items):
            return self.strip((), width)
        lit = index == self._index and self.has_focus
        mark = self._glyphs.cursor if lit else " "
        return self.strip(((mark.ljust(MARGIN), "cursor" if lit else "text"), *self._items[index][1]), width, lit=lit)

    def action_move(self, by: int) -> None:
        self._go(self._index + by)

    def action_page(self, direction: int) -> None:
        self._go(self._index + direction * max(1, self.size.height - 2))

    def action_edge(self, direction: int) -> None:
        """To the first line or the last; at the first the cursor stays there, whatever comes to stand on it."""
        self._go(0 if direction < 0 else len(self._items) - 1)
        if direction < 0:
            self._cursor = None

    def action_open(self) -> None:
        if self._items:
            self.post_message(self.Chosen(self._items[self._index][0]))

    def _go(self, index: int) -> None:
        if self._items:
            self._index = min(max(index, 0), len(self._items) - 1)
            self._cursor = self._items[self._index][0]
            self.follows = self.follows and self._index == len(self._items) - 1
            self._keep_in_sight(moved=True)
            self.refresh()

    def _keep_in_sight(self, *, moved: bool) -> None:
        height, top = max(1, self.size.height - 1), self.scroll_offset.y
        if moved and self._index < top:
            self.scroll_to(y=self._index, animate=False)
        elif moved and self._index >= top + height:
            self.scroll_to(y=self._index - height + 1, animate=False)

    def on_click(self, event: events.Click) -> None:
        index = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and index < len(self._items):
            if index == self._index and event.chain == 2:
                self.action_open()
            self._go(index)
