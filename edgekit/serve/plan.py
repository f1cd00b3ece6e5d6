"""What a daemon will run for one model, and why: the pinned artifact, the stored selection, or a quick choice."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from edgekit.artifact import STANDARD, Artifact
from edgekit.bench.candidates import candidates, to_session
from edgekit.config import Home, ModelConfig
from edgekit.device.probe import Facts
from edgekit.errors import ConfigError, RuntimeUnavailable
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model
from edgekit.runtimes.axes import OPEN, session_axes
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.selection import Limits, Selection
from edgekit.serve.engine import Lane
from edgekit.serve.signature import signature_of
from edgekit.telemetry.messages import ModelState
from edgekit.telemetry.reporter import Recorder

if TYPE_CHECKING:
    from edgekit.bench.run import Progress

logger = logging.getLogger(__name__)

REALTIME = "realtime"
MEASURE_S = 0.5
"""Measuring time a candidate when nothing is selected yet: enough to rank them; `edgekit select` measures longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An artifact, the settings to open it with, and how that came about."""

    model: Model
    wanted: ModelConfig
    artifact: Artifact
    settings: SessionSettings
    reasons: tuple[str, ...]
    selection: Selection | None
    "None for a pinned artifact."

    def state(self, state: str) -> ModelState:
        """As the birth certificate tells it."""
        chosen = self.selection
        record = self.artifact.record
        accuracy = record.accuracy.ratio if record.accuracy else None
        return ModelState(
            model=self.model.name,
            artifact=record.name,
            precision=record.precision,
            runtime=self.settings.runtime,
            settings=self.settings.label,
            state=state,
            reasons=self.reasons,
            rejections=tuple((r.candidate, r.reason) for r in chosen.rejections) if chosen else (),
            latency_limit_ms=self.wanted.latency_ms,
            benched_p50_ms=chosen.p50_ms if chosen else None,
            benched_p99_ms=chosen.p99_ms if chosen else None,
            accuracy_ratio=chosen.accuracy_ratio if chosen else accuracy,
        )


def make_plan(
    model: Model, wanted: ModelConfig, *, home: Home, facts: Facts, threads: int, progress: Progress | None = None
) -> Plan:
    """The plan for one model: pinned, else as selected before, else chosen now by measuring briefly.

    `threads` is this model's share of the usable cores. Raises NoUsableArtifact, FetchError, ConfigError,
    RuntimeUnavailable.
    """
    if wanted.artifact is not None:
        return pinned_plan(model, wanted, all_artifacts(model, home), threads=threads)
    from edgekit.choose import Space, choose, load_selection  # deferred: a pinned artifact needs no bench

    limits = _limits(wanted)
    stored = load_selection(home, model.name)
    if stored is not None and (plan := _stored_plan(model, wanted, stored, limits, home=home, threads=threads)):
        return plan
    if not model.inputs:
        _check_bare(model, wanted, home)
    logger.info("%s: nothing selected yet: measuring for %g s each", model.name, MEASURE_S)
    selection = choose(
        model,
        limits,
        home=home,
        facts=facts,
        seconds=MEASURE_S,
        progress=progress,
        space=Space(axes=wanted.axes or None, threads=_thread_counts(wanted, threads)),
    )
    artifact = _artifact_of(selection, all_artifacts(model, home))
    assert artifact is not None, "a fresh selection names an artifact that is here"
    return selected_plan(model, wanted, artifact, selection, threads=threads)


def _stored_plan(
    model: Model, wanted: ModelConfig, stored: Selection, limits: Limits, *, home: Home, threads: int
) -> Plan | None:
    """None, with the reason in the log, when the stored selection answers another question than the configuration's."""
    if limits not in (stored.limits, Limits()):
        logger.info("%s: the stored selection was made for other limits", model.name)
        return None
    artifact = _artifact_of(stored, all_artifacts(model, home))
    if artifact is None:
        logger.info("%s: the selected artifact %s has gone or changed", model.name, stored.artifact)
        return None
    return selected_plan(model, wanted, artifact, stored, threads=threads)


