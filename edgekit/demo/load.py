"""A steady load on the demo's daemons: real inputs, one thread a model, each with its own connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.errors import RequestError, UnreachableError
from edgekit.serve.client import Client

if TYPE_CHECKING:
    import numpy as np


class Load:
    """Sends each model's inputs in turn, `rate_hz` times a second, until the `with` block ends."""

    def __init__(self, url: str, inputs: Mapping[str, Sequence[Mapping[str, np.ndarray]]], *, rate_hz: float) -> None:
        self.sent_count = 0
        self.failures: list[str] = []
        "What went wrong, in the daemon's words; empty when all is well."
        self._url, self._rate_hz = url, rate_hz
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(model, samples), name=f"load-{model}", daemon=True)
            for model, samples in inputs.items()
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)

    def _send(self, model: str, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        with Client(self._url) as client:
            turn = 0
            due_s = time.monotonic()
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                try:
                    client.infer(model, samples[turn % len(samples)])
                    self.sent_count += 1
                except (RequestError, UnreachableError) as e:
                    self.failures.append(f"{model}: {e}")
                turn += 1
                # Late is late: no burst to catch up, or a slow moment would look like a slow model.
                due_s = max(due_s + 1 / self._rate_hz, time.monotonic())
