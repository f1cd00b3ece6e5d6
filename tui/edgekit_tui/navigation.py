"""From place to place: the screens are kept, the trail remembers, the stack follows it."""

from __future__ import annotations

from textual import on
from textual.app import App

from edgekit_tui.alerts_screen import AlertsScreen
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.draw import Glyphs
from edgekit_tui.events_screen import EventsScreen
from edgekit_tui.feed import View
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.model_screens import ModelScreen, ModelsScreen
from edgekit_tui.overview_screen import OverviewScreen
from edgekit_tui.places import DEVICE, DEVICES, OVERVIEW, Place, Route, Trail
from edgekit_tui.releases_screen import ReleasesScreen
from edgekit_tui.rows import RowKey
from edgekit_tui.view_screen import Back, Go, ViewScreen

SCREENS = (
    OverviewScreen,
    FleetScreen,
    DeviceScreen,
    ModelsScreen,
    ModelScreen,
    EventsScreen,
    ReleasesScreen,
    AlertsScreen,
)


class Navigator(App[None]):
    """An application of places. The newest view is in `view`; `draw` shows it on the screen on top."""

    view: View | None

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.trail = Trail()
        self._places = {kind.KIND: kind(glyphs) for kind in SCREENS}

    def draw(self) -> None:
        raise NotImplementedError

    def enter(self, start: str) -> None:
        """Put up the first place, above the overview."""
        for kind, screen in self._places.items():
            self.install_screen(screen, kind)
        self.push_screen(OVERVIEW)
        self.go((Place(start),) if start != OVERVIEW else ())

    def go(self, path: Route) -> None:
        """Show the place at the end of `path`; escape leads back along it."""
        self.trail.go(path)
        self._arrive()

    def _arrive(self) -> None:
        kinds = [OVERVIEW, *(place.kind for place in self.trail.here)]
        while not isinstance(self.screen, ViewScreen):
            self.pop_screen()
        shown = [screen.KIND for screen in self.screen_stack if isinstance(screen, ViewScreen)]
        same = next((i for i, pair in enumerate(zip(kinds, shown, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(kinds), len(shown)) if same is None else same
        for _ in shown[same:]:
            self.pop_screen()
        for place in self.trail.here:
            self._places[place.kind].turn_to(place)
        for kind in kinds[same:]:
            self.push_screen(kind)
        self.draw()

    @on(Go)
    def _go(self, message: Go) -> None:
        here = () if message.top else self.trail.here
        kinds = [place.kind for place in here]
        kept = here[: kinds.index(message.place.kind)] if message.place.kind in kinds else here
        self.go((*kept, message.place))

    @on(Back)
    def _back(self) -> None:
        if self.trail.here:
            self.go(self.trail.here[:-1])

    def action_go(self, kind: str) -> None:
        self.go(() if kind == OVERVIEW else (Place(kind),))

    def action_wander(self, by: int) -> None:
        if self.trail.step(by) is not None:
            self._arrive()

    def open_device(self, key: RowKey) -> None:
        """Show a device, below the devices."""
        self.go((Place(DEVICES), Place(DEVICE, key)))
        self._select(key)

    def open_named(self, device: str | None) -> bool:
        """Show the device of this name, if there is one."""
        row = next((row for row in self.view.rows if row.device == device), None) if self.view else None
        if row is not None:
            self.open_device(row.key)
        return row is not None

    @property
    def devices(self) -> FleetScreen:
        """The screen that lists the devices."""
        screen = self._places[DEVICES]
        assert isinstance(screen, FleetScreen)
        return screen

    @property
    def base(self) -> ViewScreen:
        """The screen below any dialogue."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, ViewScreen))

    def _select(self, key: RowKey) -> None:
        if self.devices.is_mounted:
            self.devices.select(key)

    @on(DeviceScreen.Neighbour)
    def _neighbour(self, message: DeviceScreen.Neighbour) -> None:
        rows = self.devices.shown or (self.view.rows if self.view else ())
        keys = [row.key for row in rows]
        if message.key in keys and isinstance(self.screen, DeviceScreen):
            key = keys[(keys.index(message.key) + message.step) % len(keys)]
            self.trail.replace((*self.trail.here[:-1], Place(DEVICE, key)))
            self._arrive()
            self._select(key)
