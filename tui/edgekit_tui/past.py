"""The last hours as views to go back to: the further back, the further apart, so that memory stays bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edgekit_tui import draw
from edgekit_tui.feed import View

KEEP_S = 10.0
"Between two kept views at first; older ones are thinned by half again and again."
MOST, LEAST = 600, 2
DEVICE_VIEWS = 20_000
"Kept views times devices: what changes between two views is what costs memory."


class Past:
    """Views to go back to, oldest first."""

    def __init__(self) -> None:
        self.views: Sequence[View] = []

    def add(self, view: View) -> None:
        """Keep it, if the last one is old enough."""
        if self.views and view.now_s - self.views[-1].now_s < KEEP_S:
            return
        views = [*self.views, view]
        if len(views) > max(LEAST, min(MOST, DEVICE_VIEWS // max(1, view.totals.devices))):
            half = len(views) // 2
            views = [*views[:half:2], *views[half + (half % 2) :]] if half > 1 else views[1:]
        self.views = views

    def before(self, at_s: float) -> View | None:
        """The newest view older than `at_s`; the oldest where there is none."""
        return next((view for view in reversed(self.views) if view.now_s < at_s), self.views[0] if self.views else None)

    def after(self, at_s: float) -> View | None:
        """The oldest view newer than `at_s`; None: the present comes next."""
        return next((view for view in self.views if view.now_s > at_s), None)


class Timeline:
    """Which moment the screen shows: the present, or one that is kept."""

    def __init__(self, hold: Callable[[bool], object]) -> None:
        """Args: hold: told when the screen stands still (True) and when it goes on; a recording then waits, too."""
        self.past, self._hold = Past(), hold
        self.looking: View | None = None
        "The moment of the past that is shown; None for the present."

    def look_at(self, view: View | None) -> None:
        """Show this moment; None for the present."""
        self.looking = view
        self._hold(view is not None)

    def travel(self, by: int, present: View | None) -> None:
        """Steps back or forward between the kept moments; forward from the newest is the present."""
        if present is None:
            return
        for _ in range(abs(by)):
            at_s = (self.looking or present).now_s
            if by < 0:
                self.look_at(self.past.before(at_s) or present)
            elif self.looking is not None:
                self.look_at(self.past.after(at_s))

    def moment(self, now_s: float) -> str:
        """Which moment is shown, in words; empty for the present."""
        if self.looking is None:
            return ""
        at = time.strftime("%H:%M:%S", time.localtime(self.looking.now_s))
        return f"paused at {at}, {draw.age(now_s - self.looking.now_s)} ago"
