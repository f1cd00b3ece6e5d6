"""The operator's end of the broker during a rollout: hears the fleet, tells devices what is desired, holds the claim.

A message counts as told only when the broker has said it back to us: one that was sent just before a connection broke
is sent again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError, ConfigError
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import EVERYONE, ROOT, Received, parse_topic, topic

CONNECT_S, CONFIRM_S, ECHO_S, CLAIM_S = 10.0, 10.0, 5.0, 1.5


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Retained on `_all/desired` of each site while a rollout is unfinished, so that two do not fight over devices."""

    id: str
    release: str
    operator: str


class Crier:
    """Use as a context. Its methods may be called from one thread."""

    def __init__(self, config: MqttConfig, sites: Sequence[str]) -> None:
        """Raises ConfigError for settings that can never connect. `sites` empty: all of the broker."""
        self._lock = threading.Lock()
        self._received: list[Received] = []
        self._endpoint = f"{config.host}:{config.port}"
        self._wanted: dict[str, bytes] = {}
        self._sent_s: dict[str, float] = {}
        self._echoed: dict[str, bytes] = {}
        asked = [topic(site, EVERYONE, "rebirth") for site in sites or (EVERYONE,)]
        self._link = Link(
            config,
            client_id=f"edgekit-rollout-{secrets.token_hex(6)}",
            subscriptions=[f"{ROOT}/{site}/#" for site in sites] if sites else [f"{ROOT}/#"],
            opening=lambda: Opening(first=[Outgoing(where, b"{}") for where in asked]),
            on_message=self._on_message,
        )

    def __enter__(self) -> Crier:
        """Raises BrokerError when there is no connection soon."""
        self._link.start()
        deadline_s = time.monotonic() + CONNECT_S
        while not self._link.state.connected:
            if self._link.failures or time.monotonic() > deadline_s:
                why = self._link.state.text
                self._link.stop()
                raise BrokerError(self._endpoint, why)
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._link.stop()

    @property
    def state(self) -> str:
        """Empty while connected, else why not."""
        return "" if self._link.state.connected else f"broker {self._endpoint}: {self._link.state.text}"

    def drain(self) -> list[Received]:
        """What arrived since the last call."""
        with self._lock:
            drained, self._received = self._received, []
        for message in drained:
            if message.topic.endswith("/desired"):
                self._echoed[message.topic] = message.payload
        return drained

    def tell(self, key: str, payload: bytes) -> None:
        """Make `payload` what is desired of the device "site/device"; empty: nothing is."""
        where = f"{ROOT}/{key}/desired"
        self._wanted[where] = payload
        self._sent_s.pop(where, None)

    def repeat(self) -> int:
        """Send what the broker has not said back yet; how many are still to be heard. Call it again and again."""
        now_s = time.monotonic()
        for where, payload in list(self._wanted.items()):
            if self._echoed.get(where) == payload and where in self._sent_s:
                del self._wanted[where]
            elif not self.state and now_s - self._sent_s.get(where, -ECHO_S) >= ECHO_S:
                self._sent_s[where] = now_s
                self._echoed.pop(where, None)
                self._link.send(Outgoing(where, payload, retain=True))
        return len(self._wanted)

    def settle(self) -> bool:
        """Until everything is told; False when the broker does not confirm it in time."""
        deadline_s = time.monotonic() + CONFIRM_S
        while self.repeat() and time.monotonic() < deadline_s:
            self.drain()
            time.sleep(0.02)
        return not self._wanted

    def claim(self, claim: Claim, sites: Sequence[str], *, take_over: bool, hear: Callable[[Received], None]) -> None:
        """Hold the sites for this rollout. Raises ConfigError when another holds one of them.

        Both of two who claim in the same moment look again; the broker keeps the last, and the other gives way.
        """
        self._look_for_rivals(claim, sites, hear, ignore=take_over)
        for site in sites:
            self.tell(f"{site}/{EVERYONE}", msgspec.json.encode(claim))
        if not self.settle():
            raise BrokerError(self._endpoint, "does not confirm the claim: may this user write +/+/desired?")
        self._look_for_rivals(claim, sites, hear, ignore=False)

    def release(self, sites: Sequence[str]) -> None:
        """Give the sites free."""
        for site in sites:
            self.tell(f"{site}/{EVERYONE}", b"")
        self.settle()

    def _look_for_rivals(
        self, claim: Claim, sites: Sequence[str], hear: Callable[[Received], None], *, ignore: bool
    ) -> None:
        deadline_s = time.monotonic() + CLAIM_S
        while time.monotonic() < deadline_s:
            for message in self.drain():
                hear(message)
            time.sleep(0.05)
        for site in sites:
            payload = self._echoed.get(topic(site, EVERYONE, "desired"), b"")
            try:
                rival = msgspec.json.decode(payload, type=Claim) if payload else None
            except msgspec.DecodeError:
                continue
            if rival is not None and rival.id != claim.id and not ignore:
                who = f"{rival.operator} rolls out {rival.release} there"
                mend = "finish or abort it there, or take over with --take-over"
                raise ConfigError(f"site {site}", None, f"{who}; {mend}")

    def _on_message(self, message: Received) -> None:
        if parse_topic(message.topic) is not None:
            with self._lock:
                self._received.append(message)
