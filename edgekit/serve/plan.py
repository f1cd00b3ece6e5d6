"""What a daemon will run for each lane of a model, and why: pinned, as selected before, or chosen quickly now."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.artifact import STANDARD, Artifact
from edgekit.bench.batches import SIZES
from edgekit.bench.candidates import candidates, to_session
from edgekit.config import BatchConfig, Home, ModelConfig
from edgekit.device.probe import Facts
from edgekit.errors import ConfigError, RuntimeUnavailable
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model
from edgekit.runtimes.axes import OPEN, session_axes
from edgekit.runtimes.onnx_header import read_header
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.selection import Limits, Selection
from edgekit.serve.lane import REALTIME, TOLERANT
from edgekit.serve.precedence import CAN_PAUSE
from edgekit.telemetry.messages import ModelState

if TYPE_CHECKING:
    from edgekit.bench.run import Progress

logger = logging.getLogger(__name__)

MEASURE_S = 0.5
"""Measuring time a candidate when nothing is selected yet: enough to rank them; `edgekit select` measures longer."""
BATCHING = ("onnxruntime",)
"""Runtimes whose lanes collect batches: the others fix their shapes, or rebuild them for each size."""
_LIMITING = ("objective", "latency_ms", "memory_mb", "accuracy_floor")
_DEFAULTS = ModelConfig(name="")


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
    lane: str = REALTIME

    @property
    def label(self) -> str:
        """Short text for the log: artifact and settings."""
        return f"{self.artifact.record.name} with {self.settings.label}"

    @property
    def producer(self) -> str:
        """The artifact and how it is opened, exactly."""
        return f"{self.artifact.record.sha256} {self.settings}"

    @property
    def batch(self) -> BatchConfig | None:
        """How requests are collected: as configured; what that leaves open, as selected. None: one at a time."""
        wanted, selected = self.wanted.batch, self.selection.settings.batch if self.selection else 1
        if wanted is None or selected == 1:
            return wanted
        most = wanted.max or selected
        return msgspec.structs.replace(wanted, max=most, preferred=wanted.preferred or min(selected, most))

    @property
    def is_batched(self) -> bool:
        """Whether requests are collected where the artifact allows it."""
        return self.wanted.batch is not None and self.settings.runtime in BATCHING

    @property
    def is_isolated(self) -> bool:
        """Whether its runtime gets a process of its own."""
        if self.wanted.isolation == "auto":
            if self.lane == TOLERANT and CAN_PAUSE:
                return True  # so that it can be paused while there is real-time work
            return self.is_accelerated
        return self.wanted.isolation == "process"

    @property
    def is_accelerated(self) -> bool:
        """Whether more than the plain CPU is asked for: its drivers may stick, and may want one and the same thread."""
        providers = [name for name, _ in self.settings.providers] if self.settings.runtime == "onnxruntime" else []
        return self.settings.delegate is not None or any(name != "CPUExecutionProvider" for name in providers)

    @property
    def is_cached(self) -> bool:
        """Whether its answers may be kept: those of a stateful model depend on more than the inputs."""
        return self.wanted.cache and not self.model.is_stateful

    def state(self, state: str) -> ModelState:
        """As the birth certificate tells it."""
        chosen = self.selection
        timed = chosen if chosen and (chosen.settings.batch == 1 or self.is_batched) else None
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
            benched_p50_ms=timed.p50_ms if timed else None,
            benched_p99_ms=timed.p99_ms if timed else None,
            accuracy_ratio=chosen.accuracy_ratio if chosen else accuracy,
        )


def make_plan(
    model: Model, wanted: ModelConfig, *, home: Home, facts: Facts, threads: int, progress: Progress | None = None
) -> Plan:
    """The plan for one model: pinned, else as selected before, else chosen now by measuring briefly.

    `threads` is this model's share of the usable cores. Raises NoUsableArtifact, FetchError, ConfigError,
    RuntimeUnavailable.
    """
    artifacts = all_artifacts(model, home)
    if wanted.artifact is not None:
        return pinned_plan(model, wanted, artifacts, threads=threads)
    from edgekit.choose import Space, choose, load_selection  # deferred: a pinned artifact needs no bench

    limits = _limits(model, wanted, artifacts)
    stored = load_selection(home, model.name)
    why_not = "nothing selected yet" if stored is None else _why_not(stored, wanted, limits, artifacts)
    if stored is not None and why_not is None:
        return selected_plan(model, wanted, artifacts, stored, threads=threads)
    if not model.inputs:
        _check_bare(model, wanted, artifacts)
    logger.info("%s: %s: measuring for %g s each", model.name, why_not, MEASURE_S)
    selection = choose(
        model,
        limits,
        home=home,
        facts=facts,
        seconds=MEASURE_S,
        progress=progress,
        space=Space(axes=wanted.axes or None, threads=_thread_counts(wanted, threads), **_batches(wanted, limits)),
    )
    return selected_plan(model, wanted, artifacts, selection, threads=threads)


def make_tolerant_plan(
    model: Model, wanted: ModelConfig, *, home: Home, facts: Facts, progress: Progress | None = None
) -> Plan:
    """The plan for the tolerant lane: pinned, else the best here for its objective. It is not stored.

    Raises as `make_plan` does.
    """
    tolerant = wanted.tolerant
    assert tolerant is not None, "only a model that has a tolerant lane is planned for one"
    bound = msgspec.structs.replace(
        wanted, artifact=tolerant.artifact, objective=tolerant.objective, threads=tolerant.threads, latency_ms=None
    )
    artifacts = all_artifacts(model, home)
    if bound.artifact is not None:
        return replace(pinned_plan(model, bound, artifacts, threads=tolerant.threads), lane=TOLERANT)
    from edgekit.choose import Space, choose  # deferred: a pinned artifact needs no bench

    limits = _limits(model, bound, artifacts)
    selection = choose(
        model,
        limits,
        home=home,
        facts=facts,
        seconds=MEASURE_S,
        progress=progress,
        space=Space(axes=wanted.axes or None, threads=(tolerant.threads,), **_batches(wanted, limits)),
        is_stored=False,
    )
    return replace(selected_plan(model, bound, artifacts, selection, threads=tolerant.threads), lane=TOLERANT)


def _why_not(stored: Selection, wanted: ModelConfig, limits: Limits, artifacts: Sequence[Artifact]) -> str | None:
    """Why a stored selection does not answer the configuration; None when it does."""
    asks_nothing = all(getattr(wanted, key) == getattr(_DEFAULTS, key) for key in _LIMITING)
    if limits != stored.limits and not asks_nothing:
        return "the stored selection was made for other limits"
    if _artifact_of(stored, artifacts) is None:
        return f"the selected artifact {stored.artifact} has gone or changed"
    return None


def _check_bare(model: Model, wanted: ModelConfig, artifacts: Sequence[Artifact]) -> None:
    """A user's own file may be anything: opened once, its fault is one line instead of every candidate's."""
    plan = pinned_plan(model, msgspec.structs.replace(wanted, artifact=STANDARD), artifacts, threads=1)
    open_session(plan.artifact.path, plan.settings).close()


def _thread_counts(wanted: ModelConfig, share: int) -> tuple[int, ...]:
    return (wanted.threads,) if wanted.threads else tuple(sorted({1, share}))


def _batches(wanted: ModelConfig, limits: Limits) -> dict[str, Any]:
    """As `Space` takes it: larger batches only where the lane will collect them."""
    if wanted.batch is None or not limits.counts_items:
        return {"batches": (1,)}
    most = wanted.batch.max or SIZES[-1]
    return {"batches": tuple(size for size in SIZES if size <= most), "batched_in": BATCHING}


def _limits(model: Model, wanted: ModelConfig, artifacts: Sequence[Artifact]) -> Limits:
    memory, floor = wanted.memory_mb, wanted.accuracy_floor
    if not model.inputs and all(a.record.name == STANDARD for a in artifacts):
        # Nobody can measure a bare file's accuracy, and there is nothing else whose accuracy could be lower.
        logger.info("%s: no evaluation data and no other artifact: its accuracy is taken as given", model.name)
        floor = 0.0
    return Limits(
        latency_ms=wanted.latency_ms,
        memory_bytes=None if memory is None else int(memory * 2**20),
        accuracy_floor=floor,
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


def selected_plan(
    model: Model, wanted: ModelConfig, artifacts: Sequence[Artifact], selection: Selection, *, threads: int
) -> Plan:
    """The artifact that a selection chose, as it was measured, within this model's share of the cores."""
    artifact = _artifact_of(selection, artifacts)
    assert artifact is not None, f"{selection.artifact} was found among the artifacts before"
    settings = to_session(selection.settings).one_item()
    reasons = selection.reasons
    if selection.settings.batch > 1 and (wanted.batch is None or settings.runtime not in BATCHING):
        why = "no [model.batch]" if wanted.batch is None else f"{settings.runtime} fixes its shapes"
        reasons = (*reasons, f"measured in batches of {selection.settings.batch}, run one item at a time: {why}")
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


def with_settings(plan: Plan, artifact: Artifact, settings: SessionSettings, *, threads: int) -> Plan:
    """The plan's lane with another artifact, opened as it was measured."""
    opened = _settings(plan.model, plan.wanted, artifact, settings.one_item(), threads)
    return replace(plan, artifact=artifact, settings=opened, selection=None)


def _settings(
    model: Model, wanted: ModelConfig, artifact: Artifact, settings: SessionSettings, threads: int
) -> SessionSettings:
    """`settings` for serving: an axis with several allowed sizes stays open, so that one session takes them all."""
    several = {name: OPEN for name, sizes in model.axes.items() if len(sizes) > 1}
    measured = settings.axes if not model.inputs else {}  # a bare file's are declared nowhere else
    axes = {**measured, **session_axes(model, several | dict(wanted.axes), artifact.record.axes)}
    if wanted.batch is not None and settings.runtime in BATCHING:
        axes |= {f"{spec.name}[0]": OPEN for spec in model.inputs or read_header(artifact.path).inputs if spec.shape}
    return replace(settings, axes=axes, threads=wanted.threads or threads)
