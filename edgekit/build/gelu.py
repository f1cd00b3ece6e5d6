"""Spelled-out GELU in the one spelling that runtimes recognise and fuse. Exact but for float rounding."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from edgekit.build.edit import Graph

_ROOT = math.sqrt(2.0)


def restore_gelu(graph: Graph) -> int:
    """0.5 x (1 + erf(x / √2)) with 0.5 multiplied in elsewhere, or √2 as a factor, becomes ((x / √2, Erf) + 1) x 0.5.

    Source: onnxruntime's GeluFusion and OpenVINO's, which both look for that order. Returns how many were rewritten.
    """
    count = 0
    for name in [node.output[0] for node in graph.nodes if node.op_type == "Erf"]:
        erf = graph.producer[name]
        source, divisor = _scaled(graph, erf.input[0])
        if source is None or divisor is None or abs(divisor - _ROOT) > 1e-4:
            continue
        gone, result = _rest(graph, erf, source)
        if not gone:
            continue
        half = graph.add_constant(f"{result}.half", np.array([0.5], np.float32))
        one = graph.add_constant(f"{result}.one", np.ones(1, np.float32))
        root = graph.add_constant(f"{result}.root", np.array([_ROOT], np.float32))
        names = [f"{result}.{step}" for step in ("scaled", "erf", "raised", "gated")]
        steps = [
            ("Div", [source, root]),
            ("Erf", [names[0]]),
            ("Add", [names[1], one]),
            ("Mul", [source, names[2]]),
            ("Mul", [names[3], half]),
        ]
        made = [
            helper.make_node(kind, inputs, [output], name=output)
            for (kind, inputs), output in zip(steps, [*names, result], strict=True)
        ]
        graph.replace_nodes([graph.producer[erf.input[0]], erf, *gone], made)
        count += 1
    return count


def _rest(graph: Graph, erf: onnx.NodeProto, source: str) -> tuple[list[onnx.NodeProto], str]:
    """The nodes after `erf` that make a GELU of `source`, and what they give; none for another function.

    Also none when it is spelled as it should be.
    """
    none: tuple[list[onnx.NodeProto], str] = ([], "")
    if graph.only_reader(erf.input[0]) is None:
        return none
    add = graph.only_reader(erf.output[0])
    if add is None or add.op_type != "Add" or 1.0 not in [graph.scalar(name) for name in add.input]:
        return none
    product = graph.only_reader(add.output[0])
    if product is None or product.op_type != "Mul":
        return none
    other = next(name for name in product.input if name != add.output[0])
    halved, factor = _scaled(graph, other)
    if halved == source and factor == 2.0 and graph.only_reader(other) is not None:
        return [add, product, graph.producer[other]], product.output[0]
    last = graph.only_reader(product.output[0])
    canonical = graph.producer[erf.input[0]].op_type == "Div"
    if other != source or last is None or canonical or _scaled(graph, last.output[0]) != (product.output[0], 2.0):
        return none
    return [add, product, last], last.output[0]


def _scaled(graph: Graph, name: str) -> tuple[str | None, float | None]:
    """(x, d) when `name` is x / d by one constant, else (None, None)."""
    node = graph.producer.get(name)
    if node is None or node.op_type not in ("Mul", "Div"):
        return None, None
    left, right = node.input
    scalars = graph.scalar(left), graph.scalar(right)
    if node.op_type == "Div":
        return (left, scalars[1]) if scalars[1] else (None, None)
    for value, other in ((scalars[0], right), (scalars[1], left)):
        if value:
            return other, 1 / value
    return None, None
