"""GELU by tanh, spelled out in nine operators, in six: 0.5 (1 + tanh z) is the logistic function of 2 z."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper

from edgekit.build.edit import Graph

CUBIC = 0.044715
ROOT = 0.7978845608
"""√(2/π). Source of both: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""


class _Product:
    """A tree of Mul and Pow nodes as what it multiplies: tensors with their powers, and one constant."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.factors: Counter[str] = Counter()
        self.constant = 1.0
        self.nodes: list[onnx.NodeProto] = []
        self._add(graph, name, root=True)

    def _add(self, graph: Graph, name: str, *, root: bool = False) -> None:
        value, node = graph.scalar(name), graph.producer.get(name)
        if value is not None:
            self.constant *= value
        elif node is not None and node.op_type in ("Mul", "Pow") and (root or graph.only_reader(name) is not None):
            self.nodes.append(node)
            power = graph.scalar(node.input[1]) if node.op_type == "Pow" else None
            if node.op_type == "Mul":
                self._add(graph, node.input[0])
                self._add(graph, node.input[1])
            elif power is not None and power == int(power) > 0:
                self.factors[node.input[0]] += int(power)
            else:
                self.nodes.pop()
                self.factors[name] += 1
        else:
            self.factors[name] += 1

    def is_of(self, factors: dict[str, int], constant: float) -> bool:
        return dict(self.factors) == factors and abs(self.constant - constant) < 1e-4


def shorten_tanh_gelu(graph: Graph) -> int:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))) becomes x · sigmoid(x (a x² + b)). Returns how many were rewritten.

    Exact but for float rounding. For runtimes that do not fuse the long form; OpenVINO does.
    """
    count = 0
    for name in [node.output[0] for node in graph.nodes if node.op_type == "Tanh"]:
        tanh = graph.producer[name]
        found = _inside(graph, tanh)
        if found is None:
            continue
        source, inner = found
        outer, result = _outside(graph, tanh, source)
        if outer:
            _write(graph, source, result, [*inner, tanh, *outer])
            count += 1
    return count


def _inside(graph: Graph, tanh: onnx.NodeProto) -> tuple[str, list[onnx.NodeProto]] | None:
    """x and the nodes that make √(2/π) (x + 0.044715 x³) of it, if that is what `tanh` reads."""
    scaled = _Product(graph, tanh.input[0])
    if len(scaled.factors) != 1 or abs(scaled.constant - ROOT) > 1e-4 or graph.only_reader(tanh.input[0]) is None:
        return None
    total = next(iter(scaled.factors))
    add = graph.producer.get(total)
    if add is None or add.op_type != "Add" or graph.only_reader(total) is None:
        return None
    for x, cube in (tuple(add.input), tuple(add.input)[::-1]):
        product = _Product(graph, cube)
        if product.is_of({x: 3}, CUBIC) and graph.only_reader(cube) is not None:
            return str(x), [*product.nodes, add, *scaled.nodes]
    return None


def _outside(graph: Graph, tanh: onnx.NodeProto, source: str) -> tuple[list[onnx.NodeProto], str]:
    """The nodes after `tanh` that make the GELU of `source`, and what they give; none for another function."""
    add = graph.only_reader(tanh.output[0])
    if add is None or add.op_type != "Add" or 1.0 not in [graph.scalar(name) for name in add.input]:
        return [], ""
    raised = current = add.output[0]
    while (reader := graph.only_reader(current)) is not None and reader.op_type == "Mul":
        current = reader.output[0]
        product = _Product(graph, current)
        if product.is_of({raised: 1, source: 1}, 0.5):
            return [add, *product.nodes], current
    return [], ""


def _write(graph: Graph, source: str, result: str, gone: list[onnx.NodeProto]) -> None:
    a = graph.add_constant(f"{result}.a", np.array(2 * ROOT * CUBIC, np.float32))
    b = graph.add_constant(f"{result}.b", np.array(2 * ROOT, np.float32))
    names = [f"{result}.{step}" for step in ("square", "scaled", "raised", "twice", "gate")]
    steps = [
        ("Mul", [source, source]),
        ("Mul", [names[0], a]),
        ("Add", [names[1], b]),
        ("Mul", [source, names[2]]),
        ("Sigmoid", [names[3]]),
        ("Mul", [source, names[4]]),
    ]
    made = [
        helper.make_node(kind, inputs, [output], name=output)
        for (kind, inputs), output in zip(steps, [*names, result], strict=True)
    ]
    graph.replace_nodes(gone, made)
