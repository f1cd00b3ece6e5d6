"""What there is to measure: artifacts × runtimes that are installed × thread counts × batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgekit.artifact import Artifact
from edgekit.bench.batches import BatchAxis, batch_axis
from edgekit.bench.record import Settings
from edgekit.errors import ArtifactError
from edgekit.manifest import Model
from edgekit.runtimes.ahead import AS_SAVED, SPARSE_OPTIONS, why_not_here
from edgekit.runtimes.available import installed_runtimes, installed_version
from edgekit.runtimes.axes import session_axes
from edgekit.runtimes.session import RUNTIMES, SessionSettings

_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
CPU_PROVIDERS: tuple[tuple[str, Mapping[str, str]], ...] = (("CPUExecutionProvider", {}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An artifact together with how to open it."""

    artifact: Artifact
    settings: SessionSettings

    @property
    def name(self) -> str:
        return f"{self.artifact.record.name} · {to_record(self.settings).label}"


def candidates(
    model: Model,
    artifacts: Sequence[Artifact],
    *,
    cores: int,
    runtimes: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    axes: Mapping[str, int] | None = None,
    hooks: Mapping[str, Sequence[str]] | None = None,
    wide_for: Sequence[str] | None = None,
    batches: Sequence[int] = (1,),
    batched_in: Sequence[str] | None = None,
) -> list[Candidate]:
    """Every artifact in every installed runtime that reads its format, with one thread and with all usable cores.

    Args:
        cores: what this process may use under quota and cpuset, not what the host has.
        runtimes: None is every installed one.
        threads: None is one and `cores`.
        axes: sizes that replace the manifest's defaults.
        wide_for: the CPU's features, to look also at spinning threads and, where it computes in bf16, at that.
            None: neither.
        hooks: runtime -> execution providers or devices beside its CPU that have run a model here.
        batches: items of a query. What takes one item at a time is there for a batch of one alone.
        batched_in: runtimes whose larger batches count. None: all.
    """
    wanted = installed_runtimes() if runtimes is None else tuple(runtimes)
    counts = sorted({1, max(1, cores)}) if threads is None else list(dict.fromkeys(threads))
    found = []
    here = [artifact for artifact in artifacts if why_not_here(artifact.record.bound_to) is None]
    is_open = max(batches) > 1  # else an own file must say what each of its axes is
    batched = {a.record.name: _batch_axis(model, a, axes or {}) if is_open else None for a in here}
    twins = {(a.record.twin_of, a.record.bound_to["runtime"]): a.record.name for a in here if a.record.twin_of}
    for artifact in here:
        bound, axis = session_axes(model, axes or {}, artifact.record.axes), batched[artifact.record.name]
        for runtime in wanted:
            if (
                RUNTIMES[runtime] == artifact.record.format
                and artifact.record.bound_to.get("runtime", runtime) == runtime
            ):
                ways = _ways(artifact, runtime, counts, (hooks or {}).get(runtime, ()))
                if wide_for is not None:
                    ways += [further for way in ways for further in _wider(way, wide_for)]
                ways = [replace(way, axes=bound) for way in ways]
                is_batched = batched_in is None or runtime in batched_in
                sizes = [size for size in batches if size == 1 or is_batched]
                twin = twins.get((artifact.record.name, runtime))
                if twin is not None:  # its CPU ways are those of its optimised form, in the batches that this takes
                    mine = [] if batched[twin] else [size for size in sizes if size > 1]
                    more = _in_batches(ways[: len(counts)], axis, mine)
                    settings = [*more, *_in_batches(ways[len(counts) :], axis, sizes)]
                else:
                    settings = _in_batches(ways, axis, sizes)
                found += [Candidate(artifact=artifact, settings=way) for way in settings]
    return found


def takes_batches(model: Model, candidate: Candidate) -> bool:
    """Whether one query of it may hold several items."""
    return _batch_axis(model, candidate.artifact) is not None


