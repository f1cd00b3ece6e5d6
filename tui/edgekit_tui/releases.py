"""Releases over the fleet: what was wished of each device and what it reports, by device and by group. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.messages import Received, decode, parse_topic
from edgekit_tui import draw
from edgekit_tui.draw import Glyphs, Line, Lines
from edgekit_tui.ink import clip

DeviceKey = tuple[str, str]
LEAVES = ("desired", "reported")
MOST = 500
"Lines of the list; those that need somebody come first."
STEPS: Mapping[Step, tuple[int, str, str]] = {
    Step.ROLLED_BACK: (0, "rolled back", "bad"),
    Step.FAILED: (0, "failed", "bad"),
    Step.REFUSED: (1, "refused", "bad"),
    Step.CANCELLED: (2, "cancelled", "warn"),
    Step.WAITING: (4, "waiting", "warn"),
    Step.FETCHING: (5, "fetching", "p50"),
    Step.INSTALLED: (6, "installed", "p50"),
    Step.BOOTED: (7, "booted", "p50"),
    Step.COMMITTED: (8, "committed", "good"),
    Step.IDLE: (9, "nothing asked", "faint"),
}
"Order in the list, word and ink."
UNHEARD = (3, "no answer yet", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ship:
    """One device's wish and report. None: there is none."""

    desired: Desired | None = None
    reported: Reported | None = None

    @property
    def standing(self) -> tuple[int, str, str]:
        """Order, word and ink: the report counts only when it answers the wish that stands."""
        wish, report = self.desired, self.reported
        if wish is not None and (report is None or (report.desired, report.desired_id) != (wish.release, wish.id)):
            return UNHEARD
        return STEPS[report.step if report is not None else Step.IDLE]

    @property
    def group(self) -> str:
        return self.reported.group if self.reported is not None else ""


Ships = Mapping[DeviceKey, Ship]


def heard(ships: Ships, messages: Iterable[Received]) -> Ships:
    """The ships after these messages; the same value when none of them is about a release.

    An empty payload takes back what was retained; one that does not decode changes nothing.
    """
    newer: dict[DeviceKey, Ship] = {}
    for message in messages:
        topic = parse_topic(message.topic) if message.topic.endswith(LEAVES) else None
        if topic is None:
            continue
        key = (topic.site, topic.device)
        ship = newer.get(key) or ships.get(key) or Ship()
        value = None
        if message.payload:
            with contextlib.suppress(ValueError):
                value = decode(topic.leaf, message.payload)
            if value is None:
                continue
        if topic.leaf == "desired" and (value is None or isinstance(value, Desired)):
            newer[key] = replace(ship, desired=value)
        elif topic.leaf == "reported" and (value is None or isinstance(value, Reported)):
            newer[key] = replace(ship, reported=value)
    if not newer:
        return ships
    return {key: ship for key, ship in {**ships, **newer}.items() if ship.desired or ship.reported}


def by_group(ships: Ships, width: int, glyphs: Glyphs) -> Lines:
    """For each group and wish: how many devices are how far."""
    parts: dict[tuple[str, str], Counter[tuple[int, str, str]]] = {}
    for ship in ships.values():
        wish = ship.desired.release if ship.desired is not None else ""
        parts.setdefault((ship.group, wish), Counter())[ship.standing] += 1
    name = min(20, max(8, width // 5))
    lines: list[Line] = [((f"{draw.fit('group', name, glyphs)} {draw.fit('wanted', name, glyphs)} devices", "head"),)]
    for (group, wish), counted in sorted(parts.items()):
        spans: list[tuple[str, str]] = [
            (draw.fit(group or glyphs.missing, name, glyphs) + " ", "strong"),
            (draw.fit(wish or glyphs.missing, name, glyphs) + " ", "model"),
            (draw.count(counted.total()).rjust(7) + "  ", "text"),
        ]
        for (_, word, ink), n in sorted(counted.items()):
            spans += [(f"{draw.count(n)} {word}", ink), ("  ", "text")]
        lines.append(clip(tuple(spans[:-1]), width, glyphs))
    return tuple(lines)


def by_device(ships: Ships, width: int, glyphs: Glyphs) -> tuple[Line, list[tuple[DeviceKey, Line]]]:
    """A header, and a line for each device: those that need somebody first."""
    name, release = min(24, max(10, width // 5)), min(16, max(8, width // 8))
    group = 10 if width >= 90 else 0
    found = sorted(ships.items(), key=lambda pair: (pair[1].standing[0], pair[0]))
    items: list[tuple[DeviceKey, Line]] = []
    for key, ship in found[:MOST]:
        _, word, ink = ship.standing
        report, wish = ship.reported, ship.desired
        running = report.running if report is not None else ""
        told = word if word != "fetching" or report is None else f"fetching {report.share * 100:.0f}%"
        why = report.reason if report is not None and ship.standing != UNHEARD else ""
        line: Line = (
            (draw.fit(key[1], name, glyphs) + " ", "strong"),
            (draw.fit(ship.group or glyphs.missing, group, glyphs) + " " if group else "", "faint"),
            (draw.fit(wish.release if wish is not None else glyphs.missing, release, glyphs) + " ", "model"),
            (draw.fit(running or glyphs.missing, release, glyphs) + " ", "text"),
            (draw.fit(told, 16, glyphs) + " ", ink),
            (why, "text"),
        )
        items.append((key, clip(line, width, glyphs)))
    titles = [("device", name), *([("group", group)] if group else []), ("wanted", release), ("runs", release)]
    header = " ".join(draw.fit(title, cells, glyphs) for title, cells in titles) + " step             why"
    return ((header[:width], "head"),), items
