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
        """p99 / p50, with the 662 samples that a p99 needs; None with fewer."""
        if len(self.times_ms) < 662:
            return None
        return float(np.percentile(self.times_ms, 99, method="inverted_cdf")) / self.p50_ms

    def with_threads(self, threads: int) -> Side:
        """The same, not yet timed. Spinning as in onnxruntime's default session, where it has threads."""
        settings = replace(self.settings, threads=threads, spinning=threads > 1)
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


def race(sides: Sequence[Side], feeds: Sequence[Feed], *, budget_s: float, least: int = 15) -> None:
    """Time all sides in turns of `TURN`, until the budget is spent but at least `least` times each.

    Each turn begins untimed, and each round has another order: threads of the side before may still spin, and its
    tensors fill the caches.
    """
    runs = [opened(side.path, side.settings) for side in sides]
    for run, feed in zip(runs, feeds, strict=True):
        for _ in range(5):
            run(feed)
    order, shuffle = list(range(len(sides))), random.Random(0).shuffle
    end = time.perf_counter() + budget_s
    while len(sides[-1].times_ms) < least or time.perf_counter() < end:
        shuffle(order)
        for i in order:
            runs[i](feeds[i])
            for _ in range(TURN):
                start = time.perf_counter()
                runs[i](feeds[i])
                sides[i].times_ms.append(1000 * (time.perf_counter() - start))


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
