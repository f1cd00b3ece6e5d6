"""One candidate while it is measured: started, warmed up, timed in slices, asked where it ran, written down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from edgekit.artifact import STANDARD, ArtifactRecord
from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import this_device, waiting
from edgekit.bench.inputs import write_inputs
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.record import Conditions, Latency, Measurement, Start, Usage
from edgekit.bench.stats import MIN_SAMPLES, latency, median_interval, own, percentile
from edgekit.device import sensors
from edgekit.device.sensors import power_between
from edgekit.errors import EdgekitError
from edgekit.manifest import Model

_START_TIMEOUT_S = 180.0


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
    gain: float | None = 0.03
    "A lead that counts: while it is not decided whether there is one, the fastest take further turns. None: never."
    memory_limit_bytes: int | None = None
    start_timeout_s: float = _START_TIMEOUT_S
    hang_timeout_s: float = 60.0
    "How much longer than asked a worker may stay silent."
    at_once: int = 16
    "The most workers alive at the same time; one is measured, the others sleep."
    starts_at_once: int = 1
    "How many workers of a search load at the same time, before any is measured: as many as there are usable cores."
    idle_s: float = 0.25
    "The least pause before each round, whose first query is the one after idle; never longer than the round."
    seed: int | None = None
    "Of the order within each round; None: another one each time."


@dataclass(eq=False)
class Contender:
    """A candidate with its worker, and what was measured of it so far."""

    candidate: Candidate
    process: Process | None = None
    "None: it was never started."
    start: Start | None = None
    runtime_version: str | None = None
    rounds_ms: list[tuple[float, ...]] = field(default_factory=list)
    own_ms: list[tuple[float, ...]] = field(default_factory=list)
    "The same without the time spent in line for a CPU."
    after_idle_ms: list[float] = field(default_factory=list)
    impression_ms: float = 0.0
    """An item of the fastest of its first queries in a search: what disturbs the machine for a moment makes none
    faster."""
    turns: int = 0
    "How many of the rounds were taken in turns with others."
    race: int = 0
    "Which race of a search it took part in."
    usage: list[tuple[float, int, int]] = field(default_factory=list)
    energy_mj: float | None = None
    queries: int = 0
    "That `usage` and `energy_mj` are about."
    last_s: float = 0.0
    failure: str | None = None
    placed: say.Placed | None = None
    warm_ms: tuple[float, ...] = ()
    "The runs of the warm-up: a first impression."
    peak_bytes: int | None = None
    "Of the worker before it is ended; None while it lives, or where the system does not tell."

    @cached_property
    def has_power_sensor(self) -> bool:
        """Whether this machine measures power or energy at all."""
        reading = sensors.read()
        return reading.power_mw is not None or reading.package_energy_uj is not None

    def add_costs(self, reply: say.Times, power_mw: float | None) -> None:
        """What the queries of a slice cost beside their time."""
        self.queries += len(reply.times_ms)
        if reply.usage is not None:
            self.usage.append(reply.usage)
        if power_mw is not None:
            self.energy_mj = (self.energy_mj or 0.0) + power_mw * sum(reply.times_ms) / 1000

    def costs(self) -> Usage | None:
        """On average for each query. None: the system does not tell."""
        if not self.usage or not self.queries:
            return None
        cpu_s, faults, switches = (sum(column) for column in zip(*self.usage, strict=True))
        return Usage(
            cpu_ms=1000 * cpu_s / self.queries,
            page_faults=faults / self.queries,
            context_switches=switches / self.queries,
            energy_mj=None if self.energy_mj is None else self.energy_mj / self.queries,
        )

    @property
    def batch(self) -> int:
        """Items of a query."""
        return self.candidate.settings.batch

    @property
    def query_ms(self) -> float:
        """The impression of a query."""
        return self.impression_ms * self.batch

    @property
    def item_ms(self) -> float:
        """The median of its own time, shared out among the items of a query."""
        return percentile(self.own_samples_ms, 0.5) / self.batch

    @property
    def worker(self) -> Process:
        assert self.process is not None, "only what was started is asked"
        return self.process

    def add_round(self, times_ms: tuple[float, ...], waits_ms: tuple[float, ...] = ()) -> None:
        """Samples that were taken together, with what each of them waited for a CPU."""
        self.rounds_ms.append(times_ms)
        self.own_ms.append(tuple(own(t, w) for t, w in zip(times_ms, waits_ms, strict=True)) if waits_ms else times_ms)

    def forget_rounds(self) -> None:
        """Start again."""
        self.rounds_ms.clear()
        self.own_ms.clear()

    @property
    def samples_ms(self) -> list[float]:
        return [sample for taken in self.rounds_ms for sample in taken]

    @property
    def own_samples_ms(self) -> list[float]:
        return [sample for taken in self.own_ms for sample in taken]


def guarded(run: Contender, step: Callable[[], object]) -> None:
    """Carry out a step of a candidate that still lives; its failure is its own."""
    if run.failure is not None:
        return
    try:
        step()
    except CandidateFailed as e:
        run.failure = str(e)
        run.worker.close()  # frees its memory for the others


def begin(model: Model, run: Contender, inputs: Path, plan: Plan, *, warm_up_s: float | None = None) -> None:
    """Load it, make its inputs, run it cold and then until stable. Raises CandidateFailed.

    Args:
        inputs: where to write them (.npz).
        warm_up_s: the most that warming up may take; None is half of the plan's time, a second at least.
    """
    candidate = run.candidate
    opened = run.worker.ask(
        say.Open(path=str(candidate.artifact.path), settings=candidate.settings),
        say.Opened,
        timeout_s=plan.start_timeout_s,
    )
    run.runtime_version = opened.runtime_version
    try:
        write_inputs(inputs, model, opened, candidate.artifact.record.axes, candidate.settings.batch)
    except EdgekitError as e:
        raise CandidateFailed(f"no inputs for it: {e}") from e
    first = run.worker.ask(say.First(inputs=str(inputs)), say.Times, timeout_s=plan.start_timeout_s)
    run.start = Start(
        import_ms=opened.import_ms,
        load_ms=opened.load_ms,
        first_ms=first.times_ms[0],
        loaded_bytes=opened.loaded_bytes,
        temporary_bytes=opened.temporary_bytes,
    )
    limit_s = max(1.0, plan.seconds / 2) if warm_up_s is None else warm_up_s
    warm = run.worker.ask(say.WarmUp(max_s=limit_s), say.Times, timeout_s=plan.hang_timeout_s + plan.seconds)
    run.warm_ms = warm.times_ms
    run.last_s = time.monotonic()


def needs_more(run: Contender, plan: Plan) -> bool:
    """Whether a model that is slow for its time must be measured on."""
    count, spent_s = len(run.samples_ms), sum(run.samples_ms) / 1000
    if run.failure is not None or count < MIN_SAMPLES:
        return run.failure is None
    hopeless = plan.bound_ms is not None and median_interval(run.samples_ms)[0] > plan.bound_ms
    return count < plan.min_samples and spent_s < plan.max_seconds and not hopeless


def take_slice(run: Contender, seconds: float, most: int, plan: Plan) -> None:
    """One round: a pause, a first query, then up to `most` samples. Raises CandidateFailed."""
    time.sleep(max(0.0, min(plan.idle_s, seconds) - (time.monotonic() - run.last_s)))
    before = sensors.read() if run.has_power_sensor else None
    reply = run.worker.ask(
        say.Measure(seconds=seconds, max_samples=most + 1),
        say.Times,
        timeout_s=seconds + plan.hang_timeout_s,
    )
    run.last_s = time.monotonic()
    run.add_costs(reply, power_between(before, sensors.read()) if before else None)
    # the first query after a pause finds cold caches and a lowered clock: a figure of its own
    run.after_idle_ms.append(reply.times_ms[0])
    run.add_round(reply.times_ms[1:], reply.waits_ms[1:])


def finish(run: Contender, plan: Plan) -> None:
    """Prove where it ran. Raises CandidateFailed when an accelerator that was asked for ran nothing."""
    run.placed = run.worker.ask(say.Place(), say.Placed, timeout_s=plan.start_timeout_s)
    settings = run.candidate.settings
    hook = settings.delegate or next((name for name, _ in settings.providers), None)
    if hook in run.placed.unused and not settings.allow_fallback:
        raise CandidateFailed(f"{hook} was asked for and ran none of the operators")


def row_of(
    model: Model, run: Contender, during: Conditions, run_id: str, *, in_turns: int, rough: bool = False
) -> Measurement:
    """What was measured, as a record.

    Args:
        in_turns: how many of the first rounds were taken in turns with the others of the run.
        rough: it was stopped early.
    """
    record, placed = run.candidate.artifact.record, run.placed
    enough = run.failure is None and len(run.samples_ms) >= MIN_SAMPLES
    figures: Latency | None = latency(run.rounds_ms, in_turns=in_turns, own_ms=run.own_ms) if enough else None
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
        peak_memory_bytes=placed.peak_memory_bytes if placed else run.peak_bytes,
        usage=run.costs(),
        throughput_qps=1000 / fmean(run.own_samples_ms) if figures else None,
        **accuracy_fields(record),
        ops_by_provider=placed.ops_by_provider if placed else {},
        partitions=placed.partitions if placed else None,
        conditions=waiting(during, figures.waited_ratio) if figures else during,
        failure=run.failure,
        device=this_device(),
        taken_at_unix_ms=time.time_ns() // 1_000_000,
        run_id=run_id,
        rough=rough and enough,
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
