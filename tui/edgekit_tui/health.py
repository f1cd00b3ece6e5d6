"""What the overview says in words: who is worst and why, and which versions are in the field. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip
from edgekit_tui.kept import Kept
from edgekit_tui.rows import Row, RowKey
from edgekit_tui.standing import BY_WORD
from edgekit_tui.totals import Totals

FULL_RATIO, FAILING_RATIO = 0.92, 0.05


@dataclass(frozen=True, slots=True)
class Offender:
    """A row with what is wrong with it."""

    row: Row
    weight: float
    "The worse, the more."
    why: str
    ink: str


class Blame:
    """Finds the worst of one view after the other; rows that did not change are not judged again."""

    def __init__(self) -> None:
        self._weights: Kept[Row, float] = Kept(weight)

    def offenders(self, rows: Sequence[Row], now_s: float, glyphs: Glyphs, *, most: int = 200) -> list[Offender]:
        """The `most` rows that something is wrong with, worst first; what is said of a device counts once."""
        return [_told(row, bad, now_s, glyphs) for row, bad in self._found(rows)[:most]]

    def _found(self, rows: Sequence[Row]) -> list[tuple[Row, float]]:
        found: list[tuple[Row, float]] = []
        told: set[tuple[str, str]] = set()
        for row, bad in zip(rows, self._weights.of(rows), strict=True):
            if not bad:
                continue
            if bad >= STALE or bad == UPDATE:  # said of the device, not of a model on it
                if (row.site, row.device) in told:
                    continue
                told.add((row.site, row.device))
            found.append((row, bad))
        found.sort(key=lambda pair: (-pair[1], pair[0].key))
        return found


OFFLINE, STALE, SLOW, FAILING, UPDATE, HOT, DROPS, FULL, OTHER = 100.0, 90.0, 50.0, 40.0, 35.0, 30.0, 25.0, 20.0, 10.0
"What weighs more comes first; how far over its limit a slow model is adds up to 30."


def weight(row: Row) -> float:
    """The worst that is wrong with a row; 0 for a healthy one."""
    if row.state == "offline":
        return OFFLINE
    if row.state == "stale":
        return STALE
    if row.is_over:
        return SLOW + min((row.p99_ms or 0.0) / row.limit_ms if row.limit_ms else 30.0, 30.0)
    if (row.failed_ratio or 0.0) >= FAILING_RATIO:
        return FAILING
    if row.update and BY_WORD[row.update].ink == "bad":
        return UPDATE
    if row.throttled:
        return HOT
    if row.dropped:
        return DROPS
    if (row.memory_ratio or 0.0) >= FULL_RATIO:
        return FULL
    return OTHER if row.state != "online" else 0.0


def _told(row: Row, bad: float, now_s: float, glyphs: Glyphs) -> Offender:
    """The fault in words."""
    if bad == OFFLINE:
        silent = f" for {draw.age(max(1.0, now_s - row.last_seen_s))}" if row.last_seen_s else ""
        return Offender(row, bad, f"offline{silent}{': ' if row.reason else ''}{row.reason}", "bad")
    if bad == STALE:
        return Offender(row, bad, f"silent for {draw.age(now_s - row.last_seen_s)}", "bad")
    if bad >= SLOW:
        hot = ", throttled" if row.throttled else ""
        p99, limit = draw.ms(row.p99_ms, glyphs), draw.ms(row.limit_ms, glyphs)
        return Offender(row, bad, f"p99 {p99} ms, limit {limit}{hot}", "bad")
    if bad == FAILING:
        return Offender(row, bad, f"{(row.failed_ratio or 0) * 100:.0f}% of requests fail", "bad")
    if bad == UPDATE:
        return Offender(row, bad, f"update {row.update}{': ' if row.update_reason else ''}{row.update_reason}", "bad")
    heat = f" at {row.temperature_c:.0f} degrees" if row.temperature_c is not None else ""
    words = {
        HOT: f"throttled{heat}",
        DROPS: f"{draw.count(row.dropped)} messages dropped",
        FULL: f"memory {(row.memory_ratio or 0) * 100:.0f}% used",
    }
    return Offender(row, bad, words.get(bad, row.state), "warn")


def offender_lines(found: Sequence[Offender], width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[RowKey, Line]]]:
    """A header, and a line for each."""
    name = min(22, max(10, width // 4))
    model = min(18, max(0, width // 5))
    items: list[tuple[RowKey, Line]] = []
    for one in found:
        row = one.row
        line: Line = (
            (draw.state_glyph(row.state, glyphs) + " ", draw.state_ink(row.state)),
            (draw.fit(row.device, name, glyphs) + "  ", "strong"),
            (draw.fit(row.model, model, glyphs) + "  ", "model"),
            (draw.fit(one.why, max(0, width - name - model - 6), glyphs), one.ink),
        )
        items.append((row.key, line))
    header = f"  {draw.fit('device', name, glyphs)}  {draw.fit('model', model, glyphs)}  what is wrong"
    return ((header[:width], "head"),), items


def versions(totals: Totals, width: int, height: int, glyphs: Glyphs) -> Lines:
    """Artifacts, boards and software in the field: how many live devices have each, as bars."""
    parts = [
        (title, Counter(counted))
        for title, counted in (
            ("artifacts", totals.artifacts), ("boards", totals.boards), ("software", totals.software)
        )
    ]  # fmt: skip
    shown = _rooms([len(counted) for _, counted in parts], height - len(parts) if height else 15)
    lines: list[Line] = []
    for (title, counted), room in zip(parts, shown, strict=True):
        more = len(counted) - room
        lines.append(((title, "section"), (f"  {more} more not shown" if more > 0 else "", "faint")))
        lines += [_share(name, n, max(counted.values()), width, glyphs) for name, n in counted.most_common(room)]
    return tuple(clip(line, width, glyphs) for line in (lines[:height] if height else lines))


def _rooms(wanted: Sequence[int], height: int) -> list[int]:
    """How many lines each part gets: one after the other in turn, none more than it wants."""
    given = [0] * len(wanted)
    while sum(given) < height and given != list(wanted):
        hungry = [i for i, n in enumerate(wanted) if given[i] < n]
        given[min(hungry, key=lambda i: given[i])] += 1
    return given


def _share(name: str, n: int, most: int, width: int, glyphs: Glyphs) -> Line:
    bar = max(0, min(16, width - 28))
    text = width - bar - 8
    filled = max(1, round(n / most * bar)) if bar else 0
    return (
        (draw.fit(name, text, glyphs) + " ", "text"),
        (draw.number(n, glyphs).rjust(5) + " ", "strong"),
        (glyphs.full * filled, "hush"),
    )
