"""What a daemon says to the fleet: its birth, windows, events and goodbye; nothing where no broker is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from edgekit.config import DaemonConfig, Home
from edgekit.device.probe import Facts
from edgekit.serve.birth import birth
from edgekit.serve.readings import SystemMeter
from edgekit.telemetry.messages import Command, ModelState, Reply
from edgekit.telemetry.reporter import Recorder, Reporter

STOP_S = 1.0
"""For a goodbye when there is no time."""


class Voice:
    """Of one run. `models` is a new mapping at each change: the reporter's thread may be reading the one before."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.models: Mapping[str, ModelState] = {}
        self._reporter: Reporter | None = None

    def start(
        self, config: DaemonConfig, facts: Facts, device: str, home: Home, *, on_command: Callable[[Command], Reply]
    ) -> None:
        """Speak to the broker that the configuration names, if it names one."""
        if config.mqtt.host is None:
            return
        self._reporter = Reporter(
            config.mqtt,
            site=config.site,
            device=device,
            state_folder=home.daemon(device),
            birth=lambda epoch: birth(epoch, config, facts, self.models.values()),
            readings=SystemMeter(memory_total_bytes=facts.memory.usable_bytes).read,
            recorder=self.recorder,
            on_command=on_command,
        )
        self._reporter.start()

    def remember(self, state: ModelState) -> None:
        """A model as it stands now; told with the next birth."""
        self.models = {**self.models, state.model: state}

    def event(self, kind: str, text: str, **detail: Any) -> None:
        if self._reporter is not None:
            self._reporter.event(kind, text, **detail)

    def rebirth(self) -> None:
        if self._reporter is not None:
            self._reporter.rebirth()

    async def tell_ready(self) -> None:
        """The birth that a connection opens with may be of a moment before: once connected, say it again."""
        while self._reporter is not None and not self._reporter.state.connected:
            await asyncio.sleep(0.2)
        self.rebirth()

    def stop(self, reason: str, *, in_haste: bool = False) -> None:
        """Say goodbye; `in_haste` waits for no broker."""
        if self._reporter is None:
            return
        if in_haste:
            self._reporter.stop(reason, timeout_s=STOP_S)
        else:
            self._reporter.stop(reason)
