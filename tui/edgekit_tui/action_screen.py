"""The confirmation of an order, which names exactly what will happen, and then its progress device by device."""

from __future__ import annotations

import secrets
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from edgekit_tui import draw
from edgekit_tui.actions import Dispatch, Order, Send
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.feed import View
from edgekit_tui.ink import INK_CLASSES, Panel
from edgekit_tui.picklist import Items, PickList
from edgekit_tui.view_screen import Resumed

TURN_S = 0.2
OUTCOMES = {"ok": ("check", "good"), "failed": ("cross", "bad"), "lost": ("cross", "warn"), "unsent": ("cross", "bad")}


class ActionScreen(ModalScreen[None]):
    """Nothing is sent before y; afterwards escape closes the list of outcomes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(INK_CLASSES)

    AUTO_FOCUS = "PickList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "confirm", "send"),
        Binding("escape,n,q", "leave", "close"),
    ]

    def __init__(self, order: Order, send: Send, glyphs: Glyphs) -> None:
        super().__init__()
        self._order, self._send, self._glyphs = order, send, glyphs
        self._view: View | None = None
        self._now_s = 0.0
        self.dispatch: Dispatch | None = None
        "Set once it is agreed to."

    def compose(self) -> ComposeResult:
        with Vertical(id="action"):
            yield Panel(id="action-head")
            yield PickList(self._glyphs)
            yield Panel(id="action-keys")

    def on_mount(self) -> None:
        self.post_message(Resumed())

    def show(self, view: View | None, now_s: float) -> None:
        """Take what was answered, and draw."""
        self._view, self._now_s = view, now_s
        if self.dispatch is not None and not self.dispatch.is_done and view is not None:
            self.dispatch.turn(self._send, view.replies, now_s)
        title = draw.clean(self._order.verb, not self._glyphs.unicode)
        self.query_one("#action").border_title = Content(title).markup  # what was typed is not markup
        self.query_one("#action-head", Panel).show(lambda width, _: self._head(width))
        self.query_one(PickList).show(self._items)
        self.query_one("#action-keys", Panel).show(lambda _w, _h: self._keys())

    def action_confirm(self) -> None:
        if self.dispatch is None and self._order.targets:
            self.dispatch = Dispatch(self._order, prefix=f"console-{secrets.token_hex(6)}")
            self.show(self._view, self._now_s)

    def action_leave(self) -> None:
        self.dismiss(None)

    def _head(self, width: int) -> Lines:
        order, n = self._order, len(self._order.targets)
        if self.dispatch is not None:
            return self._progress(width)
        if not n:
            return ((("no device can be asked; nothing will be sent", "warn"),),)
        args = "".join(f" {key}={value}" for key, value in order.args.items())
        what = f"the command '{order.verb}{args}' will be sent once to {draw.count(n)} device{'s' if n > 1 else ''}"
        lines: list[Line] = [((part, "text"),) for part in draw.wrap(what, width, self._glyphs)]
        if order.refused:
            k = len(order.refused)
            lines.append(((f"{draw.count(k)} cannot be asked, and {'is' if k == 1 else 'are'} left out", "warn"),))
        return tuple(lines)

    def _progress(self, width: int) -> Lines:
        assert self.dispatch is not None
        counts, n = self.dispatch.counts, len(self._order.targets)
        done = sum(counts.values())
        words = "  ".join(f"{draw.count(counts[key])} {key}" for key in OUTCOMES if counts.get(key))
        ratio = done / n
        return (
            (
                *draw.bar(ratio, max(4, width - 18), self._glyphs, "good"),
                (f" {draw.count(done)}/{draw.count(n)}", "strong"),
            ),
            ((words or "waiting for answers", "text"),),
        )

    def _items(self, width: int) -> tuple[Line, Items]:
        order, glyphs = self._order, self._glyphs
        name = min(32, max(12, width // 3))
        items: list[tuple[object, Line]] = []
        outcomes = self.dispatch.outcomes if self.dispatch else {}
        for key in order.targets:
            outcome, words = outcomes.get(key, ("", "waiting" if self.dispatch else "will get it"))
            mark, ink = OUTCOMES.get(outcome, ("dot", "faint"))
            items.append((key, _line(getattr(glyphs, mark), key, words, ink, name, width, glyphs)))
        items += [(key, _line(glyphs.missing, key, why, "warn", name, width, glyphs)) for key, why in order.refused]
        return (), items

    def _keys(self) -> Lines:
        if self.dispatch is None and self._order.targets:
            return ((("y", "key"), (" send   ", "text"), ("escape", "key"), (" do nothing", "text")),)
        return ((("escape", "key"), (" close", "text")),)


def _line(mark: str, key: tuple[str, str], words: str, ink: str, name: int, width: int, glyphs: Glyphs) -> Line:
    return (
        (mark + " ", ink),
        (draw.fit("/".join(key), name, glyphs) + " ", "strong"),
        (draw.fit(words, max(0, width - name - 3), glyphs), ink),
    )
