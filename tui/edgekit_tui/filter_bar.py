"""The line into which a filter is typed; what is half typed keeps the last good one."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from edgekit.errors import UsageError


class FilterBar(Horizontal):
    """Hidden until it is opened; says so when a term is wrong."""

    class Filtered(Message):
        """The filter is another, and a good one."""

    class Closed(Message):
        """Done typing."""

    def __init__(self, accept: Callable[[str], None], hint: str) -> None:
        """Args: accept: takes the text, or raises UsageError that says what is wrong with it."""
        super().__init__(id="filter-bar")
        self._accept, self._hint = accept, hint

    def compose(self) -> ComposeResult:
        yield Static(" / ", id="slash")
        yield Input(placeholder=self._hint, id="filter", select_on_focus=False)
        yield Static("", id="problem", markup=False)

    def open(self) -> None:
        """Show it and type into it."""
        self.display = True
        self.screen.set_focus(self.query_one(Input))

    def set_text(self, text: str) -> None:
        """Filter by this text as if it had been typed."""
        self.query_one(Input).value = text

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            self._accept(event.value)
        except UsageError as e:
            self.query_one("#problem", Static).update(str(e).removeprefix("filter: "))
            return
        self.query_one("#problem", Static).update("")
        self.post_message(self.Filtered())

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Closed())
