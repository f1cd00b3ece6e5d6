"""The models of the fleet, and one of them: standard against Flash, by board, by artifact, and the shape of both."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from textual import on
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from edgekit_tui import draw, models, tiles
from edgekit_tui.distribution import distribution
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.feed import View
from edgekit_tui.ink import Panel
from edgekit_tui.picklist import Items, PickList
from edgekit_tui.places import DEVICES, MODEL, MODELS
from edgekit_tui.view_screen import Go, HealthBar, ViewScreen


class ModelsScreen(ViewScreen):
    """Every model, its samples merged over the fleet; enter opens one."""

    KIND = MODELS
    AUTO_FOCUS = "PickList"

    def body(self) -> Iterable[Widget]:
        yield HealthBar(id="health")
        with Vertical(id="models", classes="boxed"):
            yield PickList(self.glyphs)
        yield Panel(id="empty")

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        self.set_class(view is None or not view.rows, "-empty")
        if self.has_class("-empty"):
            lines = tiles.nothing_yet(view, self.glyphs)
            self.panel("empty").show(lambda width, height: tiles.centred(lines, width, height))
        if view is None:
            return
        self.query_one(HealthBar).show(view, self.glyphs, now_s)
        found = models.groups(view.totals.cells, lambda cell: cell.model)
        self.query_one("#models").border_title = f"models  {len(found)}"
        self.query_one(PickList).show(lambda width: models.table("model", found, width, self.glyphs))

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        self.post_message(Go(MODEL, str(event.key)))


class ModelScreen(ViewScreen):
    """One model over the fleet; enter on an artifact lists the devices that run it."""

    KIND = MODEL
    AUTO_FOCUS = "PickList"
    BINDINGS = [("escape,backspace", "back", "back")]  # noqa: RUF012

    def body(self) -> Iterable[Widget]:
        yield Panel(title="standard against flash, ms", id="versus", classes="boxed")
        with Horizontal(id="kinds"):
            for kind in (models.STANDARD, models.FLASH):
                yield Panel(title=kind, id=f"kind-{kind}", classes="boxed")
        with Vertical(id="artifacts", classes="boxed"):
            yield PickList(self.glyphs)
        yield Panel(title="by board", id="boards", classes="boxed")

    def show(self, view: View | None, now_s: float) -> None:
        super().show(view, now_s)
        if view is None or not self.place.subject:
            return
        name, glyphs = self.place.subject[0], self.glyphs
        cells = [cell for cell in view.totals.cells if cell.model == name]
        kinds = {one.name: one for one in models.groups(cells, models.kind_of)}
        self.panel("versus").border_title = Content(f"{draw.clean(name)}: standard against flash, ms").markup
        self.panel("versus").show(lambda width, _: models.side_by_side(cells, width, glyphs))
        for kind in (models.STANDARD, models.FLASH):
            self.panel(f"kind-{kind}").show(partial(_shape, kinds.get(kind), glyphs, kind))
        artifacts = models.groups(cells, lambda cell: cell.artifact)
        self.query_one("#artifacts").border_title = "by artifact"
        self.query_one(PickList).show(lambda width: _artifacts(artifacts, width, glyphs))
        boards = models.groups(cells, lambda cell: cell.board)
        self.panel("boards").show(lambda width, _: models.plain("board", boards, width, glyphs))

    @on(PickList.Chosen)
    def _chosen(self, event: PickList.Chosen) -> None:
        self.post_message(Go(DEVICES, f'model="{self.place.subject[0]}" artifact="{event.key}"'))


def _artifacts(found: list[models.Group], width: int, glyphs: Glyphs) -> tuple[Line, Items]:
    return models.table("artifact", found, width, glyphs)


def _shape(one: models.Group | None, glyphs: Glyphs, kind: str, width: int, height: int) -> Lines:
    """The distribution of one kind of artifact, with what it costs in accuracy."""
    if one is None:
        return ((("no device runs a ", "faint"), (kind, "text"), (" artifact", "faint")),)
    accuracies = sorted({round(ratio * 100, 1) for cell in one.cells for ratio in cell.accuracies})
    accuracy = (
        f"  accuracy {'-'.join(f'{a:g}' for a in (accuracies[0], accuracies[-1])[: len(accuracies)])} %"
        if accuracies
        else ""
    )
    head: Line = (
        (f"{draw.count(one.devices)} devices  p50 ", "faint"), (draw.ms(one.p50_ms, glyphs), "p50"),
        ("  p99 ", "faint"), (draw.p99_text(one.p99_ms, one.samples, glyphs), "p99"),
        (f"  n {draw.number(one.samples, glyphs)}{accuracy}", "faint"),
    )  # fmt: skip
    return (head, *distribution(one.latency, width, max(4, height - 1), glyphs))
