"""The sides of a comparison: one file in one runtime with one setting each; opened, timed in turns, started cold."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from edgekit.runtimes.session import SessionSettings, open_session

TURN = 4
FOR_P99 = 662
"""The samples that a p99 needs at 99 % confidence with one above it."""
STANDARD, OWN, PEER = "standard", "own", "peer"
Feed = Mapping[str, np.ndarray]
Run = Callable[[Feed], dict[str, np.ndarray]]


@dataclass
class Side:
    """One way to run a model. `kept` is the share of the standard's metric; None: unknown."""

    name: str
    kind: str
    path: Path
    settings: SessionSettings
    kept: float | None = None
    is_int8: bool = False
    size_bytes: int = 0
    times_ms: list[float] = field(default_factory=list)
    cold_ms: float | None = None
    peak_bytes: int | None = None

    @property
    def p50_ms(self) -> float:
        return float(np.percentile(self.times_ms, 50, method="inverted_cdf")) if self.times_ms else float("inf")

    @property
    def width(self) -> float | None:
        """p99 / p50; None with fewer samples than a p99 needs."""
        return self.p99_ms / self.p50_ms if self.p99_ms is not None else None

    @property
    def p99_ms(self) -> float | None:
        if len(self.times_ms) < FOR_P99:
            return None
        return float(np.percentile(self.times_ms, 99, method="inverted_cdf"))

    def fresh(self, threads: int | None = None) -> Side:
        """The same, not yet timed. Spinning as in onnxruntime's default session, where it has threads, but not after an
        inference: what spins on takes a core from the next side for tens of milliseconds."""
        count = threads or self.settings.threads
        settings = replace(self.settings, threads=count, spinning=count > 1)
        return replace(self, settings=settings, times_ms=[], cold_ms=None, peak_bytes=None)


def opened(path: Path, settings: SessionSettings | str) -> Run:
    """The file as a function. An .xml is OpenVINO's own format, which edgekit itself does not read."""
    if isinstance(settings, str):
        settings = msgspec.json.decode(settings, type=SessionSettings)
    if path.suffix != ".xml":
        return open_session(path, settings).run
    import openvino

    options = {"INFERENCE_NUM_THREADS": settings.threads, "PERFORMANCE_HINT": "LATENCY", **settings.session_options}
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    names = {name: port.any_name for port in request.model_inputs for name in port.names}

    def run(feed: Feed) -> dict[str, np.ndarray]:
        results = request.infer({names[name]: value for name, value in feed.items()}, share_inputs=True)
        return {port.any_name: np.array(results[port]) for port in request.model_outputs}

    return run


class Track:
    """Sides that run against each other in turns. Each is opened and warmed up once, however many heats it runs."""

    def __init__(self, sides: Sequence[Side], feeds: Sequence[Feed]) -> None:
        self._runs = [opened(side.path, side.settings) for side in sides]
        self._places = {id(side): i for i, side in enumerate(sides)}
        self._feeds, self._shuffle = feeds, random.Random(0).shuffle
        for run, feed in zip(self._runs, feeds, strict=True):
            for _ in range(5):
                run(feed)

    def heat(self, sides: Sequence[Side], *, budget_s: float, least: int) -> None:
        """Time some of the sides in turns of `TURN`, until the budget is spent but at least `least` times each.

        Each turn begins untimed, and each round has another order: threads of the side before may still spin, and its
        tensors fill the caches.
        """
        ways = [(side, self._runs[self._places[id(side)]], self._feeds[self._places[id(side)]]) for side in sides]
        end, done = time.perf_counter() + budget_s, 0
        while done < least or time.perf_counter() < end:
            self._shuffle(ways)
            for side, run, feed in ways:
                run(feed)
                for _ in range(TURN):
                    start = time.perf_counter()
                    run(feed)
                    side.times_ms.append(1000 * (time.perf_counter() - start))
            done += TURN


def start_cold(sides: Sequence[Side], feeds: Sequence[Feed], *, repeats: int = 5) -> None:
    """Fresh process to first result, and the process's peak memory: the least of some starts taken in turns."""
    script = Path(__file__).with_name("cold.py")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for i, (side, feed) in enumerate(zip(sides, feeds, strict=True)):
                inputs = Path(folder) / f"{i}.npz"
                if not inputs.exists():
                    np.savez(inputs, **feed)
                settings = msgspec.json.encode(side.settings).decode()
                begun = time.time()
                command = [sys.executable, str(script), str(side.path), settings, str(inputs)]
                told = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
                cold_ms = 1000 * (told["done_s"] - begun)
                side.cold_ms = min(cold_ms, side.cold_ms or cold_ms)
                side.peak_bytes = min(told["peak_bytes"], side.peak_bytes or told["peak_bytes"])
