"""One simulated device's TCP session: its own socket, Will, subscriptions and window of unacknowledged messages."""

from __future__ import annotations

import socket
import time

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.sim.device import SimDevice
from edgekit.telemetry import packets
from edgekit.telemetry.keepalive import KeepAlive
from edgekit.telemetry.messages import EVERYONE, Ack, State, decode, topic
from edgekit.telemetry.outbox import Item
from edgekit.telemetry.pace import Pace
from edgekit.telemetry.window import Moment, as_sent

IN_FLIGHT = 20


class Session:
    """A connection from its first byte to its last. Its socket is non-blocking; the simulator says when to read."""

    def __init__(self, device: SimDevice, config: MqttConfig, *, history_per_s: float) -> None:
        """Raises BrokerError when it cannot even begin."""
        self.device, self.is_ready, self.asked_for_birth = device, False, False
        self._watch = KeepAlive(config.keepalive_s, time.monotonic(), time.monotonic())
        self._parser, self._out = packets.Parser(), bytearray()
        self._in_flight: dict[int, Item | None] = {}
        self._next_id = 1
        self._history_per_s = history_per_s
        self._pace: Pace | None = None
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex((config.host or "", config.port))
        will = (device.topic("status"), device.status(State.OFFLINE, "connection lost"))
        client_id = f"{device.site}/{device.name}"
        self._out += packets.connect(client_id, keepalive_s=config.keepalive_s, will=will)

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def read(self) -> None:
        """Take what has arrived. Raises BrokerError when the connection has ended."""
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError as e:
            raise BrokerError(self.device.name, str(e)) from e
        if not data:
            raise BrokerError(self.device.name, "hung up")
        self._watch.heard_s = time.monotonic()
        for packet in self._parser.feed(data):
            self._take(packet)

    def write(self) -> None:
        """Send what waits, and what of the outbox may be sent now. Raises BrokerError."""
        now_s = time.monotonic()
        if self._watch.is_dead(now_s):
            raise BrokerError(self.device.name, self._watch.verdict)
        if self._pace is not None:
            self._publish_waiting(self._pace, now_s)
        if self.is_ready and self._watch.is_due(now_s):
            self._out += packets.pingreq()
            self._watch.pinged_s = now_s
        if not self._out:
            return
        try:
            sent = self.socket.send(self._out)
        except BlockingIOError:
            return
        except OSError as e:
            raise BrokerError(self.device.name, str(e)) from e
        self._watch.spoke_s = now_s
        del self._out[:sent]

    def is_due(self, now_s: float) -> bool:
        """Whether `write` has something to do although nothing came."""
        return self._watch.is_due(now_s) or (self.is_ready and self.device.outbox.depth > 0)

    def introduce(self) -> None:
        """Status and birth, retained."""
        self._publish(self.device.topic("status"), self.device.status(State.ONLINE), retain=True)
        self._publish(self.device.topic("birth"), self.device.birth(time.time()), retain=True)

    def say_goodbye(self) -> None:
        """Death and disconnect. Raises BrokerError."""
        self._publish(self.device.topic("status"), self.device.status(State.OFFLINE, "simulation ended"), retain=True)
        self._out += packets.disconnect()
        self.write()

    def close(self) -> None:
        self.socket.close()

    def _take(self, packet: packets.Packet) -> None:
        if packet.kind == packets.PUBACK:
            item = self._in_flight.pop(packet.id, None)
            if item is not None:
                self.device.outbox.delivered(item)
        elif packet.kind == packets.PUBLISH:
            if packet.qos:
                self._out += packets.puback((packet.id,))
            self._hear(packet)
        elif packet.kind == packets.CONNACK:
            if why := packets.refusal(packet):
                raise BrokerError(self.device.name, why)
            names = [self.device.topic("ack"), topic(EVERYONE, EVERYONE, "rebirth")]
            names += [topic(self.device.site, EVERYONE, "rebirth")]
            self._out += packets.subscribe(1, [(name, 1) for name in names])
        elif packet.kind == packets.SUBACK:
            self.is_ready = True
            self.introduce()
            self._pace = Pace(self.device.outbox, self._history_per_s, now_s=time.monotonic())

    def _hear(self, packet: packets.Packet) -> None:
        if packet.topic.endswith("/rebirth"):
            self.asked_for_birth = True
            self.device.outbox.doubt()
            return
        ack = decode("ack", packet.body)
        assert isinstance(ack, Ack)
        self.device.outbox.acknowledged(ack.epoch, ack.seq)

    def _publish_waiting(self, pace: Pace, now_s: float) -> None:
        room = IN_FLIGHT - len(self._in_flight)
        if room <= 0:
            return
        now = Moment(now_s, int(time.time() * 1000), None, "")
        for item in pace.next(room, now_s=now_s):
            self._publish(item.topic, as_sent(item, now, live_s=self.device.window_s), item=item)

    def _publish(self, name: str, payload: bytes, *, retain: bool = False, item: Item | None = None) -> None:
        packet_id, self._next_id = self._next_id, self._next_id % 65_535 + 1
        self._in_flight[packet_id] = item
        self._out += packets.publish(name, payload, packet_id=packet_id, retain=retain)
