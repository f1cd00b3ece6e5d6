"""The payloads on the wire (design: MQTT). JSON, schema-versioned; unknown keys of newer devices are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec

from edgekit.telemetry.desired import Desired, Reported
from edgekit.telemetry.payload import Count, Millis, Number, Payload, Text, Total, Word

ROOT = "edgekit/v1"
SCHEMA = 1
EVERYONE = "_all"
"""In place of a device (or a site): everyone who listens; never a name of one."""

MAX_SCALE, MIN_SCALE, MAX_BUCKETS = 20, -10, 160
"""OpenTelemetry's limits of an exponential histogram."""


class State(str, Enum):
    """What a device says of itself; the Will says OFFLINE for it."""

    ONLINE = "online"
    OFFLINE = "offline"


class Status(Payload, frozen=True, kw_only=True):
    """Topic `status`, retained. Birth and death share it; an older epoch never overrides a newer."""

    state: State
    epoch: Count
    "Counts the daemon's starts and (re)connections of this device; persisted before use."
    reason: Text = ""
    session: Word = ""
    "Drawn at random by each process: tells two machines with one device id apart."


class Histogram(Payload, frozen=True, kw_only=True):
    """A base-2 exponential histogram as OpenTelemetry defines it; values in milliseconds.

    Bucket i of `counts` holds values in (base**(offset+i), base**(offset+i+1)], base = 2**(2**-scale).
    """

    scale: Annotated[int, msgspec.Meta(ge=MIN_SCALE, le=MAX_SCALE)]
    offset: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
    counts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_BUCKETS)]
    sum: Total
    count: Count
    min: Millis
    max: Millis
    zero_count: Count = 0


class LaneMetrics(Payload, frozen=True, kw_only=True):
    """One model and lane in one window. Empty lanes are left out."""

    model: Word
    lane: Word = "realtime"
    artifact: Word = ""
    requests: Count = 0
    "All that arrived: inferred, failed, rejected and answered from the cache."
    errors: Count = 0
    rejected: Count = 0
    cache_hits: Count = 0
    batch_sizes: Mapping[Word, Count] = {}
    "Requests by the size of the batch they ran in; those that ran alone are left out."
    queue_ms: Histogram | None = None
    infer_ms: Histogram | None = None
    shadow_agreed: Count = 0
    shadow_total: Count = 0


class Readings(Payload, frozen=True, kw_only=True):
    """The system in one window. None: this board has no such sensor."""

    memory_available_bytes: Count | None = None
    memory_total_bytes: Count | None = None
    "Left out of windows when the birth has it; the fold puts it back."
    rss_bytes: Count | None = None
    temperature_c: Number | None = None
    cpu_percent: Number | None = None
    "Of all usable cores, 0 to 100."
    power_mw: Number | None = None
    throttled: bool | None = None


class OutboxState(Payload, frozen=True, kw_only=True):
    """How the telemetry itself fares."""

    depth: Count = 0
    "Messages waiting to be delivered."
    dropped: Mapping[Word, Count] = {}
    "Messages lost since the outbox was made, by reason."
    bytes_sent: Count = 0
    bytes_written: Count = 0
    "To the disk, since the process started."
    bytes_written_per_day: Count = 0
    "At the rate since the process started; flash memory wears out by it."
    set_aside: Count = 0
    "Outbox files found damaged."
    problem: Word = ""
    "Why the outbox cannot use its file; what it then holds, it holds in memory."


class Metrics(Payload, frozen=True, kw_only=True):
    """Topic `metrics`: one window (default 10 s). `seq` counts windows within an epoch, from 0, without gaps."""

    v: int = SCHEMA
    epoch: Count
    seq: Count
    t_unix_ms: Count
    "End of the window by the wall clock; meaningful only when `clock_synced`."
    t_mono_ms: Count
    window_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
    clock_synced: bool | None = None
    historical: bool = False
    oldest_seq: Count = 0
    "Windows of this epoch below it do not wait any more: they were delivered, or given up and counted."
    boot: Word = ""
    "Of the machine's start: `t_mono_ms` compares only within one."
    lanes: Annotated[tuple[LaneMetrics, ...], msgspec.Meta(max_length=256)] = ()
    system: Readings = Readings()
    outbox: OutboxState = OutboxState()


