"""The console as an application: one reactive view, the screens that draw it, and a tick that lets ages grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events, on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input

from edgekit.errors import EdgekitError
from edgekit_tui import requests
from edgekit_tui.action_screen import ActionScreen
from edgekit_tui.actions import Send
from edgekit_tui.alerts import Alarm, Alert, Bell
from edgekit_tui.alerts_screen import AlertsScreen
from edgekit_tui.command import parse_command
from edgekit_tui.command_screen import CommandScreen
from edgekit_tui.courtesy import Courtesy
from edgekit_tui.draw import ASCII, UNICODE, Glyphs
from edgekit_tui.events_screen import EventsScreen
from edgekit_tui.feed import View
from edgekit_tui.help_screen import KEYS, HelpScreen
from edgekit_tui.navigation import Navigator
from edgekit_tui.news import Failed, Folded
from edgekit_tui.notices import sequence
from edgekit_tui.past import KEEP_S, Timeline
from edgekit_tui.places import OVERVIEW, TOP
from edgekit_tui.theme import THEMES
from edgekit_tui.view_screen import Chrome, Resumed, ViewScreen

TICK_S = 1.0
PUT_OFF_MOST = 8
"So often a new view waits for a key; with a key held down the fleet still moves on."


class Console(Navigator):
    """The fleet console. Feed it `Folded` messages; it draws the newest view and nothing else."""

    CSS_PATH = "console.tcss"
    TITLE = "edgekit"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"go('{kind}')", kind, show=False) for key, kind in TOP.items()),
        Binding("colon", "command", "command", key_display=":", priority=True),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("left_square_bracket", "wander(-1)", "back in history", show=False),
        Binding("right_square_bracket", "wander(1)", "forward", show=False),
        Binding("space", "pause", "pause", show=False),
        Binding("comma", "travel(-1)", "a moment back", show=False),
        Binding("full_stop", "travel(1)", "a moment on", show=False),
        Binding("less_than_sign", "travel(-10)", "ten moments back", show=False),
        Binding("greater_than_sign", "travel(10)", "ten moments on", show=False),
        Binding("l", "scale", "log scale", show=False),
        Binding("P", "run('ping')", "ping", show=False),
        Binding("R", "run('rebirth')", "rebirth", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    view: reactive[View | None] = reactive(None, init=False)

    def __init__(
        self,
        *,
        ascii_only: bool = False,
        theme: str = "edgekit",
        start: str = OVERVIEW,
        opening: str | None = None,
        exit_after_s: float | None = None,
        notify: str = "bell",
        send: Send | None = None,
        alarm: Alarm | None = None,
        hold: Callable[[bool], object] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`send` is None for a console that only reads; `alarm` makes the views' alerts; `hold` is the Timeline's."""
        self.glyphs: Glyphs = ASCII if ascii_only else UNICODE
        super().__init__(self.glyphs)
        self.timeline, self._alarm = Timeline(hold), alarm or Alarm()
        self._bell = Bell(self._alarm.rules)
        self.error: BaseException | None = None
        "Why the worker or a handler failed, if one did."
        self.sender = send
        self.log_scale = False
        self._clock = clock
        self._start, self._opening, self._notify = start, opening, notify
        self._exit_after_s = exit_after_s
        self._leaving = False
        self.courtesy = Courtesy()
        "Between this screen and the worker that feeds it."
        self._late: Timer | None = None
        self._put_off = 0
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme

    def on_mount(self) -> None:
        self.set_class(not self.glyphs.unicode, "-ascii")
        self.enter(self._start)
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
            self._draw_soon()

    @on(Folded)
    def _folded(self, message: Folded) -> None:
        self.view = message.view

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self.error = message.error
        self.exit(return_code=5)

    def watch_view(self) -> None:
        if self.view is not None:
            self.timeline.past.add(self.view)
            self._tell(sequence(self._notify, self._bell.rings(self.view.alerts, self.view.now_s)))
        if self.timeline.looking is None:
            self._draw_soon()
        if self._opening is not None and self.open_named(self._opening):
            self._opening = None

    def _tell(self, words: str) -> None:
        """Write to the terminal past the screen."""
        if words and self._driver is not None:
            self._driver.write(words)

    async def on_event(self, event: events.Event) -> None:
        """What a person does goes before everything else."""
        if isinstance(event, events.InputEvent) and not isinstance(event, events.MouseMove):
            self.courtesy.ask()
        await super().on_event(event)

    def _draw_soon(self) -> None:
        """Now; or, while a key is being answered, right after that."""
        left_s = self.courtesy.left_s
        if not left_s or self._put_off >= PUT_OFF_MOST:
            self.draw()
        elif self._late is None:
            self._put_off += 1
            self._late = self.set_timer(left_s, self._draw_late)

    def _draw_late(self) -> None:
        self._late = None
        self._draw_soon()

    @on(Resumed)
    def draw(self) -> None:
        """Have the screen on top, and a dialogue over it, draw the newest view."""
        view, now_s = self.timeline.looking or self.view, self.now_s
        self._put_off = 0
        alerts = sum(not alert.acknowledged for alert in view.alerts) if view is not None else 0
        chrome = Chrome(
            path=self.trail.here, log_scale=self.log_scale, alerts=alerts, moment=self.timeline.moment(self._clock())
        )
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ActionScreen) and screen.query("#action-keys"):
                screen.show(self.view, self._clock())
            if isinstance(screen, ViewScreen):
                if screen.is_mounted and screen.query("#crumbs"):  # none of its parts yet, or no more
                    screen.chrome = chrome
                    screen.show(view, now_s)
                return

    @property
    def now_s(self) -> float:
        """The time that the screen shows."""
        return self.timeline.looking.now_s if self.timeline.looking is not None else self._clock()

    def look_back(self, at_s: float) -> None:
        """Show the fleet as it was then, as far as it is kept."""
        self.timeline.look_at(self.timeline.past.before(at_s) or self.view)
        self.draw()

    def action_pause(self) -> None:
        self.timeline.look_at(self.view if self.timeline.looking is None else None)
        self.draw()

    def action_travel(self, by: int) -> None:
        self.timeline.travel(by, self.view)
        self.draw()

    @on(EventsScreen.TimeAsked)
    def _time_asked(self, message: EventsScreen.TimeAsked) -> None:
        self.look_back(message.at_s + KEEP_S)

    def acknowledge(self, alerts: Iterable[Alert]) -> None:
        """Take these alerts for known; the next view tells."""
        for alert in alerts:
            self._alarm.acknowledge(alert)

    @on(AlertsScreen.Acknowledged)
    def _acknowledged(self, message: AlertsScreen.Acknowledged) -> None:
        self.acknowledge(message.alerts)

    def action_scale(self) -> None:
        self.log_scale = not self.log_scale
        self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A colon that is typed into a line belongs to it."""
        typing = action == "command" and isinstance(self.focused, Input)
        return False if typing else super().check_action(action, parameters)

    def action_command(self, begun: str = "") -> None:
        self.push_screen(CommandScreen(begun), self.action_run)

    def action_run(self, text: str | None) -> None:
        if text is None:
            return
        try:
            requests.run(self, parse_command(text))
        except EdgekitError as e:
            self.notify(str(e), severity="error", markup=False)

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
        yield from requests.palette(self, screen)
