"""onnxruntime as a tool of the builder: open a model from bytes, run it, let it simplify. Errors name the purpose."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from edgekit.device.cpu import usable_cores
from edgekit.errors import ArtifactError, InputError
from edgekit.runtimes.onnx import FAILURES, one_line


def open_model(
    model: bytes | Path, purpose: Path | str, *, level: str = "ORT_ENABLE_ALL", save: Path | None = None
) -> Any:
    """A CPU session with every usable core and no spinning. Raises ArtifactError naming `purpose`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.enable_cpu_mem_arena = False  # what is open here is open briefly, beside others
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if save is not None:
        options.optimized_model_filepath = str(save)
    source = str(model) if isinstance(model, Path) else model
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except FAILURES as e:
        if save is not None and "serialization failed" in str(e):
            raise ArtifactError(save.parent, "cannot be written: the disk of the temporary folder is full") from e
        raise ArtifactError(purpose, f"onnxruntime {onnxruntime.__version__} cannot load it: {one_line(e)}") from e


def run(session: Any, outputs: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs for one feed; None means all. Raises InputError when the feed does not fit the model."""
    try:
        return list(session.run(outputs, dict(feed)))
    except FAILURES as e:
        shapes = ", ".join(f"{name} {list(value.shape)} {value.dtype}" for name, value in feed.items())
        raise InputError(shapes, f"does not fit the model: {one_line(e)}") from e


def optimized(model: onnx.ModelProto, purpose: Path | str, level: str) -> onnx.ModelProto:
    """The graph as onnxruntime would run it after its optimisations of `level`."""
    with tempfile.TemporaryDirectory(prefix="edgekit-build-") as folder:
        saved = Path(folder) / "optimized.onnx"
        open_model(model.SerializeToString(), purpose, level=level, save=saved)
        return onnx.load(str(saved))


def difference(before: np.ndarray, after: np.ndarray) -> float:
    """The largest difference, relative to the largest value where that exceeds 1; infinite for other shapes."""
    if before.shape != after.shape or not before.size:
        return float("inf") if before.shape != after.shape else 0.0
    left, right = np.asarray(before, np.float64), np.asarray(after, np.float64)
    return float(np.max(np.abs(left - right)) / max(1.0, float(np.max(np.abs(left)))))
