"""The alerts: acknowledge one or all; enter opens the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from edgekit_tui import draw
from edgekit_tui.alerts import Alert
from edgekit_tui.draw import Glyphs, Line
from edgekit_tui.feed import View
from edgekit_tui.ink import clip
from edgekit_tui.picklist import Items, PickList
from edgekit_tui.places import ALERTS, DEVICE
from edgekit_tui.view_screen import Go, ViewScreen


class AlertsScreen(ViewScreen):
    """What is wrong, newest first, acknowledged ones last."""

    KIND = ALERTS
    AUTO_FOCUS = "PickList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "acknowledge(False)", "acknowledge"),
        Binding("A", "acknowledge(True)", "acknowledge all"),
        Binding("escape", "back", "back"),
    ]

    class Acknowledged(Message):
        """Somebody knows of these."""

        def __init__(self, alerts: Sequence[Alert]) -> None:
            self.alerts = alerts
            super().__init__()

    def body(self) -> Iterable[Widget]:
        with Vertical(id="log", classes="boxed"):
            yield PickList(self.glyphs)

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        alerts = view.alerts if view else ()
        unknown = sum(not alert.acknowledged for alert in alerts)
        self.query_one("#log").border_title = f"alerts  {len(alerts)}, {unknown} not acknowledged"
        self.query_one(PickList).show(lambda width: _lines(alerts, width, self.glyphs, now_s))

    def action_acknowledge(self, every: bool) -> None:
        alerts = self.view.alerts if self.view else ()
        chosen = self.query_one(PickList).selected
        known = [alert for alert in alerts if every or alert.id == chosen]
        if known:
            self.post_message(self.Acknowledged(known))

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        if isinstance(event.key, tuple):
            _, site, device, model, _ = event.key
            self.post_message(Go(DEVICE, site, device, model))


def _lines(alerts: Sequence[Alert], width: int, glyphs: Glyphs, now_s: float) -> tuple[Line, Items]:
    if not alerts:
        return ((f"{glyphs.check} nothing to tell", "good"),), ()
    name = min(24, max(10, width // 5))
    header = f"{'':4}{'for':>5}  {draw.fit('rule', 12, glyphs)} {draw.fit('device', name, glyphs)} what"
    items: list[tuple[object, Line]] = []
    for one in alerts:
        mark, ink = (glyphs.check, "faint") if one.acknowledged else ("!", "warn" if one.ended else "bad")
        line: Line = (
            (f" {mark}  ", ink),
            (draw.age(now_s - one.since_s).rjust(5) + "  ", "faint"),
            (draw.fit(one.rule, 12, glyphs) + " ", ink),
            (draw.fit(one.device, name, glyphs) + " ", "strong"),
            (f"{one.model}  " if one.model else "", "model"),
            (one.text, "faint" if one.acknowledged else "text"),
            ("  (it has ended)" if one.ended else "", "faint"),
        )
        items.append((one.id, clip(line, width, glyphs)))
    return ((header[:width], "head"),), items
