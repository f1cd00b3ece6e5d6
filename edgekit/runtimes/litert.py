"""A LiteRT (TensorFlow Lite) model, in ai-edge-litert or in tflite-runtime: one session for both."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import re
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.manifest import Dimension, TensorSpec
from edgekit.runtimes.axes import bind, unique_names
from edgekit.runtimes.cores import Opening
from edgekit.runtimes.delegated import placement_of
from edgekit.runtimes.flatbuffer import check_tflite
from edgekit.runtimes.quiet import captured_stderr
from edgekit.runtimes.session import Placement, Quantization, SessionSettings, check_inputs

XNNPACK = "XNNPACK"
_EDGE_TPU_OP = "edgetpu-custom-op"
_UNRESOLVED = re.compile(r"unresolved custom op: ([\w:-]+)")
_SENTENCE_END = re.compile(r"(?<=[a-z)\d]\.)\s*(?=[A-Za-z])")
_MODULES = {"litert": ("ai_edge_litert", "ai-edge-litert"), "tflite": ("tflite_runtime", "tflite-runtime")}


class LiteRtSession:
    """A loaded LiteRT model. Calls from several threads wait for each other: an interpreter holds its tensors."""

    def __init__(self, path: Path, settings: SessionSettings) -> None:
        self.runtime = settings.runtime
        self._path, self._lock = path, threading.Lock()
        self._asked_for = settings.delegate or XNNPACK
        module, self.runtime_version = load_library(settings.runtime)
        check_tflite(path)
        delegates = [_load_delegate(module, settings)] if settings.delegate else []
        with Opening(settings.threads) as opening:
            self._interpreter: Any = _open(path, module, settings, delegates)
        self._helpers = opening.helpers
        signature = _signature(self._interpreter)
        self._input_index, declared = _specs(self._interpreter.get_input_details(), signature.get("inputs", {}))
        self._shapes = {detail["index"]: _shape(detail) for detail in self._interpreter.get_input_details()}
        self.inputs: tuple[TensorSpec, ...] = self._bind(declared, settings.axes)
        self._output_index, outputs = _specs(self._interpreter.get_output_details(), signature.get("outputs", {}))
        self.outputs: tuple[TensorSpec, ...] = self._sized(outputs)
        self.quantization: Mapping[str, Quantization] = self._quantization()
        self.metadata: Mapping[str, str] = {}
        self._placement = placement_of(self._interpreter, self._asked_for)
        self.active_providers: tuple[str, ...] = tuple(self._placement.ops_by_provider) if self._placement else ()
        if self._placement and self._placement.unused and settings.delegate and not settings.allow_fallback:
            raise RuntimeUnavailable(
                self.runtime, f"delegate {settings.delegate} loaded but took none of the operators"
            )

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference; outputs are copies. Raises InputError, ArtifactError (the model fails on these values)."""
        if self._interpreter is None:
            raise RuntimeError(f"{self._path}: the session is closed")
        check_inputs(self.inputs, inputs)
        with self._lock:
            if self._helpers:
                self._helpers.make_way()
            try:
                self._resize({self._input_index[name]: value.shape for name, value in inputs.items()})
                for name, value in inputs.items():
                    self._interpreter.set_tensor(self._input_index[name], value)
                self._interpreter.invoke()
                return {name: self._interpreter.get_tensor(index) for name, index in self._output_index.items()}
            except (RuntimeError, ValueError) as e:
                raise ArtifactError(self._path, f"inference failed: {_one_line(str(e))}") from e

    def placement(self, inputs: Mapping[str, np.ndarray]) -> Placement:  # noqa: ARG002  decided when it was loaded
        """Operators per delegate, from the interpreter's own list of nodes.

        Raises RuntimeUnavailable when this runtime does not tell.
        """
        if self._placement is None:
            raise RuntimeUnavailable(self.runtime, "does not tell which operators a delegate took")
        return self._placement

    def operator_kinds(self) -> dict[str, int]:
        """How many operators of each kind there are; empty when this runtime does not tell."""
        describe = getattr(self._interpreter, "_get_ops_details", None)
        return dict(Counter(str(node["op_name"]) for node in describe())) if describe else {}

    def close(self) -> None:
        """Free the model. Idempotent."""
        self._interpreter = None

    def _bind(self, declared: tuple[TensorSpec, ...], axes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
        """Inputs with the sizes asked for. A file always holds a size for a dynamic axis: that one is the default."""
        stored = {
            f"{name}[{i}]": size
            for name, index in self._input_index.items()
            for i, size in enumerate(self._shapes[index])
        }
        bound = bind(self._path, declared, stored | _by_place(declared, axes))
        wanted = {self._input_index[spec.name]: spec.shape for spec in bound}
        try:
            self._resize({index: fixed for index, shape in wanted.items() if (fixed := _all_fixed(shape))})
        except (RuntimeError, ValueError) as e:
            raise ArtifactError(self._path, f"cannot take these sizes: {_one_line(str(e))}") from e
        return bound

    def _resize(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Give the inputs these shapes, when they have others (only an axis that was left open can differ)."""
        changed = {index: shape for index, shape in shapes.items() if shape != self._shapes[index]}
        if not changed:
            return
        with captured_stderr():
            for index, shape in changed.items():
                self._interpreter.resize_tensor_input(index, shape)
            self._interpreter.allocate_tensors()
        self._shapes.update(changed)

    def _sized(self, declared: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Outputs with the sizes that follow from the inputs; names stay when an input was left open."""
        if any(isinstance(axis, str) for spec in self.inputs for axis in spec.shape):
            return declared
        shapes = {detail["index"]: _shape(detail) for detail in self._interpreter.get_output_details()}
        return tuple(
            TensorSpec(name=spec.name, dtype=spec.dtype, shape=shapes[self._output_index[spec.name]])
            for spec in declared
        )

    def _quantization(self) -> dict[str, Quantization]:
        found = {}
        pairs = ((self._input_index, self._interpreter.get_input_details()),)
        for indices, details in (*pairs, (self._output_index, self._interpreter.get_output_details())):
            by_index = {detail["index"]: detail["quantization"] for detail in details}
            for name, index in indices.items():
                scale, zero_point = by_index[index]
                if scale:
                    found[name] = Quantization(scale=float(scale), zero_point=int(zero_point))
        return found


def load_library(runtime: str) -> tuple[Any, str]:
    """The interpreter module of `runtime` ("litert" or "tflite") and its version. Raises RuntimeUnavailable."""
    package, distribution = _MODULES[runtime]
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    if runtime == "tflite" and version != "unknown" and int(np.__version__.split(".")[0]) >= 2:
        raise RuntimeUnavailable(
            runtime,
            f"tflite-runtime {version} was built for numpy 1 and dies with numpy {np.__version__}; "
            "its successor ai-edge-litert does not",
            "pip install 'numpy<2'",
        )
    try:
        with captured_stderr():
            module = importlib.import_module(f"{package}.interpreter")
    except (ImportError, SystemError, AttributeError) as e:
        raise RuntimeUnavailable(runtime, f"cannot be imported: {e}", f"pip install {distribution}") from e
    return module, version


def _open(path: Path, module: Any, settings: SessionSettings, delegates: list[Any]) -> Any:
    with captured_stderr() as said:
        try:
            interpreter = module.Interpreter(
                model_path=str(path), num_threads=settings.threads, experimental_delegates=delegates or None
            )
            interpreter.allocate_tensors()
        except (RuntimeError, ValueError, OSError) as e:
            raise ArtifactError(path, _why_not_loaded(f"{e} {said()}", settings.runtime)) from e
    return interpreter


def _load_delegate(module: Any, settings: SessionSettings) -> Any:
    assert settings.delegate is not None
    with captured_stderr() as said:
        try:
            ctypes.CDLL(settings.delegate)  # load_delegate prints a traceback of its own for a missing library
            return module.load_delegate(settings.delegate, dict(settings.delegate_options))
        except (OSError, ValueError) as e:
            detail = " ".join(f"{e} {said()}".split())
            raise RuntimeUnavailable(settings.runtime, f"delegate {settings.delegate} does not load: {detail}") from e


def _signature(interpreter: Any) -> Mapping[str, Mapping[str, str]]:
    """Tensor name -> the signature's name for it, for a file with one signature; empty otherwise."""
    signatures = interpreter.get_signature_list()
    if len(signatures) != 1:
        return {}
    runner = interpreter.get_signature_runner(next(iter(signatures)))
    sides = {"inputs": runner.get_input_details(), "outputs": runner.get_output_details()}
    return {side: {detail["name"]: name for name, detail in details.items()} for side, details in sides.items()}


def _specs(details: list[dict[str, Any]], names: Mapping[str, str]) -> tuple[dict[str, int], tuple[TensorSpec, ...]]:
    """Name -> tensor index, and the declared specs; dynamic axes are named by their place."""
    chosen = unique_names([names.get(detail["name"], detail["name"]) for detail in details])
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=np.dtype(detail["dtype"]).name,
            shape=tuple(
                int(size) if size >= 0 else f"{name}[{i}]"
                for i, size in enumerate(detail.get("shape_signature", detail["shape"]))
            ),
        )
        for name, detail in zip(chosen, details, strict=True)
    )
    return {name: detail["index"] for name, detail in zip(chosen, details, strict=True)}, specs


