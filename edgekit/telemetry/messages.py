"""The payloads on the wire (design: MQTT). JSON, schema-versioned; unknown keys of newer devices are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

ROOT = "edgekit/v1"
SCHEMA = 1


class _Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class State(str, Enum):
    """What a device says of itself; the Will says OFFLINE for it."""

    ONLINE = "online"
    OFFLINE = "offline"


class Status(_Payload, kw_only=True):
    """Topic `status`, retained. Birth and death share it; an older epoch never overrides a newer."""

    state: State
    epoch: int
    "Counts the daemon's starts and (re)connections of this device; persisted before use."
    reason: str = ""


class Histogram(_Payload, kw_only=True):
    """A base-2 exponential histogram as OpenTelemetry defines it; values in milliseconds.

    Bucket i of `counts` holds values in (base**(offset+i), base**(offset+i+1)], base = 2**(2**-scale).
    """

    scale: int
    offset: int
    counts: tuple[int, ...]
    sum: float
    count: int
    min: float
    max: float
    zero_count: int = 0


class LaneMetrics(_Payload, kw_only=True):
    """One model and lane in one window. Empty lanes are left out."""

    model: str
    lane: str = "realtime"
    artifact: str = ""
    requests: int = 0
    errors: int = 0
    rejected: int = 0
    cache_hits: int = 0
    batch_sizes: Mapping[str, int] = {}
    queue_ms: Histogram | None = None
    infer_ms: Histogram | None = None
    shadow_agreed: int = 0
    shadow_total: int = 0


class Readings(_Payload, kw_only=True):
    """The system in one window. None: this board has no such sensor."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    rss_bytes: int | None = None
    temperature_c: float | None = None
    cpu_percent: float | None = None
    "Of all usable cores, 0 to 100."
    power_mw: float | None = None
    throttled: bool | None = None


class OutboxState(_Payload, kw_only=True):
    """How the telemetry itself fares."""

    depth: int = 0
    dropped: Mapping[str, int] = {}
    "Windows lost since start, by reason."
    bytes_sent: int = 0
    bytes_written: int = 0


class Metrics(_Payload, kw_only=True):
    """Topic `metrics`: one window (default 10 s). `seq` counts windows within an epoch, from 0, without gaps."""

    v: int = SCHEMA
    epoch: int
    seq: int
    t_unix_ms: int
    "End of the window by the wall clock; meaningful only when `clock_synced`."
    t_mono_ms: int
    window_ms: int
    clock_synced: bool | None = None
    historical: bool = False
    lanes: tuple[LaneMetrics, ...] = ()
    system: Readings = Readings()
    outbox: OutboxState = OutboxState()


class ModelState(_Payload, kw_only=True):
    """A served model as the birth certificate tells it."""

    model: str
    artifact: str
    precision: str
    runtime: str
    settings: str = ""
    "Label of the session settings."
    state: str = "ready"
    reasons: tuple[str, ...] = ()
    rejections: tuple[tuple[str, str], ...] = ()
    latency_limit_ms: float | None = None
    benched_p50_ms: float | None = None
    benched_p99_ms: float | None = None
    accuracy_ratio: float | None = None


class Birth(_Payload, kw_only=True):
    """Topic `birth`, retained: facts, models, the selection and its reasons, versions."""

    v: int = SCHEMA
    epoch: int
    t_unix_ms: int
    board: str
    "Board name as a person reads it."
    board_id: str = ""
    facts: Mapping[str, Any] = {}
    "`edgekit probe --json`."
    models: tuple[ModelState, ...] = ()
    versions: Mapping[str, str] = {}
    window_ms: int = 10_000
    allowed_commands: tuple[str, ...] = ()


class Event(_Payload, kw_only=True):
    """Topic `event`: a state change."""

    epoch: int
    t_unix_ms: int
    kind: str
    '"started", "stopping", "selection", "throttled", "memory", …'
    text: str
    detail: Mapping[str, Any] = {}


class Command(_Payload, kw_only=True):
    """Topic `command`: acted on once per id."""

    id: str
    verb: str
    args: Mapping[str, Any] = {}
    expires_unix_ms: int | None = None


class Reply(_Payload, kw_only=True):
    """Topic `reply`, always the device's own."""

    id: str
    ok: bool
    text: str = ""
    detail: Mapping[str, Any] = {}


class Ack(_Payload, kw_only=True):
    """Topic `ack`: everything up to `seq` of `epoch` is committed at the collector."""

    epoch: int
    seq: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One MQTT message as received, undecoded."""

    topic: str
    payload: bytes
    retained: bool = False
    received_s: float = 0.0
    "Unix time at the receiver."


class Topic(msgspec.Struct, frozen=True):
    """A parsed topic: `edgekit/v1/<site>/<device>/<leaf>`."""

    site: str
    device: str
    leaf: str


KINDS: Mapping[str, type[msgspec.Struct]] = {
    "status": Status, "birth": Birth, "metrics": Metrics, "event": Event,
    "command": Command, "reply": Reply, "ack": Ack,
}  # fmt: skip


def topic(site: str, device: str, leaf: str) -> str:
    """The topic of `leaf` of a device."""
    return f"{ROOT}/{site}/{device}/{leaf}"


def parse_topic(text: str) -> Topic | None:
    """None when the topic is not one of ours."""
    parts = text.split("/")
    if len(parts) != 5 or parts[:2] != ["edgekit", "v1"] or not all(parts[2:]):
        return None
    return Topic(*parts[2:])
