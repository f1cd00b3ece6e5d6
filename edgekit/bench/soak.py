"""Minutes instead of seconds: what remains of the speed once the chip is warm, and several models at the same time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate
from edgekit.bench.contender import Contender, Plan, begin
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.run import Progress
from edgekit.bench.stats import SAMPLES_FOR_P99, percentile
from edgekit.device import sensors
from edgekit.errors import ArtifactError
from edgekit.manifest import Model

_WINDOWS = (6, 60)
"""The fewest and about the most windows of a soak."""
_SLOWER = 1.05


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a soak."""

    at_s: float
    query_count: int
    p50_ms: float
    temperature_c: float | None
    "At its end. None: no sensor."
    throttled: bool | None


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate still gives after minutes of load."""

    candidate: str
    windows: tuple[Window, ...]
    first_p50_ms: float
    "Of the first tenth of the time."
    sustained_p50_ms: float
    "Of the second half of the time."
    sustained_p99_ms: float | None
    "None: fewer than 662 samples in the second half."
    finding: str


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a mix."""

    model: str
    candidate: str
    alone_p50_ms: float
    together_p50_ms: float
    slowdown: float
    "Together over alone."


def soak(
    model: Model, candidate: Candidate, minutes: float, plan: Plan | None = None, *, progress: Progress | None = None
) -> Soak:
    """Query without a pause for so long. Raises ArtifactError with the reason when it cannot."""
    plan, tell = plan or Plan(), progress or (lambda _text, _share: None)
    count = max(_WINDOWS[0], min(_WINDOWS[1], round(minutes * 6)))
    each_s = minutes * 60 / count
    windows: list[Window] = []
    rounds: list[tuple[float, ...]] = []
    with ExitStack() as stack:
        run = _begin(stack, model, candidate, plan)
        began = time.monotonic()
        for i in range(count):
            tell(f"soaking {candidate.name}", i / count)
            rounds.append(_measure(run, each_s, plan))
            reading = sensors.read()
            windows.append(
                Window(
                    at_s=time.monotonic() - began,
                    query_count=len(rounds[-1]),
                    p50_ms=percentile(rounds[-1], 0.5),
                    temperature_c=reading.temperature_c,
                    throttled=reading.throttled,
                )
            )
    return summarise(candidate.name, windows, rounds)


def summarise(name: str, windows: Sequence[Window], rounds_ms: Sequence[Sequence[float]]) -> Soak:
    """What the windows mean. Pure."""
    first = [t for taken in rounds_ms[: max(1, len(rounds_ms) // 10)] for t in taken]
    late = [t for taken in rounds_ms[len(rounds_ms) // 2 :] for t in taken]
    before, after = percentile(first, 0.5), percentile(late, 0.5)
    hot = [window.temperature_c for window in windows if window.temperature_c is not None]
    heat = f", {hot[0]:.0f} to {max(hot):.0f} °C" if hot else ""
    throttled = ", throttled" if any(window.throttled for window in windows) else ""
    slower = after / before
    what = f"{slower - 1:.0%} slower once warm" if slower > _SLOWER else "as fast at the end as at the start"
    return Soak(
        candidate=name,
        windows=tuple(windows),
        first_p50_ms=before,
        sustained_p50_ms=after,
        sustained_p99_ms=percentile(late, 0.99) if len(late) >= SAMPLES_FOR_P99 else None,
        finding=what + heat + throttled,
    )


def mix(
    pairs: Sequence[tuple[Model, Candidate]],
    seconds: float,
    plan: Plan | None = None,
    *,
    progress: Progress | None = None,
) -> list[Together]:
    """Each alone, then all at the same time, in processes of their own. Raises ArtifactError with the reason."""
    plan, tell = plan or Plan(), progress or (lambda _text, _share: None)
    with ExitStack() as stack:
        runs = [_begin(stack, model, candidate, plan) for model, candidate in pairs]
        alone: list[float] = []
        for run in runs:
            tell(f"alone: {run.candidate.name}", len(alone) / (len(runs) + 1))
            alone.append(median(_measure(run, seconds, plan)))
        tell("all together", len(runs) / (len(runs) + 1))
        pool = stack.enter_context(ThreadPoolExecutor(len(runs)))
        together = [median(times) for times in pool.map(lambda run: _measure(run, seconds, plan), runs)]
    return [
        Together(
            model=model.name,
            candidate=candidate.name,
            alone_p50_ms=before,
            together_p50_ms=after,
            slowdown=after / before,
        )
        for (model, candidate), before, after in zip(pairs, alone, together, strict=True)
    ]


def _begin(stack: ExitStack, model: Model, candidate: Candidate, plan: Plan) -> Contender:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-soak-")))
    process = stack.enter_context(Process(memory_limit_bytes=plan.memory_limit_bytes))
    run = Contender(candidate=candidate, process=process)
    try:
        begin(model, run, folder / "inputs.npz", plan)
    except CandidateFailed as e:
        raise ArtifactError(candidate.artifact.path, str(e)) from e
    return run


def _measure(run: Contender, seconds: float, plan: Plan) -> tuple[float, ...]:
    try:
        reply = run.worker.ask(
            say.Measure(seconds=seconds, max_samples=10**6), say.Times, timeout_s=seconds + plan.hang_timeout_s
        )
    except CandidateFailed as e:
        raise ArtifactError(run.candidate.artifact.path, str(e)) from e
    return reply.times_ms
