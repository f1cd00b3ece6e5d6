"""An ONNX model in OpenVINO: the same session as in onnxruntime, compiled for one device."""

from __future__ import annotations

import importlib.metadata
import io
import logging
import re
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes import openvino_cache
from edgekit.runtimes.axes import bind
from edgekit.runtimes.onnx_header import read_header
from edgekit.runtimes.quiet import captured_stderr
from edgekit.runtimes.session import Placement, Quantization, SessionSettings, check_inputs

try:
    import openvino
except ImportError as e:
    raise RuntimeUnavailable("openvino", f"cannot be imported: {e}", "pip install openvino") from e

logger = logging.getLogger(__name__)

_PRECISION = "INFERENCE_PRECISION_HINT"
_UNCONVERTED = re.compile(r"Conversion is failed for: (.*)")
_NOT_WORK = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})


class OpenVinoSession:
    """A compiled model. Calls from several threads wait for each other: an infer request holds its tensors."""

    runtime = "openvino"

    def __init__(self, path: Path, settings: SessionSettings) -> None:
        self._path, self._lock = path, threading.Lock()
        self._device = settings.delegate or "CPU"
        self.runtime_version: str = importlib.metadata.version("openvino")
        core = openvino.Core()
        _check_device(core, self._device)
        header = read_header(path)
        self.inputs: tuple[TensorSpec, ...] = bind(path, header.inputs, settings.axes)
        self._model: Any = _compile(core, path, self.inputs, settings)
        _check_precision(self._model, settings.session_options.get(_PRECISION))
        self._request: Any = self._model.create_infer_request()
        # a port may carry the names of tensors that were fused into it; the file's own name is the one to answer to
        names = [spec.name for spec in header.outputs]
        self.outputs: tuple[TensorSpec, ...] = tuple(map(_spec, self._model.outputs, names))
        self.quantization: Mapping[str, Quantization] = {}
        self.metadata: Mapping[str, str] = {}
        self.active_providers: tuple[str, ...] = tuple(self._model.get_property("EXECUTION_DEVICES"))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference; outputs are copies. Raises InputError, ArtifactError (the model fails on these values)."""
        if self._request is None:
            raise RuntimeError(f"{self._path}: the session is closed")
        check_inputs(self.inputs, inputs)
        with self._lock:
            try:
                results = self._request.infer(dict(inputs), share_inputs=True)
            except RuntimeError as e:
                raise ArtifactError(self._path, f"inference failed: {_one_line(e)}") from e
            return {spec.name: np.array(results[i]) for i, spec in enumerate(self.outputs)}

    def placement(self, inputs: Mapping[str, np.ndarray]) -> Placement:  # noqa: ARG002  decided when it was compiled
        """Operators after fusion; the whole model is compiled for one device or not at all."""
        count = sum(self.kernels().values())
        return Placement(ops_by_provider={self._device: count}, partitions=1, asked_for=(self._device,))

    def kernels(self) -> dict[str, int]:
        """What the model was compiled to, as `kind precision` -> count: "Convolution u8" multiplies integers."""
        infos = [op.get_rt_info() for op in self._model.get_runtime_model().get_ops()]
        kinds = [(str(info["layerType"].astype(str)), str(info["runtimePrecision"].astype(str))) for info in infos]
        return dict(Counter(f"{kind} {precision}" for kind, precision in kinds if kind not in _NOT_WORK))

    def profiled_run(self, inputs: Mapping[str, np.ndarray]) -> list[tuple[str, str, float]]:
        """One inference of a session opened with PERF_COUNT: type, kernel and milliseconds of each node that ran."""
        self.run(inputs)
        return [
            (node.node_type, node.exec_type, node.real_time.total_seconds() * 1000)
            for node in self._request.get_profiling_info()
            if node.status == node.Status.EXECUTED
        ]

    @property
    def path(self) -> Path:
        """The file it was opened from."""
        return self._path

    @property
    def model(self) -> Any:
        """The compiled model, OpenVINO's own."""
        return self._model

    def close(self) -> None:
        """Free the model. Idempotent."""
        self._request = self._model = None


def devices() -> tuple[str, ...]:
    """The devices that OpenVINO finds, by its own names."""
    return tuple(openvino.Core().available_devices)


def _check_device(core: Any, device: str) -> None:
    devices = core.available_devices
    if device.split(".")[0] not in {name.split(".")[0] for name in devices}:
        raise RuntimeUnavailable("openvino", f"device {device} is not there; it finds {', '.join(devices) or 'none'}")


def _check_precision(model: Any, asked: object) -> None:
    """A hint that the hardware cannot follow is dropped without a word: half the precision asked for must be real."""
    used = model.get_property(_PRECISION).to_string()
    if asked is not None and str(asked) != used:
        raise RuntimeUnavailable("openvino", f"{_PRECISION} {asked} was asked for, but here it computes in {used}")


def compile_options(settings: SessionSettings) -> dict[str, object]:
    """What OpenVINO is told beside the model and the device."""
    options: dict[str, object] = {
        "INFERENCE_NUM_THREADS": settings.threads,
        "PERFORMANCE_HINT": "LATENCY",
        # else a CPU with bf16 computes a float32 model in bf16, and the artifact is not what its record says
        _PRECISION: "f32",
        **settings.session_options,
    }
    if settings.delegate not in (None, "CPU"):
        del options["INFERENCE_NUM_THREADS"]
    return options


def _compile(core: Any, path: Path, inputs: tuple[TensorSpec, ...], settings: SessionSettings) -> Any:
    options, device = compile_options(settings), settings.delegate or "CPU"
    with captured_stderr():
        if openvino_cache.any_beside(path):
            where = openvino_cache.place(path, inputs, device, options, importlib.metadata.version("openvino"))
            compiled = openvino_cache.load(where)
            if compiled is not None:
                try:
                    return core.import_model(compiled, device, options)
                except RuntimeError as e:
                    logger.warning("%s is not taken by openvino, which compiles anew: %s", where, _one_line(e))
        try:
            model = core.read_model(str(path))
            shapes = {spec.name: [size if isinstance(size, int) else -1 for size in spec.shape] for spec in inputs}
            model.reshape(shapes)
            return core.compile_model(model, device, options)
        except RuntimeError as e:
            raise ArtifactError(path, f"openvino cannot load it: {_one_line(e)}") from e


def compiled_form(session: OpenVinoSession) -> bytes:
    """An open session's model as bytes that `import_model` takes. Raises ArtifactError: it cannot be exported."""
    try:
        stream = io.BytesIO()
        session.model.export_model(stream)
        return stream.getvalue()
    except RuntimeError as e:
        raise ArtifactError(session.path, f"openvino cannot export it: {_one_line(e)}") from e


def _spec(port: Any, name: str) -> TensorSpec:
    shape = tuple(f"{name}[{i}]" if size.is_dynamic else size.get_length() for i, size in enumerate(port.partial_shape))
    return TensorSpec(name=name, dtype=np.dtype(port.element_type.to_dtype()).name, shape=shape)


def _one_line(error: BaseException) -> str:
    """OpenVINO's message without its own source places, on one line."""
    if failed := _UNCONVERTED.search(str(error)):
        return f"it has no way to carry out {failed[1].strip()}"
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("Exception from", "Check '", "FrontEnd API"))]
    text = " ".join(kept) or " ".join(lines)
    return text if len(text) <= 300 else text[:299] + "…"
