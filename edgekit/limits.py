"""What the user requires of a choice. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edgekit.bench.stats import MIN_SAMPLES, SAMPLES_FOR_P90, SAMPLES_FOR_P99
from edgekit.errors import UsageError

OBJECTIVES = ("latency", "throughput", "memory", "balanced")
PERCENTILES: Mapping[str, int] = {"p50": MIN_SAMPLES, "p90": SAMPLES_FOR_P90, "p99": SAMPLES_FOR_P99}
"""Percentiles that a latency bound may name, and the samples that each needs."""
WEIGHTS: Mapping[str, float] = {"throughput": 0.4, "memory": 0.3, "accuracy": 0.2, "deployability": 0.1}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requires. None: no such limit."""

    latency_ms: float | None = None
    "Of a query, whatever it holds: nobody has an answer before the whole batch is done."
    latency_percentile: str = "p99"
    qps: float | None = None
    "Items a second of one session; a query of one item is one of them."
    memory_bytes: int | None = None
    accuracy_floor: float = 0.99
    objective: str = "latency"
    weights: Mapping[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))
    "For the objective `balanced`."
    min_gain: float = 0.03
    "A gain counts when even the confidence bound that speaks against it is above this share."

    @property
    def counts_items(self) -> bool:
        """Whether throughput matters, so that a query may hold several items."""
        return self.objective == "throughput" or (self.objective == "balanced" and self.weights["throughput"] > 0)


def check_limits(limits: Limits) -> None:
    """Raises UsageError for an objective or percentile that edgekit does not know, or weights that do not add up."""
    if limits.objective not in OBJECTIVES:
        raise UsageError(f"objective '{limits.objective}' is not one of {', '.join(OBJECTIVES)}")
    if limits.latency_percentile not in PERCENTILES:
        raise UsageError(f"percentile '{limits.latency_percentile}' is not one of {', '.join(PERCENTILES)}")
    if set(limits.weights) != set(WEIGHTS) or abs(sum(limits.weights.values()) - 1) > 1e-6:
        raise UsageError(f"weights must name {', '.join(WEIGHTS)} and add up to 1")