def _by_place(specs: tuple[TensorSpec, ...], axes: Mapping[str, int]) -> dict[str, int]:
    """`axes` with keys for this file's only input when they name another one (`x[0]` of the ONNX original)."""
    if len(specs) != 1:
        return dict(axes)
    return {f"{specs[0].name}[{name.rpartition('[')[2]}" if "[" in name else name: size for name, size in axes.items()}


def _shape(detail: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in detail["shape"])


def _all_fixed(shape: tuple[Dimension, ...]) -> tuple[int, ...] | None:
    sizes = tuple(size for size in shape if isinstance(size, int))
    return sizes if len(sizes) == len(shape) else None


def _why_not_loaded(text: str, runtime: str) -> str:
    unresolved = list(dict.fromkeys(_UNRESOLVED.findall(text)))
    if _EDGE_TPU_OP in unresolved:
        return f"is compiled for an Edge TPU; {runtime} on a CPU cannot run it, only the delegate libedgetpu.so.1 can"
    if unresolved:
        return f"needs the custom operator {', '.join(unresolved)}, which {runtime} does not have"
    return f"{runtime} cannot load it: {_one_line(text)}"


def _one_line(text: str) -> str:
    """The library's message on one line, up to where it starts to repeat itself."""
    kept: list[str] = []
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        if any(sentence[:20] == before[:20] for before in kept):
            break
        kept.append(sentence)
    return " ".join(kept).strip()
