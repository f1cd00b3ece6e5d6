"""One device that does not exist: its epochs, its windows, its outbox, its clock. No sockets and no waiting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    LaneMetrics,
    Metrics,
    ModelState,
    Readings,
    State,
    Status,
    encode,
    topic,
)
from edgekit.telemetry.outbox import Outbox
from edgekit.telemetry.recorder import INFER_SCALE, QUEUE_SCALE

MODELS = (("ocr-detector", "static-int8", 9.0), ("voice-activity", "float32", 1.4), ("digits", "int8", 0.3))
"""Model, artifact, median latency in ms."""
_KINDS = 64
"""Different windows of each model; a device draws from them, since making each anew would cost more than sending it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What devices do besides reporting. Rates are for each device and hour."""

    window_s: float = 10.0
    drops_per_h: float = 0.0
    "Its connection breaks."
    deaths_per_h: float = 0.0
    "It loses its power and is back after a while; what its outbox held is still there."
    unsynced_ratio: float = 0.0
    "Devices whose clock nobody has set."
    skew_s: float = 0.0
    "Those are off by up to this."
    history_per_s: float = 5.0


def lane_library(dice: random.Random) -> list[list[LaneMetrics]]:
    """Windows to draw from, by model: log-normal latencies with a slow tail, as measured devices show."""
    return [[_lane(model, artifact, median_ms, dice) for _ in range(_KINDS)] for model, artifact, median_ms in MODELS]


def _lane(model: str, artifact: str, median_ms: float, dice: random.Random) -> LaneMetrics:
    infer, queue = HistogramBuilder(max_scale=INFER_SCALE), HistogramBuilder(max_scale=QUEUE_SCALE)
    requests = dice.randint(5, 60)
    drift = dice.uniform(0.9, 1.2)
    for _ in range(requests):
        slow = 3.0 if dice.random() < 0.01 else 1.0
        infer.record(round(median_ms * drift * slow * dice.lognormvariate(0.0, 0.12), 3))
        queue.record(round(dice.expovariate(10.0), 3))
    return LaneMetrics(
        model=model, artifact=artifact, requests=requests, infer_ms=infer.histogram(), queue_ms=queue.histogram()
    )


@dataclass(slots=True)
class SimDevice:
    """A device between two starts of the simulator."""

    site: str
    name: str
    lanes: Sequence[LaneMetrics]
    "The windows of its model."
    model: int
    skew_s: float | None
    "None: its clock is synchronised."
    window_s: float
    dice: random.Random
    outbox: Outbox = field(default_factory=lambda: Outbox(collector=True))
    epoch: int = 0
    seq: int = 0
    made: dict[int, int] = field(default_factory=dict)
    "Windows by epoch: what a collector must have in the end."

    def begin_epoch(self) -> None:
        """For every connection but the first of a process, as real devices do."""
        self.epoch += 1
        self.seq = 0

    def topic(self, leaf: str) -> str:
        return topic(self.site, self.name, leaf)

    def close_window(self, *, unix_s: float, mono_s: float) -> None:
        """Store a window that ends now."""
        window = Metrics(
            epoch=self.epoch,
            seq=self.seq,
            t_unix_ms=int(max(0.0, unix_s + (self.skew_s or 0.0)) * 1000),
            t_mono_ms=int(mono_s * 1000),
            window_ms=max(1, int(self.window_s * 1000)),
            clock_synced=self.skew_s is None,
            lanes=(self.lanes[self.dice.randrange(len(self.lanes))],),
            system=Readings(
                memory_available_bytes=self.dice.randrange(2**28, 2**30),
                temperature_c=round(self.dice.gauss(52.0, 3.0), 1),
            ),
            boot="00000000",
        )
        self.outbox.append(self.topic("metrics"), encode(window), now_s=mono_s, window=(self.epoch, self.seq))
        self.seq += 1
        self.made[self.epoch] = self.seq

    def store_event(self, kind: str, text: str, *, unix_s: float, mono_s: float) -> None:
        event = Event(epoch=self.epoch, t_unix_ms=int(unix_s * 1000), kind=kind, text=text)
        self.outbox.append(self.topic("event"), encode(event), now_s=mono_s)

    def status(self, state: State, reason: str = "") -> bytes:
        return encode(Status(state=state, epoch=self.epoch, reason=reason, session="sim"))

    def birth(self, unix_s: float) -> bytes:
        model, artifact, _ = MODELS[self.model]
        served = ModelState(model=model, artifact=artifact, precision="int8", runtime="onnxruntime")
        return encode(
            Birth(
                epoch=self.epoch,
                t_unix_ms=int(unix_s * 1000),
                board="Raspberry Pi 5 (simulated)",
                board_id="raspberry-pi-5",
                models=(served,),
                versions={"edgekit": "sim"},
                memory_total_bytes=2**33,
                window_ms=int(self.window_s * 1000),
            )
        )
