"""Time by operator, as each runtime tells it: onnxruntime's profile, OpenVINO's performance counts, LiteRT's none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.errors import RuntimeUnavailable
from edgekit.runtimes.session import SessionSettings

if TYPE_CHECKING:
    import numpy as np

TIMED = ("onnxruntime", "openvino")
"""Runtimes that tell Python the time of each operator."""
_KERNEL = "_kernel_time"
_FLOATS = frozenset({"float", "float16", "double", "f32", "f16", "bf16"})


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of one kind and precision together, for one query."""

    kind: str
    "The runtime's own word: Conv, QLinearConv, Reorder."
    is_float: bool
    "It computes in floating point; False: in integers."
    count: int
    time_ms: float
    "Mean of the profiled queries."


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a query goes."""

    runtime: str
    operators: tuple[Operator, ...]
    "The slowest kind first."
    has_times: bool = True
    "False: the runtime tells which operators there are, but not their time."

    @property
    def total_ms(self) -> float:
        return sum(operator.time_ms for operator in self.operators)


def profile(path: Path, settings: SessionSettings, inputs: Mapping[str, np.ndarray], runs: int) -> Profile:
    """Open the artifact once more with profiling on and run it so often.

    Raises what opening and running a session raises.
    """
    if settings.runtime == "onnxruntime":
        from edgekit.runtimes.onnx import OnnxSession

        return from_onnx(OnnxSession(path, settings).profile_events(inputs, runs), runs)
    if settings.runtime == "openvino":
        from edgekit.runtimes.openvino import OpenVinoSession

        counting = replace(settings, session_options={**settings.session_options, "PERF_COUNT": "YES"})
        session = OpenVinoSession(path, counting)
        return from_openvino([session.profiled_run(inputs) for _ in range(runs)])
    from edgekit.runtimes.litert import LiteRtSession

    return from_litert(LiteRtSession(path, settings).operator_kinds(), settings.runtime)


def from_onnx(text: str, runs: int) -> Profile:
    """onnxruntime's profile (Chrome trace JSON): the events of kernels, with their types. Pure."""
    found = []
    for event in json.loads(text):
        if event.get("cat") != "Node" or not event["name"].endswith(_KERNEL):
            continue
        details = event["args"]
        types = {name for tensor in details.get("output_type_shape", ()) for name in tensor}
        taken = {name for tensor in details.get("input_type_shape", ()) for name in tensor}
        is_float = bool(types & _FLOATS) and "int8" not in taken | types and "uint8" not in taken | types
        found.append((details.get("op_name", "?"), is_float, event["dur"] / 1000))
    return Profile(runtime="onnxruntime", operators=_grouped(found, runs))


def from_openvino(infos: Sequence[Sequence[Any]]) -> Profile:
    """Of each query, OpenVINO's (node type, kernel with its precision, milliseconds) of what was executed. Pure."""
    found = [
        (kind, kernel.lower().rpartition("_")[2] not in ("i8", "u8", "int8", "uint8"), time_ms)
        for info in infos
        for kind, kernel, time_ms in info
    ]
    return Profile(runtime="openvino", operators=_grouped(found, len(infos)))


def from_litert(kinds: Mapping[str, int], runtime: str) -> Profile:
    """LiteRT's interpreter knows its operators and not their time. Pure."""
    operators = tuple(Operator(kind=k, is_float=True, count=n, time_ms=0.0) for k, n in sorted(kinds.items()))
    if not operators:
        raise RuntimeUnavailable(runtime, "does not tell its operators")
    return Profile(runtime=runtime, operators=operators, has_times=False)


def _grouped(found: Iterable[tuple[str, bool, float]], runs: int) -> tuple[Operator, ...]:
    times: dict[tuple[str, bool], list[float]] = {}
    for kind, is_float, time_ms in found:
        times.setdefault((kind, is_float), []).append(time_ms)
    operators = [
        Operator(kind=kind, is_float=is_float, count=round(len(taken) / runs), time_ms=sum(taken) / runs)
        for (kind, is_float), taken in times.items()
    ]
    return tuple(sorted(operators, key=lambda operator: -operator.time_ms))
