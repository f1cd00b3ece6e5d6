"""MLPerf's four load scenarios with its early stopping: a claim about a percentile holds with 99 % confidence or not.

Source: MLPerf inference rules and their appendix on early stopping; names as in LoadGen. A run here is as long as it
is asked to be, where a submission needs ten minutes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate
from edgekit.bench.contender import Contender, Plan, begin
from edgekit.bench.process import CandidateFailed, Process
from edgekit.errors import ArtifactError
from edgekit.manifest import Model

PERCENTILE: Mapping[str, float] = {"single-stream": 0.90, "multi-stream": 0.99, "server": 0.99}
"""Of the latency that the scenario's claim is about; offline has none."""
NAMES = (*PERCENTILE, "offline")
STREAMS = 8
"""Samples of a multi-stream query."""
_CONFIDENCE = 0.99


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What load to put on a session."""

    name: str
    seconds: float = 10.0
    min_queries: int = 0
    "Go on until so many, beyond `seconds`."
    qps: float | None = None
    "Server: mean rate of the Poisson arrivals."
    bound_ms: float | None = None
    "Server: what the percentile must keep."
    streams: int = STREAMS
    seed: int = 0


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario measured."""

    scenario: Scenario
    candidate: str
    query_count: int
    p50_ms: float
    "Of whole queries: a multi-stream one is done when its last sample is; a server one counts from its arrival."
    percentile: float | None
    "Which one the claim is about; None: offline."
    estimate_ms: float | None
    "The percentile is surely (99 %) not above this; None: too few queries to say."
    queries_needed: int | None
    "For any estimate of that percentile."
    over_bound_count: int | None
    holds: bool | None
    "The bound is kept, or broken, with 99 % confidence. None: no bound, or neither can be said."
    samples_per_s: float
    achieved_qps: float


def over_allowed(count: int, q: float) -> int | None:
    """How many of `count` queries may be slower than a bound for the q-percentile to be within it for sure (99 %).

    The largest t with P(Binomial(count, 1 - q) <= t) <= 1 %; None: not even zero. So p90 needs 44 queries without or
    64 with one that is slower, p99 459 and 662.
    """
    cumulative, allowed = 0.0, None
    for t in range(count + 1):
        cumulative += _exactly(t, count, 1 - q)
        if cumulative > 1 - _CONFIDENCE:
            return allowed
        allowed = t
    return allowed


def _exactly(t: int, count: int, share: float) -> float:
    """P(Binomial(count, share) = t), by logarithms since the factorials are large."""
    log = math.lgamma(count + 1) - math.lgamma(t + 1) - math.lgamma(count - t + 1)
    return math.exp(log + t * math.log(share) + (count - t) * math.log1p(-share))


def _at_most(t: int, count: int, share: float) -> float:
    return sum(_exactly(k, count, share) for k in range(t + 1))


def needed(q: float) -> int:
    """The fewest queries that support any claim about the q-percentile: 44 for p90, 459 for p99."""
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(q))


def estimate(latencies_ms: Sequence[float], q: float) -> float | None:
    """What the q-percentile surely (99 %) does not exceed, or None when there are too few."""
    allowed = over_allowed(len(latencies_ms), q)
    return None if allowed is None else sorted(latencies_ms)[len(latencies_ms) - 1 - allowed]


def judge(scenario: Scenario, candidate: str, times_ms: Sequence[float], span_s: float) -> ScenarioResult:
    """What the latencies of a run of `span_s` seconds mean for the scenario. Pure."""
    q = PERCENTILE.get(scenario.name)
    ordered = sorted(times_ms)
    over = sum(t > scenario.bound_ms for t in times_ms) if scenario.bound_ms is not None else None
    allowed = over_allowed(len(times_ms), q) if q is not None else None
    holds = None
    if over is not None and q is not None:
        is_broken = _at_most(over - 1, len(times_ms), 1 - q) >= _CONFIDENCE
        holds = True if allowed is not None and over <= allowed else False if is_broken else None
    each = scenario.streams if scenario.name == "multi-stream" else 1
    return ScenarioResult(
        scenario=scenario,
        candidate=candidate,
        query_count=len(times_ms),
        p50_ms=ordered[math.ceil(len(ordered) / 2) - 1],
        percentile=q,
        estimate_ms=estimate(times_ms, q) if q is not None else None,
        queries_needed=needed(q) if q is not None else None,
        over_bound_count=over,
        holds=holds,
        samples_per_s=each * len(times_ms) / span_s,
        achieved_qps=len(times_ms) / span_s,
    )


def run_scenario(model: Model, candidate: Candidate, scenario: Scenario, plan: Plan | None = None) -> ScenarioResult:
    """Put the load on the candidate in a process of its own.

    Raises ArtifactError when it cannot be measured, with the reason.
    """
    plan = plan or Plan()
    with (
        tempfile.TemporaryDirectory(prefix="edgekit-scenario-") as folder,
        Process(memory_limit_bytes=plan.memory_limit_bytes) as process,
    ):
        run = Contender(candidate=candidate, process=process)
        try:
            begin(model, run, Path(folder) / "inputs.npz", plan)
            reply = process.ask(
                say.Load(
                    scenario=scenario.name,
                    seconds=scenario.seconds,
                    min_queries=scenario.min_queries,
                    qps=scenario.qps,
                    streams=scenario.streams,
                    seed=scenario.seed,
                ),
                say.Loaded,
                timeout_s=scenario.seconds * 10 + plan.hang_timeout_s,
            )
        except CandidateFailed as e:
            raise ArtifactError(candidate.artifact.path, f"{scenario.name} failed: {e}") from e
    return judge(scenario, candidate.name, reply.times_ms, reply.span_s)
