"""Fold messages into the state of the fleet. Pure: no clock, no I/O; the console, the CLI and the collector share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from edgekit.telemetry.messages import Birth, Event, Histogram, Metrics, Received

HISTORY_WINDOWS = 120


class Presence(str, Enum):
    """How a device looks from here, with hysteresis: said and silent are told apart."""

    ONLINE = "online"
    LATE = "late"
    "Online by its word, but a window is overdue."
    STALE = "stale"
    "Silent for several windows."
    OFFLINE = "offline"
    "Said so itself, or its Will did."


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPoint:
    """One window of one device, all its models merged, for plots."""

    at_s: float
    requests: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    sample_count: int
    qps: float
    memory_available_bytes: int | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as the fleet knows it."""

    site: str
    device: str
    presence: Presence
    reason: str = ""
    "Why it is offline, in the device's or its Will's words."
    epoch: int = 0
    birth: Birth | None = None
    last_metrics: Metrics | None = None
    last_seen_s: float = 0.0
    windows: int = 0
    gaps: int = 0
    "Windows missing by sequence number."
    historical: int = 0
    latency: Histogram | None = None
    "Inference latency merged over the kept windows and all models."
    history: tuple[WindowPoint, ...] = ()
    needs_rebirth: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.site, self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """An event with where it came from."""

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
    "Payloads that did not decode; they change nothing else."


def fold(fleet: Fleet, messages: Iterable[Received], *, now_s: float) -> Fleet:
    """The fleet after `messages`, and after time has passed until `now_s` (which may make devices late or stale)."""
    raise NotImplementedError


def merged_latency(devices: Iterable[Device]) -> Histogram | None:
    """The latency histogram over a group: a fleet p99 read from it is a true p99."""
    raise NotImplementedError
