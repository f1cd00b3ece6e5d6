"""What a device says of itself over MQTT: birth, windows, events, death; and the few commands it listens to.

Two threads: the link's, and one worker that closes windows and reads what arrived. `event`, `rebirth` and the
recorder's methods may be called from any thread; none of them waits for the network.
"""

from __future__ import annotations

import logging
import queue
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edgekit import __version__
from edgekit.config import NAME_PATTERN, MqttConfig
from edgekit.errors import ConfigError
from edgekit.telemetry.backoff import PATIENT, BackOff
from edgekit.telemetry.clock import unix_ms
from edgekit.telemetry.commands import CommandDesk
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.home_assistant import Summaries, discovery
from edgekit.telemetry.link import Link, LinkState, Opening
from edgekit.telemetry.messages import (
    EVERYONE,
    Ack,
    Birth,
    Command,
    Event,
    Metrics,
    Readings,
    Received,
    Reply,
    State,
    Status,
    decode,
    encode,
    topic,
)
from edgekit.telemetry.outbox import Outbox
from edgekit.telemetry.recorder import Recorder as Recorder
from edgekit.telemetry.windows import Windows

logger = logging.getLogger(__name__)
REBIRTH_SPREAD_S = 2.0
"""A reader that starts asks the whole fleet at once; the answers are spread over this."""
FRESH_SETTLE_S = 0.5
"""A device without a past listens this long for what the broker remembers of it."""
REPEAT_S = 1.0


