"""The console as an application: one reactive view, the screens that draw it, and a tick that lets ages grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen

from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.draw import ASCII, UNICODE, Glyphs
from edgekit_tui.feed import View
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.help_screen import HelpScreen
from edgekit_tui.rows import RowKey
from edgekit_tui.table import FleetTable
from edgekit_tui.theme import THEMES
from edgekit_tui.view_screen import ViewScreen

TICK_S = 1.0
KEYS = (
    ("enter", "open the device"), ("escape", "back; clear the filter"), ("/", "filter"), ("?", "this help"),
    ("j k", "down and up"), ("g G", "first and last"), ("pgup pgdn", "a page"), ("n p", "next, previous device"),
    ("ctrl+p", "commands, themes"), ("q", "quit"),
)  # fmt: skip


class Folded(Message):
    """The worker has a newer view."""

    def __init__(self, view: View) -> None:
        self.view = view
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """An older view that was not drawn yet is not worth drawing."""
        return isinstance(message, Folded)


class Failed(Message):
    """The worker ended by an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


class Console(App[None]):
    """The fleet console. Feed it `Folded` messages; it draws the newest view and nothing else."""

    CSS_PATH = "console.tcss"
    TITLE = "edgekit"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    view: reactive[View | None] = reactive(None, init=False)

    def __init__(
        self,
        *,
        ascii_only: bool = False,
        theme: str = "edgekit",
        opening: str | None = None,
        exit_after_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self.error: BaseException | None = None
        "Why the worker or a handler failed, if one did."
        self._clock = clock
        self._opening = opening
        self._exit_after_s = exit_after_s
        self._leaving = False
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme

    def on_mount(self) -> None:
        self.set_class(not self.glyphs.unicode, "-ascii")
        self.push_screen(FleetScreen(self.glyphs))
        self.set_interval(TICK_S, self._tick)
        if self._exit_after_s is not None:
            self.set_timer(self._exit_after_s, self.exit)

    def ask_to_leave(self) -> None:
        """Exit at the next tick. For signal handlers: they may interrupt anything, so this sets a flag alone."""
        self._leaving = True

    def _tick(self) -> None:
        if self._leaving:
            self.exit()
        else:
            self.draw()

    @on(Folded)
    def _folded(self, message: Folded) -> None:
        self.view = message.view

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self.error = message.error
        self.exit(return_code=5)

    def watch_view(self) -> None:
        self.draw()
        if self._opening is not None and self.open_named(self._opening):
            self._opening = None

    @on(ViewScreen.Resumed)
    def _resumed(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Have the screen on top draw the newest view."""
        if isinstance(self.screen, ViewScreen) and self.screen.is_mounted:
            self.screen.show(self.view, self._clock())

    @on(FleetTable.Opened)
    def _open(self, message: FleetTable.Opened) -> None:
        self.open_device(message.row.key)

    def open_device(self, key: RowKey) -> None:
        """Show a device on top of the fleet."""
        if isinstance(self.screen, FleetScreen):
            self.screen.select(key)
        self.push_screen(DeviceScreen(key, self.glyphs))

    def open_named(self, device: str | None) -> bool:
        """Show the device of this name, if there is one."""
        row = next((row for row in self.view.rows if row.device == device), None) if self.view else None
        if row is not None:
            self.open_device(row.key)
        return row is not None

    @on(DeviceScreen.Neighbour)
    def _neighbour(self, message: DeviceScreen.Neighbour) -> None:
        fleet = next(screen for screen in self.screen_stack if isinstance(screen, FleetScreen))
        keys = [row.key for row in fleet.shown]
        if message.key in keys and isinstance(self.screen, DeviceScreen):
            key = keys[(keys.index(message.key) + message.step) % len(keys)]
            self.screen.turn_to(key, self._clock())
            fleet.select(key)

    def _handle_exception(self, error: Exception) -> None:
        """An error in a handler ends the console; Textual would print its traceback, here main.py tells it."""
        self.error = self.error or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def action_help(self) -> None:
        self.push_screen(HelpScreen(KEYS, self.glyphs))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: themes, help, quit, and every device by name."""
        yield SystemCommand("Theme", "change the colours", self.action_change_theme)
        yield SystemCommand("Help", "keys, filter and symbols", self.action_help)
        yield SystemCommand("Screenshot", "save this screen as SVG", lambda: self.deliver_screenshot())
        yield SystemCommand("Quit", "leave the console", self.exit)
        if isinstance(screen, FleetScreen):
            for row in {(row.site, row.device): row for row in reversed(screen.shown)}.values():
                what = f"{row.site}  {row.board}  {row.state}"
                yield SystemCommand(f"Open {row.device}", what, lambda key=row.key: self.open_device(key))
