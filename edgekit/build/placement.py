"""Which nodes of a float graph run on integers, and why the others do not. Decides only; `qdq` writes the graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx

from edgekit.build.affine import read_affine
from edgekit.build.edit import Graph, attribute

COMPUTE = ("Conv", "Gemm", "MatMul")
"""Where integer arithmetic pays for itself."""
SAME_SCALE = ("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Resize", "DepthToSpace")
"""Move values without changing them: input and output share scale and zero point."""
OWN_SCALE = ("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid")
"""Have an integer kernel with a scale of their own for the output."""

EXCLUDED = "does not pay in INT8"
"""Why a node that the caller asked to skip stays in float."""


@dataclass
class Placement:
    """The roles of the nodes, each node named by its first output."""

    integer: set[str] = field(default_factory=set)
    absorbed: set[str] = field(default_factory=set)
    "Relu and Clip that saturation carries out."
    gates: set[str] = field(default_factory=set)
    "HardSigmoid: clipping is saturation, scale and shift are a second reading of the same integers."
    shifts: dict[str, float] = field(default_factory=dict)
    "Add of one constant: a second reading with another zero point."
    floats: dict[str, str] = field(default_factory=dict)
    "Nodes that stay in float -> why."

    def keeps_float(self, node: onnx.NodeProto, reason: str) -> None:
        """Leave `node` in float, for one reason in words."""
        self.floats[node.output[0]] = reason


def place(graph: Graph, skip: Collection[str] = ()) -> Placement:
    """Roles of every node. `skip` names nodes that must stay in float."""
    plan, captured = Placement(), graph.captured()
    for node in graph.nodes:
        name = node.output[0] if node.output else ""
        if name in skip:
            plan.keeps_float(node, EXCLUDED)
        elif name in captured:  # onnxruntime 1.32 aborts when it duplicates a DequantizeLinear that a subgraph reads
            plan.keeps_float(node, "read inside If or Loop")
        elif node.op_type in COMPUTE:
            why = _why_not_compute(graph, node)
            plan.keeps_float(node, why) if why else plan.integer.add(name)
        else:
            _place_follower(graph, node, plan)
    _trim(graph, plan)
    return plan


def _why_not_compute(graph: Graph, node: onnx.NodeProto) -> str | None:
    weight = graph.constant(node.input[1])
    if weight is None:
        return "both operands are computed"
    if weight.dtype != np.float32 or graph.is_constant(node.input[0]):
        return "not float32"
    if len(node.input) > 2 and node.input[2]:
        bias = graph.constant(node.input[2])
        if bias is None:
            return "the bias is computed"
        if bias.size != weight.shape[output_axis(node)]:
            return "one bias for several channels"
    if node.op_type == "MatMul" and weight.ndim != 2:
        return "batched weights"
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0 and not attribute(node, "transA", 0)
    return None if node.op_type != "Gemm" or plain else "scaled or transposed Gemm"


def output_axis(node: onnx.NodeProto) -> int:
    """The axis of the weights along which a computing node's output channels lie."""
    if node.op_type == "Conv":
        return 0
    return 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1


def _place_follower(graph: Graph, node: onnx.NodeProto, plan: Placement) -> None:
    """Roles of what lies between the nodes that compute: integer when everything it reads is."""
    name = node.output[0] if node.output else ""
    inputs = [i for i in node.input if i and not graph.is_constant(i)]
    known = plan.integer | plan.absorbed | plan.gates | plan.shifts.keys()
    if not inputs or any(i not in known for i in inputs):
        plan.keeps_float(node, "reads float")
    elif node.op_type in ("Relu", "Clip") and _is_absorbable(graph, node, plan):
        plan.absorbed.add(name)
    elif node.op_type == "HardSigmoid":
        plan.gates.add(name)
    elif (shift := _constant_shift(graph, node)) is not None and _can_reread(graph, inputs[0], plan):
        plan.shifts[name] = shift
    elif _has_integer_kernel(graph, node, len(inputs)):
        plan.integer.add(name)
    else:
        plan.keeps_float(node, "no integer kernel")


def _is_absorbable(graph: Graph, node: onnx.NodeProto, plan: Placement) -> bool:
    source = node.input[0]
    bounded = node.op_type == "Relu" or (len(node.input) > 1 and graph.scalar(node.input[1]) is not None)
    made = graph.producer[source].op_type
    return bounded and source in plan.integer and made not in SAME_SCALE and graph.only_reader(source) is not None


def _constant_shift(graph: Graph, node: onnx.NodeProto) -> float | None:
    affine = read_affine(graph, node) if node.op_type in ("Add", "Sub") else None
    return float(affine.shift[0]) if affine is not None and affine.shift.size == 1 else None


def _can_reread(graph: Graph, source: str, plan: Placement) -> bool:
    """Only a tensor that is made by an integer node and read nowhere else can be read with another zero point."""
    made = graph.producer[source]
    return source in plan.integer and made.op_type not in SAME_SCALE and graph.only_reader(source) is not None


def _has_integer_kernel(graph: Graph, node: onnx.NodeProto, computed: int) -> bool:
    """Whether onnxruntime computes `node` on integers, `computed` of its inputs not being constants."""
    if node.op_type in ("Add", "Mul"):
        return computed == 2 or any(graph.scalar(i) is not None for i in node.input)
    if node.op_type == "Concat":
        return computed == len(node.input)
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") == b"nearest")
    return node.op_type in (*OWN_SCALE, *SAME_SCALE)


def _trim(graph: Graph, plan: Placement) -> None:
    """Back to float, from the end: what no integer node reads, since it would only be converted back."""
    for node in reversed(graph.nodes):
        name = node.output[0] if node.output else ""
        followers = (plan.integer, plan.absorbed, plan.gates, plan.shifts)
        if node.op_type in COMPUTE or not any(name in role for role in followers):
            continue
        readers = {reader.output[0] for reader in graph.consumers.get(name, [])}
        if any(readers & set(role) for role in followers):
            continue
        if name in plan.absorbed:
            continue
        plan.integer.discard(name)
        plan.gates.discard(name)
        plan.shifts.pop(name, None)
        plan.keeps_float(node, "read by float only")
