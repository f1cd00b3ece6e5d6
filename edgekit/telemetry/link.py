"""Stay connected to a broker and deliver what waits: reconnecting with back-off and jitter, one sending thread.

A message is delivered when the broker has acknowledged it; one that was in flight when the connection broke is sent
again. Callers get no exception from a broken connection: they see `state`, and their messages wait in the outbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paho.mqtt.enums import MQTTProtocolVersion

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.telemetry.backoff import PATIENT, BackOff
from edgekit.telemetry.clock import ClockFloor
from edgekit.telemetry.connection import Connection, Outgoing, ProtocolRefused, check_config
from edgekit.telemetry.messages import Received
from edgekit.telemetry.outbox import Item, Outbox
from edgekit.telemetry.pace import InFlight, Pace

logger = logging.getLogger(__name__)

IDLE_S = 1.0
UNACKNOWLEDGED_S = 30.0
"""A broker that answers pings and nothing else would keep what is in flight for ever: after this it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """How the link stands, for people."""

    connected: bool
    text: str
    taken_over: bool = False
    "Another client with our id took the connection."


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a connection begins with."""

    will: Outgoing | None = None
    "Registered before connecting."
    first: Sequence[Outgoing] = ()
    "Published after subscribing, before anything that waits."
    settle_s: float = 0.0
    "How long to listen before publishing `first`."


class Link:
    """A connection that is made again whenever it breaks."""

    def __init__(
        self,
        config: MqttConfig,
        *,
        client_id: str,
        subscriptions: Sequence[str],
        opening: Callable[[], Opening],
        on_message: Callable[[Received], None],
        on_state: Callable[[LinkState], None] = lambda _: None,
        outbox: Outbox | None = None,
        prepare: Callable[[Item], bytes] = lambda item: item.payload,
        back_off: BackOff = PATIENT,
        unacknowledged_s: float = UNACKNOWLEDGED_S,
        floor: ClockFloor | None = None,
    ) -> None:
        """Raises ConfigError for settings that can never connect.

        Args:
            opening: asked before each attempt to connect; called on the link's thread, as are the next two.
            on_message, on_state: must return at once.
            prepare: the payload of a waiting item as it is sent now.
            floor: with one, TLS works before the clock is set.
        """
        check_config(config)
        self.state = LinkState(connected=False, text="not started")
        self.failures = 0
        "Attempts and short connections in a row; sets the back-off."
        self.refused = 0
        "Messages that the broker did not take; MQTT 3.1.1 has no word for it."
        self.outbox = outbox or Outbox()
        self._config, self._client_id, self._subscriptions = config, client_id, tuple(subscriptions)
        self._opening, self._on_message, self._on_state = opening, on_message, on_state
        self._prepare, self._back_off, self._unacknowledged_s = prepare, back_off, unacknowledged_s
        self._floor = floor
        self._protocols = [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311]
        self._direct: deque[Outgoing] = deque()
        self._takes_direct = False
        self._connection: Connection | None = None
        self._stopping, self._reopen = threading.Event(), threading.Event()
        self._suspects = self._delivered = False
        self._farewell: Sequence[Outgoing] = ()
        self._flush_until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"mqtt {client_id}", daemon=True)

    def start(self) -> None:
        """Connect in the background, now and after every loss."""
        self._thread.start()

    def send(self, message: Outgoing) -> None:
        """Publish soon if connected; otherwise it is forgotten (the next opening says what still matters)."""
        if self._takes_direct:
            self._direct.append(message)
            self._wake()

    def store(self, topic: str, payload: bytes, *, window: tuple[int, int] | None = None) -> None:
        """Put into the outbox; it is sent when there is a connection and kept until it is delivered."""
        self.outbox.append(topic, payload, now_s=time.monotonic(), window=window)
        self._wake()

    def reopen(self) -> None:
        """Give up this connection and open a new one at once."""
        self._reopen.set()
        self._wake()

    def expect_takeover(self) -> None:
        """Treat the next loss as a takeover: MQTT 3.1.1 has no word for it."""
        self._suspects = True

    def stop(self, farewell: Sequence[Outgoing] = (), *, timeout_s: float = 3.0) -> bool:
        """Send what waits and then `farewell`, disconnect, and end; at most `timeout_s` (and a moment).

        True when the broker has everything. Otherwise the connection is dropped, so that the broker speaks the Will.
        """
        self._farewell, self._flush_until = farewell, time.monotonic() + timeout_s
        self._stopping.set()
        if (connection := self._connection) is not None and not self.state.connected:
            connection.lost = "given up"  # nothing to say yet: do not wait for its answer
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 2.0)
        return self._delivered

    def wake(self) -> None:
        """Look into the outbox now: something has come in by another way."""
        self._wake()

    def _wake(self) -> None:
        if (connection := self._connection) is not None:
            connection.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                taken_over = self._connect_and_serve()
            except BrokerError as e:
                taken_over = False
                self._say(LinkState(connected=False, text=e.detail))
            if self._stopping.is_set():
                break
            if self._reopen.is_set():
                self._reopen.clear()
                continue
            self.failures = self._back_off.failures(self.failures, lasted_s=time.monotonic() - began)
            self._stopping.wait(self._back_off.wait_s(self.failures, taken_over=taken_over))
        if not self._delivered:
            left = f"with {self.outbox.depth} messages undelivered" if self.outbox.depth else "without a connection"
            self._say(LinkState(connected=False, text=f"stopped {left}"))

    def _connect_and_serve(self) -> bool:
        """One connection from beginning to end. True if another client took it. Raises BrokerError."""
        opening = self._opening()
        connection = self._open(opening)
        clean = False
        try:
            self._direct.clear()
            self._takes_direct = True
            connection.subscribe(self._subscriptions)
            self._settle(connection, opening.settle_s)
            if self._reopen.is_set():
                return False
            self._direct.extendleft(reversed(opening.first))
            self._say(LinkState(connected=True, text="connected"))
            clean = self._serve(connection)
        finally:
            self._takes_direct, self._connection = False, None
            connection.close(clean=clean)
        if clean:
            self._delivered = True
            self._say(LinkState(connected=False, text="stopped"))
        elif connection.lost:
            self._say(LinkState(connected=False, text=connection.lost, taken_over=connection.taken_over))
        taken_over, self._suspects = connection.taken_over or self._suspects, False
        return taken_over

    def _open(self, opening: Opening) -> Connection:
        """A connection by MQTT 5, or by 3.1.1 where the broker is older. Raises BrokerError."""
        for protocol in self._protocols:
            connection = Connection(self._config, self._client_id, protocol, opening.will, self._floor)
            connection.on_message = self._on_message
            self._connection = connection
            try:
                connection.open()
            except BrokerError as e:
                self._connection = None
                connection.close(clean=False)
                is_last = protocol is self._protocols[-1] or self._stopping.is_set()
                if isinstance(e, ProtocolRefused) and not is_last:
                    continue
                raise
            self._protocols = sorted(self._protocols, key=lambda p: p is not protocol)  # what worked comes first
            return connection
        raise AssertionError("the loop returns or raises")

    def _settle(self, connection: Connection, settle_s: float) -> None:
        deadline = time.monotonic() + settle_s
        while (left := deadline - time.monotonic()) > 0 and connection.lost is None and not self._reopen.is_set():
            connection.step(left)

    def _serve(self, connection: Connection) -> bool:
        """Send and receive until the connection ends. True when it may end cleanly, everything being delivered."""
        in_flight = InFlight()
        pace = Pace(self.outbox, self._config.history_per_s, now_s=time.monotonic())
        said_farewell = False
        while connection.lost is None and not self._reopen.is_set():
            pace.hurries = self._stopping.is_set()
            self._send(connection, in_flight, pace)
            if self._stopping.is_set():
                if not said_farewell and (not self.outbox.unsent or time.monotonic() >= self._flush_until - 1.0):
                    said_farewell = True
                    for message in self._farewell:
                        in_flight.add(connection.publish(message), None, now_s=time.monotonic())
                elif said_farewell and in_flight.only_items:
                    return True
                if time.monotonic() >= self._flush_until:
                    return False
            idle_s = min(IDLE_S, connection.idle_s)
            connection.step(0.05 if self._stopping.is_set() else pace.wait_s(idle_s, now_s=time.monotonic()))
            self._read_answers(connection, in_flight)
            if in_flight.waited_s(time.monotonic()) > self._unacknowledged_s:
                connection.lost = connection.lost or f"acknowledged nothing for {self._unacknowledged_s:.0f} s"
        return False

    def _read_answers(self, connection: Connection, in_flight: InFlight) -> None:
        """What the broker took is delivered. What it will never take (MQTT 5 says so) is counted; what it cannot take
        now waits for another connection."""
        for answer in connection.answers:
            item = in_flight.acknowledged(answer.packet_id)
            if answer.refusal is None:
                if item is not None:
                    self.outbox.delivered(item)
                continue
            self.refused += 1
            if not answer.is_final:
                connection.lost = connection.lost or f"did not take a message: {answer.refusal}"
                continue
            self._say(LinkState(connected=True, text=f"connected, but a message was refused: {answer.refusal}"))
            if item is not None:
                self.outbox.drop(item.number, f"refused by the broker: {answer.refusal}")
        connection.answers.clear()

    def _send(self, connection: Connection, in_flight: InFlight, pace: Pace) -> None:
        """Publish what may be in flight now."""
        now_s = time.monotonic()
        while self._direct and len(in_flight) < connection.in_flight_limit:
            in_flight.add(connection.publish(self._direct.popleft()), None, now_s=now_s)
        if self._direct:
            return
        for item in pace.next(connection.in_flight_limit - len(in_flight), now_s=now_s):
            payload = self._prepare(item)
            if connection.max_packet_bytes and len(payload) + 256 > connection.max_packet_bytes:
                self.outbox.drop(item.number, "larger than the broker takes")
                continue
            in_flight.add(connection.publish(Outgoing(item.topic, payload)), item, now_s=now_s)

    def _say(self, state: LinkState) -> None:
        changed = (state.connected, state.text) != (self.state.connected, self.state.text)
        self.state = state
        if changed or state.taken_over:
            logger.info("broker %s:%s: %s", self._config.host, self._config.port, state.text)
            self._on_state(state)
