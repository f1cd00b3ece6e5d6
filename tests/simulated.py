"""A machine of numbers for the search: workers that take no time but a clock's, with noise, drift and bursts.

`world` puts it under `edgekit.bench`: the search runs as it is, in milliseconds, on any number of made-up models.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import contender, run, search
from edgekit.bench import protocol as say
from edgekit.bench.candidates import CPU_PROVIDERS, Candidate
from edgekit.bench.process import CandidateFailed
from edgekit.bench.record import Conditions
from edgekit.device.sensors import Reading
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings

MODEL = Model(name="m", version="1", task="none", source=Source(file="m.onnx", sha256="0" * 64, size_bytes=1))
LANES = 2


@dataclass
class Machine:
    """Its clock, and how it disturbs: a slow drift that hits all, jitter of each query, and a neighbour's bursts."""

    seed: int = 0
    drift: float = 0.0
    jitter: float = 0.02
    burst_share: float = 0.0
    "Of the queries, those that take three times as long."
    start_s: float = 0.45
    "Of the processor, to import, load and run for the first time."
    now_s: float = 1000.0
    starts: list[str] = field(default_factory=list)
    fails: dict[str, str] = field(default_factory=dict)
    "Artifact -> the reason for which it cannot be loaded."
    item_bytes: int = 0
    "What each item of a query takes at the peak."

    def __post_init__(self) -> None:
        self._dice, self._slow, self._lock = random.Random(self.seed), 1.0, threading.Lock()

    def spend(self, seconds: float) -> None:
        with self._lock:
            self.now_s += seconds
            pull = 0.2 * (1 - self._slow) * min(1.0, seconds)
            self._slow = max(0.5, self._slow + pull + self._dice.gauss(0, self.drift) * min(1.0, seconds) ** 0.5)

    def query_ms(self, true_ms: float) -> float:
        factor = self._slow * self._dice.lognormvariate(0, self.jitter)
        return true_ms * factor * (3.0 if self._dice.random() < self.burst_share else 1.0)


class Worker:
    """Answers as a worker process would, after as much of the machine's time."""

    def __init__(self, machine: Machine, true_ms: dict[str, float]) -> None:
        self._machine, self._true_ms = machine, true_ms
        self._key = ""
        self.is_open = True

    def ask(self, request: say.Request, _expected: type, *, timeout_s: float) -> Any:
        machine = self._machine
        if isinstance(request, say.Open):
            self._key = key_of(Path(request.path).stem, request.settings)
            machine.starts.append(self._key)
            machine.spend(machine.start_s / LANES)
            if why := machine.fails.get(Path(request.path).stem):
                raise CandidateFailed(why)
            return say.Opened(import_ms=200, load_ms=100, runtime_version="1", inputs=(), scales={})
        if isinstance(request, say.First):
            return self._times(1)
        if isinstance(request, say.WarmUp):
            return self._times(10, request.max_s / LANES)
        if isinstance(request, say.Measure):
            return self._measured(request)
        assert isinstance(request, say.Place)
        return say.Placed(
            peak_memory_bytes=self.peak_bytes(), ops_by_provider={"CPUExecutionProvider": 1}, partitions=1
        )

    def _times(self, most: int, seconds: float = 1e9) -> say.Times:
        found: list[float] = []
        while len(found) < most and sum(found) < 1000 * seconds:
            found.append(self._one_ms())
        self._machine.spend(sum(found) / 1000)
        return say.Times(times_ms=tuple(found))

    def _measured(self, request: say.Measure) -> say.Times:
        """At most 60 samples stand for the slice: a median is no other with thousands."""
        fit = max(2, int(1000 * request.seconds / self._true_ms[self._key]) + 1)
        count = min(fit, request.max_samples)
        found = [self._one_ms() for _ in range(min(count, 60))]
        self._machine.spend(sum(found) / 1000 * count / len(found))
        return say.Times(times_ms=tuple(found), usage=(sum(found) / 1000, 0, 0))

    def _one_ms(self) -> float:
        return self._machine.query_ms(self._true_ms[self._key])

    def peak_bytes(self) -> int | None:
        items = int(self._key.partition("x")[2] or 1) if self._key else 1
        return 2**20 + self._machine.item_bytes * items

    def close(self) -> None:
        self.is_open = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def world(monkeypatch: pytest.MonkeyPatch, machine: Machine, true_ms: dict[str, float]) -> list[Worker]:
    """Put the machine under the search. True times of a query by name. Returns the workers as they are started."""
    workers: list[Worker] = []

    def started(**_: object) -> Worker:
        workers.append(Worker(machine, true_ms))
        return workers[-1]

    clock = SimpleNamespace(
        monotonic=lambda: machine.now_s,
        sleep=machine.spend,
        time_ns=lambda: int(machine.now_s * 1e9),
    )
    for module in (search, run):
        monkeypatch.setattr(module, "Process", started)
        monkeypatch.setattr(module, "conditions", Conditions)
    for module in (search, contender):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(contender, "write_inputs", lambda *_: None)
    monkeypatch.setattr(contender, "this_device", dict)
    monkeypatch.setattr(contender.sensors, "read", lambda: Reading(**dict.fromkeys(Reading.__dataclass_fields__)))
    return workers


def field_of(true_ms: dict[str, float]) -> list[Candidate]:
    """A candidate for each `ARTIFACT THREADSt` or `ARTIFACT THREADSt xBATCH`."""
    found = []
    for name in true_ms:
        artifact, threads, batch = re.fullmatch(r"(.+) (\d+)t(?: x(\d+))?", name).groups(default="1")
        record = ArtifactRecord(
            model="m", name=artifact, file="m.onnx", format="onnx", precision="float32", sha256=artifact, size_bytes=1
        )
        settings = SessionSettings(providers=CPU_PROVIDERS, threads=int(threads)).with_batch(["x"], int(batch))
        found.append(Candidate(artifact=Artifact(record=record, path=Path(f"{artifact}.onnx")), settings=settings))
    return found


def made_up(seed: int, artifacts: int = 8) -> dict[str, float]:
    """Times as they are met: a few near the best, most behind, some hopeless; two threads gain or lose."""
    dice = random.Random(seed)
    base = 10 ** dice.uniform(-1.5, 1.7)
    found: dict[str, float] = {}
    for i in range(artifacts):
        one = base * dice.choice([1.0, 1.02, 1.1, 1.3, 1.6, 2.0, 3.0, 6.0, 15.0]) * dice.uniform(0.97, 1.03)
        found[f"a{i} 1t"] = one
        found[f"a{i} 2t"] = one * dice.uniform(0.55, 1.4)
    return found


def sweep_s(machine: Machine, true_ms: dict[str, float], seconds: float) -> float:
    """What measuring them all takes on this machine: start, warm-up, rounds, and the proof of where it ran."""
    slow = [max(0.0, 8 * ms / 1000 - seconds) for ms in true_ms.values()]
    return len(true_ms) * (machine.start_s + 0.3 + seconds + 0.3) + sum(slow)


def regret(true_ms: dict[str, float], chosen: str) -> float:
    return true_ms[chosen] / min(true_ms.values()) - 1


def names(rows: Sequence[Any]) -> list[str]:
    return [key_of(row.artifact, row.settings) for row in rows]


def key_of(artifact: str, settings: Any) -> str:
    batch = f" x{settings.batch}" if settings.batch > 1 else ""
    return f"{artifact} {settings.threads}t{batch}"
