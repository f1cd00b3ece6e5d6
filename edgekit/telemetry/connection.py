"""One MQTT connection from CONNECT to its end, driven by one thread: nothing is ever sent from a callback.

paho-mqtt does the protocol; its own threads, queue and reconnecting are not used, because its queue lives in RAM,
floods on reconnect and has no jitter. Every connection is a new client with a clean start: what must survive is in our
outbox, and who must know of us hears our birth again, so nothing depends on what a broker remembers of a session.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import paho.mqtt.client as paho
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError, ConfigError
from edgekit.telemetry.clock import ClockFloor
from edgekit.telemetry.keepalive import idle_s, patience_s, wire_keepalive_s
from edgekit.telemetry.messages import Received
from edgekit.telemetry.tls import client_context, expiry_problem

CONNECT_S, CONNACK_S, SUBACK_S = 5.0, 10.0, 10.0
FIRST_CONNACK_S = 1.0
"""For MQTT 5: amqtt waits for ever for the rest of a version-5 CONNECT that carries a Will."""
IN_FLIGHT = 20
SESSION_TAKEN_OVER, UNSUPPORTED_PROTOCOL = 142, 132  # MQTT 5.0, section 2.4
_FINAL = (135, 144, 153)
"""Not authorised, a topic or a payload that is not allowed: refusals that time does not change. Of the same section."""
_BAD_PACKET = (MQTTException, ValueError, IndexError, struct.error, OSError)
"""What paho raises for bytes that are not MQTT."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to publish, always with QoS 1."""

    topic: str
    payload: bytes
    retain: bool = False


class Answer(NamedTuple):
    """What the broker said to one message."""

    packet_id: int
    refusal: str | None = None
    "None: it has the message."
    is_final: bool = False
    "It would refuse the message again."


class ProtocolRefused(BrokerError):
    """The broker does not speak this version of MQTT, by its word or by its silence."""


def check_config(config: MqttConfig) -> None:
    """Raise ConfigError for settings that can never work: no host, no time, or a file that cannot be read."""
    if config.host is None:
        raise ConfigError("[mqtt]", "host", "this key is required to reach a broker")
    for key, value, low, high in (
        ("port", config.port, 1, 65535),
        ("keepalive_s", config.keepalive_s, 2, 65535),
        ("window_s", config.window_s, 0.1, 86400),
        ("outbox_bytes", config.outbox_bytes, 65536, 2**40),
        ("commit_s", config.commit_s, 0.01, 3600),
        ("history_per_s", config.history_per_s, 0.01, 100_000),
    ):
        if not low <= value <= high:
            raise ConfigError("[mqtt]", key, f"{value:g} must be from {low:g} to {high:g}")
    if (config.certificate_file is None) != (config.key_file is None):
        raise ConfigError("[mqtt]", "certificate_file", "goes together with key_file; give both or neither")
    if not config.tls and (config.ca_file or config.certificate_file):
        raise ConfigError("[mqtt]", "tls", "must be true for ca_file and certificate_file to have a meaning")
    for key in ("password_file", "ca_file", "certificate_file", "key_file"):
        if path := getattr(config, key):
            try:
                Path(path).open("rb").close()
            except OSError as e:
                raise ConfigError("[mqtt]", key, f"{path}: {e.strerror}") from e


