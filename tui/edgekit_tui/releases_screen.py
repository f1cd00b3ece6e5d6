"""Releases: what was wished against what is reported, by group and by device; enter opens the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from edgekit_tui import draw, releases, tiles
from edgekit_tui.draw import Lines
from edgekit_tui.feed import View
from edgekit_tui.ink import Panel
from edgekit_tui.picklist import PickList
from edgekit_tui.places import DEVICE, RELEASES
from edgekit_tui.view_screen import Go, ViewScreen

NOTHING_YET: Lines = (
    (),
    (("no release was wished for, and no device has reported one", "text"),),
    (),
    (("stage one over the fleet with  ", "faint"), ("edgekit rollout start RELEASE", "key")),
)


class ReleasesScreen(ViewScreen):
    """Who runs what, who is on the way, and who needs somebody."""

    KIND = RELEASES
    AUTO_FOCUS = "PickList"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def body(self) -> Iterable[Widget]:
        yield Panel(title="by group", id="groups", classes="boxed")
        with Vertical(id="log", classes="boxed"):
            yield PickList(self.glyphs)
        yield Panel(id="empty")

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        glyphs, ships = self.glyphs, view.releases if view is not None else {}
        self.set_class(not ships, "-empty")
        if not ships:
            self.panel("empty").show(lambda width, height: tiles.centred(NOTHING_YET, width, height))
            return
        self.panel("groups").show(lambda width, _: releases.by_group(ships, width, glyphs))
        n = len(ships)
        shown = f", the first {draw.count(releases.MOST)}" if n > releases.MOST else ""
        self.query_one("#log").border_title = f"by device  {draw.count(n)}{shown}"
        self.query_one(PickList).show(lambda width: releases.by_device(ships, width, glyphs))

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        if isinstance(event.key, tuple):
            self.post_message(Go(DEVICE, *event.key, ""))