def in_batches(model: Model, candidate: Candidate, sizes: Sequence[int]) -> list[Candidate]:
    """It with queries of each size, also of those that the manifest does not declare, where it takes batches."""
    axis = _batch_axis(model, candidate.artifact)
    assert axis is not None, "asked of candidates that take batches"
    return [replace(candidate, settings=candidate.settings.with_batch(axis.inputs, size)) for size in sizes]


def _batch_axis(model: Model, artifact: Artifact, axes: Mapping[str, int] | None = None) -> BatchAxis | None:
    try:
        return batch_axis(model, artifact, axes)
    except ArtifactError:  # running it says so, as the reason of its row
        return None


def _in_batches(ways: Sequence[SessionSettings], axis: BatchAxis | None, sizes: Sequence[int]) -> list[SessionSettings]:
    allowed = axis.sizes(sizes) if axis else ()
    if axis is None or not allowed:
        return list(ways) if 1 in sizes else []
    return [way.with_batch(axis.inputs, size) for size in allowed for way in ways]


def _ways(artifact: Artifact, runtime: str, counts: Sequence[int], hooks: Sequence[str]) -> list[SessionSettings]:
    """How one runtime may open one artifact: its CPU at each thread count, and each accelerator once."""
    if artifact.record.requires:  # compiled for a delegate: nothing else can run it
        return [SessionSettings(runtime=runtime, providers=(), delegate=artifact.record.requires[0])]
    if bound := artifact.record.bound_to.get("provider"):  # pruned for it: elsewhere its zeros gain nothing
        sparse = ((bound, SPARSE_OPTIONS), *CPU_PROVIDERS)
        return [SessionSettings(runtime=runtime, providers=sparse)] if bound in hooks else []
    providers = CPU_PROVIDERS if runtime == "onnxruntime" else ()
    if artifact.record.twin_of:  # optimised for this runtime's own CPU kernels
        return [
            SessionSettings(runtime=runtime, providers=providers, threads=count, session_options=AS_SAVED)
            for count in counts
        ]
    ways = [SessionSettings(runtime=runtime, providers=providers, threads=count) for count in counts]
    for hook in hooks:
        if runtime == "onnxruntime":
            ways.append(SessionSettings(runtime=runtime, providers=((hook, {}), *CPU_PROVIDERS)))
        else:
            ways.append(SessionSettings(runtime=runtime, providers=(), delegate=hook))
    return ways


def _wider(way: SessionSettings, features: Sequence[str]) -> list[SessionSettings]:
    """What else may be faster: threads that spin while they wait, and half the precision where the CPU has it."""
    on_cpu = way.delegate is None and all(name == "CPUExecutionProvider" for name, _ in way.providers)
    if way.runtime == "onnxruntime" and on_cpu and way.threads > 1:
        return [replace(way, spinning=True)]
    if way.runtime == "openvino" and on_cpu and not _BF16.isdisjoint(features):
        return [replace(way, session_options={**way.session_options, "INFERENCE_PRECISION_HINT": "bf16"})]
    return []


def to_record(settings: SessionSettings, runtime_version: str | None = None) -> Settings:
    """The settings as plain values for a measurement. None: the version that is installed."""
    return Settings(
        runtime=settings.runtime,
        runtime_version=runtime_version or installed_version(settings.runtime) or "not installed",
        providers=settings.providers if settings.runtime == "onnxruntime" else (),
        delegate=settings.delegate,
        delegate_options=dict(settings.delegate_options),
        threads=settings.threads,
        spinning=settings.spinning,
        axes=dict(settings.axes),
        session_options=dict(settings.session_options),
        batch=settings.batch,
    )


def to_session(settings: Settings) -> SessionSettings:
    """The way back: how to open an artifact as it was measured."""
    return SessionSettings(
        runtime=settings.runtime,
        providers=settings.providers,
        delegate=settings.delegate,
        delegate_options=settings.delegate_options,
        threads=settings.threads,
        spinning=settings.spinning,
        axes=settings.axes,
        session_options=settings.session_options,
        batch=settings.batch,
    )
