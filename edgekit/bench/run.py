"""Measure candidates, each in a process of its own and in turns, so that drift and crashes hit no one else."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from edgekit.bench.candidates import Candidate
from edgekit.bench.conditions import conditions, since
from edgekit.bench.contender import Contender, Plan, begin, finish, guarded, needs_more, row_of, take_slice
from edgekit.bench.process import Process
from edgekit.bench.record import Measurement, Start
from edgekit.bench.stats import MIN_SAMPLES, paired_ratio, percentile
from edgekit.manifest import Model

__all__ = ["Plan", "Progress", "bench", "cold_starts", "most_at_once"]

Progress = Callable[[str, float], None]
"""Called with what is going on and the share that is done (0 to 1)."""

ROUNDS = (12, 40)
"""The fewest and the most. Of 40, eleven disturbed ones on either side leave the interval of the median alone."""
_QUERIES_A_ROUND = 4
_EXTRA = 2
"""So many times the rounds more for candidates of which it is not decided whether a lead counts."""
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


def cold_starts(model: Model, candidate: Candidate, count: int, plan: Plan | None = None) -> list[Start]:
    """So many further cold starts, each in a new process; those that fail are left out."""
    plan, found = plan or Plan(), []
    with tempfile.TemporaryDirectory(prefix="edgekit-start-") as folder:
        for i in range(count):
            with Process(memory_limit_bytes=plan.memory_limit_bytes) as process:
                run = Contender(candidate=candidate, process=process)
                guarded(run, partial(begin, model, run, Path(folder) / f"{i}.npz", plan, warm_up_s=0.0))
                found += [run.start] if run.start and run.failure is None else []
    return found


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
    during = since(before, conditions())
    return [row_of(model, run, during, run_id, in_turns=run.turns) for run in runs]


def _round_count(runs: Sequence[Contender], plan: Plan) -> int:
    """Many short rounds compare best, as long as each holds a few queries of the slowest."""
    slowest_ms = max((median(run.warm_ms) for run in runs if run.warm_ms), default=1.0)
    fewest, most = ROUNDS
    holds = min(plan.seconds * 1000 / slowest_ms, plan.max_samples) / _QUERIES_A_ROUND
    return max(fewest, min(most, int(holds)))


def _turn(
    runs: Sequence[Contender], order: random.Random, tell: Progress, share: float, step: Callable[[Contender], None]
) -> None:
    for run in order.sample(list(runs), len(runs)):
        tell(f"measuring {run.candidate.name}", share)
        guarded(run, partial(step, run))


def undecided(runs: Sequence[Contender], plan: Plan) -> list[Contender]:
    """The fastest, and those of which neither is proven: a lead over them that counts, nor that there is none."""
    medians = {
        id(run): [percentile(taken, 0.5) / run.batch for taken in run.own_ms] for run in runs if run.failure is None
    }
    if plan.gain is None or len(medians) < 2:
        return []
    alive = [run for run in runs if id(run) in medians]
    longest = max(map(len, medians.values()))
    alive = [run for run in alive if len(medians[id(run)]) == longest]
    best = min(alive, key=lambda run: median(medians[id(run)]))
    rivals = [best]
    for run in alive:
        pairs = zip(medians[id(run)], medians[id(best)], strict=True)
        _, least, most = paired_ratio([theirs / own for theirs, own in pairs])
        if run is not best and least <= 1 + plan.gain <= most:
            rivals.append(run)
    return rivals


def _rounds(runs: Sequence[Contender], plan: Plan, tell: Progress) -> None:
    """Measure in turns, in another order each round; stop a candidate that has its samples."""
    order = random.Random(plan.seed)
    count = _round_count(runs, plan)
    slice_s, most = plan.seconds / count, -(-plan.max_samples // count)
    for done in range(count):
        share = _WARM_UP_SHARE + (1 - _WARM_UP_SHARE) * done / count
        _turn(runs, order, tell, share, partial(take_slice, seconds=slice_s, most=most, plan=plan))
    for _ in range(_EXTRA * count):
        rivals = undecided(runs, plan)
        if len(rivals) < 2:
            break
        _turn(rivals, order, tell, 1.0, partial(take_slice, seconds=slice_s, most=most, plan=plan))
    for run in runs:
        run.turns = len(run.rounds_ms)
    for run in runs:
        while needs_more(run, plan):
            tell(f"measuring {run.candidate.name}: {len(run.samples_ms)} of {plan.min_samples} samples", 1.0)
            missing = max(plan.min_samples, MIN_SAMPLES) - len(run.samples_ms)
            guarded(run, partial(take_slice, run, max(slice_s, _LONG_SLICE_S), missing, plan))
