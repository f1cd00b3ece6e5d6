"""When a model should run something else: throttled, or beyond its latency bound, for a while and not for a moment."""

from __future__ import annotations

import math

P99 = 0.01
SURE = 2.33
"""Standard deviations; 99 % of a normal distribution lie below."""
CALM = 10
"""What was changed is changed back after this many times as long without strain."""


def is_beyond(requests: int, late: int) -> bool:
    """Whether more than one in a hundred is late for sure: the p99 lies beyond the bound."""
    return late > P99 * requests + SURE * math.sqrt(P99 * (1 - P99) * requests)


class Strain:
    """Of one model; fed at every look. Pure but for its memory."""

    def __init__(self, sustained_s: float) -> None:
        self._sustained_s = sustained_s
        self._since_s: float | None = None
        self._calm_since_s: float | None = None

    def see(self, now_s: float, why: str | None) -> bool:
        """`why` it is strained now, None when it is not. True: it has been for long enough; then counts anew."""
        if why is None:
            self._since_s = None
            self._calm_since_s = now_s if self._calm_since_s is None else self._calm_since_s
            return False
        self._calm_since_s = None
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < self._sustained_s:
            return False
        self._since_s = None
        return True

    def is_over(self, now_s: float) -> bool:
        """It has been calm for so long that what was changed may be tried again."""
        return self._calm_since_s is not None and now_s - self._calm_since_s >= CALM * self._sustained_s


def why_strained(*, throttled: bool, requests: int, late: int, bound_ms: float | None) -> str | None:
    """In words, of the time since the last look; `late` of the `requests` took longer than `bound_ms`."""
    if bound_ms is not None and is_beyond(requests, late):
        return f"{late} of {requests} requests took longer than {bound_ms:g} ms"
    return "the device is throttled" if throttled and requests else None
