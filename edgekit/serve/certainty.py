"""How sure a compressed artifact's answer must be to be believed: measured against the standard's answers, beforehand.

The measure is the margin between the likeliest class and the next. The threshold keeps a promise about inputs that have
not been seen: the share of them on which a cascade differs from the standard is at most 1 - agreement in expectation,
if they are like the evaluation data (conformal risk control, Angelopoulos et al. 2022, for a loss of 0 or 1).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edgekit.config import Home
from edgekit.errors import ConfigError
from edgekit.files import write_atomic
from edgekit.manifest import Model
from edgekit.pipeline.data import Sample, evaluation
from edgekit.pipeline.metrics import run_samples
from edgekit.runtimes.session import open_session
from edgekit.serve.cache import digest
from edgekit.steps import Ctc, DbBoxes, SpeechSegments
from edgekit.strict import read_json

if TYPE_CHECKING:
    from edgekit.serve.plan import Plan

Outputs = Mapping[str, np.ndarray[Any, Any]]


class Certainty(msgspec.Struct, frozen=True, kw_only=True):
    """Of one compressed artifact against the standard: a margin and whether the two agreed, for each sample."""

    margins: tuple[float, ...]
    agreed: tuple[bool, ...]

    def threshold(self, agreement: float) -> float | None:
        """The lowest margin from which answers are believed so that `agreement` is kept; None: too few samples.

        `agreement` in [0, 1). Above 1: no answer of it is ever believed.
        """
        allowed = math.floor((1 - agreement) * (len(self.margins) + 1) + 1e-9) - 1
        if allowed < 0:
            return None
        wrong = sorted((m for m, same in zip(self.margins, self.agreed, strict=True) if not same), reverse=True)
        if len(wrong) <= allowed:
            return 0.0
        return float(np.nextafter(wrong[allowed], 2.0))

    def unsure_share(self, threshold: float) -> float:
        """Of the samples: what a cascade gives to the standard."""
        return sum(margin < threshold for margin in self.margins) / len(self.margins)


def samples_needed(agreement: float) -> int:
    """How many evaluation samples support a threshold for it."""
    return math.ceil(round(1 / (1 - agreement), 6)) - 1


def margin(values: np.ndarray[Any, Any]) -> float:
    """Likeliest minus next likeliest class, in [0, 1]; of several rows the least. `values`: [..., classes], 2 or more.

    Scores that are no probabilities are taken as their logarithms (softmax).
    """
    rows = np.asarray(values, np.float64).reshape(-1, values.shape[-1])
    if rows.min(initial=0.0) < 0 or np.abs(rows.sum(axis=1) - 1).max(initial=0.0) > 1e-2:
        rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
    best = np.partition(rows, -2, axis=1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


def compare(flash: Sequence[Outputs], standard: Sequence[Outputs]) -> Certainty:
    """Of answers to the same samples; the first output holds the scores of classes."""
    margins, agreed = [], []
    for ours, theirs in zip(flash, standard, strict=True):
        name = next(iter(theirs))
        margins.append(margin(ours[name]))
        agreed.append(bool((ours[name].argmax(-1) == theirs[name].argmax(-1)).all()))
    return Certainty(margins=tuple(margins), agreed=tuple(agreed))


def why_no_cascade(model: Model) -> str | None:
    """The reason why a model's answers have no certainty that could be measured; None: they have."""
    if model.is_stateful:
        return "it keeps state from one request to the next"
    if model.data.evaluation is None:
        return "there is no evaluation data to find the threshold with"
    if any(isinstance(step, (Ctc, DbBoxes, SpeechSegments)) for step in model.postprocess):
        return "its answer is no choice between classes"
    return None


def measured(flash: Plan, standard: Plan, *, home: Home, progress: Callable[[str], None]) -> Certainty:
    """The certainty of one artifact against the standard on the evaluation data; kept on disk for the next start.

    Raises ConfigError for a model whose answers are no choice between classes, and what opening and running raise.
    """
    model = flash.model
    why = why_no_cascade(model)
    if why is not None:
        raise ConfigError(model.name, "policy", f"no cascade: {why}")
    samples = list(evaluation(model))
    path = _path(home, flash, standard, samples)
    try:
        if path.is_file():
            return read_json(path, Certainty)
    except ConfigError:
        progress(f"{path} is damaged: measured again")
    progress(f"{model.name}: when is {flash.artifact.record.name} sure? both artifacts answer the evaluation data")
    found = compare(answers(flash, samples), answers(standard, samples))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(found))
    return found


def threshold_for(flash: Plan, standard: Plan, *, home: Home, progress: Callable[[str], None]) -> tuple[float, float]:
    """(threshold, share of inputs that are unsure) for the agreement that the configuration asks of the cascade.

    Raises as `measured`, and ConfigError when the evaluation data are too few for it.
    """
    agreement = flash.wanted.agreement
    found = measured(flash, standard, home=home, progress=progress)
    threshold = found.threshold(agreement)
    if threshold is None:
        counts = f"{len(found.margins)} evaluation samples, an agreement of {agreement:g} takes"
        raise ConfigError(flash.model.name, "agreement", f"{counts} {samples_needed(agreement)}")
    return threshold, found.unsure_share(threshold)


def answers(plan: Plan, samples: Sequence[Sample]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """What an artifact answers. Raises ConfigError unless its first output holds the scores of classes."""
    session = open_session(plan.artifact.path, plan.settings)
    try:
        found = run_samples(plan.model, session.run, samples)
    finally:
        session.close()
    first = next(iter(found[0].values()))
    if first.ndim < 1 or first.shape[-1] < 2:
        raise ConfigError(plan.model.name, "policy", f"no cascade: its first output has shape {list(first.shape)}")
    return found


def _path(home: Home, flash: Plan, standard: Plan, samples: Sequence[Sample]) -> Path:
    """What it was measured with is part of the name: another artifact or other data is another measurement."""
    data = hashlib.sha256(b"".join(digest(sample.inputs) for sample in samples)).hexdigest()
    names = (flash.artifact.record.sha256, standard.artifact.record.sha256, data)
    return home.root / "cascades" / flash.model.name / ("-".join(name[:12] for name in names) + ".json")
