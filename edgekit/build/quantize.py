"""INT8 for a target CPU: which integer types, static with calibration ranges, or dynamic for matrix products only."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.build import calibrate
from edgekit.build.bias import channel_means
from edgekit.build.edit import Graph
from edgekit.build.grids import Types
from edgekit.build.placement import Placement, place
from edgekit.build.qdq import Writer, tensors_to_observe, whatever_may_be_read
from edgekit.build.tables import quantize_tables
from edgekit.device.cpu import Cpu
from edgekit.errors import ArtifactError
from edgekit.runtimes.onnx import FAILURES

_X86_DOT = ("avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8")
_ARM_DOT = ("asimddp", "i8mm", "svei8mm")
DYNAMIC_OPS = ("MatMul", "Gemm")
"""Never Conv: a dynamically quantised convolution is several times slower than float on every CPU measured."""


class Target(NamedTuple):
    """A CPU as a quantiser sees it."""

    isa: str
    "Architecture and its INT8-relevant features, as artifact records carry it."
    types: Types
    why: str


def target_of(cpu: Cpu) -> Target:
    """The integer types that this CPU multiplies fast and without saturating.

    Source: onnxruntime's quantisation guide (U8S8 on x86 with VNNI; 7-bit weights without it, because pairs of
    products are summed in 16 bits; S8S8 on Arm).
    """
    architecture, features = cpu.architecture or "unknown", cpu.features or ()
    found = [name for name in (*_X86_DOT, *_ARM_DOT, "avx2", "asimd") if name in features]
    isa = " ".join([architecture, *found])
    if architecture in ("aarch64", "armv7l"):
        has_dot = any(name in found for name in _ARM_DOT)
        return Target(isa, Types(activation=np.int8), "int8 × int8" + ("" if has_dot else ", no dot product"))
    if architecture in ("x86_64", "i686") and not any(name in found for name in _X86_DOT):
        return Target(isa, Types(weight_bits=7), "uint8 × 7-bit int8: no VNNI, 16-bit sums would saturate")
    return Target(isa, Types(), "uint8 × int8")


class StaticInt8:
    """A clean float graph as Q/DQ pairs, one way of picking ranges at a time; placed and observed once.

    `flexible`: ranges of whatever another choice of nodes may need are observed too, for `make` with a `skip`.
    Raises ArtifactError when nothing in it can run on integers, UsageError and InputError for unfit feeds.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Sequence[calibrate.Sample],
        types: Types,
        *,
        skip: Collection[str] = (),
        flexible: bool = False,
    ) -> None:
        self._model, self._types, self._feeds = model, types, feeds
        self.skipped = tuple(skip)
        graph = Graph(model)
        self.plan = place(graph, skip)
        if not self.plan.integer:
            raise ArtifactError(model.graph.name or "model", "no node of it can run on integers")
        observed = whatever_may_be_read(graph, place(graph)) if flexible else tensors_to_observe(graph, self.plan)
        self._calibration = calibrate.Calibration(model, observed, feeds)
        self._means: dict[str, np.ndarray] | None = None

    def place(self, skip: Collection[str]) -> Placement:
        """The roles of the nodes when those of `skip` stay in float."""
        return place(Graph(self._model), skip)

    def make(
        self,
        method: str = "minmax",
        progress: Callable[[float], None] | None = None,
        *,
        skip: Collection[str] | None = None,
        corrected: bool = False,
    ) -> onnx.ModelProto:
        """The INT8 model with ranges picked by `method`.

        Args:
            skip: other nodes to leave in float than those the placement was made with.
            corrected: biases make up for what rounding the weights shifts on average.
        """
        found = self._calibration.ranges(method, progress)
        plan = self.plan if skip is None else self.place(skip)
        if corrected and self._means is None:
            self._means = channel_means(self._model, self._feeds)
        copy = onnx.ModelProto.FromString(self._model.SerializeToString())
        Writer(Graph(copy), plan, found, self._types, self._means if corrected else None).write()
        quantize_tables(copy)
        return copy


def matmul_share(model: onnx.ModelProto) -> float:
    """Share of the weights of all computing nodes that sits in matrix products, 0..1."""
    graph = Graph(model)
    sizes = {"matmul": 0, "other": 0}
    for node in graph.nodes:
        if len(node.input) < 2 or node.op_type not in (*DYNAMIC_OPS, "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"):
            continue
        weight = graph.constant(node.input[1])
        if weight is not None:
            sizes["matmul" if node.op_type in DYNAMIC_OPS else "other"] += weight.size
    total = sum(sizes.values())
    return sizes["matmul"] / total if total else 0.0


def dynamic_int8(model: onnx.ModelProto, types: Types, ops: Sequence[str] = DYNAMIC_OPS) -> onnx.ModelProto:
    """INT8 weights in `ops` and in embedding tables, activations at run time.

    Needs no calibration. Raises ArtifactError.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic  # deferred: 0.3 s

    with tempfile.TemporaryDirectory(prefix="edgekit-build-") as folder:
        source, result = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, str(source))
        disabled, logging.root.disabled = logging.root.disabled, True  # it advises on steps already taken here
        try:
            quantize_dynamic(
                source,
                result,
                op_types_to_quantize=list(ops),
                per_channel=types.per_channel,
                reduce_range=types.weight_bits < 8,
                weight_type=QuantType.QInt8,
            )
        except FAILURES as e:
            text = " ".join(str(e).split())[:200]
            raise ArtifactError(model.graph.name or "model", f"dynamic INT8 of {', '.join(ops)} fails: {text}") from e
        finally:
            logging.root.disabled = disabled
        made = onnx.load(str(result))
    quantize_tables(made)
    return made
