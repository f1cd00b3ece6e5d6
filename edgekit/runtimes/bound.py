"""Inputs and outputs at addresses that stay: what a captured CUDA graph reads from and writes to at every replay.

With graphs captured, onnxruntime replays without looking at the tensors of a plain `run`: the answer would be that to
the first inputs, for ever. Source: onnxruntime, CUDA execution provider, "Using CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgekit.errors import RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes.session import SessionSettings

CAPTURES: Mapping[str, str] = {
    "CUDAExecutionProvider": "enable_cuda_graph",
    "TensorrtExecutionProvider": "trt_cuda_graph_enable",
}
"""Provider -> the option that has it capture a graph."""


def capturing_device(settings: SessionSettings) -> int | None:
    """The number of the device on which graphs are captured; None: none are."""
    for name, options in settings.providers:
        if str(options.get(CAPTURES.get(name, ""), "0")).lower() in ("1", "true"):
            return int(options.get("device_id", 0))
    return None


class BoundRun:
    """`run` copies the inputs to where they are bound, and the outputs from there. For one thread at a time."""

    def __init__(
        self,
        path: Path,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        device: str = "cuda",
        device_id: int = 0,
    ) -> None:
        """`device` in onnxruntime's words. Raises RuntimeUnavailable for a shape that is not fixed."""
        self._session, self._binding = session, session.io_binding()
        self._inputs, self._outputs = (
            {spec.name: _reserve(path, spec, device, device_id) for spec in specs} for specs in (inputs, outputs)
        )
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in order, each the caller's own. Raises what onnxruntime raises."""
        for name, value in inputs.items():
            self._inputs[name].update_inplace(np.ascontiguousarray(value))
        self._session.run_with_iobinding(self._binding)
        return [np.array(value.numpy()) for value in self._outputs.values()]


def _reserve(path: Path, spec: TensorSpec, device: str, device_id: int) -> Any:
    if not all(isinstance(size, int) for size in spec.shape):
        problem = f"{path.name}: a captured graph has fixed shapes, {spec.name} is {list(spec.shape)}; give its axes"
        raise RuntimeUnavailable("onnxruntime", problem)
    return ort.OrtValue.ortvalue_from_shape_and_type(list(spec.shape), np.dtype(spec.dtype), device, device_id)