def _check_bare(model: Model, wanted: ModelConfig, home: Home) -> None:
    """A user's own file may be anything: opened once, its fault is one line instead of every candidate's."""
    standard = msgspec.structs.replace(wanted, artifact=STANDARD)
    plan = pinned_plan(model, standard, all_artifacts(model, home), threads=1)
    open_session(plan.artifact.path, plan.settings).close()


def _thread_counts(wanted: ModelConfig, share: int) -> tuple[int, ...]:
    return (wanted.threads,) if wanted.threads else tuple(sorted({1, share}))


def _limits(wanted: ModelConfig) -> Limits:
    memory = wanted.memory_mb
    return Limits(
        latency_ms=wanted.latency_ms,
        memory_bytes=None if memory is None else int(memory * 2**20),
        accuracy_floor=wanted.accuracy_floor,
        objective=wanted.objective,
    )


def _artifact_of(selection: Selection, artifacts: Sequence[Artifact]) -> Artifact | None:
    return next((a for a in artifacts if a.record.sha256 == selection.artifact_sha256), None)


def pinned_plan(model: Model, wanted: ModelConfig, artifacts: Sequence[Artifact], *, threads: int) -> Plan:
    """The artifact that the configuration names, in the first installed runtime that reads its format.

    Raises ConfigError naming the artifacts there are, RuntimeUnavailable when nothing installed reads it.
    """
    artifact = next((a for a in artifacts if a.record.name == wanted.artifact), None)
    if artifact is None:
        known = ", ".join(a.record.name for a in artifacts)
        raise ConfigError(model.name, "artifact", f"there is no '{wanted.artifact}' here, only {known}")
    found = candidates(model, [artifact], cores=threads, threads=[threads], axes=wanted.axes)
    if not found:
        format_ = artifact.record.format
        mend = f"pip install {'onnxruntime' if format_ == 'onnx' else 'ai-edge-litert'}"
        raise RuntimeUnavailable(format_, f"no installed runtime reads {artifact.path.name}", mend)
    return Plan(
        model=model,
        wanted=wanted,
        artifact=artifact,
        settings=_settings(model, wanted, artifact, found[0].settings, threads),
        reasons=("pinned by the configuration",),
        selection=None,
    )


def selected_plan(model: Model, wanted: ModelConfig, artifact: Artifact, selection: Selection, *, threads: int) -> Plan:
    """The artifact that a selection chose, as it was measured, within this model's share of the cores."""
    settings = to_session(selection.settings)
    reasons = selection.reasons
    if settings.threads > threads:
        reasons = (*reasons, f"{threads} of the {settings.threads} threads measured with: the models share the cores")
    return Plan(
        model=model,
        wanted=wanted,
        artifact=artifact,
        settings=_settings(model, wanted, artifact, settings, min(threads, settings.threads)),
        reasons=reasons,
        selection=selection,
    )


def _settings(
    model: Model, wanted: ModelConfig, artifact: Artifact, settings: SessionSettings, threads: int
) -> SessionSettings:
    """`settings` for serving: an axis with several allowed sizes stays open, so that one session takes them all."""
    several = {name: OPEN for name, sizes in model.axes.items() if len(sizes) > 1}
    axes = session_axes(model, several | dict(wanted.axes), artifact.record.axes)
    return replace(settings, axes=axes, threads=wanted.threads or threads)


def load_lane(plan: Plan, recorder: Recorder | None) -> Lane:
    """The artifact verified, opened and warm at every configured shape. Raises what each of those raises."""
    name = plan.model.name
    plan.artifact.verify()
    started = perf_counter()
    session = open_session(plan.artifact.path, plan.settings)
    logger.info("%s: sha256 holds; loaded in %.0f ms", name, (perf_counter() - started) * 1e3)
    signature = signature_of(plan.model, session.inputs, session.outputs, overrides=plan.wanted.axes)
    lane = Lane(
        model=name,
        name=REALTIME,
        artifact=plan.artifact.record.name,
        session=session,
        signature=signature,
        recorder=recorder,
    )
    lane.warm_up(lambda text: logger.info("%s: %s", name, text))
    lane.start()
    return lane
