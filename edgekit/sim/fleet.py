"""Many simulated devices in one thread: one selector over all their sockets, one heap of what each does next."""

from __future__ import annotations

import heapq
import itertools
import random
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.sim.device import MODELS, Behaviour, SimDevice, lane_library
from edgekit.sim.session import Session

CONNECTS_PER_S = 500.0
OFF_S = (2.0, 10.0)
"""A device that lost its power is away for so long."""
BACK_OFF_S = (0.5, 3.0)
REBIRTH_SPREAD_S = 5.0
SWEEP_S = 1.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the simulated fleet did."""

    devices: int
    windows: int = 0
    connections: int = 0
    drops: int = 0
    deaths: int = 0
    waiting: int = 0
    "Windows and events without an acknowledgement at the end."
    lost: int = 0
    "Given up by outboxes."
    made: dict[str, dict[int, int]] = field(default_factory=dict)
    'Windows by "site/device" and epoch.'


class SimFleet:
    """Simulated devices from their first connection to their goodbye."""

    def __init__(
        self, config: MqttConfig, behaviour: Behaviour, *, devices: int, sites: int = 1, seed: int = 1
    ) -> None:
        self._config, self._behaviour, self._dice = config, behaviour, random.Random(seed)
        library = lane_library(self._dice)
        self.tally = Tally(devices=devices)
        self.problem = ""
        "The last reason why a connection ended."
        self._selector = selectors.DefaultSelector()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sessions: dict[int, Session] = {}
        self._reporting, self._swept_s = True, 0.0
        self._devices: list[SimDevice] = []
        for i in range(devices):
            model = i % len(MODELS)
            unsynced = self._dice.random() < behaviour.unsynced_ratio
            skew_s = self._dice.uniform(-behaviour.skew_s, behaviour.skew_s) if unsynced else None
            site, name = f"site-{i % sites}", f"sim-{i:05d}"
            device = SimDevice(site, name, library[model], model, skew_s, behaviour.window_s, self._dice)
            self._devices.append(device)

    @property
    def connected(self) -> int:
        return sum(session.is_ready for session in self._sessions.values())

    def run(self, seconds: float, *, drain_s: float = 60.0, on_tick: Callable[[], None] = lambda: None) -> Tally:
        """Report for so long, then wait until every outbox is empty (at most `drain_s`), and say goodbye.

        Raises BrokerError when no device could connect.
        """
        start_s = time.monotonic()
        for i in range(len(self._devices)):
            connect_s = start_s + i / CONNECTS_PER_S
            self._at(connect_s, self._connector(i))
            first_s = connect_s + self._dice.uniform(0.0, self._behaviour.window_s)
            self._at(first_s, self._reporter(i, first_s))
            self._plan_faults(i, connect_s)
        ends_s = start_s + seconds
        while (now_s := time.monotonic()) < ends_s:
            self._turn(min(ends_s, now_s + SWEEP_S))
            self._sweep()
            on_tick()
            if now_s - start_s > 10.0 and not self.tally.connections:
                raise BrokerError(f"{self._config.host}:{self._config.port}", self.problem or "no device could connect")
        self._reporting = False
        ends_s = time.monotonic() + drain_s
        while time.monotonic() < ends_s and any(device.outbox.depth for device in self._devices):
            self._turn(time.monotonic() + 0.2)
            self._sweep()
            on_tick()
        self._leave()
        return self.tally

    def _sweep(self) -> None:
        """Give everyone a chance to send again, to drain and to show that they live."""
        now_s = time.monotonic()
        if now_s < self._swept_s + SWEEP_S:
            return
        self._swept_s = now_s
        for i in list(self._sessions):
            if self._sessions[i].is_due(now_s):
                self._serve(i, 0)

    def _turn(self, until_s: float) -> None:
        """One wait for sockets and timers."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        next_s = min(until_s, self._due[0][0]) if self._due else until_s
        for key, mask in self._selector.select(max(0.0, next_s - time.monotonic())):
            self._serve(key.data, mask)

    def _serve(self, i: int, mask: int) -> None:
        session = self._sessions[i]
        try:
            if mask & selectors.EVENT_READ:
                session.read()
            self._write(i, session)
            if session.asked_for_birth:
                session.asked_for_birth = False
                self._at(
                    time.monotonic() + self._dice.uniform(0.0, REBIRTH_SPREAD_S), lambda: self._introduce(i, session)
                )
        except (BrokerError, ValueError) as e:
            self.problem = str(e)
            self._lose(i, self._dice.uniform(*BACK_OFF_S))

    def _write(self, i: int, session: Session) -> None:
        session.write()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.wants_to_write else 0)
        if self._selector.get_key(session.socket).events != wanted:
            self._selector.modify(session.socket, wanted, i)

    def _introduce(self, i: int, session: Session) -> None:
        if self._sessions.get(i) is session:
            session.introduce()
            self._serve(i, 0)

    def _connector(self, i: int) -> Callable[[], None]:
        def connect() -> None:
            if i in self._sessions:
                return
            self._devices[i].begin_epoch()
            session = Session(self._devices[i], self._config, history_per_s=self._behaviour.history_per_s)
            self._sessions[i] = session
            self.tally.connections += 1
            self._selector.register(session.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, i)

        return connect

    def _reporter(self, i: int, when_s: float) -> Callable[[], None]:
        """Closes a window at `when_s` and plans the next."""
        device = self._devices[i]

        def report() -> None:
            if not self._reporting:
                return
            if device.epoch:
                device.close_window(unix_s=time.time(), mono_s=time.monotonic())
                self.tally.windows += 1
            if i in self._sessions:
                self._serve(i, 0)
            self._at(when_s + device.window_s, self._reporter(i, when_s + device.window_s))

        return report

    def _plan_faults(self, i: int, after_s: float) -> None:
        for per_h, fault in ((self._behaviour.drops_per_h, self._drop), (self._behaviour.deaths_per_h, self._die)):
            if per_h > 0:
                self._at(after_s + self._dice.expovariate(per_h / 3600.0), self._fault(i, per_h, fault))

    def _fault(self, i: int, per_h: float, fault: Callable[[int], None]) -> Callable[[], None]:
        def strike() -> None:
            if self._reporting:
                fault(i)
                self._at(time.monotonic() + self._dice.expovariate(per_h / 3600.0), strike)

        return strike

    def _drop(self, i: int) -> None:
        if i in self._sessions:
            self.tally.drops += 1
            self._lose(i, self._dice.uniform(*BACK_OFF_S))

    def _die(self, i: int) -> None:
        if i in self._sessions:
            self.tally.deaths += 1
            self._lose(i, self._dice.uniform(*OFF_S))

    def _lose(self, i: int, back_after_s: float) -> None:
        """The connection is gone without a goodbye, so the broker speaks the Will."""
        session = self._sessions.pop(i)
        self._selector.unregister(session.socket)
        session.close()
        self._at(time.monotonic() + back_after_s, self._connector(i))

    def _leave(self) -> None:
        for session in self._sessions.values():
            try:
                session.say_goodbye()
            except BrokerError as e:
                self.problem = str(e)
            session.close()
        self._selector.close()
        for device in self._devices:
            self.tally.waiting += device.outbox.depth
            self.tally.lost += sum(device.outbox.dropped.values())
            self.tally.made[f"{device.site}/{device.name}"] = dict(device.made)

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when_s, next(self._order), act))
