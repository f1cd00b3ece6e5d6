"""What the worker tells the console."""

from __future__ import annotations

from textual.message import Message

from edgekit_tui.feed import View


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
