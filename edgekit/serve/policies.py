"""Flash, standard, or Flash first: what each policy's answers are worth and cost, on data that set no threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from edgekit.build.accuracy import judge, rate
from edgekit.errors import ConfigError
from edgekit.pipeline.data import Sample, evaluation
from edgekit.runtimes.session import open_session
from edgekit.serve.certainty import answers, compare, margin, samples_needed, why_no_cascade
from edgekit.serve.plan import Plan

REPEATS = 5
Outputs = Mapping[str, np.ndarray[Any, Any]]


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over the judged half of the evaluation data."""

    policy: str
    '"standard", "flash" or "cascade".'
    artifact: str
    "The compressed one; of `standard` itself."
    metric: str
    accuracy: float
    "By the model's metric; 1.0 is perfect."
    agreement: float
    "Share of samples with the standard's best class."
    mean_ms: float
    "Of inference, over the samples."
    asked_standard: float
    "Share of samples that the standard answered."
    threshold: float | None = None
    "The margin from which Flash is believed; of `cascade` only."
    samples: int


def compare_policies(
    standard: Plan, flashes: Sequence[Plan], *, agreement: float, repeats: int = REPEATS
) -> list[PolicyResult]:
    """The standard, then each compressed artifact alone and in a cascade.

    Every second evaluation sample sets the threshold, the others are judged. Each is timed on both artifacts in turns,
    `repeats` times, and the median counts. Raises ConfigError where there can be no cascade or too few samples.
    """
    model = standard.model
    if (why := why_no_cascade(model)) is not None:
        raise ConfigError(model.name, None, f"no cascade: {why}")
    samples = list(evaluation(model))
    known, judged = samples[::2], samples[1::2]
    truth = answers(standard, known)
    results: list[PolicyResult] = []
    for flash in flashes:
        threshold = compare(answers(flash, known), truth).threshold(agreement)
        if threshold is None:
            needed = f"an agreement of {agreement:g} takes {samples_needed(agreement)}"
            raise ConfigError(model.name, "agreement", f"{len(known)} samples set the threshold, {needed}")
        found = _compare_one(standard, flash, judged, threshold, repeats)
        results += found if not results else found[1:]
    return results


def _compare_one(
    standard: Plan, flash: Plan, judged: Sequence[Sample], threshold: float, repeats: int
) -> list[PolicyResult]:
    outputs, times_ms = _timed([standard, flash], judged, repeats)
    reference = rate(standard.model, judged, outputs[0])
    sure = np.array([margin(next(iter(output.values()))) >= threshold for output in outputs[1]])
    mixed = [ours if is_sure else theirs for theirs, ours, is_sure in zip(*outputs, sure, strict=True)]
    costs = {
        "standard": (outputs[0], times_ms[0], 1.0),
        "flash": (outputs[1], times_ms[1], 0.0),
        "cascade": (mixed, times_ms[1] + np.where(sure, 0.0, times_ms[0]), float(np.mean(~sure))),
    }
    return [
        PolicyResult(
            policy=policy,
            artifact=(standard if policy == "standard" else flash).artifact.record.name,
            metric=reference.metric,
            accuracy=judge(reference, given, standard.settings.runtime, "").value,
            agreement=float(np.mean(compare(given, outputs[0]).agreed)),
            mean_ms=float(np.mean(taken_ms)),
            asked_standard=share,
            threshold=threshold if policy == "cascade" else None,
            samples=len(judged),
        )
        for policy, (given, taken_ms, share) in costs.items()
    ]


def _timed(
    plans: Sequence[Plan], samples: Sequence[Sample], repeats: int
) -> tuple[list[list[Outputs]], list[np.ndarray[Any, Any]]]:
    """(outputs, ms) of each plan for each sample: what else happens on the machine happens to all of them."""
    sessions = [open_session(plan.artifact.path, plan.settings) for plan in plans]
    try:
        for session in sessions:
            for _ in range(20):
                session.run(samples[0].inputs)
        outputs: list[list[Outputs]] = [[] for _ in plans]
        times_ms: list[list[float]] = [[] for _ in plans]
        for sample in samples:
            taken: list[list[float]] = [[] for _ in plans]
            for _ in range(repeats):
                for i, session in enumerate(sessions):
                    began_s = perf_counter()
                    last = session.run(sample.inputs)
                    taken[i].append((perf_counter() - began_s) * 1e3)
                    if len(taken[i]) == repeats:
                        outputs[i].append(last)
            for all_ms, these_ms in zip(times_ms, taken, strict=True):
                all_ms.append(median(these_ms))
        return outputs, [np.array(all_ms) for all_ms in times_ms]
    finally:
        for session in sessions:
            session.close()