class Reporter:
    """One device's telemetry, from `start` to `stop`."""

    def __init__(
        self,
        config: MqttConfig,
        *,
        site: str,
        device: str,
        state_folder: Path,
        birth: Callable[[int], Birth],
        readings: Callable[[], Readings],
        recorder: Recorder,
        on_command: Callable[[Command], Reply] | None = None,
        back_off: BackOff = PATIENT,
    ) -> None:
        """Raises ConfigError for settings that can never work.

        Args:
            state_folder: where the epoch and what waits are kept; private to this device.
            birth: the birth certificate of an epoch; called for every connection and rebirth.
            on_command: acts on what `allowed_commands` allows besides ping and rebirth, one at a time.
        """
        for key, name in (("site", site), ("device", device)):
            if name == EVERYONE or not re.fullmatch(NAME_PATTERN, name):
                raise ConfigError("edgekit.toml", key, f"{name!r} must match {NAME_PATTERN} and not be '{EVERYONE}'")
        self.site, self.device = site, device
        self._window_s, self._birth = config.window_s, birth
        self._summaries = Summaries() if config.home_assistant else None
        self._windows = Windows(
            state_folder, config.window_s, recorder=recorder, readings=readings, on_jump=self._tell_jump
        )
        self._epochs = self._windows.epochs
        self._listens_first = self._epochs.is_fresh
        self._desk = CommandDesk(
            config.allowed_commands,
            own=self._own_command,
            on_command=on_command,
            answer=self._answer,
            folder=state_folder,
        )
        self._epoch_used, self._spoke_s = False, 0.0
        self._memory_total_bytes = readings().memory_total_bytes
        self._rebirth_at_s: float | None = None
        self._inbox: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._outbox = Outbox(
            config.outbox_bytes, path=state_folder / "outbox.db", commit_s=config.commit_s, collector=config.collector
        )
        self._link = self._new_link(config, back_off)
        self._outbox.on_ready = self._link.wake
        self._worker = threading.Thread(target=self._work, name=f"telemetry {device}", daemon=True)

    def _new_link(self, config: MqttConfig, back_off: BackOff) -> Link:
        return Link(
            config,
            client_id=f"{self.site}/{self.device}",
            subscriptions=(
                *map(self._topic, ("command", "status", "ack")),
                *(topic(of, EVERYONE, "rebirth") for of in (self.site, EVERYONE)),
            ),
            opening=self._opening,
            on_message=self._inbox.put,
            on_state=self._on_link,
            prepare=self._windows.as_sent,
            outbox=self._outbox,
            back_off=back_off,
            floor=self._windows.floor,
        )

    @property
    def state(self) -> LinkState:
        return self._link.state

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._epochs.current

    def start(self) -> None:
        """Begin an epoch and report in the background. An unreachable broker is no error: `state` tells."""
        self._advance()
        self._windows.begin()
        self._worker.start()
        self._link.start()

    def event(self, kind: str, text: str, **detail: Any) -> None:
        """Tell a state change; it waits in the outbox while there is no connection."""
        event = Event(epoch=self.epoch, t_unix_ms=unix_ms(), kind=kind, text=text, detail=detail)
        self._link.store(self._topic("event"), encode(event))

    def rebirth(self) -> None:
        """Publish status and birth again, when what the birth says has changed."""
        self._spoke_s = time.monotonic()
        for message in self._introduction():
            self._link.send(message)

    def stop(self, reason: str, *, timeout_s: float = 3.0) -> bool:
        """Close the last window, deliver what waits, publish our death, disconnect; at most about `timeout_s`.

        True when the broker has it all; otherwise the connection is dropped and the broker speaks the Will.
        """
        self._inbox.put(None)
        if self._worker.is_alive():
            self._worker.join(timeout_s)
        self._close_window()
        delivered = self._link.stop((self._status(State.OFFLINE, reason),), timeout_s=timeout_s)
        self._outbox.close()
        return delivered

    def _work(self) -> None:
        # Devices that boot together must not report together.
        due_s = time.monotonic() + self._window_s * random.uniform(0.5, 1.0)
        while True:
            wake_s = due_s if self._rebirth_at_s is None else min(due_s, self._rebirth_at_s)
            try:
                message = self._inbox.get(timeout=max(0.0, wake_s - time.monotonic()))
            except queue.Empty:
                message = Received(topic="", payload=b"")
            if message is None:
                return
            self._read(message)
            now_s = time.monotonic()
            if self._rebirth_at_s is not None and now_s >= self._rebirth_at_s:
                self._rebirth_at_s = None
                self._outbox.doubt()
                self.rebirth()
            if now_s >= due_s:
                self._close_window()
                due_s = max(due_s + self._window_s, now_s)

    def _close_window(self) -> None:
        def store(window: Metrics) -> None:
            where = self._topic("metrics")
            self._link.store(where, encode(window), window=(window.epoch, window.seq))

        window = self._windows.close(self._outbox.state(), store)
        if self._summaries is not None:
            summary = encode(self._summaries.after(window))
            self._link.send(Outgoing(self._topic("summary"), summary))

    def _topic(self, leaf: str) -> str:
        return topic(self.site, self.device, leaf)

    def _tell_jump(self, text: str, jumped_s: float) -> None:
        self.event("clock", text, jumped_s=round(jumped_s, 3))

    def _opening(self) -> Opening:
        """A new epoch for every connection that follows one; a failed attempt does not use its epoch up."""
        if self._epoch_used:
            self._advance()
        settle_s, self._listens_first = (FRESH_SETTLE_S if self._listens_first else 0.0), False
        will = self._status(State.OFFLINE, "connection lost")
        return Opening(will=will, first=self._introduction(), settle_s=settle_s)

    def _advance(self, past: int = 0) -> None:
        self._windows.advance(past)
        self._epoch_used = False

    def _introduction(self) -> tuple[Outgoing, ...]:
        birth = msgspec.structs.replace(self._birth(self.epoch), memory_total_bytes=self._memory_total_bytes)
        said = self._status(State.ONLINE), Outgoing(self._topic("birth"), encode(birth), retain=True)
        if self._summaries is None:
            return said
        return *said, discovery(self.site, self.device, birth, birth.versions.get("edgekit", __version__))

    def _status(self, state: State, reason: str = "") -> Outgoing:
        status = Status(state=state, epoch=self.epoch, reason=reason, session=self._epochs.session)
        return Outgoing(self._topic("status"), encode(status), retain=True)

    def _on_link(self, state: LinkState) -> None:
        if state.connected:
            self._epoch_used = True
        if state.taken_over:
            self._report_collision("it took over our connection")

    def _read(self, message: Received) -> None:
        leaf = message.topic.rpartition("/")[2]
        if leaf == "rebirth":
            self._rebirth_at_s = self._rebirth_at_s or time.monotonic() + random.uniform(0.0, REBIRTH_SPREAD_S)
        elif leaf == "status":
            self._read_own_status(message)
        elif leaf == "command":
            self._desk.read(message)
        elif leaf == "ack":
            self._read_ack(message)

    def _read_own_status(self, message: Received) -> None:
        """Mend what others, or our own past, say of us. Retained and older: our birth is about to replace it."""
        try:
            status = decode("status", message.payload)
        except ValueError:
            status = None
        if not isinstance(status, Status):
            self._repeat_status()
            return
        foreign = not self._epochs.is_own(status.session)
        mine = status.session == self._epochs.session
        if foreign and (status.state is State.ONLINE or not self._epochs.is_fresh):
            self._report_collision(f"its session is {status.session or 'unknown'}")
        if not mine and status.epoch >= self.epoch:
            self._advance(past=status.epoch)
            self._link.reopen()  # the Will carries the epoch, and only a new connection can change it
        elif not message.retained and (not mine or status.state is State.OFFLINE or status.epoch < self.epoch):
            self._repeat_status()

    def _repeat_status(self) -> None:
        if time.monotonic() - self._spoke_s > REPEAT_S:
            self.rebirth()
        else:
            self._rebirth_at_s = self._spoke_s + REPEAT_S

    def _report_collision(self, how: str) -> None:
        self._link.expect_takeover()
        text = f"another machine uses the device id '{self.device}' at site '{self.site}': {how}"
        logger.error("%s; give one of them another id", text)
        self.event("collision", text)

    def _read_ack(self, message: Received) -> None:
        try:
            ack = decode("ack", message.payload)
        except ValueError as e:
            logger.warning("an acknowledgement that cannot be read: %s", e)
            return
        if isinstance(ack, Ack) and not message.retained:
            self._outbox.acknowledged(ack.epoch, ack.seq)

    def _own_command(self, verb: str) -> Reply | None:
        if verb == "rebirth":
            self.rebirth()
        text = {"ping": "pong", "rebirth": "born again"}.get(verb)
        return Reply(id="", ok=True, text=text, detail={"epoch": self.epoch}) if text else None

    def _answer(self, reply: Reply) -> None:
        self._link.send(Outgoing(self._topic("reply"), encode(reply)))
