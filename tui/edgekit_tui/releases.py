"""Releases over the fleet: what was wished of each device and what it reports, by device and by group. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len

from edgekit.ships import Ship, Ships
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip
from edgekit_tui.standing import Standing, fetched, mark, reason, standing, words

DeviceKey = tuple[str, str]
MOST = 500
"Lines of the list; those that need somebody come first."
ROOMY = 90
"From this width on the list has sites and groups."
STEP_CELLS = 13
Cells = tuple[str, int, list[tuple[str, str]]]
"A column: its title, the most cells it gets, and text and ink of each line."
REASON_LINES = 4
"Of a device's own words on its screen."


def by_group(ships: Ships, width: int, glyphs: Glyphs) -> Lines:
    """For each group and wish: how many devices are how far."""
    parts: dict[tuple[str, str], Counter[Standing]] = {}
    for ship in ships.values():
        wish = ship.desired.release if ship.desired is not None else ""
        parts.setdefault((ship.group, wish), Counter())[standing(ship)] += 1
    most = min(20, max(8, width // 5))
    name = _cells("group", (group for group, _ in parts), most)
    wanted = _cells("wanted", (wish for _, wish in parts), most)
    lines: list[Line] = [
        ((f"{draw.fit('group', name, glyphs)} {draw.fit('wanted', wanted, glyphs)} devices"[:width], "head"),)
    ]
    for (group, wish), counted in sorted(parts.items()):
        spans: list[tuple[str, str]] = [
            (draw.fit(group or glyphs.missing, name, glyphs) + " ", "strong"),
            (draw.fit(wish or glyphs.missing, wanted, glyphs) + " ", "model"),
            (draw.count(counted.total()).rjust(7) + "  ", "text"),
        ]
        for one, n in sorted(counted.items()):
            spans += [(f"{draw.count(n)} {one.word}", one.ink), ("  ", "text")]
        lines.append(clip(tuple(spans[:-1]), width, glyphs))
    return tuple(lines)


def by_device(ships: Ships, width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[DeviceKey, Line]]]:
    """A header, and a line for each device: those that need somebody first. Sites only where there are several."""
    found = sorted(((standing(ship), key, ship) for key, ship in ships.items()), key=lambda one: (one[0].rank, one[1]))
    shown = found[:MOST]
    release, gap = min(16, max(8, width // 8)), "  " if width >= ROOMY else " "
    columns: list[Cells] = [("device", min(24, max(10, width // 5)), [(key[1], "strong") for _, key, _ in shown])]
    if width >= ROOMY and len({site for site, _ in ships}) > 1:
        columns.insert(0, ("site", 12, [(key[0], "faint") for _, key, _ in shown]))
    if width >= ROOMY:
        columns.append(("group", 12, [(ship.group, "faint") for *_, ship in shown]))
    columns += [
        ("wanted", release, [(ship.desired.release if ship.desired else "", "model") for *_, ship in shown]),
        ("runs", release, [(ship.running, "text") for *_, ship in shown]),
    ]
    widths = [_cells(title, (text for text, _ in cells), most) for title, most, cells in columns]
    head = [draw.fit(title, cells, glyphs) for (title, *_), cells in zip(columns, widths, strict=True)]
    header = gap.join([*head, "step".ljust(STEP_CELLS), "why"])[:width]
    items: list[tuple[DeviceKey, Line]] = []
    for i, (now, key, ship) in enumerate(shown):
        texts = [cells[i] for *_, cells in columns]
        line: Line = (
            *((draw.fit(text or glyphs.missing, room, glyphs) + gap, ink)
              for (text, ink), room in zip(texts, widths, strict=True)),
            (draw.fit(words(now.word, fetched(ship)), STEP_CELLS, glyphs) + gap, now.ink),
            (reason(ship), "text"),
        )  # fmt: skip
        items.append((key, clip(line, width, glyphs)))
    return ((header, "head"),), items


def _cells(title: str, texts: Iterable[str], most: int) -> int:
    """Cells that a column needs for its title and its widest text, `most` at most."""
    return min(most, max(map(cell_len, (title, *texts))))


def of_device(ship: Ship, width: int, glyphs: Glyphs) -> Lines:
    """What one device runs and how far its update is, in a line; below it why, in full as far as there is room."""
    now, wish = standing(ship), ship.desired
    unknown = "no release" if ship.reported is not None else "a release not told yet"
    line: list[tuple[str, str]] = [("runs ", "faint"), (ship.running or unknown, "strong")]
    if wish is not None and wish.release != ship.running:
        line += [("  wanted ", "faint"), (wish.release, "model")]
    line += [("  ", "text"), (f"{mark(now, glyphs)} {words(now.word, fetched(ship))}".strip(), now.ink)]
    if ship.group:
        line += [("  of group ", "faint"), (ship.group, "text")]
    why = reason(ship)
    below = draw.wrap(why, max(1, width), glyphs)[:REASON_LINES] if why else []
    return (clip(tuple(line), width, glyphs), *(((part, now.ink if now.is_trouble else "text"),) for part in below))
