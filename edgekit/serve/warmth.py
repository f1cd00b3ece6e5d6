"""What a pause costs the next request, learnt from requests, and how often a lane must be asked so that it does not.

Clocks fall, caches are taken by others, a driver puts its device to sleep: only the device itself shows after how long.
"""

from __future__ import annotations

from collections import deque
from statistics import median

PAUSES_S = (2.0, 8.0, 32.0, 128.0)
"""A request after a pause counts for the longest of these that it exceeds."""
WORSE = 1.25
"""Times the usual latency from which a pause has a cost worth preventing."""
_ENOUGH, _KEPT = 5, 15


class Warmth:
    """Of one lane. Thread-safe enough: written by who answers, read by the upkeep."""

    def __init__(self) -> None:
        self._ratios: dict[float, deque[float]] = {pause: deque(maxlen=_KEPT) for pause in PAUSES_S}

    def learn(self, pause_s: float, infer_ms: float, usual_ms: float) -> None:
        """An inference after `pause_s` without one took `infer_ms`, where `usual_ms` are usual."""
        pauses = [pause for pause in PAUSES_S if pause_s >= pause]
        if pauses and usual_ms > 0:
            self._ratios[pauses[-1]].append(infer_ms / usual_ms)

    @property
    def interval_s(self) -> float | None:
        """Ask at least this often: half of the shortest pause that has a cost. None: no pause is known to have one."""
        for pause, ratios in self._ratios.items():
            if len(ratios) >= _ENOUGH and median(list(ratios)) >= WORSE:
                return pause / 2
        return None