class Connection:
    """One connection. Only the thread that made it may call it, except `wake`."""

    def __init__(
        self,
        config: MqttConfig,
        client_id: str,
        protocol: MQTTProtocolVersion,
        will: Outgoing | None,
        floor: ClockFloor | None = None,
    ) -> None:
        """`floor`: with one, TLS works before the clock is set."""
        self.endpoint = f"{config.host}:{config.port}"
        self.in_flight_limit = IN_FLIGHT
        self.max_packet_bytes: int | None = None
        self.idle_s = idle_s(config.keepalive_s)
        "The longest `step` with which a silent broker is noticed in time."
        self.taken_over = False
        self.lost: str | None = None
        self.answers: list[Answer] = []
        self.on_message: Callable[[Received], None] = lambda _: None
        self._config, self._protocol, self._floor = config, protocol, floor
        self._connack: ReasonCode | None = None
        self._suback: list[ReasonCode] | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._client = self._new_client(client_id, will)

    def _new_client(self, client_id: str, will: Outgoing | None) -> paho.Client:
        clean = None if self._protocol is MQTTProtocolVersion.MQTTv5 else True
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=clean,
            protocol=self._protocol,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_S
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def open(self) -> None:
        """Connect and wait until the broker has accepted us. Raises BrokerError; ProtocolRefused for the version."""
        config, keepalive_s = self._config, wire_keepalive_s(self._config.keepalive_s)
        check_dates = self._floor is None or not self._floor.is_clock_behind()
        try:
            self._credentials(check_dates)
            if self._protocol is MQTTProtocolVersion.MQTTv5:
                self._client.connect(config.host or "", config.port, keepalive_s, clean_start=True)
            else:
                self._client.connect(config.host or "", config.port, keepalive_s)
        except (OSError, ValueError) as e:
            raise BrokerError(self.endpoint, describe(e)) from e
        peer = self._client.socket()
        if isinstance(peer, ssl.SSLSocket) and self._floor is not None and not check_dates:
            self._refuse_expired(peer, self._floor)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        patience_s = FIRST_CONNACK_S if self._protocol is MQTTProtocolVersion.MQTTv5 else CONNACK_S
        self._wait_for(lambda: self._connack is not None, patience_s)
        if self._connack is None:
            silence = f"accepted the connection but said nothing for {patience_s:.0f} s"
            raise ProtocolRefused(self.endpoint, self.lost or silence)
        if self._connack.is_failure:
            kind = ProtocolRefused if self._connack.value == UNSUPPORTED_PROTOCOL else BrokerError
            raise kind(self.endpoint, f"refused us: {self._connack}")

    def _refuse_expired(self, peer: ssl.SSLSocket, floor: ClockFloor) -> None:
        if problem := expiry_problem(peer, floor):
            raise BrokerError(self.endpoint, problem)

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe and wait until the broker has answered. Raises BrokerError.

        With QoS 1; with QoS 0 by MQTT 3.1.1. A clean session is promised no more by the one than by the other, and
        RabbitMQ keeps a QoS 1 subscription on the node where it was made: were that node lost, the same client could
        not subscribe again at any other until it is back.
        """
        if not filters:
            return
        qos = 1 if self._protocol is MQTTProtocolVersion.MQTTv5 else 0
        self._client.subscribe([(f, qos) for f in filters])
        self._wait_for(lambda: self._suback is not None, SUBACK_S)
        if self._suback is None:
            raise BrokerError(self.endpoint, self.lost or f"did not answer our subscription for {SUBACK_S:.0f} s")
        if refused := [f for f, code in zip(filters, self._suback, strict=False) if code.is_failure]:
            raise BrokerError(self.endpoint, f"does not let us read {', '.join(refused)}")

    def publish(self, message: Outgoing) -> int:
        """Hand one message to the socket; its id turns up in `answers`."""
        return self._client.publish(message.topic, message.payload, qos=1, retain=message.retain).mid

    def step(self, timeout_s: float) -> None:
        """Read and write what is there, waiting at most `timeout_s` for something or a `wake`."""
        connected = self._client.socket()
        if connected is None:
            self.lost = self.lost or "the connection was lost"
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._client.want_write() else 0)
        pending = isinstance(connected, ssl.SSLSocket) and connected.pending() > 0
        self._selector.register(connected, events)
        try:
            ready = {key.fileobj: mask for key, mask in self._selector.select(0 if pending else timeout_s)}
        finally:
            self._selector.unregister(connected)
        if self._wake_read in ready:
            self._wake_read.recv(4096)
        try:
            if pending or ready.get(connected, 0) & selectors.EVENT_READ:
                self._client.loop_read()
            if self._client.want_write():
                self._client.loop_write()
            if self._client.loop_misc() is not MQTTErrorCode.MQTT_ERR_SUCCESS:
                self.lost = self.lost or f"no answer for {patience_s(self._config.keepalive_s):.0f} s"
        except _BAD_PACKET as e:
            self.lost = self.lost or f"it does not speak MQTT as we do ({describe(e)})"

    def wake(self) -> None:
        """Make a waiting `step` return. From any thread."""
        try:
            self._wake_write.send(b"\0")
        except (BlockingIOError, OSError):
            return  # already awake, or closed

    def close(self, *, clean: bool) -> None:
        """End it: cleanly, so that the broker forgets our Will, or abruptly, so that it publishes it."""
        if clean and self.lost is None:
            self._client.disconnect()
            self._wait_for(lambda: not self._client.want_write(), 1.0)
        if (connected := self._client.socket()) is not None:
            connected.close()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _credentials(self, check_dates: bool) -> None:
        """Read anew for every connection, so that they can be rotated without a restart."""
        config = self._config
        if config.username is not None:
            secret = Path(config.password_file).read_text().strip() if config.password_file else None
            self._client.username_pw_set(config.username, secret)
        if config.tls:
            self._client.tls_set_context(client_context(config, check_dates=check_dates))

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and self.lost is None and (left := deadline - time.monotonic()) > 0:
            self.step(min(left, 0.5))

    def _on_connect(
        self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, properties: Properties | None
    ) -> None:
        self._connack = code
        self.in_flight_limit = min(IN_FLIGHT, getattr(properties, "ReceiveMaximum", IN_FLIGHT))
        self.max_packet_bytes = getattr(properties, "MaximumPacketSize", None)

    def _on_disconnect(
        self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _properties: object
    ) -> None:
        self.taken_over = code.value == SESSION_TAKEN_OVER
        self.lost = self.lost or f"the connection was lost ({code})"

    def _on_publish(self, _client: paho.Client, _data: object, mid: int, code: ReasonCode, _properties: object) -> None:
        refusal = str(code) if code.is_failure else None
        self.answers.append(Answer(mid, refusal, code.value in _FINAL))

    def _on_subscribe(
        self, _client: paho.Client, _data: object, _mid: int, codes: list[ReasonCode], _properties: object
    ) -> None:
        self._suback = list(codes)

    def _on_message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        received = Received(
            topic=message.topic, payload=bytes(message.payload), retained=message.retain, received_s=time.time()
        )
        self.on_message(received)


def describe(error: Exception) -> str:
    """The error in words a person can act on."""
    if isinstance(error, ssl.SSLCertVerificationError):
        clock = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        return f"its certificate is not trusted: {error.verify_message}; check ca_file and this clock ({clock} UTC)"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:.0f} s"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
