"""Why a candidate is as fast as it is, in plain sentences: which operators, how much converting, what the CPU says."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate
from edgekit.bench.contender import Contender, Plan, begin
from edgekit.bench.counters import Counts
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.stats import ms, percentile
from edgekit.errors import ArtifactError
from edgekit.manifest import Model
from edgekit.runtimes.profile import Operator, Profile

CONVERTING = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "FakeQuantize", "Convert", "QUANTIZE",
    "DEQUANTIZE",
})  # fmt: skip
LAYOUT = frozenset({
    "Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "TRANSPOSE",
    "RESHAPE",
})  # fmt: skip
ELEMENTWISE = frozenset({
    "Add", "Sub", "Mul", "Div", "Clip", "Relu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Sqrt", "Pow", "Erf",
    "Eltwise", "Subgraph", "LeakyRelu", "Softmax", "Max", "Min", "Exp",
})  # fmt: skip
_HARD_SWISH = ({"Add", "Clip", "Mul", "Div"}, {"HardSigmoid", "Mul"}, {"HardSwish"})
_DYNAMIC = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLinear"})
NO_COUNTERS = "the kernel grants no hardware counters here: nothing is known of branch and cache misses"
_WORTH_SAYING = 0.05
_FAULTS = 20
_RUNS = 10


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench --why --json` prints for a candidate."""

    candidate: str
    query_ms: float
    "Median without profiling."
    query_count: int
    "That `page_faults` and `counts` are about."
    profile: Profile
    converting_share: float | None
    "Of the operators' time: quantise, dequantise, cast. None: the runtime tells no times."
    layout_share: float | None
    "Reorder, transpose and the like."
    page_faults: float | None
    "For each query; many mean that memory is taken anew each time."
    counts: Counts | None
    "None: the kernel grants no hardware counters."
    sentences: tuple[str, ...]


def why(model: Model, candidate: Candidate, plan: Plan | None = None) -> Why:
    """Profile the candidate in a process of its own. Raises ArtifactError when it cannot be run."""
    plan = plan or Plan()
    with (
        tempfile.TemporaryDirectory(prefix="edgekit-why-") as folder,
        Process(memory_limit_bytes=plan.memory_limit_bytes) as process,
    ):
        run = Contender(candidate=candidate, process=process)
        inputs = Path(folder) / "inputs.npz"
        try:
            begin(model, run, inputs, plan)
            reply = process.ask(
                say.Explain(path=str(candidate.artifact.path), settings=candidate.settings, runs=_RUNS),
                say.Explained,
                timeout_s=plan.start_timeout_s,
            )
        except CandidateFailed as e:
            raise ArtifactError(candidate.artifact.path, str(e)) from e
    return explain(candidate.name, candidate.artifact.record.precision, reply)


def explain(name: str, precision: str, told: say.Explained) -> Why:
    """Pure: from what the worker told to shares and sentences."""
    operators, total = told.profile.operators, told.profile.total_ms
    query_ms = percentile(told.times_ms, 0.5)
    faults = None if told.usage is None else told.usage[1] / len(told.times_ms)
    shares = {kind: _share(operators, kinds, total) for kind, kinds in (("c", CONVERTING), ("l", LAYOUT))}
    sentences = [*_of_time(told.profile, precision), *_of_memory(faults), *_of_counts(told.counts)]
    return Why(
        candidate=name,
        query_ms=query_ms,
        query_count=len(told.times_ms),
        profile=told.profile,
        converting_share=shares["c"] if told.profile.has_times else None,
        layout_share=shares["l"] if told.profile.has_times else None,
        page_faults=faults,
        counts=told.counts,
        sentences=tuple(sentences),
    )


def against(standard: Why, flash: Why) -> list[str]:
    """What takes longer in Flash than in the standard, operator kind by operator kind. Pure."""
    if not (standard.profile.has_times and flash.profile.has_times):
        return []
    before, after = _families(standard.profile), _families(flash.profile)
    lines = []
    for family in sorted(after, key=lambda f: before.get(f, 0.0) - after[f]):
        more = after[family] - before.get(family, 0.0)
        if more > _WORTH_SAYING * flash.profile.total_ms:
            was = f"instead of {ms(before[family])}" if family in before else "and the standard has none"
            lines.append(f"{family} takes {ms(after[family])} ms in Flash {was}")
    return lines


