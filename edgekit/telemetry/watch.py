"""Listen to a fleet: what every device says, as it was received, for `fleet.fold`. The console and the CLI share it."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence

from edgekit.config import MqttConfig
from edgekit.telemetry.backoff import EAGER, BackOff
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import EVERYONE, ROOT, Command, Received, encode, topic

MAX_BYTES = 256 * 1024 * 1024
"""Held between two calls of `drain`; the oldest make room and are counted."""
_OVERHEAD_BYTES = 200
"""Of a message beyond its payload, about."""


class Watcher:
    """A reader of the fleet that stays connected. Its methods may be called from any thread."""

    def __init__(
        self,
        config: MqttConfig,
        *,
        sites: Sequence[str] | None = None,
        max_bytes: int = MAX_BYTES,
        back_off: BackOff = EAGER,
    ) -> None:
        """Raises ConfigError for settings that can never connect.

        Args:
            sites: only these; None for all.
        """
        self._lock = threading.Lock()
        self._received: deque[Received] = deque()
        self._bytes, self._max_bytes, self._overrun = 0, max_bytes, 0
        self._asked = [topic(site, EVERYONE, "rebirth") for site in sites or (EVERYONE,)]
        self._link = Link(
            config,
            client_id=f"edgekit-reader-{secrets.token_hex(6)}",
            subscriptions=[f"{ROOT}/{site}/#" for site in sites] if sites else [f"{ROOT}/#"],
            opening=self._opening,
            on_message=self._on_message,
            back_off=back_off,
        )

    def start(self) -> None:
        """Connect in the background, and ask every device to introduce itself; again after each reconnect."""
        self._link.start()

    def stop(self) -> bool:
        """Disconnect and end. True when the broker has everything that was to be sent."""
        return self._link.stop()

    def drain(self) -> list[Received]:
        """What arrived since the last call, oldest first."""
        with self._lock:
            drained = list(self._received)
            self._received.clear()
            self._bytes = 0
        return drained

    def send(self, site: str, device: str, command: Command) -> bool:
        """Send a command. False, and nothing is sent, while there is no connection."""
        if not self.connected:
            return False
        self._link.send(Outgoing(topic(site, device, "command"), encode(command)))
        return True

    def forget(self, site: str, device: str) -> None:
        """Clear what the broker retains of a device: to readers and to the collector it is gone, unless it lives."""
        for leaf in ("birth", "status"):
            self._link.send(Outgoing(topic(site, device, leaf), b"", retain=True))

    @property
    def connected(self) -> bool:
        return self._link.state.connected

    @property
    def state(self) -> str:
        """How the connection stands, in words."""
        return self._link.state.text

    @property
    def failed(self) -> bool:
        """The last attempt to connect failed; another follows."""
        return self._link.failures > 0 and not self.connected

    @property
    def refused(self) -> int:
        """Messages that the broker did not let us publish, as far as it says so."""
        return self._link.refused

    @property
    def overrun(self) -> int:
        """Messages lost because nobody drained them."""
        return self._overrun

    def _opening(self) -> Opening:
        return Opening(first=[Outgoing(where, b"{}") for where in self._asked])

    def _on_message(self, message: Received) -> None:
        with self._lock:
            self._received.append(message)
            self._bytes += len(message.payload) + _OVERHEAD_BYTES
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._received.popleft().payload) + _OVERHEAD_BYTES
                self._overrun += 1
