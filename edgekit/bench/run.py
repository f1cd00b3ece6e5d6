"""Measure candidates, each in a process of its own and in turns, so that drift and crashes hit no one else."""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from edgekit.artifact import STANDARD, ArtifactRecord
from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import conditions, this_device
from edgekit.bench.inputs import write_inputs
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.record import Conditions, Latency, Measurement, Start
from edgekit.bench.stats import MIN_SAMPLES, latency, median_interval
from edgekit.errors import EdgekitError
from edgekit.manifest import Model

Progress = Callable[[str, float], None]
"""Called with what is going on and the share that is done (0 to 1)."""

_ROUNDS = 12
_START_TIMEOUT_S = 180.0
_LONG_SLICE_S = 5.0
_WORKER_BYTES = 150 * 2**20
_WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often."""

    seconds: float = 5.0
    "For each candidate, warm-up not counted."
    min_samples: int = MIN_SAMPLES
    "Measured on beyond `seconds` until there are so many: 64 for a p90, 662 for a p99."
    max_seconds: float = 60.0
    "The end of measuring on, however few there are."
    bound_ms: float | None = None
    "A candidate whose median is surely above it is not measured on: more samples would not save it."
    max_samples: int = 20_000
    "Of the rounds together; measuring on to `min_samples` is not held back by it."
    memory_limit_bytes: int | None = None
    start_timeout_s: float = _START_TIMEOUT_S
    hang_timeout_s: float = 60.0
    "How much longer than asked a worker may stay silent."
    at_once: int = 16
    "The most workers alive at the same time; one is measured, the others sleep."
    idle_s: float = 0.25
    "The least pause before each round, whose first query is the one after idle; never longer than the round."
    seed: int | None = None
    "Of the order within each round; None: another one each time."


@dataclass(slots=True)
class _Run:
    """One candidate while it is measured."""

    candidate: Candidate
    process: Process
    start: Start | None = None
    runtime_version: str | None = None
    rounds_ms: list[tuple[float, ...]] = field(default_factory=list)
    after_idle_ms: list[float] = field(default_factory=list)
    last_s: float = 0.0
    failure: str | None = None
    placed: say.Placed | None = None

    @property
    def samples_ms(self) -> list[float]:
        return [sample for taken in self.rounds_ms for sample in taken]


def bench(
    model: Model, candidates: Sequence[Candidate], plan: Plan | None = None, *, progress: Progress | None = None
) -> list[Measurement]:
    """A row for every candidate, in the order given; one that fails has its reason instead of a latency."""
    plan = plan or Plan()
    tell = progress or (lambda _text, _share: None)
    taken: list[Measurement] = []
    size = _at_once(candidates, plan)
    for start in range(0, len(candidates), size):
        group = candidates[start : start + size]
        taken += _bench_group(model, group, plan, partial(_tell_part, tell, start, len(group), len(candidates)))
    tell("done", 1.0)
    return taken


def _at_once(candidates: Sequence[Candidate], plan: Plan) -> int:
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
            _Run(candidate=c, process=stack.enter_context(Process(memory_limit_bytes=plan.memory_limit_bytes)))
            for c in group
        ]
        for i, run in enumerate(runs):
            tell(f"starting {run.candidate.name}", _WARM_UP_SHARE * i / len(runs))
            _guarded(run, partial(_begin, model, run, folder / f"{i}.npz", plan))
        _rounds(runs, plan, tell)
        for run in runs:
            _guarded(run, partial(_finish, run, plan))
    return [_row(model, run, before, run_id) for run in runs]


def _guarded(run: _Run, step: Callable[[], None]) -> None:
    """Carry out a step of a candidate that still lives; its failure is its own."""
    if run.failure is not None:
        return
    try:
        step()
    except CandidateFailed as e:
        run.failure = str(e)
        run.process.close()  # frees its memory for the others


def _begin(model: Model, run: _Run, inputs: Path, plan: Plan) -> None:
    candidate = run.candidate
    opened = run.process.ask(
        say.Open(path=str(candidate.artifact.path), settings=candidate.settings),
        say.Opened,
        timeout_s=plan.start_timeout_s,
    )
    run.runtime_version = opened.runtime_version
    try:
        write_inputs(inputs, model, opened, candidate.artifact.record.axes)
    except EdgekitError as e:
        raise CandidateFailed(f"no inputs for it: {e}") from e
    first = run.process.ask(say.First(inputs=str(inputs)), say.Times, timeout_s=plan.start_timeout_s)
    run.start = Start(import_ms=opened.import_ms, load_ms=opened.load_ms, first_ms=first.times_ms[0])
    run.process.ask(
        say.WarmUp(max_s=max(1.0, plan.seconds / 2)), say.Times, timeout_s=plan.hang_timeout_s + plan.seconds
    )
    run.last_s = time.monotonic()


def _rounds(runs: Sequence[_Run], plan: Plan, tell: Progress) -> None:
    """Measure in turns, in another order each round; stop a candidate that has its samples."""
    order = random.Random(plan.seed)
    slice_s = plan.seconds / _ROUNDS
    steps = _ROUNDS * len(runs)
    done = 0
    for _ in range(_ROUNDS):
        for run in order.sample(list(runs), len(runs)):
            tell(f"measuring {run.candidate.name}", _WARM_UP_SHARE + (1 - _WARM_UP_SHARE) * done / steps)
            done += 1
            _guarded(run, partial(_slice, run, slice_s, -(-plan.max_samples // _ROUNDS), plan))
    for run in runs:
        while _needs_more(run, plan):
            tell(f"measuring {run.candidate.name}: {len(run.samples_ms)} of {plan.min_samples} samples", 1.0)
            missing = max(plan.min_samples, MIN_SAMPLES) - len(run.samples_ms)
            _guarded(run, partial(_slice, run, max(slice_s, _LONG_SLICE_S), missing, plan))


def _needs_more(run: _Run, plan: Plan) -> bool:
    """Whether a model that is slow for its time must be measured on."""
    count, spent_s = len(run.samples_ms), sum(run.samples_ms) / 1000
    if run.failure is not None or count < MIN_SAMPLES:
        return run.failure is None
    hopeless = plan.bound_ms is not None and median_interval(run.samples_ms)[0] > plan.bound_ms
    return count < plan.min_samples and spent_s < plan.max_seconds and not hopeless


def _slice(run: _Run, seconds: float, most: int, plan: Plan) -> None:
    """One round: a pause, a first query, then up to `most` samples."""
    time.sleep(max(0.0, min(plan.idle_s, seconds) - (time.monotonic() - run.last_s)))
    reply = run.process.ask(
        say.Measure(seconds=seconds, max_samples=most + 1),
        say.Times,
        timeout_s=seconds + plan.hang_timeout_s,
    )
    run.last_s = time.monotonic()
    # the first query after a pause finds cold caches and a lowered clock: a figure of its own
    run.after_idle_ms.append(reply.times_ms[0])
    run.rounds_ms.append(reply.times_ms[1:])


def _finish(run: _Run, plan: Plan) -> None:
    run.placed = run.process.ask(say.Place(), say.Placed, timeout_s=plan.start_timeout_s)
    settings = run.candidate.settings
    hook = settings.delegate or next((name for name, _ in settings.providers), None)
    if hook in run.placed.unused and not settings.allow_fallback:
        raise CandidateFailed(f"{hook} was asked for and ran none of the operators")


def _row(model: Model, run: _Run, before: Conditions, run_id: str) -> Measurement:
    record, placed = run.candidate.artifact.record, run.placed
    figures: Latency | None = latency(run.rounds_ms, in_turns=_ROUNDS) if run.failure is None else None
    return Measurement(
        model=model.name,
        artifact=record.name,
        artifact_sha256=record.sha256,
        precision=record.precision,
        size_bytes=record.size_bytes,
        settings=to_record(run.candidate.settings, run.runtime_version),
        latency=figures,
        start=run.start,
        after_idle_ms=median(run.after_idle_ms) if run.after_idle_ms else None,
        peak_memory_bytes=placed.peak_memory_bytes if placed else None,
        throughput_qps=1000 / figures.mean_ms if figures else None,
        **accuracy_fields(record),
        ops_by_provider=placed.ops_by_provider if placed else {},
        partitions=placed.partitions if placed else None,
        conditions=before,
        failure=run.failure,
        device=this_device(),
        taken_at_unix_ms=time.time_ns() // 1_000_000,
        run_id=run_id,
    )


def accuracy_fields(record: ArtifactRecord) -> dict[str, Any]:
    """What a measurement repeats of the artifact's own record, by field name."""
    accuracy = record.accuracy
    # the standard is the yardstick itself, and a float32 file that was made from nothing is as good
    original = record.made_from_sha256 is None and record.precision == "float32"
    yardstick = 1.0 if original or record.name == STANDARD else None
    return {
        "accuracy_value": accuracy.value if accuracy else None,
        "accuracy_ratio": accuracy.ratio if accuracy and accuracy.ratio is not None else yardstick,
        "fit": record.fit,
        "why_unfit": record.why_unfit,
    }
