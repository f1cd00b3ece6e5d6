"""A stored window as it is sent: late ones say so, and those from before the clock was set get their time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from edgekit.telemetry.messages import Metrics, decode, encode, mark_historical
from edgekit.telemetry.outbox_file import Item

_UNSYNCED = b'"clock_synced":false'


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by both clocks."""

    mono_s: float
    unix_ms: int
    synced: bool | None
    boot: str


def as_sent(item: Item, now: Moment, *, live_s: float) -> bytes:
    """The payload of a waiting item as it goes out now; windows older than `live_s` are historical."""
    if item.window is None:
        return item.payload
    payload = item.payload
    if now.synced and _UNSYNCED in payload:
        payload = _dated(payload, now)
    if item.oldest_seq:
        payload = payload[:-1] + b',"oldest_seq":%d}' % item.oldest_seq  # a stored window leaves the key out
    return mark_historical(payload) if now.mono_s - item.added_s > live_s else payload


def _dated(payload: bytes, now: Moment) -> bytes:
    """With the wall clock's time worked out from the monotonic one, if that still runs since then."""
    window = decode("metrics", payload)
    assert isinstance(window, Metrics)
    if window.boot != now.boot:
        return payload
    t_unix_ms = max(0, now.unix_ms - round(now.mono_s * 1000 - window.t_mono_ms))
    return encode(msgspec.structs.replace(window, t_unix_ms=t_unix_ms, clock_synced=True))
