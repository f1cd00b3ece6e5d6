"""What a loaded model looks like to the rest of edgekit, whichever runtime holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.errors import InputError, RuntimeUnavailable
from edgekit.manifest import Dimension, TensorSpec

if TYPE_CHECKING:
    import numpy as np


RUNTIMES: Mapping[str, str] = {"onnxruntime": "onnx", "openvino": "onnx", "litert": "tflite", "tflite": "tflite"}
"""Every runtime edgekit can open, and the artifact format it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How to open an artifact. The runtime's own words and spelling are kept for providers and delegates."""

    runtime: str = "onnxruntime"
    '"onnxruntime", "litert", "tflite" or "openvino".'
    providers: tuple[tuple[str, Mapping[str, str]], ...] = (("CPUExecutionProvider", {}),)
    "onnxruntime only: (name, options) in the order of preference; the library's implicit order is never used."
    delegate: str | None = None
    "LiteRT: a delegate's shared library; None is the built-in XNNPACK. OpenVINO: a device; None is the CPU."
    delegate_options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    spinning: bool = False
    "onnxruntime: threads look for work within an inference instead of sleeping; after it they sleep in any case."
    axes: Mapping[str, int] = field(default_factory=dict)
    "Values for named dynamic axes."
    batch: int = 1
    "Items of a query; where it is more than one, `axes` gives it to the first axis of the inputs that count items."
    allow_fallback: bool = False
    "False: a provider or delegate that was asked for and is not used is an error."
    session_options: Mapping[str, str] = field(default_factory=dict)
    "Further options of the runtime, by the runtime's own names."

    @property
    def label(self) -> str:
        """Short text for tables: runtime, provider or delegate, threads."""
        hook = self.delegate or (self.providers[0][0] if self.runtime == "onnxruntime" else "CPU")
        return f"{self.runtime} {hook.removesuffix('ExecutionProvider')} {self.threads}t"

    def with_batch(self, inputs: Sequence[str], size: int) -> SessionSettings:
        """The same for queries of `size` items, which `inputs` count along their first axis."""
        return replace(self, batch=size, axes={**self.axes, **{f"{name}[0]": size for name in inputs}})

    def one_item(self) -> SessionSettings:
        """The same for queries of one item."""
        places = (place for place, size in self.axes.items() if place.endswith("[0]") and size == self.batch)
        return self.with_batch([place.removesuffix("[0]") for place in places], 1) if self.batch > 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the operators ran, as the runtime itself reports it."""

    ops_by_provider: Mapping[str, int]
    partitions: int
    asked_for: tuple[str, ...]

    @property
    def unused(self) -> tuple[str, ...]:
        """What was asked for and ran nothing."""
        return tuple(name for name in self.asked_for if not self.ops_by_provider.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a quantised tensor's integers stand for real values: real = scale * (integer - zero_point)."""

    scale: float
    zero_point: int


class Session(Protocol):
    """A model ready to run. Not thread-safe unless the implementation says so."""

    runtime: str
    runtime_version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    active_providers: tuple[str, ...]
    quantization: Mapping[str, Quantization]
    "Of the input and output tensors that are quantised per tensor; empty for ONNX, whose inputs stay real."
    metadata: Mapping[str, str]
    "Key-value pairs that the model file itself carries."

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: every input by name, every output by name."""
        ...

    def placement(self, inputs: Mapping[str, np.ndarray]) -> Placement:
        """Prove where the operators run; may open a second, profiled session, so not for the hot path."""
        ...

    def close(self) -> None:
        """Free the model. Idempotent."""
        ...


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which numpy puts together anew each time: 3 µs, and every tensor is asked for it."""
    return dtype.name


def check_inputs(specs: Sequence[TensorSpec], inputs: Mapping[str, np.ndarray]) -> None:
    """Raises InputError unless every input is there, of the right dtype and shape, and nothing else is."""
    if len(inputs) != len(specs) or any(spec.name not in inputs for spec in specs):
        wanted = ", ".join(spec.name for spec in specs)
        raise InputError(", ".join(inputs) or "no inputs", f"the model takes {wanted}")
    for spec in specs:
        value = inputs[spec.name]
        if dtype_name(value.dtype) != spec.dtype:
            raise InputError(spec.name, f"is {value.dtype.name}, the model takes {spec.dtype}")
        if value.shape != spec.shape and not _fits(value.shape, spec.shape):
            raise InputError(spec.name, f"has shape {list(value.shape)}, the model takes {list(spec.shape)}")


def _fits(shape: Sequence[int], spec: Sequence[Dimension]) -> bool:
    return len(shape) == len(spec) and all(
        isinstance(want, str) or size == want for size, want in zip(shape, spec, strict=True)
    )


def import_runtime(runtime: str) -> None:
    """Import a runtime's library, so that the time it takes can be told from the time of loading a model.

    Raises RuntimeUnavailable.
    """
    if runtime == "onnxruntime":
        import edgekit.runtimes.onnx  # deferred: each runtime costs 100 ms or more to import
    elif runtime in ("litert", "tflite"):
        from edgekit.runtimes.litert import load_library

        load_library(runtime)
    elif runtime == "openvino":
        import edgekit.runtimes.openvino  # noqa: F401
    else:
        raise RuntimeUnavailable(runtime, f"unknown runtime; edgekit knows {', '.join(RUNTIMES)}")


def open_session(path: Path, settings: SessionSettings) -> Session:
    """The artifact opened as `settings` says.

    Raises ArtifactError (the file), RuntimeUnavailable (the library, provider or delegate).
    """
    import_runtime(settings.runtime)
    if settings.runtime == "onnxruntime":
        from edgekit.runtimes.onnx import OnnxSession

        return OnnxSession(path, settings)
    if settings.runtime == "openvino":
        from edgekit.runtimes.openvino import OpenVinoSession

        return OpenVinoSession(path, settings)
    from edgekit.runtimes.litert import LiteRtSession

    return LiteRtSession(path, settings)
