"""The fleet: health above, the table of models on devices, the trend and the latest events below."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from edgekit_tui import tiles
from edgekit_tui.columns import Column, columns, columns_for, sort_rows
from edgekit_tui.detail import events as event_lines
from edgekit_tui.draw import Glyphs
from edgekit_tui.feed import View
from edgekit_tui.filter_bar import FilterBar
from edgekit_tui.ink import Panel
from edgekit_tui.overview_screen import trend
from edgekit_tui.places import DEVICE, DEVICES, Place
from edgekit_tui.query import Query, parse_query
from edgekit_tui.rows import Row, RowKey
from edgekit_tui.table import FleetTable
from edgekit_tui.view_screen import Go, HealthBar, ViewScreen


class FleetScreen(ViewScreen):
    """The table of everything; enter opens a device."""

    KIND = DEVICES
    AUTO_FOCUS = "FleetTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        # with priority, so that what is typed right after it is not taken for keys of the table
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("escape", "clear", "back"),
        *(Binding(column.key, f"sort('{column.id}')", f"sort by {column.title}", show=False) for column in columns()),
    ]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._columns: dict[str, Column] = {column.id: column for column in columns()}
        self._sorted: tuple[str, bool] = ("device", False)
        self._query = Query()
        self.shown: list[Row] = []
        "The rows in the table, filtered and in order."

    def body(self) -> Iterable[Widget]:
        yield HealthBar(id="health")
        with Vertical(id="list", classes="boxed"):
            yield FleetTable(self.glyphs, id="table")
            yield Panel(id="empty")
        with Horizontal(id="bottom"):
            yield Panel(title="fleet latency, ms", id="trend", classes="boxed")
            yield Panel(title="events", id="events", classes="boxed")
        yield FilterBar(self._accept, "board:orin !state:online p99>50" + (" …" if self.glyphs.unicode else ""))

    def show(self, view: View | None, now_s: float) -> None:
        """Draw the view; called for every new one while this screen is on top."""
        changed = view is not self.view
        super().show(view, now_s)
        if view is not None and changed:
            self._refresh_rows(now_s)
        self._show_health(now_s)
        if not changed:
            self.query_one(FleetTable).tick(now_s)

    def _refresh_rows(self, now_s: float) -> None:
        rows = self.view.rows if self.view else ()
        kept = [row for row in rows if self._query.matches(row, now_s)] if self._query.tests else rows
        by, descending = self._sorted
        self.shown = sort_rows(kept, self._columns[by], descending=descending)
        is_old = self.view is not None and self.view.link.was_connected and not self.view.link.connected
        every = columns_for(self.view.releases if self.view else {})
        self.query_one(FleetTable).show(self.shown, now_s=now_s, sorted_by=self._sorted, every=every, is_old=is_old)
        total = len(rows)
        filtered = f"  /{self._query.text}" if self._query.text else ""
        box = self.query_one("#list")
        count = f"{len(self.shown):,} of {total:,}" if filtered else f"{total:,}"
        box.border_title = Content(f"models on devices  {count}{filtered}").markup  # what was typed is not markup
        box.border_subtitle = f"by {self._columns[by].title}, {'high to low' if descending else 'low to high'}"

    def _show_health(self, now_s: float) -> None:
        view, glyphs = self.view, self.glyphs
        self.set_class(not self.shown, "-empty")
        if not self.shown:
            lines = tiles.nothing_yet(view, glyphs, filtered=self._query.text)
            self.panel("empty").show(lambda width, height: tiles.centred(lines, width, height))
        if view is None:
            return
        self.query_one(HealthBar).show(view, glyphs, now_s)
        self.panel("trend").show(partial(trend, view, glyphs, self.chrome.log_scale))
        self.panel("events").show(
            lambda width, height: event_lines(view.fleet.events, width, height, glyphs, now_s, named=True)
        )

    def turn_to(self, place: Place) -> None:
        """Filter by the place's subject, if it has one."""
        super().turn_to(place)
        if place.subject and self.is_mounted:
            self.filter_by(place.subject[0])

    def on_mount(self) -> None:
        if self.place.subject:
            self.filter_by(self.place.subject[0])

    @on(FleetTable.Opened)
    def _opened(self, event: FleetTable.Opened) -> None:
        self.post_message(Go(DEVICE, *event.row.key))

    def select(self, key: RowKey) -> None:
        """Put the cursor on a row."""
        self.query_one(FleetTable).select(key)

    def action_sort(self, column_id: str) -> None:
        by, descending = self._sorted
        again = column_id == by
        self._sorted = (column_id, not descending if again else self._columns[column_id].numeric)
        self._refresh_rows(self.now_s)

    @on(FleetTable.SortAsked)
    def _sort_asked(self, event: FleetTable.SortAsked) -> None:
        self.action_sort(event.column_id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers what makes sense now."""
        is_open = self.is_mounted and self.query_one(FilterBar).display
        return not is_open if action == "filter" else super().check_action(action, parameters)

    def filter_by(self, text: str) -> None:
        """Show the rows that match; the filter stands in the bar, to be changed."""
        self.query_one(FilterBar).set_text(text)

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()
        self.refresh_bindings()

    def action_clear(self) -> None:
        """Escape: close the bar and show everything again; with nothing to clear, go back."""
        bar = self.query_one(FilterBar)
        if not self._query.text and not bar.display:
            self.action_back()
            return
        bar.set_text("")
        self._close_bar()

    def _accept(self, text: str) -> None:
        self._query = parse_query(text)

    @on(FilterBar.Filtered)
    def _filtered(self) -> None:
        self._refresh_rows(self.now_s)
        self._show_health(self.now_s)

    @on(FilterBar.Closed)
    def _close_bar(self) -> None:
        self.query_one(FilterBar).display = False
        self.set_focus(self.query_one(FleetTable))
        self.refresh_bindings()
