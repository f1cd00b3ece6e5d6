"""Devices that pretend, over one connection to a real broker: they heed `desired`, report, and send telemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from edgekit.config import MqttConfig
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import (
    Birth,
    Histogram,
    LaneMetrics,
    Metrics,
    Received,
    State,
    Status,
    decode,
    encode,
    parse_topic,
    topic,
)

SITE = "hall"


class PretendedFleet:
    """Use as a context. `slower`: release -> factor of its latency; `ends`: release -> how its update ends."""

    def __init__(
        self,
        config: MqttConfig,
        names: list[str],
        *,
        slower: Mapping[str, float] | None = None,
        ends: Mapping[str, Step] | None = None,
        window_s: float = 0.1,
        requests: int = 300,
        groups: Callable[[str], str] = lambda _name: "default",
    ) -> None:
        self.running, self.groups = dict.fromkeys(names, "1.0"), groups
        self.asked: dict[str, Desired | None] = {}
        self._slower, self._ends, self._window_s, self._requests = slower or {}, ends or {}, window_s, requests
        self._reported = {name: self._report(name) for name in names}
        self._due: dict[str, tuple[float, Desired]] = {}
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._dice, self._seq = np.random.default_rng(1), 0
        self._library: dict[float, list[Histogram]] = {}
        self._link = Link(
            config,
            client_id=f"pretended-{id(self)}",
            subscriptions=("edgekit/v1/+/+/desired", "edgekit/v1/+/_all/rebirth"),
            opening=lambda: Opening(first=self._introduction()),
            on_message=self._hear,
        )
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> PretendedFleet:
        self._link.start()
        until_s = time.monotonic() + 10
        while not self._link.state.connected and time.monotonic() < until_s:
            time.sleep(0.01)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for name in self.running:
            for leaf in ("status", "birth", "reported", "desired"):
                self._link.send(Outgoing(topic(SITE, name, leaf), b"", retain=True))
        self._link.send(Outgoing(topic(SITE, "_all", "desired"), b"", retain=True))
        self._link.stop()

    def _hear(self, message: Received) -> None:
        where = parse_topic(message.topic)
        assert where is not None
        if where.leaf == "rebirth":
            for message_ in self._introduction():
                self._link.send(message_)
        if where.leaf != "desired" or where.device not in self.running:
            return
        desired = decode("desired", message.payload) if message.payload else None
        assert desired is None or isinstance(desired, Desired)
        with self._lock:
            self.asked[where.device] = desired
            self._due.pop(where.device, None)
            if desired is not None and self._reported[where.device].desired_id != desired.id:
                self._due[where.device] = (time.monotonic() + 0.1, desired)
                self._say(where.device, desired, Step.FETCHING)

    def _work(self) -> None:
        while not self._stopped.wait(self._window_s):
            with self._lock:
                due = {n: d for n, (at_s, d) in self._due.items() if at_s <= time.monotonic()}
                for name, desired in due.items():
                    del self._due[name]
                    end = self._ends.get(desired.release, Step.COMMITTED)
                    if end is Step.COMMITTED:
                        self.running[name] = desired.release
                    self._say(name, desired, end)
            self._seq += 1
            for name, release in self.running.items():
                self._link.send(Outgoing(topic(SITE, name, "metrics"), encode(self._window(release))))

    def _say(self, name: str, desired: Desired, step: Step) -> None:
        reason = "m: p99 is 41.0 ms, the objective is 10.0 ms" if step is Step.ROLLED_BACK else ""
        self._reported[name] = self._report(name, desired, step, reason)
        self._link.send(Outgoing(topic(SITE, name, "reported"), encode(self._reported[name]), retain=True))

    def _report(self, name: str, desired: Desired | None = None, step: Step = Step.IDLE, reason: str = "") -> Reported:
        return Reported(
            t_unix_ms=int(time.time() * 1000),
            group=self.groups(name),
            running=self.running[name],
            desired=desired.release if desired else "",
            desired_id=desired.id if desired else "",
            step=step,
            reason=reason,
        )

    def _window(self, release: str) -> Metrics:
        factor = self._slower.get(release, 1.0)
        if factor not in self._library:
            self._library[factor] = [self._histogram(factor) for _ in range(40)]
        latency = self._library[factor][self._dice.integers(40)]
        lane = LaneMetrics(model="m", artifact="int8", requests=self._requests, infer_ms=latency)
        return Metrics(
            epoch=1,
            seq=self._seq,
            t_unix_ms=int(time.time() * 1000),
            t_mono_ms=int(time.monotonic() * 1000),
            window_ms=int(self._window_s * 1000),
            lanes=(lane,) if self._requests else (),
        )

    def _histogram(self, factor: float) -> Histogram:
        builder = HistogramBuilder(max_scale=4)
        builder.record_many(3.0 * factor * self._dice.lognormal(0.0, 0.08, max(1, self._requests)))
        made = builder.histogram()
        assert made is not None
        return made

    def _introduction(self) -> list[Outgoing]:
        told = []
        for name in self.running:
            for leaf, payload in (
                ("status", encode(Status(state=State.ONLINE, epoch=1))),
                ("birth", encode(Birth(epoch=1, t_unix_ms=1, board="pi", window_ms=int(self._window_s * 1000)))),
                ("reported", encode(self._reported[name])),
            ):
                told.append(Outgoing(topic(SITE, name, leaf), payload, retain=True))
        return told
