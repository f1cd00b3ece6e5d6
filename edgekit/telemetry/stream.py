"""One MQTT connection for a reader of thousands: bytes in large pieces, messages in batches. One thread only."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.telemetry import packets
from edgekit.telemetry.connection import CONNACK_S, CONNECT_S, describe
from edgekit.telemetry.keepalive import KeepAlive
from edgekit.telemetry.messages import Received
from edgekit.telemetry.tls import client_context

_READ_BYTES = 256 * 1024
_ASK_S = 0.25


class Stream:
    """A connected reader. Raises BrokerError from every method when the connection ends."""

    def __init__(
        self,
        config: MqttConfig,
        client_id: str,
        filters: Sequence[tuple[str, int]],
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect, subscribe to (filter, QoS) pairs and wait for the answer. Raises BrokerError.

        `is_over`: asked while the broker is silent; True gives up waiting for it.
        """
        self._is_over = is_over
        self.endpoint = f"{config.host}:{config.port}"
        self._parser = packets.Parser()
        self._out = bytearray()
        self._early: list[packets.Packet] = []
        self._watch = KeepAlive(config.keepalive_s, time.monotonic(), time.monotonic())
        try:
            self._socket = _open(config)
        except (OSError, ValueError) as e:
            raise BrokerError(self.endpoint, describe(e)) from e
        try:
            secret = Path(config.password_file).read_text().strip() if config.password_file else None
            hello = packets.connect(
                client_id, keepalive_s=config.keepalive_s, username=config.username, password=secret
            )
            self._send_now(hello)
            if why := packets.refusal(self._await(packets.CONNACK)):
                raise BrokerError(self.endpoint, why)
            self._send_now(packets.subscribe(1, filters))
            codes = self._await(packets.SUBACK).body[2:]
            if refused := [name for (name, _), code in zip(filters, codes, strict=False) if code >= 0x80]:
                raise BrokerError(self.endpoint, f"does not let us read {', '.join(refused)}")
        except OSError as e:
            self._socket.close()
            raise BrokerError(self.endpoint, describe(e)) from e
        except BrokerError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def receive(self, timeout_s: float) -> list[Received]:
        """What has arrived, waiting at most `timeout_s` for something; messages with QoS 1 are acknowledged."""
        data = self._read(timeout_s)
        self._keep_alive()  # after reading: what came while we were busy is a sign of life
        now_s = time.time()
        try:
            arrived = [*self._early, *self._parser.feed(data)] if data or self._early else []
        except (ValueError, IndexError) as e:
            raise BrokerError(self.endpoint, f"it does not speak MQTT as we do ({e})") from e
        self._early = []
        found = [
            Received(topic=p.topic, payload=p.body, retained=p.retained, received_s=now_s)
            for p in arrived
            if p.kind == packets.PUBLISH
        ]
        if to_acknowledge := [p.id for p in arrived if p.kind == packets.PUBLISH and p.qos]:
            self._out += packets.puback(to_acknowledge)
        self.flush()
        return found

    def publish(self, topic: str, payload: bytes) -> None:
        """Queue one message with QoS 0; `receive` and `flush` send what is queued."""
        self._out += packets.publish(topic, payload)

    def flush(self) -> None:
        """Send as much of what is queued as the broker takes now."""
        while self._out:
            try:
                sent = self._socket.send(self._out[:_READ_BYTES])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as e:
                raise BrokerError(self.endpoint, f"the connection was lost ({describe(e)})") from e
            del self._out[:sent]
            self._watch.spoke_s = time.monotonic()

    def close(self) -> None:
        """Disconnect; what the broker does not take at once is not sent."""
        self._out += packets.disconnect()
        try:
            self.flush()
        except BrokerError:
            return
        finally:
            self._selector.close()
            self._socket.close()

    def _read(self, timeout_s: float) -> bytes:
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        if not pending and not self._early:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            self._selector.modify(self._socket, wanted)
            if not any(mask & selectors.EVENT_READ for _, mask in self._selector.select(timeout_s)):
                return b""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as e:
            raise BrokerError(self.endpoint, f"the connection was lost ({describe(e)})") from e
        if not data:
            raise BrokerError(self.endpoint, "the connection was lost")
        self._watch.heard_s = time.monotonic()
        return data

    def _keep_alive(self) -> None:
        now_s = time.monotonic()
        if self._watch.is_dead(now_s):
            raise BrokerError(self.endpoint, self._watch.verdict)
        if self._watch.is_due(now_s):
            self._out += packets.pingreq()
            self._watch.pinged_s = now_s

    def _send_now(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _await(self, kind: int) -> packets.Packet:
        """The first packet of a kind; messages that come before it are kept. Raises BrokerError, OSError."""
        deadline = time.monotonic() + CONNACK_S
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(min(left, _ASK_S))
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                if self._is_over():
                    raise BrokerError(self.endpoint, "was left before it had answered") from None
                continue
            if not data:
                raise BrokerError(self.endpoint, "hung up before it had answered")
            try:
                arrived = self._parser.feed(data)
            except (ValueError, IndexError) as e:
                raise BrokerError(self.endpoint, f"it does not speak MQTT as we do ({e})") from e
            for i, packet in enumerate(arrived):
                if packet.kind == kind:
                    self._early += arrived[i + 1 :]
                    return packet
                self._early.append(packet)
        raise BrokerError(self.endpoint, f"no answer within {CONNACK_S:.0f} s")


def _open(config: MqttConfig) -> socket.socket:
    plain = socket.create_connection((config.host or "", config.port), timeout=CONNECT_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not config.tls:
        return plain
    try:
        return client_context(config).wrap_socket(plain, server_hostname=config.host)
    except BaseException:
        plain.close()
        raise
