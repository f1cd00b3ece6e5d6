"""Measure candidates, each in a process of its own and in turns, so that drift and crashes hit no one else."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from edgekit.bench.candidates import Candidate
from edgekit.bench.conditions import conditions
from edgekit.bench.contender import Contender, Plan, begin, finish, guarded, needs_more, row_of, take_slice
from edgekit.bench.process import Process
from edgekit.bench.record import Measurement
from edgekit.bench.stats import MIN_SAMPLES
from edgekit.manifest import Model

__all__ = ["Plan", "Progress", "bench", "most_at_once"]

Progress = Callable[[str, float], None]
"""Called with what is going on and the share that is done (0 to 1)."""

ROUNDS = 12
_LONG_SLICE_S = 5.0
_WORKER_BYTES = 150 * 2**20
_WARM_UP_SHARE = 0.2


def bench(
    model: Model, candidates: Sequence[Candidate], plan: Plan | None = None, *, progress: Progress | None = None
) -> list[Measurement]:
    """A row for every candidate, in the order given; one that fails has its reason instead of a latency."""
    plan = plan or Plan()
    tell = progress or (lambda _text, _share: None)
    taken: list[Measurement] = []
    size = most_at_once(candidates, plan)
    for start in range(0, len(candidates), size):
        group = candidates[start : start + size]
        taken += _bench_group(model, group, plan, partial(_tell_part, tell, start, len(group), len(candidates)))
    tell("done", 1.0)
    return taken


def most_at_once(candidates: Sequence[Candidate], plan: Plan) -> int:
    """How many workers fit into half of the memory that may be used, by a generous guess for each."""
    if plan.memory_limit_bytes is None or not candidates:
        return plan.at_once
    largest = max(candidate.artifact.record.size_bytes for candidate in candidates)
    each = _WORKER_BYTES + 4 * largest
    return max(1, min(plan.at_once, plan.memory_limit_bytes // 2 // each))


def _tell_part(tell: Progress, start: int, count: int, total: int, text: str, share: float) -> None:
    tell(text, (start + share * count) / total)


def _bench_group(model: Model, group: Sequence[Candidate], plan: Plan, tell: Progress) -> list[Measurement]:
    before, run_id = conditions(), uuid.uuid4().hex
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-bench-")))
        runs = [
            Contender(candidate=c, process=stack.enter_context(Process(memory_limit_bytes=plan.memory_limit_bytes)))
            for c in group
        ]
        for i, run in enumerate(runs):
            tell(f"starting {run.candidate.name}", _WARM_UP_SHARE * i / len(runs))
            guarded(run, partial(begin, model, run, folder / f"{i}.npz", plan))
        _rounds(runs, plan, tell)
        for run in runs:
            guarded(run, partial(finish, run, plan))
    return [row_of(model, run, before, run_id, in_turns=ROUNDS) for run in runs]


def _rounds(runs: Sequence[Contender], plan: Plan, tell: Progress) -> None:
    """Measure in turns, in another order each round; stop a candidate that has its samples."""
    order = random.Random(plan.seed)
    slice_s = plan.seconds / ROUNDS
    steps = ROUNDS * len(runs)
    done = 0
    for _ in range(ROUNDS):
        for run in order.sample(list(runs), len(runs)):
            tell(f"measuring {run.candidate.name}", _WARM_UP_SHARE + (1 - _WARM_UP_SHARE) * done / steps)
            done += 1
            guarded(run, partial(take_slice, run, slice_s, -(-plan.max_samples // ROUNDS), plan))
    for run in runs:
        while needs_more(run, plan):
            tell(f"measuring {run.candidate.name}: {len(run.samples_ms)} of {plan.min_samples} samples", 1.0)
            missing = max(plan.min_samples, MIN_SAMPLES) - len(run.samples_ms)
            guarded(run, partial(take_slice, run, max(slice_s, _LONG_SLICE_S), missing, plan))
