"""Releases over the fleet: what was wished of each device and what it reports, by device and by group. Pure."""

from __future__ import annotations

from collections import Counter

from edgekit.ships import Ship, Ships
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip
from edgekit_tui.standing import Standing, fetched, mark, reason, standing, words

DeviceKey = tuple[str, str]
MOST = 500
"Lines of the list; those that need somebody come first."
REASON_LINES = 4
"Of a device's own words on its screen."


def by_group(ships: Ships, width: int, glyphs: Glyphs) -> Lines:
    """For each group and wish: how many devices are how far."""
    parts: dict[tuple[str, str], Counter[Standing]] = {}
    for ship in ships.values():
        wish = ship.desired.release if ship.desired is not None else ""
        parts.setdefault((ship.group, wish), Counter())[standing(ship)] += 1
    name = min(20, max(8, width // 5))
    lines: list[Line] = [((f"{draw.fit('group', name, glyphs)} {draw.fit('wanted', name, glyphs)} devices", "head"),)]
    for (group, wish), counted in sorted(parts.items()):
        spans: list[tuple[str, str]] = [
            (draw.fit(group or glyphs.missing, name, glyphs) + " ", "strong"),
            (draw.fit(wish or glyphs.missing, name, glyphs) + " ", "model"),
            (draw.count(counted.total()).rjust(7) + "  ", "text"),
        ]
        for one, n in sorted(counted.items()):
            spans += [(f"{draw.count(n)} {one.word}", one.ink), ("  ", "text")]
        lines.append(clip(tuple(spans[:-1]), width, glyphs))
    return tuple(lines)


def by_device(ships: Ships, width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[DeviceKey, Line]]]:
    """A header, and a line for each device: those that need somebody first."""
    name, release = min(24, max(10, width // 5)), min(16, max(8, width // 8))
    group = 10 if width >= 90 else 0
    found = sorted(((standing(ship), key, ship) for key, ship in ships.items()), key=lambda one: (one[0].order, one[1]))
    items: list[tuple[DeviceKey, Line]] = []
    for now, key, ship in found[:MOST]:
        wish = ship.desired
        line: Line = (
            (draw.fit(key[1], name, glyphs) + " ", "strong"),
            (draw.fit(ship.group or glyphs.missing, group, glyphs) + " " if group else "", "faint"),
            (draw.fit(wish.release if wish is not None else glyphs.missing, release, glyphs) + " ", "model"),
            (draw.fit(ship.running or glyphs.missing, release, glyphs) + " ", "text"),
            (draw.fit(words(now.word, fetched(ship)), 16, glyphs) + " ", now.ink),
            (reason(ship), "text"),
        )
        items.append((key, clip(line, width, glyphs)))
    titles = [("device", name), *([("group", group)] if group else []), ("wanted", release), ("runs", release)]
    header = " ".join(draw.fit(title, cells, glyphs) for title, cells in titles) + " step             why"
    return ((header[:width], "head"),), items


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