class ModelState(Payload, frozen=True, kw_only=True):
    """A served model as the birth certificate tells it."""

    model: Word
    artifact: Word
    precision: Word
    runtime: Word
    settings: Word = ""
    "Label of the session settings."
    state: Word = "ready"
    reasons: tuple[Text, ...] = ()
    rejections: tuple[tuple[Text, Text], ...] = ()
    latency_limit_ms: Number | None = None
    benched_p50_ms: Number | None = None
    benched_p99_ms: Number | None = None
    accuracy_ratio: Number | None = None


class Birth(Payload, frozen=True, kw_only=True):
    """Topic `birth`, retained: facts, models, the selection and its reasons, versions."""

    v: int = SCHEMA
    epoch: Count
    t_unix_ms: Count
    board: Word
    "Board name as a person reads it."
    board_id: Word = ""
    facts: Mapping[str, Any] = {}
    "`edgekit probe --json`."
    models: tuple[ModelState, ...] = ()
    versions: Mapping[Word, Text] = {}
    memory_total_bytes: Count | None = None
    window_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] = 10_000
    allowed_commands: tuple[Text, ...] = ()


class Event(Payload, frozen=True, kw_only=True):
    """Topic `event`: a state change."""

    epoch: Count
    t_unix_ms: Count
    kind: Word
    '"started", "stopping", "selection", "throttled", "memory", …'
    text: Text
    detail: Mapping[str, Any] = {}


class Command(Payload, frozen=True, kw_only=True):
    """Topic `command`: acted on once per id."""

    id: Word
    verb: Word
    args: Mapping[str, Any] = {}
    expires_unix_ms: Count | None = None


class Reply(Payload, frozen=True, kw_only=True):
    """Topic `reply`, always the device's own."""

    id: Word
    ok: bool
    text: Text = ""
    detail: Mapping[str, Any] = {}


class Ack(Payload, frozen=True, kw_only=True):
    """Topic `ack`: everything up to `seq` of `epoch` is committed at the collector."""

    epoch: Count
    seq: Count


class Summary(Payload, frozen=True, kw_only=True):
    """Topic `summary`, not retained: plain numbers of the last windows, for readers that know no histograms.

    Sent only where `mqtt.home_assistant` is set. Quantiles with too few samples to support them are left out.
    """

    t_unix_ms: Count
    samples: Count
    p50_ms: Millis | None = None
    p99_ms: Millis | None = None
    temperature_c: Number | None = None


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One MQTT message as received, undecoded."""

    topic: str
    payload: bytes
    retained: bool = False
    received_s: float = 0.0
    "Unix time at the receiver."


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A parsed topic: `edgekit/v1/<site>/<device>/<leaf>`."""

    site: str
    device: str
    leaf: str


KINDS: Mapping[str, type[msgspec.Struct]] = {
    "status": Status, "birth": Birth, "metrics": Metrics, "event": Event,
    "command": Command, "reply": Reply, "ack": Ack, "desired": Desired, "reported": Reported,
    "summary": Summary,
}  # fmt: skip


MAX_PAYLOAD_BYTES = 256 * 1024


def encode(payload: msgspec.Struct) -> bytes:
    """The payload as it goes on the wire."""
    return msgspec.json.encode(payload)


def decode(leaf: str, payload: bytes) -> msgspec.Struct:
    """The payload of a topic's leaf. Raises ValueError for whatever is not one, never anything else."""
    decoder = _DECODERS.get(leaf)
    if decoder is None:
        raise ValueError(f"'{leaf}' carries no payload of ours")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{leaf}: {len(payload)} bytes, more than {MAX_PAYLOAD_BYTES}")
    try:
        value: msgspec.Struct = decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as e:
        raise ValueError(f"{leaf}: {e}") from e
    if getattr(value, "v", SCHEMA) != SCHEMA:
        raise ValueError(f"{leaf}: schema {getattr(value, 'v', None)}, this side reads {SCHEMA}")
    return value


def mark_historical(window: bytes) -> bytes:
    """An encoded window that is sent late, marked so; a window leaves the key out until then."""
    return window[:-1] + b',"historical":true}'


_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {leaf: msgspec.json.Decoder(kind) for leaf, kind in KINDS.items()}


def topic(site: str, device: str, leaf: str) -> str:
    """The topic of `leaf` of a device."""
    return f"{ROOT}/{site}/{device}/{leaf}"


def parse_topic(text: str) -> Topic | None:
    """None when the topic is not one of ours."""
    parts = text.split("/")
    if len(parts) != 5 or parts[:2] != ["edgekit", "v1"] or not all(parts[2:]):
        return None
    return Topic(*parts[2:])
