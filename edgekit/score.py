"""How good a candidate is for an objective, and how far one leads another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from edgekit.bench.record import Measurement
from edgekit.limits import Limits

HANDOFF_MS = 0.005
"""What handing work to another thread, and waiting for it, may cost more on one day than on another, for each thread.

Measured on two virtual cores with LiteRT: one model took 19.2 µs on one thread whenever it was asked; on two it took
18.4 µs or 22 to 24 µs, and stayed with either for minutes.
"""


class Benefit(msgspec.Struct, frozen=True):
    """How good a candidate is for the objective; more is better."""

    middle: float
    timed: float
    "The part of it that grows with the candidate's speed; the rest has no noise."


def benefit(m: Measurement, usable: Sequence[Measurement], limits: Limits) -> Benefit:
    """By objective: 1/median, items/s, 1/peak memory, or the weighted score."""
    latency = m.latency
    assert latency is not None
    if limits.objective == "memory":
        return Benefit(1 / (m.peak_memory_bytes or 2**62), 0.0)
    if limits.objective == "latency":
        return Benefit(1 / latency.typical_ms, 1 / latency.typical_ms)
    if limits.objective == "throughput":
        return Benefit(m.items_per_s, m.items_per_s)
    terms = score_terms(m, usable)
    rest = sum(limits.weights[name] * value for name, value in terms.items() if name != "throughput")
    share = limits.weights["throughput"] * terms["throughput"]
    return Benefit(rest + share, share)


def score_terms(m: Measurement, usable: Sequence[Measurement]) -> dict[str, float]:
    """The terms of the weighted score, each in 0 to 1 where 1 is the best of the candidates that keep the limits.

    throughput: items/s over the most; memory: the least peak over its own; accuracy: ratio over the highest;
    deployability: half for the file's size (smallest over its own), half for the cold start (shortest over its own).
    """

    def less_is_better(values: Mapping[str, float]) -> float:
        least, own = min(values.values()), values[m.candidate]
        return least / own if own else 1.0

    most = max(other.items_per_s for other in usable)
    accurate = max(other.accuracy_ratio or 0.0 for other in usable)
    size = less_is_better({other.candidate: float(other.size_bytes) for other in usable})
    start = less_is_better({other.candidate: other.start.total_ms if other.start else 1e9 for other in usable})
    return {
        "throughput": m.items_per_s / most if most else 0.0,
        "memory": less_is_better({other.candidate: float(other.peak_memory_bytes or 2**62) for other in usable}),
        "accuracy": (m.accuracy_ratio or 0.0) / accurate if accurate else 0.0,
        "deployability": (size + start) / 2,
    }


def lead(best: Benefit, other: Benefit, luck: float) -> float:
    """How many times better `best` is when the ratio of their speeds is `luck` times the measured one."""
    its = other.middle - other.timed + other.timed / luck
    return best.middle / its if its else float("inf")


def needed_gain(winner: Measurement, other: Measurement, limits: Limits) -> float:
    """The share by which `winner` must lead for sure: further threads must gain more than what they may cost later."""
    threads = max(0, winner.settings.threads - other.settings.threads)
    return max(limits.min_gain, threads * HANDOFF_MS / winner.item_ms)
