"""What an artifact really holds, as the runtime will run it: node kinds after optimisation, bytes of INT8 weights."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.build.graph import weights
from edgekit.errors import ArtifactError
from edgekit.runtimes.session import SessionSettings

INTEGER_KERNELS = (
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "MatMulIntegerToFloat",
    "MatMulInteger",
    "DynamicQuantizeMatMul",
    "ConvInteger",
    "QAttention",
    "DynamicQuantizeLSTM",
)
"""Kernels of onnxruntime that multiply integers."""
OPENVINO_INTEGER_KERNELS = tuple(
    f"{kind} {precision}" for kind in ("Convolution", "FullyConnected", "MatMul") for precision in ("u8", "i8")
)
"""The same of OpenVINO, by kind and precision."""


class Contents(NamedTuple):
    """Of one artifact."""

    node_counts: dict[str, int]
    "Operator kind -> count in the optimised graph, subgraphs included; in OpenVINO `kind precision` -> count."
    int8_bytes: int
    float_bytes: int

    runtime: str = "onnxruntime"

    @property
    def integer_nodes(self) -> int:
        kernels = OPENVINO_INTEGER_KERNELS if self.runtime == "openvino" else INTEGER_KERNELS
        return sum(self.node_counts.get(kind, 0) for kind in kernels)


def contents(path: Path, settings: SessionSettings | None = None) -> Contents:
    """Node kinds as the runtime of `settings` (None: onnxruntime) will run them, and the weights by type.

    Raises ArtifactError.
    """
    runtime = settings.runtime if settings else "onnxruntime"
    counts = _openvino_kinds(path, settings) if settings and runtime == "openvino" else _onnxruntime_kinds(path)
    sizes = {"int8": 0, "float": 0}
    for _, array in weights(onnx.load(str(path))):
        if array.dtype in (np.int8, np.uint8):
            sizes["int8"] += array.nbytes
        elif array.dtype.kind == "f":
            sizes["float"] += array.nbytes
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return Contents(ordered, sizes["int8"], sizes["float"], runtime)


def _onnxruntime_kinds(path: Path) -> Mapping[str, int]:
    with tempfile.TemporaryDirectory(prefix="edgekit-build-") as folder:
        saved = Path(folder) / "optimized.onnx"
        ort.open_model(path, path, save=saved)
        return Counter(_kinds(onnx.load(str(saved)).graph))


def _openvino_kinds(path: Path, settings: SessionSettings) -> Mapping[str, int]:
    from edgekit.runtimes.openvino import OpenVinoSession  # deferred: optional, and half a second

    session = OpenVinoSession(path, settings)
    try:
        return session.kernels()
    finally:
        session.close()


def _kinds(graph: onnx.GraphProto) -> list[str]:
    kinds = []
    for node in graph.node:
        kinds.append(node.op_type)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                kinds += _kinds(inner)
    return kinds


def check_int8(path: Path, found: Contents) -> None:
    """Raises ArtifactError for an "INT8" file without INT8 weights or without an integer kernel to use them."""
    if not found.int8_bytes:
        raise ArtifactError(path, "would be called INT8 but holds no INT8 weights")
    if not found.integer_nodes:
        raise ArtifactError(
            path, f"would be called INT8 but {found.runtime} finds no integer kernel for any of its nodes"
        )


def findings(found: Contents, *, size_bytes: int, standard_bytes: int) -> tuple[str, ...]:
    """What is odd about an artifact, for its record's notes."""
    notes = []
    if size_bytes > 1.01 * standard_bytes:
        notes.append(f"larger than the standard: {size_bytes} against {standard_bytes} bytes")
    if count := found.node_counts.get("ConvInteger"):
        notes.append(f"{count} dynamically quantised convolutions, which are slower than float")
    return tuple(notes)


def describe(counts: Mapping[str, int], limit: int = 8) -> str:
    """The most frequent kinds as text."""
    return ", ".join(f"{kind} {count}" for kind, count in list(counts.items())[:limit])
