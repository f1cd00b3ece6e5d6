"""Fold messages into the state of the fleet. Pure: no clock, no I/O; console, CLI and collector share it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from msgspec.structs import replace

from edgekit.points import WindowPoint, window_point
from edgekit.telemetry import histogram
from edgekit.telemetry import messages as wire
from edgekit.telemetry.messages import Birth, Event, Histogram, Metrics, Received, Reply, State, Status
from edgekit.telemetry.sequence import NO_WINDOWS, Arrival, Track, arrive

HISTORY_WINDOWS = 120
KEPT_POINTS, LEAST_POINTS = 300_000, 12  # of all devices together: ten thousand keep 30 windows each
KEPT_EVENTS = 500
MAX_DEVICES = 100_000
"""A flood of invented names must not eat the reader's memory."""

LATE_WINDOWS, STALE_WINDOWS, SLACK_S = 1.5, 3.5, 1.0
"""A window is overdue half a window and the slack after it was due; the slack is for very short windows."""
STEADY_WINDOWS = 2
"""Windows on time in a row that bring a late device back, so that one on the edge does not flap."""

_NAME = re.compile(r"[a-z0-9_-]{1,63}")
_LEAVES = frozenset(("status", "birth", "metrics", "event", "reply"))


class Presence(str, Enum):
    """How a device looks from here, with hysteresis: said and silent are told apart."""

    ONLINE = "online"
    LATE = "late"
    "Online by its word, but a window is overdue."
    STALE = "stale"
    "Silent for several windows."
    OFFLINE = "offline"
    "Said so itself, or its Will did."


