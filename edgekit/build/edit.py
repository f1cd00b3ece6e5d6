"""A graph under the knife: who makes a tensor, who reads it, what is constant. Knows nothing of any optimisation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


class Graph:
    """An `onnx.ModelProto` with its wiring indexed. Edits go through it; call `rewire` after changing nodes by hand."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.rewire()

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        nodes: Sequence[onnx.NodeProto] = self.model.graph.node
        return nodes

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), 1)

    def rewire(self) -> None:
        """Index producers, consumers and constants anew."""
        graph = self.model.graph
        self.producer = {name: node for node in graph.node for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in names_read(node):
                self.consumers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}

    def is_constant(self, name: str) -> bool:
        return name in self._tensors

    def constant(self, name: str) -> np.ndarray | None:
        """The initialiser called `name`, or None when `name` is computed. Read-only."""
        if name not in self._tensors:
            return None
        if name not in self._arrays:
            self._arrays[name] = numpy_helper.to_array(self._tensors[name])
        return self._arrays[name]

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element, else None."""
        array = self.constant(name) if name else None
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads `name`, or None when there are several or `name` is an output of the model."""
        readers = self.consumers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def add_constant(self, name: str, array: np.ndarray) -> str:
        """Store `array` as an initialiser under a name not yet taken, and return that name."""
        unique, count = name, 0
        while unique in self._tensors or unique in self.producer:
            count += 1
            unique = f"{name}_{count}"
        tensor = self.model.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(array.copy(order="C"), unique))
        self._tensors[unique] = tensor
        return unique

    def share_constant(self, name: str, array: np.ndarray) -> str:
        """As `add_constant`, but an equal array stored this way before is named instead: fewer load faster."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.add_constant(name, array)
        return self._shared[key]

    def redirect(self, old: str, new: str) -> None:
        """Let every reader of `old` read `new` instead. `old` must not be an output of the model."""
        for node in self.nodes:
            rename_reads(node, {old: new})

    def replace_nodes(self, drop: Iterable[onnx.NodeProto], add: Iterable[onnx.NodeProto]) -> None:
        """Remove and add nodes, keep the order topological, and rewire.

        Nodes are copied: one held from before is stale afterwards, so look it up again by the tensor it makes.
        """
        gone = {node.output[0] for node in drop}
        kept = [node for node in self.nodes if node.output[0] not in gone] + list(add)
        fresh = [onnx.NodeProto.FromString(node.SerializeToString()) for node in topological(kept, self._given())]
        del self.model.graph.node[:]
        self.model.graph.node.extend(fresh)
        self.rewire()

    def drop_unread_constants(self) -> None:
        """Forget initialisers that no node reads any more."""
        graph = self.model.graph
        read = {name for node in graph.node for name in names_read(node)} | {value.name for value in graph.output}
        kept = [tensor for tensor in graph.initializer if tensor.name in read]
        if len(kept) != len(graph.initializer):
            copies = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
            del graph.initializer[:]
            graph.initializer.extend(copies)

    def captured(self) -> set[str]:
        """Tensors of this graph that subgraphs (If, Loop, Scan) read."""
        return {name for node in self.nodes for name in set(names_read(node)) - set(node.input)}

    def _given(self) -> set[str]:
        graph = self.model.graph
        given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
        return given | {tensor.values.name for tensor in graph.sparse_initializer}


def names_read(node: onnx.NodeProto) -> list[str]:
    """Every tensor that `node` reads, those that its subgraphs (If, Loop) capture included."""
    names = [name for name in node.input if name]
    for inner in _inside(node):
        for child in inner.node:
            names += names_read(child)
        names += [value.name for value in inner.output]
    return names


def _inside(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node. By type: to ask every attribute for its graph costs more than all else here."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def topological(nodes: Sequence[onnx.NodeProto], given: set[str]) -> Iterator[onnx.NodeProto]:
    """`nodes` so that each comes after what it reads; otherwise in the given order."""
    made = {name for node in nodes for name in node.output}
    ready, waiting = set(given), list(nodes)
    while waiting:
        later = []
        for node in waiting:
            if all(name in ready or name not in made for name in names_read(node)):
                ready.update(node.output)
                yield node
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise ValueError(f"the graph has a cycle at '{later[0].output[0]}'")
        waiting = later


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let `node`, and what its subgraphs capture, read other tensors: old name -> new name."""
    for position, name in enumerate(node.input):
        if name in names:
            node.input[position] = names[name]
    for inner in _inside(node):
        own = {name for child in inner.node for name in child.output} | {value.name for value in inner.input}
        captured = {old: new for old, new in names.items() if old not in own}
        for child in inner.node:
            rename_reads(child, captured)
        for value in inner.output:
            value.name = captured.get(value.name, value.name)


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The attribute's Python value, or `default`."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def set_input(node: onnx.NodeProto, position: int, name: str) -> None:
    """Set an input, padding optional ones before it with empty names."""
    while len(node.input) <= position:
        node.input.append("")
    node.input[position] = name
