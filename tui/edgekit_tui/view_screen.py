"""What the screens have in common: breadcrumbs above, a view to draw, and one way to ask for another place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from edgekit_tui import tiles
from edgekit_tui.draw import Glyphs
from edgekit_tui.feed import View
from edgekit_tui.ink import INK_CLASSES, Panel
from edgekit_tui.key_line import KeyLine
from edgekit_tui.places import OVERVIEW, Place, Route

ROOMY = (104, 20)
"From this size on the health stands in four tiles; below it, in two lines."
NARROW, TALL = 104, 34


@dataclass(frozen=True, slots=True)
class Chrome:
    """What every screen shows around its own content."""

    path: Route = ()
    log_scale: bool = False
    alerts: int = 0
    "Alerts nobody has acknowledged."
    moment: str = ""
    "Set while the screen does not show the present: which moment it shows."


class Go(Message):
    """Another place is wanted: from here on, or from the top."""

    def __init__(self, kind: str, *subject: str, top: bool = False) -> None:
        self.place, self.top = Place(kind, subject), top
        super().__init__()


class Back(Message):
    """One level up."""


class Resumed(Message):
    """A screen came to the top and stands on an old view."""


class HealthBar(Vertical):
    """The health of the fleet: four tiles, or two lines on a small screen."""

    def compose(self) -> ComposeResult:
        yield Panel(id="compact")
        with Horizontal(id="tiles"):
            for name in ("fleet", "latency", "throughput", "broker"):
                yield Panel(title=name, id=f"tile-{name}")

    def show(self, view: View, glyphs: Glyphs, now_s: float) -> None:
        """Draw the view."""
        draws = {
            "tile-fleet": lambda width, _: tiles.fleet_tile(view, width, glyphs),
            "tile-latency": lambda width, _: tiles.latency_tile(view, width, glyphs),
            "tile-throughput": lambda width, _: tiles.throughput_tile(view, width, glyphs),
            "tile-broker": lambda width, _: tiles.broker_tile(view, width, glyphs, now_s),
            "compact": lambda width, _: tiles.compact(view, width, glyphs, now_s),
        }
        for name, lines in draws.items():
            self.query_one(f"#{name}", Panel).show(lines)


class ViewScreen(Screen[None]):
    """A screen that draws views."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(INK_CLASSES)

    KIND = OVERVIEW

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.glyphs = glyphs
        self.view: View | None = None
        self.now_s = 0.0
        self.chrome = Chrome()
        self.place = Place(self.KIND)

    def compose(self) -> ComposeResult:
        yield Panel(id="crumbs")
        yield from self.body()
        yield KeyLine(self.glyphs)

    def body(self) -> Iterable[Widget]:
        """What stands between the breadcrumbs and the footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self._fit(self.app.size.width, self.app.size.height)

    def on_screen_resume(self) -> None:
        self._fit(self.app.size.width, self.app.size.height)
        self.post_message(Resumed())

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size.width, event.size.height)

    def _fit(self, width: int, height: int) -> None:
        before = set(self.classes)
        for is_so, name in (
            (width >= ROOMY[0] and height >= ROOMY[1], "-roomy"),
            (height >= TALL, "-tall"),
            (height < 30, "-low"),
            (width < NARROW, "-narrow"),
        ):
            self.set_class(is_so, name, update=False)
        if self.classes != before:  # once for all of them: it styles every widget of the screen anew
            self.app.update_styles(self)

    def turn_to(self, place: Place) -> None:
        """Show another subject from now on."""
        self.place = place

    def show(self, view: View | None, now_s: float) -> None:
        """Draw the view as of `now_s`; called for every new one, and each second, while the screen is on top."""
        self.view, self.now_s = view, now_s
        if self.focused is None:
            self.call_after_refresh(self._take_focus)
        self.set_class(view is not None and view.link.was_connected and not view.link.connected, "-cut-off")
        chrome, glyphs = self.chrome, self.glyphs
        self.panel("crumbs").show(
            lambda width, _: (tiles.crumbs(chrome.path, view, width, glyphs, now_s, chrome.alerts, chrome.moment),)
        )

    def _take_focus(self) -> None:
        """The list could not take the focus while it was hidden, before there was anything in it."""
        listed = next((one for one in self.query("PickList, FleetTable") if one.focusable), None)
        if self.focused is None and listed is not None and self.is_current:
            self.set_focus(listed)

    def panel(self, id: str) -> Panel:
        return self.query_one(f"#{id}", Panel)

    def action_back(self) -> None:
        self.post_message(Back())