class Device(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device as the fleet knows it. A Struct, which is replaced far faster than a dataclass."""

    site: str
    device: str
    presence: Presence = Presence.ONLINE
    reason: str = ""
    "Why it is offline, in the device's or its Will's words."
    epoch: int = 0
    birth: Birth | None = None
    last_metrics: Metrics | None = None
    last_seen_s: float = 0.0
    "When it last spoke itself; 0: never while we listened (what the broker retained does not count)."
    windows: int = 0
    gaps: int = 0
    "Windows missing by sequence number."
    historical: int = 0
    duplicates: int = 0
    latency: Histogram | None = None
    "Inference latency of all models over the last 60 to 120 windows."
    history: tuple[WindowPoint, ...] = ()
    "Oldest first, at most `HISTORY_WINDOWS`."
    needs_rebirth: bool = False
    said: State = State.ONLINE
    waiting_since_s: float = 0.0
    "When we learnt of it: from then on a window is awaited."
    steady: int = STEADY_WINDOWS
    track: Track = NO_WINDOWS
    older: Histogram | None = None
    newer: Histogram | None = None
    newer_windows: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.site, self.device

    @property
    def window_s(self) -> float:
        """The length of its windows, by its own word."""
        if self.last_metrics is not None:
            return self.last_metrics.window_ms / 1000
        return self.birth.window_ms / 1000 if self.birth else 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """An event with where it came from. A reply to a command is one of kind "reply"."""

    site: str
    device: str
    received_s: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything known; replaced as a whole."""

    devices: Mapping[tuple[str, str], Device] = field(default_factory=dict)
    events: tuple[FleetEvent, ...] = ()
    "Newest last, bounded."
    malformed: int = 0
    "Messages that are not ours or did not decode; they change nothing else."


def fold(
    fleet: Fleet,
    messages: Iterable[Received],
    *,
    now_s: float,
    keep_history: bool = True,
    give_way: Callable[[], object] = lambda: None,
) -> Fleet:
    """The fleet after `messages`, and after time has passed until `now_s`.

    Args:
        keep_history: points and latency too.
        give_way: called again and again, for a thread that must not keep the interpreter from a screen.
    """
    devices, events, malformed = dict(fleet.devices), list(fleet.events), fleet.malformed
    touched: set[tuple[str, str]] = set()
    for message in messages:
        give_way()
        topic = wire.parse_topic(message.topic)
        if topic is None or not _NAME.fullmatch(topic.site) or not _NAME.fullmatch(topic.device):
            malformed += 1
            continue
        if topic.leaf not in _LEAVES or wire.EVERYONE in (topic.site, topic.device):
            continue
        key = (topic.site, topic.device)
        if topic.leaf == "status" and not message.payload:
            devices.pop(key, None)  # a cleared retained status is how a device is forgotten
            continue
        before = devices.get(key)
        try:
            payload = wire.decode(topic.leaf, message.payload)
            if before is None and len(devices) >= MAX_DEVICES:
                raise ValueError("too many devices")
            known = before or Device(site=key[0], device=key[1], waiting_since_s=message.received_s)
            devices[key] = _apply(known, payload, message, keep_history)
        except ValueError:
            malformed += 1
            continue
        touched.add(key)
        if said := _event_of(payload, devices[key]):
            events.append(FleetEvent(site=key[0], device=key[1], received_s=message.received_s, event=said))
    kept = max(LEAST_POINTS, KEPT_POINTS // max(1, len(devices)))
    for key in touched & devices.keys():
        give_way()
        d = devices[key]
        devices[key] = replace(d, latency=_merge(d.older, d.newer), gaps=d.track.gaps, history=d.history[-kept:])
    for key, device in devices.items():
        presence = _presence(device, now_s)
        if presence is not device.presence:
            devices[key] = replace(device, presence=presence)
    return Fleet(devices=devices, events=tuple(events[-KEPT_EVENTS:]), malformed=malformed)


def merged_latency(devices: Iterable[Device]) -> Histogram | None:
    """The latency histogram over a group: a fleet p99 read from it is a true p99."""
    return histogram.merge_all(d.latency for d in devices if d.latency is not None)


def window_latency(metrics: Metrics) -> Histogram | None:
    """The inference latency of all models and lanes of one window."""
    return histogram.merge_all(lane.infer_ms for lane in metrics.lanes if lane.infer_ms is not None)


def _apply(device: Device, payload: object, message: Received, keep_history: bool) -> Device:
    """The device after one message. Raises ValueError for a window whose parts contradict each other."""
    if isinstance(payload, Metrics):
        device = _with_window(device, payload, message, keep_history)
    elif isinstance(payload, Status):
        device = _with_status(device, payload)
    elif isinstance(payload, Birth) and payload.epoch >= device.epoch:
        device = replace(device, birth=payload, needs_rebirth=False)
    elif isinstance(payload, Event):
        device = replace(device, needs_rebirth=device.birth is None)
    if message.retained:
        return device
    return replace(device, last_seen_s=max(device.last_seen_s, message.received_s))


def _with_status(device: Device, status: Status) -> Device:
    """Birth or death. An older epoch never overrides a newer: the Will of a connection long replaced may come late."""
    if status.epoch < device.epoch:
        return device
    if status.state is State.OFFLINE:
        return replace(device, said=State.OFFLINE, reason=status.reason, epoch=status.epoch)
    born_again = status.epoch > device.epoch or device.said is State.OFFLINE
    return replace(
        device,
        said=State.ONLINE,
        reason="",
        epoch=status.epoch,
        steady=STEADY_WINDOWS if born_again else device.steady,
    )


def _with_window(device: Device, window: Metrics, message: Received, keep_history: bool) -> Device:
    for lane in window.lanes:
        for latency in (lane.infer_ms, lane.queue_ms):
            if latency is not None and (wrong := histogram.problem(latency)):
                raise ValueError(f"{lane.model}: {wrong}")
    track, arrival = arrive(device.track, window.epoch, window.seq)
    if arrival is Arrival.DUPLICATE:
        return replace(device, duplicates=device.duplicates + 1)
    late = window.historical or arrival is Arrival.LATE or window.epoch < device.epoch
    device = replace(
        device,
        track=track,
        windows=device.windows + 1,
        historical=device.historical + late,
        needs_rebirth=device.birth is None or device.birth.epoch < window.epoch,
    )
    device = device if late else _with_live(device, window, message)
    return _with_samples(device, window, message, late) if keep_history else device


def _with_live(device: Device, window: Metrics, message: Received) -> Device:
    if device.birth and window.system.memory_total_bytes is None and device.birth.memory_total_bytes is not None:
        window = replace(window, system=replace(window.system, memory_total_bytes=device.birth.memory_total_bytes))
    silent_s = message.received_s - max(device.last_seen_s, device.waiting_since_s)
    on_time = silent_s <= _late_after_s(window.window_ms / 1000)
    newborn = window.epoch > device.epoch
    return replace(
        device,
        said=State.ONLINE if newborn else device.said,
        reason="" if newborn else device.reason,
        epoch=window.epoch,
        steady=min(device.steady + 1, STEADY_WINDOWS) if on_time else 0,
        last_metrics=window,
    )


def _with_samples(device: Device, window: Metrics, message: Received, late: bool) -> Device:
    """A late window's samples count; its place in the history it gets if its clock can be trusted."""
    latency = window_latency(window)
    newer, older, half = _merge(device.newer, latency), device.older, device.newer_windows
    history, at_s = device.history[-HISTORY_WINDOWS + 1 :], window.t_unix_ms / 1000
    if not late:
        half += 1
        history = (*history, window_point(window, window.lanes, latency, at_s=message.received_s))
    elif window.clock_synced and at_s <= message.received_s:
        late_point = window_point(window, window.lanes, latency, at_s=at_s)
        points = sorted((*device.history, late_point), key=lambda p: p.at_s)
        history = tuple(points[-HISTORY_WINDOWS:])
    else:
        history = device.history
    if half >= HISTORY_WINDOWS // 2:
        newer, older, half = None, newer, 0
    return replace(device, history=history, older=older, newer=newer, newer_windows=half)


def _presence(device: Device, now_s: float) -> Presence:
    if device.said is State.OFFLINE:
        return Presence.OFFLINE
    silent_s = now_s - max(device.last_seen_s, device.waiting_since_s)
    if silent_s > STALE_WINDOWS * device.window_s + SLACK_S:
        return Presence.STALE
    if silent_s > _late_after_s(device.window_s) or device.steady < STEADY_WINDOWS:
        return Presence.LATE
    return Presence.ONLINE


def _late_after_s(window_s: float) -> float:
    return LATE_WINDOWS * window_s + SLACK_S


def _merge(a: Histogram | None, b: Histogram | None) -> Histogram | None:
    return histogram.merge(a, b) if a and b else a or b


def _event_of(payload: object, device: Device) -> Event | None:
    if isinstance(payload, Reply):
        detail = {"id": payload.id, "ok": payload.ok, **payload.detail}
        return Event(epoch=device.epoch, t_unix_ms=0, kind="reply", text=payload.text, detail=detail)
    return payload if isinstance(payload, Event) else None
