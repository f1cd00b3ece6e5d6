"""From a model and limits to a stored choice: find artifacts, measure what is not measured yet, select, remember."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from edgekit import measured
from edgekit.artifact import Artifact
from edgekit.bench.batches import SIZES, why_one_item
from edgekit.bench.candidates import Candidate, candidates
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Measurement
from edgekit.bench.run import Plan, Progress, bench
from edgekit.bench.search import search
from edgekit.config import Home
from edgekit.device.probe import Facts, probe
from edgekit.errors import ArtifactError, ConfigError, RuntimeUnavailable, UsageError
from edgekit.fetch import all_artifacts
from edgekit.files import write_atomic
from edgekit.judged import Judged
from edgekit.manifest import Model
from edgekit.prior import Machine, prior
from edgekit.room import room
from edgekit.runtimes.available import installed_version, survey
from edgekit.selection import PERCENTILES, Limits, Selection, check_limits, select
from edgekit.strict import read_json
from edgekit.verify import Verifier
from edgekit.whatif import what_if

logger = logging.getLogger(__name__)

_SEARCH_SHARE = 0.2
_TOO_FEW_TO_SEARCH = 2
_MOST_STARTS = 4
_CPU_HOOKS = frozenset({"CPUExecutionProvider", "CPU", "XNNPACK"})
_INSTALLS = {"onnx": "pip install onnxruntime", "tflite": "pip install ai-edge-litert"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which candidates to look at. None: edgekit's own choice (see `bench.candidates`)."""

    artifacts: Sequence[str] | None = None
    runtimes: Sequence[str] | None = None
    threads: Sequence[int] | None = None
    axes: Mapping[str, int] | None = None
    is_wide: bool = False
    "Also spinning threads, and bf16 where the CPU has it."
    batches: Sequence[int] | None = None
    "Items of a query. None: one, and where throughput matters the sizes of `bench.batches`."
    batched_in: Sequence[str] | None = None
    "Runtimes whose larger batches count. None: all."

    def under(self, limits: Limits) -> Space:
        """The same with the batch sizes that the objective asks for. Raises UsageError for those it has no use for."""
        if self.batches is None:
            return replace(self, batches=SIZES if limits.counts_items else (1,))
        if max(self.batches) > 1 and not limits.counts_items:
            raise UsageError(f"for the objective {limits.objective} a query holds one item; throughput counts batches")
        return self


def choose(
    model: Model,
    limits: Limits,
    *,
    home: Home,
    facts: Facts | None = None,
    seconds: float = 5.0,
    progress: Progress | None = None,
    fresh: bool = False,
    space: Space | None = None,
    is_stored: bool = True,
    budget_s: float | None = None,
) -> Selection:
    """The best artifact and settings here within the limits, stored for the daemon unless `is_stored` is False.

    Args:
        facts: of this machine; None probes it.
        seconds: measuring time of a candidate that is measured to the end.
        fresh: measure all again.
        budget_s: for searching among more than two candidates that have no valid measurement; None is a fifth of
            `seconds` for each of them.

    Raises NoUsableArtifact with every reason, RuntimeUnavailable (nothing installed reads these formats), UsageError,
    and what fetching the standard artifact raises.
    """
    check_limits(limits)
    facts = facts or probe()
    found = find_candidates(model, home, facts, (space or Space()).under(limits))
    plan, tell = _plan(limits, facts, seconds), progress or (lambda _text, _share: None)
    rows = {} if fresh else measured.valid(model, found, home, plan)
    verifier, by_name = Verifier(model, home), {candidate.name: candidate for candidate in found}
    recalled = {name: verifier.recall(row, by_name[name]) for name, row in rows.items()}
    spared = measured.spared(found, recalled, limits)
    missing = [candidate for candidate in found if candidate.name not in rows and candidate.name not in spared]
    judged = Judged(verifier, found, limits, tell, room(facts))
    if len(missing) <= _TOO_FEW_TO_SEARCH:
        taken = bench(model, missing, plan, progress=progress) if missing else []
    else:
        budget_s = _SEARCH_SHARE * seconds * len(missing) if budget_s is None else budget_s
        taken = search(model, missing, plan, budget_s=budget_s, judge=judged.standings, progress=progress)
    measured.keep(model, home, taken)
    rows |= {candidate.name: row for candidate, row in zip(missing, taken, strict=True)}
    rows |= {c.name: measured.unstarted(model, c, spared[c.name]) for c in found if c.name in spared}
    _refuse_hopeless(list(rows.values()), found)

    def finish(candidate: Candidate) -> Measurement:
        (row,) = bench(model, [candidate], plan)
        measured.keep(model, home, [row])
        return row

    if not any(row.rough for row in rows.values()):
        judged.check_all(list(rows.values()))
    selection = judged.select(rows.values(), finish)
    if is_stored:
        save_selection(home, selection)
    return selection


def guess(
    model: Model,
    limits: Limits,
    *,
    home: Home,
    facts: Facts | None = None,
    space: Space | None = None,
    long_term: bool = False,
) -> Selection:
    """Without measuring: from what was measured here before, else by rules of thumb. Not stored.

    Args:
        long_term: it must run unattended for years; one of the rules asks for that.

    Raises as `choose` does.
    """
    facts = facts or probe()
    found = find_candidates(model, home, facts, (space or Space()).under(limits))
    known = _judged(model, found, home, facts)
    if known:
        return select(known, limits)
    vram = [a.memory_bytes for a in facts.accelerators if a.present and a.memory_bytes]
    machine = Machine(memory_bytes=facts.memory.usable_bytes, vram_bytes=max(vram, default=None), long_term=long_term)
    return prior([c for c in found if c.settings.batch == 1] or found, machine, limits)


