"""Releases over a fleet: what was desired of each device, and what it reports. Pure; console and CLI share it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from edgekit.config import NAME_PATTERN
from edgekit.fleet import MAX_DEVICES
from edgekit.telemetry.desired import Desired, Reported
from edgekit.telemetry.messages import EVERYONE, Received, decode, parse_topic

LEAVES = ("/desired", "/reported")
_NAME = re.compile(NAME_PATTERN)


class Ship(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device's wish and report. None: there is none."""

    desired: Desired | None = None
    reported: Reported | None = None

    @property
    def is_answered(self) -> bool:
        """The report is about the wish that stands, or none stands."""
        wish, report = self.desired, self.reported
        return wish is None or (report is not None and (report.desired, report.desired_id) == (wish.release, wish.id))

    @property
    def running(self) -> str:
        """The release that runs; empty: none, or not told."""
        return self.reported.running if self.reported is not None else ""

    @property
    def group(self) -> str:
        """Whose releases the device takes; empty: not told."""
        return self.reported.group if self.reported is not None else ""


Ships = Mapping[tuple[str, str], Ship]
"""By site and device."""


def heard(ships: Ships, messages: Iterable[Received]) -> Ships:
    """The wishes and reports after `messages`; the same value when none of them is about a release.

    An empty payload takes back what was retained; one that does not decode changes nothing, nor does what is said to
    everyone: there an operator's claim on the site stands. A device of which nothing new was said keeps its value.
    """
    newer: dict[tuple[str, str], Ship] = {}
    strangers = 0
    for message in messages:
        topic = parse_topic(message.topic) if message.topic.endswith(LEAVES) else None
        if topic is None or not is_device(topic.site, topic.device):
            continue
        key = (topic.site, topic.device)
        is_stranger = key not in ships and key not in newer
        if is_stranger and len(ships) + strangers >= MAX_DEVICES:
            continue
        try:
            value = decode(topic.leaf, message.payload) if message.payload else None
        except ValueError:
            continue
        strangers += is_stranger
        newer[key] = replace(newer.get(key) or ships.get(key) or Ship(), **{topic.leaf: value})
    if not newer:
        return ships
    return {key: ship for key, ship in {**ships, **newer}.items() if ship.desired or ship.reported}


def is_device(site: str, device: str) -> bool:
    """Both are names that a device may have."""
    return EVERYONE not in (site, device) and bool(_NAME.match(site) and _NAME.match(device))
