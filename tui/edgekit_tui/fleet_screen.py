"""The fleet: health above, the table of models on devices, the trend and the latest events below."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Footer, Input, Static

from edgekit.errors import UsageError
from edgekit_tui import tiles
from edgekit_tui.columns import Column, columns, sort_rows
from edgekit_tui.detail import events as event_lines
from edgekit_tui.draw import Glyphs, Lines
from edgekit_tui.feed import View
from edgekit_tui.ink import Panel
from edgekit_tui.plot import Series, legend, plot
from edgekit_tui.query import Query, parse_query
from edgekit_tui.rows import Row, RowKey
from edgekit_tui.table import FleetTable
from edgekit_tui.view_screen import ViewScreen

ROOMY = (104, 20)
"From this size on the health stands in four tiles; below it, in two lines."
TALL = 34
NARROW = 110


class FleetScreen(ViewScreen):
    """The table of everything; enter opens a device."""

    AUTO_FOCUS = "FleetTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        # with priority, so that what is typed right after it is not taken for keys of the table
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("escape", "clear", "show all"),
        *(Binding(column.key, f"sort('{column.id}')", f"sort by {column.title}", show=False) for column in columns()),
    ]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._columns: dict[str, Column] = {column.id: column for column in columns()}
        self._sorted: tuple[str, bool] = ("device", False)
        self._query = Query()
        self.shown: list[Row] = []
        "The rows in the table, filtered and in order."

    def compose(self) -> ComposeResult:
        yield Panel(id="compact")
        with Horizontal(id="tiles"):
            for name in ("fleet", "latency", "throughput", "broker"):
                yield Panel(title=name, id=f"tile-{name}")
        with Vertical(id="list", classes="boxed"):
            yield FleetTable(self.glyphs, id="table")
            yield Panel(id="empty")
        with Horizontal(id="bottom"):
            yield Panel(title="fleet latency, ms", id="trend", classes="boxed")
            yield Panel(title="events", id="events", classes="boxed")
        with Horizontal(id="filter-bar"):
            yield Static(" / ", id="slash")
            yield Input(
                placeholder="board:orin !state:online p99>50 …"
                if self.glyphs.unicode
                else "board:orin !state:online p99>50",
                id="filter",
                select_on_focus=False,
            )
            yield Static("", id="problem", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._fit(self.app.size.width, self.app.size.height)

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
        self.query_one(FleetTable).show(self.shown, now_s=now_s, sorted_by=self._sorted, is_old=is_old)
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
        self.panel("tile-fleet").show(lambda width, _: tiles.fleet_tile(view, width, glyphs))
        self.panel("tile-latency").show(lambda width, _: tiles.latency_tile(view, width, glyphs))
        self.panel("tile-throughput").show(lambda width, _: tiles.throughput_tile(view, width, glyphs))
        self.panel("tile-broker").show(lambda width, _: tiles.broker_tile(view, width, glyphs, now_s))
        self.panel("compact").show(lambda width, _: tiles.compact(view, width, glyphs, now_s))
        self.panel("trend").show(partial(_trend, view, glyphs))
        self.panel("events").show(
            lambda width, height: event_lines(view.fleet.events, width, height, glyphs, now_s, named=True)
        )

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size.width, event.size.height)

    def _fit(self, width: int, height: int) -> None:
        self.set_class(width >= ROOMY[0] and height >= ROOMY[1], "-roomy")
        self.set_class(height >= TALL, "-tall")
        self.set_class(width < NARROW, "-narrow")

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
        is_open = self.is_mounted and self.query_one("#filter-bar").display
        if action == "filter":
            return not is_open
        return bool(self._query.text) or is_open if action == "clear" else super().check_action(action, parameters)

    def action_filter(self) -> None:
        self.query_one("#filter-bar").display = True
        self.set_focus(self.query_one("#filter", Input))
        self.refresh_bindings()

    def action_clear(self) -> None:
        """Escape: close the bar and show everything again."""
        self.query_one("#filter", Input).value = ""
        self._close_bar()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        try:
            self._query = parse_query(event.value)
        except UsageError as e:
            # what is half typed keeps the last good filter
            self.query_one("#problem", Static).update(str(e).removeprefix("filter: "))
            return
        self.query_one("#problem", Static).update("")
        self._refresh_rows(self.now_s)
        self._show_health(self.now_s)

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self._close_bar()

    def _close_bar(self) -> None:
        self.query_one("#filter-bar").display = False
        self.set_focus(self.query_one(FleetTable))
        self.refresh_bindings()


def _trend(view: View, glyphs: Glyphs, width: int, height: int) -> Lines:
    """The live fleet's latency while this console has been watching."""
    series = (
        Series(name="p99", ink="p99", points=tuple((p.at_s, p.p99_ms) for p in view.trend), mark="*"),
        Series(name="p50", ink="p50", points=tuple((p.at_s, p.p50_ms) for p in view.trend), mark="o"),
    )
    return (legend(series, glyphs), *plot(series, width, height - 1, glyphs=glyphs))