def instead(
    model: Model, limits: Limits, *, home: Home, facts: Facts | None = None, space: Space | None = None
) -> tuple[str, ...]:
    """After nothing fitted: which other limit would let which candidate pass, from what is measured."""
    facts = facts or probe()
    found = find_candidates(model, home, facts, (space or Space()).under(limits))
    return what_if(_judged(model, found, home, facts), limits, None)


def _judged(model: Model, found: Sequence[Candidate], home: Home, facts: Facts) -> list[Measurement]:
    """What is measured of them, with its accuracy, and as a failure where it does not fit into memory."""
    known, verifier, space = measured.known(model, found, home), Verifier(model, home), room(facts)
    rows = [verifier.judge(known[c.name], c) for c in found if c.name in known]
    return [space.applied(row) for row in rows] if space else rows


def find_candidates(model: Model, home: Home, facts: Facts, space: Space) -> list[Candidate]:
    """What there is to choose from on this machine.

    Raises RuntimeUnavailable when no runtime reads any artifact, UsageError when none takes the batches that are asked
    for, ConfigError for an artifact that is not there.
    """
    artifacts = _wanted(model, all_artifacts(model, home), space)
    found = candidates(
        model,
        artifacts,
        cores=facts.cpu.cores_usable or 1,
        runtimes=space.runtimes,
        threads=space.threads,
        axes=space.axes,
        hooks=_hooks(facts),
        wide_for=(facts.cpu.features or ()) if space.is_wide else None,
        batches=space.batches or (1,),
        batched_in=space.batched_in,
    )
    if not found and space.batches and 1 not in space.batches:
        sizes = " or ".join(map(str, space.batches))
        raise UsageError(f"nothing of {model.name} takes {sizes} items at once here: {why_one_item(model)}")
    if not found:
        formats = sorted({artifact.record.format for artifact in artifacts})
        mend = " or ".join(_INSTALLS[name] for name in formats)
        raise RuntimeUnavailable(", ".join(formats), f"no installed runtime reads {model.name}", mend)
    return found


def _hooks(facts: Facts) -> dict[str, list[str]]:
    """Providers and devices beside the CPU that ran a model just now; asked only where an accelerator is present."""
    if not any(accelerator.present for accelerator in facts.accelerators):
        return {}
    return {
        runtime.name: [p.name for p in runtime.providers if p.runs and p.name not in _CPU_HOOKS]
        for runtime in survey()
        if runtime.loads
    }


def measure(
    model: Model,
    found: Sequence[Candidate],
    *,
    home: Home,
    plan: Plan,
    progress: Progress | None = None,
    fresh: bool = False,
) -> list[Measurement]:
    """A measurement of each candidate, in their order; those that are still valid are taken from the store.

    Raises ArtifactError when every candidate fails for one and the same reason.
    """
    enough = {} if fresh else {n: m for n, m in measured.valid(model, found, home, plan).items() if not m.rough}
    missing = [candidate for candidate in found if candidate.name not in enough]
    taken = bench(model, missing, plan, progress=progress) if missing else []
    measured.keep(model, home, taken)
    rows = enough | {candidate.name: m for candidate, m in zip(missing, taken, strict=True)}
    verifier = Verifier(model, home)
    judged = []
    for candidate in found:
        if progress:
            progress(f"checking the accuracy of {candidate.name}", 1.0)
        judged.append(verifier.judge(rows[candidate.name], candidate))
    _refuse_hopeless(judged, found)
    return judged


def _refuse_hopeless(rows: Sequence[Measurement], found: Sequence[Candidate]) -> None:
    """A file that no candidate can open is one clear line, not a list of failures. Raises ArtifactError."""
    reasons = {row.failure for row in rows}
    if len(reasons) == 1 and None not in reasons:
        raise ArtifactError(found[0].artifact.path, str(reasons.pop()))


def save_selection(home: Home, selection: Selection) -> None:
    """Write the selection atomically to where the daemon looks for it."""
    write_atomic(home.selection(selection.model), msgspec.json.format(msgspec.json.encode(selection), indent=2))


def load_selection(home: Home, name: str) -> Selection | None:
    """The stored selection, or None when there is none that still holds.

    It holds while the runtime's version and the machine are those on which it was measured.
    """
    path = home.selection(name)
    if not path.is_file():
        return None
    try:
        selection = read_json(path, Selection)
    except ConfigError as e:
        logger.warning("the stored selection is of another release and is made again: %s", e)
        return None
    if selection.settings.runtime_version != installed_version(selection.settings.runtime):
        logger.info("%s: %s has another version than when it was selected", name, selection.settings.runtime)
        return None
    if selection.device and dict(selection.device) != this_device():
        logger.info("%s: the selection was made on another machine", name)
        return None
    return selection


def _plan(limits: Limits, facts: Facts, seconds: float) -> Plan:
    needed = PERCENTILES[limits.latency_percentile] if limits.latency_ms is not None else PERCENTILES["p50"]
    return Plan(
        seconds=seconds,
        min_samples=needed,
        bound_ms=limits.latency_ms,
        memory_limit_bytes=facts.memory.available_bytes,
        starts_at_once=min(_MOST_STARTS, max(1, int(facts.cpu.cores_usable or 1))),
    )


def _wanted(model: Model, artifacts: Sequence[Artifact], space: Space) -> list[Artifact]:
    if space.artifacts is None:
        return list(artifacts)
    known = {artifact.record.name: artifact for artifact in artifacts}
    for name in space.artifacts:
        if name not in known:
            raise ConfigError(model.name, "artifact", f"there is no '{name}' here, only {', '.join(known)}")
    return [known[name] for name in space.artifacts]
