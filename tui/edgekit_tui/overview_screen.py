"""The overview: the fleet's health, latency over time and its shape, the worst offenders, versions in the field."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from textual import on
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from edgekit_tui import tiles
from edgekit_tui.detail import events as event_lines
from edgekit_tui.distribution import distribution
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.feed import View
from edgekit_tui.health import Blame, offender_lines, versions
from edgekit_tui.ink import Panel
from edgekit_tui.picklist import PickList
from edgekit_tui.places import DEVICE, OVERVIEW
from edgekit_tui.plot import Series, legend, plot
from edgekit_tui.view_screen import Go, HealthBar, ViewScreen


class OverviewScreen(ViewScreen):
    """The fleet at a glance; enter opens the device under the cursor."""

    KIND = OVERVIEW
    AUTO_FOCUS = "PickList"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._blame = Blame()

    def body(self) -> Iterable[Widget]:
        yield HealthBar(id="health")
        with Vertical(id="overview"):
            with Horizontal(id="shapes"):
                yield Panel(title="fleet latency, ms", id="trend", classes="boxed")
                yield Panel(title="latency of all requests, ms", id="shape", classes="boxed")
            with Horizontal(id="lists"):
                with Vertical(id="worst", classes="boxed"):
                    yield PickList(self.glyphs, id="offenders")
                yield Panel(title="in the field", id="versions", classes="boxed")
            yield Panel(title="events", id="events", classes="boxed")
        yield Panel(id="empty")

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        glyphs = self.glyphs
        nothing = view is None or not view.rows
        self.set_class(nothing, "-empty")
        if nothing:
            lines = tiles.nothing_yet(view, glyphs)
            self.panel("empty").show(lambda width, height: tiles.centred(lines, width, height))
        if view is None:
            return
        self.query_one(HealthBar).show(view, glyphs, now_s)
        self.panel("trend").show(partial(trend, view, glyphs, self.chrome.log_scale))
        self.panel("shape").show(partial(shape, view, glyphs))
        found = self._blame.offenders(view.rows, now_s, glyphs)
        self.query_one(PickList).show(lambda width: _offenders(found, width, glyphs))
        self.query_one("#worst").border_title = f"worst offenders  {len(found)}" if found else "worst offenders"
        self.panel("versions").show(partial(versions, view.totals, glyphs=glyphs))
        self.panel("events").show(
            lambda width, height: event_lines(view.fleet.events, width, height, glyphs, now_s, named=True)
        )

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        if isinstance(event.key, tuple):
            self.post_message(Go(DEVICE, *event.key))


def _offenders(found: list, width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[object, Line]]]:  # type: ignore[type-arg]
    header, items = offender_lines(found, width, glyphs)
    if items:
        return header, list(items)
    return ((f"{glyphs.check} every device keeps its limits", "good"),), []


def trend(view: View, glyphs: Glyphs, log_scale: bool, width: int, height: int) -> Lines:
    """The live fleet's latency while this console has been watching."""
    series = (
        Series(name="p99", ink="p99", points=tuple((p.at_s, p.p99_ms) for p in view.trend), mark="*"),
        Series(name="p50", ink="p50", points=tuple((p.at_s, p.p50_ms) for p in view.trend), mark="o"),
    )
    return (legend(series, glyphs), *plot(series, width, height - 1, glyphs=glyphs, log_scale=log_scale))


def shape(view: View, glyphs: Glyphs, width: int, height: int) -> Lines:
    """The distribution of the live fleet's samples."""
    totals = view.totals
    head: Line = (("p50 ", "faint"), *tiles.p50_span(totals, glyphs), ("  p99 ", "faint"),
                  *tiles.p99_span(totals, glyphs), (f"  n {totals.sample_count:,}", "faint"))  # fmt: skip
    return (head, *distribution(totals.latency, width, height - 1, glyphs))
