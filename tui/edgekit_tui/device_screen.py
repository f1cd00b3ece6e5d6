"""One device: latency over time, lanes, memory and heat, the selection with its reasons, facts, events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgekit.ships import Ship
from edgekit_tui import detail, draw, releases
from edgekit_tui.draw import Lines
from edgekit_tui.feed import View
from edgekit_tui.ink import Panel
from edgekit_tui.places import DEVICE, Place
from edgekit_tui.rows import RowKey
from edgekit_tui.view_screen import ViewScreen

EVENTS_SHOWN = 12


class DeviceScreen(ViewScreen):
    """Everything known of one device; escape goes back."""

    KIND = DEVICE

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "back"),
        Binding("n,right", "neighbour(1)", "next", key_display="n"),
        Binding("p,left", "neighbour(-1)", "previous", key_display="p"),
        Binding("j", "scroll(2)", "down", show=False),
        Binding("k", "scroll(-2)", "up", show=False),
    ]

    class Neighbour(Message):
        """Another device of the list is wanted."""

        def __init__(self, key: RowKey, step: int) -> None:
            self.key, self.step = key, step
            super().__init__()

    @property
    def key(self) -> RowKey:
        """Site, device and model."""
        site, device, model = (*self.place.subject, "", "", "")[:3]
        return site, device, model

    def body(self) -> Iterable[Widget]:
        yield Panel(id="heading", classes="boxed")
        with VerticalScroll(id="scroll"), Horizontal(id="detail"):
            with Vertical(id="left"):
                yield Panel(title="latency, ms", id="latency", classes="boxed")
                yield Panel(title="lanes, last window", id="lanes", classes="boxed")
                yield Panel(title="system", id="system", classes="boxed")
                yield Panel(title="events", id="events", classes="boxed")
            with Vertical(id="right"):
                yield Panel(title="selection", id="selection", classes="boxed")
                yield Panel(title="facts", id="facts", classes="boxed")

    def turn_to(self, place: Place) -> None:
        """Show another device."""
        if place != self.place and self.is_mounted:
            self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)
        super().turn_to(place)

    def show(self, view: View | None, now_s: float) -> None:
        """Draw the view; called for every new one while this screen is on top."""
        super().show(view, now_s)
        if view is None:
            return
        site, name, _ = self.key
        device = view.fleet.devices.get((site, name))
        row = next((row for row in view.rows if row.key == self.key), None) or next(
            (row for row in view.rows if (row.site, row.device) == (site, name)), None
        )
        glyphs, ship = self.glyphs, view.releases.get((site, name))
        self.set_class(device is None, "-unknown")
        arrow = "›" if glyphs.unicode else ">"
        self.panel("heading").border_title = Content(draw.clean(f"{site} {arrow} {name}", not glyphs.unicode)).markup
        self.panel("heading").show(
            lambda width, _: (
                *(detail.heading(row, device, width, glyphs, now_s) if device and row else _unheard(ship)),
                *(releases.of_device(ship, width, glyphs) if ship is not None else ()),
            )
        )
        if device is None or row is None:
            return
        own = tuple(one for one in view.fleet.events if (one.site, one.device) == (site, name))
        latency = self.panel("latency")
        model = draw.fit(row.model, min(len(row.model), 40), glyphs)
        latency.border_title = Content(f"latency of {model}, ms").markup  # a name is not markup
        latency.show(lambda width, height: detail.latency_plot(row, width, height, glyphs, self.chrome.log_scale))
        self.panel("lanes").show(lambda width, _: detail.lanes(device, width, glyphs))
        self.panel("system").show(lambda width, _: detail.system(device, width, glyphs))
        self.panel("selection").show(lambda width, _: detail.selection(device, width, glyphs))
        self.panel("facts").show(lambda width, _: detail.facts(device, width, glyphs))
        self.panel("events").show(
            lambda width, _: detail.events(own[-EVENTS_SHOWN:], width, 0, glyphs, now_s, named=False)
        )

    def action_neighbour(self, step: int) -> None:
        self.post_message(self.Neighbour(self.key, step))

    def action_scroll(self, by: int) -> None:
        self.query_one("#scroll", VerticalScroll).scroll_relative(y=by, animate=False)


def _unheard(ship: Ship | None) -> Lines:
    """What stands in the heading of a device that is not in the fleet."""
    known = "tells nothing but its release" if ship is not None else "was forgotten by the broker"
    return ((("this device " + known, "warn"),),)
