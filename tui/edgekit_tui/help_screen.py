"""The help: every key of the screen below, the filter's language, and what the symbols mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from edgekit_tui import draw
from edgekit_tui.columns import columns
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import INK_CLASSES, Panel

KEYS = (
    ("1 2 3 4 6 0", "places, alerts"), (":", "command line"), ("enter", "open it"),
    ("escape", "back; clear filter"), ("[ ]", "where one was; forward"), ("/", "filter"), ("?", "this help"),
    ("j k g G", "down, up, first, last"), ("n p", "next, previous"), ("l", "log or linear plots"),
    ("space , .", "pause, back, on"), ("P R", "ping, rebirth the device"), ("ctrl+p", "palette, themes"), ("q", "quit"),
)  # fmt: skip
FILTER_EXAMPLES = (
    ("orin", "any text field holds it (a regular expression)"),
    ("board:pi", "one field: device site state board model artifact release update"),
    ("!state:online", "an exclamation mark turns a term round"),
    ("p99>50 temp>=70", "numbers: p50 p99 n qps fail mem temp age"),
    ('board:"orin nano"', "quotes keep blanks together"),
)


class HelpScreen(ModalScreen[None]):
    """Keys, filter and symbols."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(INK_CLASSES)

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "close")]

    def __init__(self, keys: tuple[tuple[str, str], ...], glyphs: Glyphs) -> None:
        super().__init__()
        self._keys, self._glyphs = keys, glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Panel(id="help-text")

    def on_mount(self) -> None:
        self.query_one("#help").border_title = "help"
        self.query_one("#help-text", Panel).show(lambda width, _: help_lines(self._keys, width, self._glyphs))


def help_lines(keys: tuple[tuple[str, str], ...], width: int, glyphs: Glyphs) -> Lines:
    """The help as lines; keys stand in two columns where there is room."""
    lines: list[Line] = [(("keys", "section"),)]
    half = width // 2
    pairs = [_pair(key, what, half, glyphs) for key, what in keys]
    lines += [left + right for left, right in zip(pairs[::2], [*pairs[1::2], ()], strict=False)]
    lines += [(), (("sort by", "section"), ("  the key again turns the order round", "faint"))]
    titles = [(column.key, column.title) for column in columns()]
    for start in range(0, len(titles), 5):
        lines.append(
            tuple(
                span
                for key, title in titles[start : start + 5]
                for span in _pair(key, title, width // 5, glyphs, gap=2)
            )
        )
    lines += [(), (("filter", "section"), ("  terms stand side by side and all must hold", "faint"))]
    lines += [_pair(example, what, width, glyphs, gap=20) for example, what in FILTER_EXAMPLES]
    lines += [(), (("states", "section"),)]
    states: list[tuple[str, str]] = []
    for state in glyphs.states:
        states += [(f"{draw.state_glyph(state, glyphs)} {state}", draw.state_ink(state)), ("   ", "text")]
    marks = (
        (("!157 ", "bad"), ("is over the limit set for the model", "text")),
        (("~157 ", "faint"), (f"stands on too few samples: a p99 needs {draw.SUPPORTED_P99}", "text")),
    )
    return (*lines, tuple(states), *marks)


def _pair(key: str, what: str, width: int, glyphs: Glyphs, *, gap: int = 12) -> Line:
    return ((draw.fit(key, gap, glyphs), "accent"), (draw.fit(what, max(0, width - gap), glyphs), "text"))
