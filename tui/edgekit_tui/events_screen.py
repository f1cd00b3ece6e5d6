"""The events of the fleet: followed as they come, filtered and searched like the table; enter opens the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgekit.fleet import FleetEvent
from edgekit_tui import draw
from edgekit_tui.detail import EVENT_INKS
from edgekit_tui.draw import Glyphs, Line
from edgekit_tui.feed import View
from edgekit_tui.filter_bar import FilterBar
from edgekit_tui.ink import clip
from edgekit_tui.picklist import Items, PickList
from edgekit_tui.places import DEVICE, EVENTS
from edgekit_tui.query import EVENTS as EVENT_FIELDS
from edgekit_tui.query import Query, parse_query
from edgekit_tui.view_screen import Go, ViewScreen


class EventsScreen(ViewScreen):
    """What happened, oldest first; following keeps the newest in sight."""

    KIND = EVENTS
    AUTO_FOCUS = "PickList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("f", "follow", "follow"),
        Binding("t", "travel", "go to that time"),
        Binding("escape", "clear", "back"),
    ]

    class TimeAsked(Message):
        """The fleet as it was at an event is wanted."""

        def __init__(self, at_s: float) -> None:
            self.at_s = at_s
            super().__init__()

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._query = Query()

    def body(self) -> Iterable[Widget]:
        with Vertical(id="log", classes="boxed"):
            yield PickList(self.glyphs)
        yield FilterBar(self._accept, "kind:throttled !device:dock age<10m")

    def on_mount(self) -> None:
        self.query_one(PickList).follows = True

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        if view is None:
            return
        kept = [one for one in view.fleet.events if self._query.matches(one, now_s)]
        listed = self.query_one(PickList)
        listed.show(lambda width: _lines(kept, width, self.glyphs, now_s))
        box, every = self.query_one("#log"), len(view.fleet.events)
        filtered = f"  /{self._query.text}" if self._query.text else ""
        count = f"{len(kept):,} of {every:,}" if filtered else f"{every:,}"
        box.border_title = Content(f"events  {count}{filtered}").markup
        box.border_subtitle = "following" if listed.follows else "f follows"

    def action_follow(self) -> None:
        listed = self.query_one(PickList)
        listed.follows = not listed.follows
        self.show(self.view, self.now_s)

    def action_travel(self) -> None:
        chosen = self.query_one(PickList).selected
        if isinstance(chosen, tuple):
            self.post_message(self.TimeAsked(float(chosen[0])))

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def action_clear(self) -> None:
        bar = self.query_one(FilterBar)
        if not self._query.text and not bar.display:
            self.action_back()
            return
        bar.set_text("")
        self._close_bar()

    def _accept(self, text: str) -> None:
        self._query = parse_query(text, EVENT_FIELDS)

    @on(FilterBar.Filtered)
    def _filtered(self) -> None:
        self.show(self.view, self.now_s)

    @on(FilterBar.Closed)
    def _close_bar(self) -> None:
        self.query_one(FilterBar).display = False
        self.set_focus(self.query_one(PickList))

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        if isinstance(event.key, tuple):
            self.post_message(Go(DEVICE, event.key[1], event.key[2], ""))


def _lines(kept: list[FleetEvent], width: int, glyphs: Glyphs, now_s: float) -> tuple[Line, Items]:
    name = min(24, max(10, width // 5))
    header = f"{'ago':>4}  {draw.fit('site', 10, glyphs)} {draw.fit('device', name, glyphs)} {'kind':<11} what"
    items = []
    for one in kept:
        line: Line = (
            (draw.age(now_s - one.received_s).rjust(4) + "  ", "faint"),
            (draw.fit(one.site, 10, glyphs) + " ", "faint"),
            (draw.fit(one.device, name, glyphs) + " ", "strong"),
            (draw.fit(one.event.kind, 11, glyphs) + " ", EVENT_INKS.get(one.event.kind, "text")),
            (one.event.text, "text"),
        )
        items.append(((one.received_s, one.site, one.device, one.event.kind), clip(line, width, glyphs)))
    return ((header[:width], "head"),), items
