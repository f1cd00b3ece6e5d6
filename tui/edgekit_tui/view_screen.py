"""What the screens have in common: they are told a view and draw it, and ask for one when they come to the top."""

from __future__ import annotations

from textual.message import Message
from textual.screen import Screen

from edgekit_tui.draw import Glyphs
from edgekit_tui.feed import View
from edgekit_tui.ink import Panel


class ViewScreen(Screen[None]):
    """A screen that draws views."""

    class Resumed(Message):
        """This screen came to the top and stands on an old view."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.glyphs = glyphs
        self.view: View | None = None
        self.now_s = 0.0

    def on_screen_resume(self) -> None:
        self.post_message(self.Resumed())

    def show(self, view: View | None, now_s: float) -> None:
        """Draw the view as of `now_s`; called for every new one, and each second, while the screen is on top."""
        self.view, self.now_s = view, now_s
        self.set_class(view is not None and view.link.was_connected and not view.link.connected, "-cut-off")

    def panel(self, id: str) -> Panel:
        return self.query_one(f"#{id}", Panel)
