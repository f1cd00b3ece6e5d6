"""How values become short text of a known width: numbers, ages, names, sparklines and bars. Pure; no Textual here."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
"Text and the name of its ink (see `ink.INKS`)."
Line = tuple[Span, ...]
Lines = tuple[Line, ...]

SUPPORTED_P99 = 662
"Samples a p99 needs at 99 % confidence (design: Numbers that count)."
SUPPORTED_P50 = 11
"Samples a median needs for a two-sided 99 % interval by order statistics."

STATE_INKS: Mapping[str, str] = {
    "online": "good", "throttled": "warn", "late": "warn", "stale": "faint", "offline": "bad",
}  # fmt: skip
"States from best to worst; any other word is a model's own state, such as loading."
SEVERITY: Mapping[str, int] = {"offline": 0, "stale": 1, "late": 2, "throttled": 3, "online": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The non-letter characters of the screen; two sets, so that a terminal without Unicode loses nothing."""

    states: Mapping[str, str]
    other_state: str
    spark: str
    "Levels from lowest to highest; none fills the cell, so that rows stay apart."
    full: str
    empty: str
    ellipsis: str
    descending: str
    ascending: str
    dot: str
    missing: str
    cursor: str
    check: str
    cross: str
    corner: str
    rule: str
    tick: str
    left_axis: str
    pipe: str
    limit: str
    unicode: bool


UNICODE = Glyphs(
    states={"online": "●", "throttled": "▲", "late": "◐", "stale": "○", "offline": "✖"},
    other_state="◌", spark="▁▂▃▄▅▆▇", full="━", empty="─", ellipsis="…", descending="▼", ascending="▲", dot="·",
    missing="–", cursor="▌", check="✓", cross="✗", corner="└", rule="─", tick="┴", left_axis="┤", pipe="│",
    limit="╌", unicode=True,
)  # fmt: skip
ASCII = Glyphs(
    states={"online": "+", "throttled": "^", "late": "~", "stale": "?", "offline": "x"},
    other_state="o", spark="_.-=+*%#", full="#", empty="-", ellipsis="~", descending="v", ascending="^", dot="-",
    missing="-", cursor=">", check="+", cross="x", corner="+", rule="-", tick="+", left_axis="|", pipe="|",
    limit=".", unicode=False,
)  # fmt: skip


@lru_cache(maxsize=8192)
def clean(text: str, ascii_only: bool = False) -> str:
    """`text` safe to draw on one line: no control, no direction override, no tabs; '?' for what ASCII lacks."""
    kept = []
    for char in text:
        category = unicodedata.category(char)
        if category in ("Cc", "Zl", "Zp"):
            kept.append(" ")
        elif category in ("Cf", "Cs", "Co", "Cn"):
            continue  # direction overrides and joiners would move the cells around them
        else:
            kept.append(char if not ascii_only or char.isascii() else "?")
    return "".join(kept)


def fit(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """`text` in exactly `width` terminal cells, cut with an ellipsis; wide characters are counted as two."""
    if width <= 0:
        return ""
    text = clean(text, not glyphs.unicode)
    length = cell_len(text)
    if length > width:
        return set_cell_size(set_cell_size(text, width - 1).rstrip() + glyphs.ellipsis, width)
    return " " * (width - length) + text if right else text + " " * (width - length)


def ms(value: float | None, glyphs: Glyphs) -> str:
    """Milliseconds with three significant figures; seconds from ten seconds on."""
    if value is None:
        return glyphs.missing
    if value >= 10_000:
        return f"{value / 1000:.3g}s" if value < 999_500 else f"{value / 1000:.0f}s"
    if value >= 99.95:  # what would be rounded up to 100
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3f}"


def p99_text(value: float | None, samples: int, glyphs: Glyphs) -> str:
    """A p99, marked with a tilde when its samples do not support it."""
    supported = value is None or samples >= SUPPORTED_P99
    return ms(value, glyphs) if supported else "~" + ms(value, glyphs)


def number(value: float | None, glyphs: Glyphs) -> str:
    """A rate or count in at most five characters."""
    if value is None:
        return glyphs.missing
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    if value >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}"


def bytes_(value: int | None, glyphs: Glyphs) -> str:
    """Bytes as MiB or GiB (M, G)."""
    if value is None:
        return glyphs.missing
    mib = value / 2**20
    if mib < 1000:
        return f"{mib:.0f}M"
    gib = mib / 1024
    return f"{gib:.1f}G" if gib < 99.95 else f"{gib:.0f}G"


def age(seconds: float) -> str:
    """How long ago, in at most four characters; a clock that runs ahead reads as now."""
    if seconds < 1:
        return "now"
    for limit, unit_s, unit in ((100, 1, "s"), (6000, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{int(seconds // 86_400)}d"


def count(n: int) -> str:
    """A count as a person reads it."""
    return f"{n:,}"


def spark(values: Sequence[float | None], width: int, glyphs: Glyphs, *, top: float | None = None) -> str:
    """The last `width` values as bars from zero to `top` or their maximum, right-aligned; a missing one is a blank."""
    recent = values[-width:] if width > 0 else ()
    if top is None:
        top = max((v for v in recent if v is not None), default=0.0)
    levels = glyphs.spark
    chars = []
    for value in recent:
        if value is None:
            chars.append(" ")
        else:
            level = round(value / top * (len(levels) - 1)) if top > 0 else 0
            chars.append(levels[min(len(levels) - 1, max(0, level))])
    return "".join(chars).rjust(max(width, 0))


def bar(ratio: float, width: int, glyphs: Glyphs, ink: str) -> Line:
    """A level of 0 to 1 as filled and empty cells."""
    filled = min(width, max(0, round(ratio * width)))
    return ((glyphs.full * filled, ink), (glyphs.empty * (width - filled), "track"))


def state_glyph(state: str, glyphs: Glyphs) -> str:
    """The symbol of a state, so that no state is told by colour alone."""
    return glyphs.states.get(state, glyphs.other_state)


def state_ink(state: str) -> str:
    return STATE_INKS.get(state, "warn")


def load_ink(ratio: float) -> str:
    """Ink of a level that should not reach 1."""
    return "bad" if ratio >= 0.9 else "warn" if ratio >= 0.75 else "load"


def heat_ink(celsius: float | None) -> str:
    """Ink of a temperature: most boards throttle between 80 and 90 degrees."""
    if celsius is None:
        return "faint"
    return "bad" if celsius >= 82 else "warn" if celsius >= 70 else "text"


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def wrap(text: str, width: int, glyphs: Glyphs) -> list[str]:
    """`text` broken at blanks into lines of at most `width` cells; a longer word is cut where it must be."""
    lines: list[str] = []
    current = ""
    for word in clean(text, not glyphs.unicode).split():
        while cell_len(word) > width > 0:
            if current:
                lines.append(current)
                current = ""
            piece = set_cell_size(word, width).rstrip()
            lines.append(piece or "?")
            word = word[max(1, len(piece)) :]
        candidate = f"{current} {word}" if current else word
        if cell_len(candidate) <= width:
            current = candidate
        else:
            lines.append(current)
            current = word
    return [*lines, current] if current else lines or [""]
