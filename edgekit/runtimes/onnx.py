"""An ONNX model in onnxruntime: explicit threads, explicit providers, no silent fallback."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes.axes import bind, bound_names
from edgekit.runtimes.bound import BoundRun, capturing_device
from edgekit.runtimes.cores import Opening
from edgekit.runtimes.onnx_header import read_header
from edgekit.runtimes.session import Placement, Quantization, SessionSettings, check_inputs

try:
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ImportError as e:
    raise RuntimeUnavailable("onnxruntime", f"cannot be imported: {e}", "pip install onnxruntime") from e

ort.set_default_logger_severity(4)  # fatal only: what matters comes as an exception, with the same words

FAILURES: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)
"""What onnxruntime raises; its own types derive from Exception directly and differ between releases."""

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    "string": "object",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")


class OnnxSession:
    """A loaded ONNX model. `run` may be called from several threads at once, unless the provider captures graphs."""

    runtime = "onnxruntime"

    def __init__(self, path: Path, settings: SessionSettings) -> None:
        self._path, self._settings = path, settings
        self.runtime_version: str = ort.__version__
        _check_providers(settings)
        declared = read_header(path).inputs
        self.inputs: tuple[TensorSpec, ...] = bind(path, declared, settings.axes)
        self._names = bound_names(declared, self.inputs)
        self._open_axes = any(isinstance(axis, str) for spec in self.inputs for axis in spec.shape)
        with Opening(settings.threads) as opening:
            self._session: ort.InferenceSession | None = self._new_session()
        self._helpers = opening.helpers
        self.outputs: tuple[TensorSpec, ...] = tuple(
            _resolve(_spec(node), self._names) for node in self._session.get_outputs()
        )
        self._output_names = [spec.name for spec in self.outputs]
        device_id = capturing_device(settings)
        self._bound: BoundRun | None = None
        if device_id is not None:
            self._bound = BoundRun(path, self._session, self.inputs, self.outputs, device_id=device_id)
        self.quantization: Mapping[str, Quantization] = {}
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.active_providers: tuple[str, ...] = tuple(self._session.get_providers())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference. Raises InputError (names, dtypes, shapes), ArtifactError (the model fails on these values)."""
        if self._session is None:
            raise RuntimeError(f"{self._path}: the session is closed")
        check_inputs(self.inputs, inputs)
        if self._helpers:
            self._helpers.make_way()
        try:
            if self._bound is not None:
                results = self._bound.run(inputs)
            else:
                results = self._session.run(self._output_names, inputs)
        except FAILURES as e:
            raise ArtifactError(self._path, f"inference failed: {one_line(e)}") from e
        return dict(zip(self._output_names, results, strict=True))

    def placement(self, inputs: Mapping[str, np.ndarray]) -> Placement:
        """Nodes per provider in one profiled run of a second session. Fused nodes count as one."""
        events = json.loads(self.profile_events(inputs, 1))
        providers = [
            event["args"]["provider"]
            for event in sorted(events, key=lambda event: event.get("ts", 0))
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        ]
        changes = sum(before != after for before, after in pairwise(providers))
        return Placement(
            ops_by_provider=dict(Counter(providers)),
            partitions=changes + 1 if providers else 0,
            asked_for=tuple(name for name, _ in self._settings.providers),
        )

    def profile_events(self, inputs: Mapping[str, np.ndarray], runs: int) -> str:
        """onnxruntime's own profile of so many runs of a second session, as JSON text."""
        with tempfile.TemporaryDirectory(prefix="edgekit-profile-") as folder:
            session = self._new_session(profile=Path(folder) / "run")
            for _ in range(runs):
                session.run(self._output_names, dict(inputs))
            return Path(session.end_profiling()).read_text(encoding="utf-8")

    def _new_session(self, *, profile: Path | None = None) -> ort.InferenceSession:
        options = _options(self._settings)
        for name, size in self._names.items():
            options.add_free_dimension_override_by_name(name, size)
        if self._open_axes:
            # the arena keeps what the largest shape took, and grows with every new one (microsoft/onnxruntime#11118)
            options.enable_cpu_mem_arena = False
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        return _load(self._path, options, self._settings)

    def close(self) -> None:
        """Free the model. Idempotent."""
        self._session = self._bound = None


def built_in_providers() -> tuple[str, ...]:
    """What this build of onnxruntime has code for; whether it loads and runs is another question."""
    return tuple(ort.get_available_providers())


def one_line(error: BaseException) -> str:
    """onnxruntime's message without its codes, paths and line breaks."""
    return " ".join(_PREFIX.sub("", str(error)).split())


def _check_providers(settings: SessionSettings) -> None:
    """Raises RuntimeUnavailable when a provider that was asked for is not built into this onnxruntime."""
    built_in = ort.get_available_providers()
    missing = [name for name, _ in settings.providers if name not in built_in]
    if not settings.providers:
        raise RuntimeUnavailable("onnxruntime", "no execution provider was asked for; name at least one")
    if missing and not settings.allow_fallback:
        raise RuntimeUnavailable(
            "onnxruntime", f"{', '.join(missing)} is not part of this build, which has {', '.join(built_in)}"
        )


def _options(settings: SessionSettings) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spinning else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")  # within an inference, not after it
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in settings.session_options.items():
        _set_option(options, key, value)
    return options


def _set_option(options: ort.SessionOptions, key: str, value: str) -> None:
    """One of the caller's options: a config entry when it has a dot (`session.…`), else an attribute."""
    if "." in key:
        options.add_session_config_entry(key, value)
    elif isinstance(getattr(options, key, None), bool):
        setattr(options, key, value.lower() in ("1", "true"))
    elif key == "graph_optimization_level":
        levels = ort.GraphOptimizationLevel.__members__
        if value not in levels:
            raise RuntimeUnavailable("onnxruntime", f"{key} '{value}' is not one of {', '.join(levels)}")
        options.graph_optimization_level = levels[value]
    else:
        raise RuntimeUnavailable("onnxruntime", f"knows no session option '{key}'")


def _load(path: Path, options: ort.SessionOptions, settings: SessionSettings) -> ort.InferenceSession:
    built_in = ort.get_available_providers()
    providers: list[Any] = [(name, dict(opts)) for name, opts in settings.providers if name in built_in]
    try:
        session = ort.InferenceSession(str(path), options, providers=providers or ["CPUExecutionProvider"])
    except FAILURES as e:
        text = one_line(e)
        if "Protobuf parsing failed" in text:
            text = "damaged or cut short: its protobuf does not parse"
        raise ArtifactError(path, f"onnxruntime {ort.__version__} cannot load it: {text}") from e
    session.disable_fallback()  # else a failing provider is swapped for the CPU in the middle of a run
    active = session.get_providers()
    lost = [name for name, _ in settings.providers if name not in active]
    if lost and not settings.allow_fallback:
        raise RuntimeUnavailable(
            "onnxruntime", f"{', '.join(lost)} was asked for but did not load; {', '.join(active)} did"
        )
    return session


def _spec(node: ort.NodeArg) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(
        size if isinstance(size, int) else size if size and size != "?" else f"{node.name}[{i}]"
        for i, size in enumerate(node.shape)
    )
    return TensorSpec(name=node.name, dtype=_DTYPES.get(kind, kind), shape=shape)


def _resolve(spec: TensorSpec, names: Mapping[str, int]) -> TensorSpec:
    shape = tuple(names.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.shape)
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=shape)
