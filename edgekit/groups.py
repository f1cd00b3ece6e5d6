"""The fleet by model and lane: what each did in the windows a reader heard, merged over any group of devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from edgekit.collect.rollup import NOTHING, Rollup, merge, merge_all, with_window
from edgekit.fleet import HISTORY_WINDOWS, Device, Fleet, fold
from edgekit.ships import Ship, Ships
from edgekit.ships import heard as ships_after
from edgekit.telemetry import histogram
from edgekit.telemetry.messages import Metrics, Received, decode, parse_topic
from edgekit.telemetry.sequence import NO_WINDOWS, Arrival, Track, arrive

BY = ("site", "board", "model", "artifact", "lane")
"""What a fleet can be grouped by."""
UNKNOWN = "unknown"
"""The board of a device that has not introduced itself yet."""


class Lane(NamedTuple):
    """What the figures of one device are kept apart by."""

    model: str
    lane: str
    artifact: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The last 60 to 120 windows of one device, lane by lane: as far back as `Device.latency` goes."""

    track: Track = NO_WINDOWS
    older: Mapping[Lane, Rollup] = {}
    newer: Mapping[Lane, Rollup] = {}
    older_ms: int = 0
    newer_ms: int = 0
    newer_windows: int = 0

    @property
    def lanes(self) -> dict[Lane, Rollup]:
        """Both halves together."""
        both = dict(self.older)
        for lane, rollup in self.newer.items():
            both[lane] = merge(both[lane], rollup) if lane in both else rollup
        return both

    @property
    def seconds(self) -> float:
        """How long those windows lasted."""
        return (self.older_ms + self.newer_ms) / 1000

    def of_model(self, model: str) -> Rollup:
        """All lanes of one model together."""
        return merge_all(rollup for lane, rollup in self.lanes.items() if lane.model == model)


NOT_HEARD, NO_SHIP = Heard(), Ship()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A fleet, and for each device what its lanes did, and how it stands with its release."""

    fleet: Fleet = field(default_factory=Fleet)
    heard: Mapping[tuple[str, str], Heard] = field(default_factory=dict)
    ships: Ships = field(default_factory=dict)

    def of(self, device: Device) -> Heard:
        """What was heard of a device; nothing for one that sent no window."""
        return self.heard.get(device.key, NOT_HEARD)

    def ship(self, device: Device) -> Ship:
        """What was desired of a device and what it reported; neither for one without an updater."""
        return self.ships.get(device.key, NO_SHIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All lanes for which `name` holds."""

    name: str
    devices: int
    qps: float
    "Requests a second: the sum over devices, each over the windows heard of it."
    total: Rollup


def listen(state: Listening, messages: Iterable[Received], *, now_s: float) -> Listening:
    """The state after `messages`, and after time has passed until `now_s`."""
    received = tuple(messages)
    fleet = fold(state.fleet, received, now_s=now_s)
    heard = dict(state.heard)
    for message in received:
        topic = parse_topic(message.topic)
        if topic is None or topic.leaf != "metrics" or (topic.site, topic.device) not in fleet.devices:
            continue
        key = (topic.site, topic.device)
        try:
            window = decode("metrics", message.payload)
        except ValueError:
            continue  # the fold has counted it
        assert isinstance(window, Metrics)
        heard[key] = _with_window(heard.get(key, NOT_HEARD), window)
    return Listening(
        fleet=fleet,
        heard={key: value for key, value in heard.items() if key in fleet.devices},
        ships=ships_after(state.ships, received),
    )


def group(state: Listening, by: str) -> list[Group]:
    """One group a name, by name; percentiles read from `total` are of all its samples. `by` is one of `BY`."""
    totals: dict[str, list[Rollup]] = {}
    members: dict[str, set[tuple[str, str]]] = {}
    rates: dict[str, float] = {}
    for key, device in state.fleet.devices.items():
        heard = state.of(device)
        for lane, rollup in heard.lanes.items():
            name = _name(device, lane, by)
            totals.setdefault(name, []).append(rollup)
            members.setdefault(name, set()).add(key)
            rates[name] = rates.get(name, 0.0) + rollup.requests / heard.seconds
    return [
        Group(name=name, devices=len(members[name]), qps=rates[name], total=merge_all(totals[name]))
        for name in sorted(totals)
    ]


def _name(device: Device, lane: Lane, by: str) -> str:
    if by == "site":
        return device.site
    if by == "board":
        return device.birth.board if device.birth else UNKNOWN
    return str(getattr(lane, by))


def _with_window(heard: Heard, window: Metrics) -> Heard:
    """A window that came before, or whose parts contradict each other, changes nothing: `fleet.fold` says the same."""
    latencies = (latency for lane in window.lanes for latency in (lane.infer_ms, lane.queue_ms))
    if any(latency is not None and histogram.problem(latency) for latency in latencies):
        return heard
    track, arrival = arrive(heard.track, window.epoch, window.seq)
    if arrival is Arrival.DUPLICATE:
        return heard
    newer = dict(heard.newer)
    for lane in window.lanes:
        key = Lane(lane.model, lane.lane, lane.artifact)
        newer[key] = with_window(newer.get(key, NOTHING), lane)
    newer_ms, newer_windows = heard.newer_ms + window.window_ms, heard.newer_windows + 1
    if newer_windows >= HISTORY_WINDOWS // 2:  # where `fleet.fold` begins a new half
        return Heard(track=track, older=newer, older_ms=newer_ms)
    return replace(heard, track=track, newer=newer, newer_ms=newer_ms, newer_windows=newer_windows)