def _of_time(profile: Profile, precision: str) -> list[str]:
    operators, total = profile.operators, profile.total_ms
    if not profile.has_times or not total:
        names = ", ".join(f"{o.count} {o.kind}" for o in sorted(operators, key=lambda o: -o.count)[:5])
        tool = "; LiteRT's own benchmark_model does: --graph=FILE --enable_op_profiling=true"
        return [
            f"{profile.runtime} tells Python which operators there are ({names}), but not their time"
            + (tool if profile.runtime in ("litert", "tflite") else "")
        ]
    top = operators[0]
    lines = [f"{top.time_ms / total:.0%} of the time is {_named(top)} ({top.count} of them, {ms(top.time_ms)} ms)"]
    floats = [o for o in operators if o.is_float and o.kind in ELEMENTWISE]
    share = sum(o.time_ms for o in floats) / total
    if precision.startswith("int8") and share > _WORTH_SAYING:
        kinds = [o.kind for o in floats]
        around = " around hard-swish" if any(s <= set(kinds) for s in _HARD_SWISH) else ""
        lines.append(
            f"{share:.0%} of Flash's time is element-wise operators that stayed in float{around} "
            f"({', '.join(kinds[:4])})"
        )
    elif share > 3 * _WORTH_SAYING:
        kinds = [o.kind for o in floats]
        lines.append(f"{share:.0%} is element-wise operators ({', '.join(kinds[:4])}), which fusing would save")
    for what, kinds_ in (
        ("quantising, dequantising and casting", CONVERTING),
        ("reordering and changing layout", LAYOUT),
    ):
        part = _share(operators, kinds_, total)
        if part > _WORTH_SAYING:
            lines.append(f"{part:.0%} is {what}: work that computes nothing")
    dynamic = [o for o in operators if o.kind in _DYNAMIC]
    if dynamic and _share(operators, _DYNAMIC, total) > _WORTH_SAYING:
        part = _share(operators, _DYNAMIC, total)
        lines.append(
            f"{part:.0%} is dynamically quantised ({', '.join(o.kind for o in dynamic)}): "
            "the ranges are sought anew for each query"
        )
    return lines


def _of_memory(faults: float | None) -> list[str]:
    if faults is None or faults < _FAULTS:
        return []
    return [f"{faults:.0f} page faults a query: memory is taken from the system anew each time"]


def _of_counts(counts: Counts | None) -> list[str]:
    if counts is None:
        return [NO_COUNTERS]
    lines = []
    if (ipc := counts.instructions_per_cycle) is not None:
        wait = ": the CPU mostly waits for memory" if ipc < 1 else ""
        lines.append(f"{ipc:.1f} instructions a cycle{wait}")
    if (missed := counts.branch_miss_ratio) is not None:
        lines.append(f"{missed:.1%} of the branches are mispredicted")
    if (missed := counts.cache_miss_ratio) is not None:
        lines.append(f"{missed:.0%} of the last-level cache accesses go to memory")
    return lines


def _share(operators: Sequence[Operator], kinds: frozenset[str], total: float) -> float:
    return sum(o.time_ms for o in operators if o.kind in kinds) / total if total else 0.0


def _named(operator: Operator) -> str:
    return f"{operator.kind} in {'float' if operator.is_float else 'integers'}"


def _families(profile: Profile) -> Mapping[str, float]:
    """Time by what is computed, whichever precision the kernel's name speaks of: QLinearConv is Conv."""
    found: dict[str, float] = {}
    for operator in profile.operators:
        family = operator.kind.removeprefix("QLinear").removeprefix("Fused").removesuffix("Integer")
        family = "converting" if operator.kind in CONVERTING else "layout" if operator.kind in LAYOUT else family
        found[family] = found.get(family, 0.0) + operator.time_ms
    return found
