"""MQTT 3.1.1 packets as bytes, for those who speak for thousands or hear thousands: the simulator and the collector.

One device speaks through paho (`connection`), which knows every corner of the protocol; at a thousand messages a second
its cost for each is most of a core. Here are only the packets that those two need. Source: MQTT 3.1.1, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 1, 2, 3, 4, 8, 9, 12, 13, 14
_MAX_PACKET_BYTES = 1024 * 1024
_REFUSALS = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not like our client id",
    3: "it is not available",
    4: "bad user name or password",
    5: "not authorized",
}


class Packet(NamedTuple):
    """One packet as received. For a PUBLISH `topic` is set and `body` is the payload."""

    kind: int
    flags: int
    body: bytes
    topic: str = ""
    id: int = 0

    @property
    def retained(self) -> bool:
        return bool(self.flags & 1)

    @property
    def qos(self) -> int:
        return (self.flags >> 1) & 3


class Parser:
    """Turns a stream of bytes into packets."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are complete now. Raises ValueError for bytes that are not MQTT."""
        data, at, end = self._rest + data, 0, len(self._rest) + len(data)
        packets: list[Packet] = []
        while end - at >= 2:
            length, start = data[at + 1], at + 2
            if length & 0x80:
                found = _long_length(data, at + 1, end)
                if found is None:
                    break
                length, start = found
            if start + length > end:
                break
            packets.append(_packet(data[at], data, start, start + length))
            at = start + length
        self._rest = data[at:]
        return packets


def connect(
    client_id: str,
    *,
    keepalive_s: int,
    will: tuple[str, bytes] | None = None,
    username: str | None = None,
    password: str | None = None,
) -> bytes:
    """A CONNECT with a clean session; the will is retained, with QoS 1."""
    flags, payload = 0x02, _text(client_id)
    if will is not None:
        flags |= 0x04 | 0x08 | 0x20
        payload += _text(will[0]) + struct.pack("!H", len(will[1])) + will[1]
    if username is not None:
        flags |= 0x80
        payload += _text(username)
    if password is not None:
        flags |= 0x40
        payload += _text(password)
    return _framed(CONNECT << 4, _text("MQTT") + bytes((4, flags)) + struct.pack("!H", keepalive_s) + payload)


def publish(topic: str, payload: bytes, *, packet_id: int = 0, retain: bool = False) -> bytes:
    """A PUBLISH: with QoS 1 if it has a packet id (1 to 65535), else with QoS 0."""
    name = topic.encode()
    middle = struct.pack("!H", packet_id) if packet_id else b""
    body = b"".join((struct.pack("!H", len(name)), name, middle, payload))
    return _framed(PUBLISH << 4 | (0x02 if packet_id else 0) | retain, body)


def subscribe(packet_id: int, filters: Iterable[tuple[str, int]]) -> bytes:
    """A SUBSCRIBE to (filter, QoS) pairs."""
    wanted = b"".join(_text(name) + bytes((qos,)) for name, qos in filters)
    return _framed(SUBSCRIBE << 4 | 0x02, struct.pack("!H", packet_id) + wanted)


def puback(packet_ids: Sequence[int]) -> bytes:
    """The PUBACKs of several messages, one after the other."""
    return b"".join(b"\x40\x02" + struct.pack("!H", packet_id) for packet_id in packet_ids)


def pingreq() -> bytes:
    return b"\xc0\x00"


def disconnect() -> bytes:
    return b"\xe0\x00"


def refusal(connack: Packet) -> str | None:
    """Why the broker refuses us; None when it does not."""
    code = connack.body[1] if connack.kind == CONNACK and len(connack.body) == 2 else -1
    return None if code == 0 else f"refused us: {_REFUSALS.get(code, 'its answer is no MQTT')}"


def _packet(first: int, data: bytes, start: int, end: int) -> Packet:
    kind, flags = first >> 4, first & 0x0F
    if kind != PUBLISH:
        body = data[start:end]
        packet_id = (body[0] << 8 | body[1]) if kind in (PUBACK, SUBACK) and len(body) >= 2 else 0
        return Packet(kind, flags, body, "", packet_id)
    after = start + 2 + (data[start] << 8 | data[start + 1]) if end - start >= 2 else end + 1
    payload_at = after + 2 if flags & 0x06 else after
    if payload_at > end:
        raise ValueError("a PUBLISH that is shorter than its topic")
    packet_id = (data[after] << 8 | data[after + 1]) if flags & 0x06 else 0
    return Packet(kind, flags, data[payload_at:end], data[start + 2 : after].decode(), packet_id)


def _long_length(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """A length of more than one byte, and where what it counts begins; None when it is not complete."""
    length = 0
    for i in range(4):
        if at + i >= end:
            return None
        length |= (data[at + i] & 0x7F) << (7 * i)
        if not data[at + i] & 0x80:
            if length > _MAX_PACKET_BYTES:
                raise ValueError(f"a packet of {length} bytes")
            return length, at + i + 1
    raise ValueError("a length of more than four bytes")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("!H", len(encoded)) + encoded


def _framed(first: int, body: bytes) -> bytes:
    length = len(body)
    if length < 128:
        return bytes((first, length)) + body
    digits = []
    while length:
        length, digit = length >> 7, length & 0x7F
        digits.append(digit | (0x80 if length else 0))
    return bytes((first, *digits)) + body
