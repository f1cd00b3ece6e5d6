"""The claim of telemetry, put to the test over any broker: what a device stored is in the collector exactly once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.collect.collector import Collector
from edgekit.collect.store import Store
from edgekit.config import MqttConfig
from edgekit.fleet import Fleet, Presence, fold
from edgekit.telemetry.access import User
from edgekit.telemetry.keepalive import PROMISED_RATIO
from edgekit.telemetry.messages import Birth, Readings
from edgekit.telemetry.reporter import Recorder, Reporter
from edgekit.telemetry.watch import Watcher
from tests.network import QUICK, Proxy
from tests.waiting import until

KEEPALIVE_S = 2
GRAIN_S = 6.0
"""mosquitto looks for silent clients every 5 s, by a clock of whole seconds."""
WINDOW_S = 0.1

Window = tuple[str, int, int]
"""Device, epoch, sequence number."""


class Field:
    """A device and a collector, each behind a network of its own, and a reader beside the broker."""

    def __init__(self, folder: Path, *ports: int, users: Sequence[User] = (), keepalive_s: int = KEEPALIVE_S) -> None:
        """Of several brokers everyone finds the first that is there."""
        self._ends = contextlib.ExitStack()
        self.folder, self.stored = folder, set[Window]()
        self.bound_s = PROMISED_RATIO * keepalive_s + 1.0
        "What is promised, and a second for a machine on which other tests run. The promise itself: `test_link_down`."
        self._keepalive_s = keepalive_s
        self._users = {user.name: user.password for user in users}
        self.device_net, self.collector_net, self.reader_net = (Proxy(*ports) for _ in range(3))
        for proxy in (self.device_net, self.collector_net, self.reader_net):
            self._ends.callback(proxy.close)
        self.fleet = Fleet()
        self.watcher = Watcher(self._config(self.reader_net, "reader"), back_off=QUICK)
        self.watcher.start()
        self._ends.callback(self.watcher.stop)
        listens = self._config(self.collector_net, "collector")
        self.collector = Collector(listens, folder / "h.db", commit_s=0.05, back_off=QUICK)
        thread = threading.Thread(target=self.collector.run, daemon=True)
        thread.start()
        self._ends.callback(thread.join)
        self._ends.callback(self.collector.stop)
        self.reporter = self._reporter("cam-1")
        self.reporter.start()
        assert until(lambda: self.reporter.state.connected and self.presence() is Presence.ONLINE, 60.0), self.states()

    def _config(self, network: Proxy, user: str, **settings: object) -> MqttConfig:
        kind = {"host": "127.0.0.1", "port": network.port, "keepalive_s": self._keepalive_s, **settings}
        if user in self._users:
            secret = self.folder / f"secret-{user.replace('/', '-')}"
            secret.write_text(self._users[user])
            kind |= {"username": user, "password_file": str(secret)}
        return MqttConfig(**kind)  # type: ignore[arg-type]

    def _reporter(self, name: str) -> Reporter:
        recorder = Recorder()
        settings = {"window_s": WINDOW_S, "commit_s": 0.05, "collector": True, "history_per_s": 500.0}
        reporter = Reporter(
            self._config(self.device_net, f"hall/{name}", **settings),
            site="hall",
            device=name,
            state_folder=self.folder / name,
            birth=lambda epoch: Birth(epoch=epoch, t_unix_ms=0, board="Pi 5", window_ms=int(WINDOW_S * 1000)),
            readings=Readings,
            recorder=recorder,
            back_off=QUICK,
        )
        store = reporter._link.store

        def note(topic: str, payload: bytes, *, window: tuple[int, int] | None = None) -> None:
            if window is not None:
                self.stored.add((name, *window))
            store(topic, payload, window=window)

        reporter._link.store = note  # type: ignore[method-assign]
        self._ends.callback(lambda: reporter.stop("the test ended", timeout_s=0.5))
        return reporter

    def presence(self) -> Presence | None:
        """What a reader sees of the device now."""
        self.fleet = fold(self.fleet, self.watcher.drain(), now_s=time.time())
        device = self.fleet.devices.get(("hall", "cam-1"))
        return device.presence if device else None

    def states(self) -> str:
        """How all stand, for a test that fails."""
        found = self.reporter.state, self.reporter._link.failures, self.watcher.state, self.collector.state
        return f"{found} {self.presence()} {self.reporter._outbox.state()} {len(self.stored)}"

    def seconds_until(self, condition: Callable[[], bool]) -> float:
        """How long it took to come true; fails after twenty seconds."""
        began_s = time.monotonic()
        assert until(condition, 20.0), self.states()
        return time.monotonic() - began_s

    def assert_nothing_lost(self, *, timeout_s: float = 30.0) -> None:
        """Everything the device stored is in the collector once; then the device goes in order."""
        assert until(lambda: len(self.stored) > 10)

        def online():
            return self.reporter.state.connected and self.presence() is Presence.ONLINE

        assert until(online, timeout_s), self.states()
        self.reporter._window_s = 3600.0  # the window that is open now is the last
        assert until(lambda: self.reporter._outbox.depth == 0, timeout_s), self.reporter._outbox.state()
        assert self.reporter._outbox.dropped == {}
        self._ends.close()
        store = Store(self.folder / "h.db")
        found = Counter((store.names[w.device][1], w.epoch, w.seq) for w in store.windows())
        store.close()
        assert self.stored - found.keys() == set()
        assert {window: count for window, count in found.items() if count != 1} == {}

    def close(self) -> None:
        for network in (self.device_net, self.collector_net, self.reader_net):
            network.heal()
        self._ends.close()
