"""How long a lane's inferences take, and from that whether a request can be answered in time."""

from __future__ import annotations

import math
import threading

from edgekit.errors import RequestError

_WEIGHT = 0.1
"""Of the newest inference in the mean: ten or so make the picture."""
_FORGET = 1.002
"""The fastest seen grows by this with every inference, so that a machine that got slower is believed in the end."""


class Refused(RequestError):
    """Turned away before any work was done for it (503); `retry_after_s` is when it may be worth trying again."""

    def __init__(self, problem: str, *, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(503, problem)


class Pace:
    """What one item costs, by the size of its inputs in bytes: shapes differ, values hardly matter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[float, float]] = {}
        self._ahead_ms = 0.0

    def learn(self, size_bytes: int, each_ms: float) -> None:
        """One inference took `each_ms` for each of its items."""
        with self._lock:
            mean, fastest = self._seen.get(size_bytes, (each_ms, each_ms))
            mean += _WEIGHT * (each_ms - mean)
            self._seen[size_bytes] = (mean, min(each_ms, fastest * _FORGET))

    def mean_ms(self, size_bytes: int) -> float:
        """What one is expected to take; before the first of its size as the slowest known, 0 when none is."""
        found = self._seen.get(size_bytes)
        return found[0] if found else self.slowest_ms()

    @property
    def is_busy(self) -> bool:
        """Something is waiting or running."""
        return self._ahead_ms > 0

    def slowest_ms(self) -> float:
        """The mean of the kind that takes longest; 0 before the first."""
        return max((mean for mean, _ in list(self._seen.values())), default=0.0)

    def fastest_ms(self, size_bytes: int) -> float:
        """What one takes at best, 0 before the first. A deadline below it is hopeless whatever the queue."""
        found = self._seen.get(size_bytes)
        return found[1] if found else 0.0

    def admit(self, size_bytes: int, deadline_ms: float | None, items: int = 1) -> float:
        """Count `items` of `size_bytes` each in, and give what it is expected to cost (for `leave`).

        Raises Refused when what is ahead of it and its own time at best do not fit into the deadline. With nothing
        ahead only the best time counts: else a few slow inferences would end in nothing being tried any more.
        """
        with self._lock:
            cost_ms, best_ms = items * self.mean_ms(size_bytes), items * self.fastest_ms(size_bytes)
            ahead_ms = self._ahead_ms
            if deadline_ms is not None and ahead_ms + best_ms > deadline_ms:
                text = f"{ahead_ms:.1f} ms of work are ahead of it and it takes {best_ms:.1f} ms at best"
                raise Refused(f"{text}; deadline_ms is {deadline_ms:g}", retry_after_s=math.ceil(ahead_ms / 1e3) or 1)
            self._ahead_ms += cost_ms
        return cost_ms

    def why_late(self, size_bytes: int, deadline_ms: float | None, items: int, *, waited_ms: float) -> str | None:
        """Why an item whose turn has come cannot be answered in time any more; None when it can."""
        best_ms = items * self.fastest_ms(size_bytes)
        if deadline_ms is None or waited_ms + best_ms <= deadline_ms:
            return None
        waited = f"waited {waited_ms:.1f} ms for its turn and takes {best_ms:.1f} ms at best"
        return f"{waited}; deadline_ms is {deadline_ms:g}"

    def expected_ms(self, size_bytes: int) -> float:
        """When one that came now would be done."""
        return self._ahead_ms + self.mean_ms(size_bytes)

    def leave(self, cost_ms: float) -> None:
        """An item that was admitted is done, failed or gone."""
        with self._lock:
            self._ahead_ms = max(0.0, self._ahead_ms - cost_ms)
