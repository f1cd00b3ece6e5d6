"""The command line at the foot of the screen."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from edgekit.errors import UsageError
from edgekit_tui.command import WORDS, parse_command, suggestions


class CommandScreen(ModalScreen[str]):
    """One line; enter runs it, escape leaves it, right completes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close")]

    def __init__(self, begun: str = "") -> None:
        super().__init__()
        self._begun = begun

    def compose(self) -> ComposeResult:
        with Horizontal(id="command"):
            yield Static(" : ", id="slash")
            yield Input(self._begun, id="line", select_on_focus=False, suggester=SuggestFromList(suggestions()))
            yield Static("", id="problem", markup=False)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        """What the word does, or what is wrong with it, while it is typed."""
        name = event.value.strip().partition(" ")[0]
        word = next((word for word in WORDS if name and name in (word.name, *word.aliases)), None)
        hint = self.query_one("#problem", Static)
        hint.update(f"{word.name} {word.argument}  {word.what}" if word else "")

    def on_key(self, event: events.Key) -> None:
        """What is typed right after the colon, before the line has the focus, goes into the line, too."""
        line = self.query_one(Input)
        if line.has_focus:
            return
        if event.key == "enter":
            self._run(line.value)
        elif event.is_printable and event.character:
            line.value += event.character
            line.cursor_position = len(line.value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._run(event.value)

    def _run(self, text: str) -> None:
        if not text.strip():
            self.dismiss(None)
            return
        try:
            parse_command(text)
        except UsageError as e:
            self.query_one("#problem", Static).update(str(e))
            return
        self.dismiss(text)

    def action_leave(self) -> None:
        self.dismiss(None)
