"""What the layers of a graph multiply, seen on real samples: their second moments, and values where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.build.edit import Graph, attribute, names_read
from edgekit.build.prune_pattern import Layer
from edgekit.build.prune_solve import Moments

MOST_ROWS = 512
"""Places of one sample that are looked at, evenly taken: neighbouring pixels say much the same."""
AT_ONCE = 4096
"""Rows that are multiplied at once."""
Feed = Mapping[str, np.ndarray]


class Watched:
    """A float model that computes some inner tensors and nothing behind them."""

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str]) -> None:
        given = {value.name for value in model.graph.input}
        self._tensors, self._inner = list(tensors), [name for name in tensors if name not in given]
        self._session: Any = None
        if self._inner:
            self._session = ort.open_model(up_to(model, self._inner).SerializeToString(), "pruning")

    def __call__(self, feed: Feed) -> dict[str, np.ndarray]:
        """Tensor -> its value."""
        inner = ort.run(self._session, self._inner, feed) if self._inner else []
        return {name: feed[name] for name in self._tensors if name in feed} | dict(zip(self._inner, inner, strict=True))


def up_to(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """The part of `model` that makes `tensors`, which become its outputs."""
    graph, wanted, needed = Graph(model), list(tensors), set[str]()
    while wanted:
        node = graph.producer.get(wanted.pop())
        if node is not None and node.output[0] not in needed:
            needed.add(node.output[0])
            wanted += names_read(node)
    nodes = [node for node in graph.nodes if node.output[0] in needed]
    read = {name for node in nodes for name in names_read(node)}
    part = onnx.helper.make_graph(
        nodes,
        "part",
        model.graph.input,
        [onnx.ValueInfoProto(name=name) for name in tensors],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
    )
    made: onnx.ModelProto = onnx.helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    return made


def moments_of(model: onnx.ModelProto, chosen: Sequence[Layer], feeds: Sequence[Feed]) -> Iterator[Moments]:
    """Moments of the inputs of each of `chosen`, in order; one pass over `feeds`, one sample in memory at a time."""
    graph = Graph(model)
    looks = {(layer.source, layer.bias is None): _Look(graph, layer) for layer in chosen}
    watched = Watched(model, list(dict.fromkeys(look.source for look in looks.values())))
    for feed in feeds:
        values = watched(feed)
        for look in looks.values():
            look.add(values[look.source])
    for layer in chosen:
        yield looks[layer.source, layer.bias is None].moments()


class _Look:
    """Where the inputs of one layer are looked at, and what has been seen there."""

    def __init__(self, graph: Graph, layer: Layer) -> None:
        self.source = _before_pooling(graph, layer)
        self._node, self._plain = graph.producer[layer.name], self.source != layer.source
        weight = graph.constant(self._node.input[1])
        assert weight is not None
        pixels = int(np.prod(weight.shape[2:])) if layer.kind == "Conv" else 1
        self._sums, self._centred = _Sums(layer.channels * pixels), layer.bias is not None

    def add(self, values: np.ndarray) -> None:
        self._sums.add(self._rows(values))

    def moments(self) -> Moments:
        """Without a bias the means are part of what must be fitted."""
        return self._sums.moments(centred=self._centred)

    def _rows(self, values: np.ndarray) -> np.ndarray:
        if self._plain:  # in front of a global average: every pixel is one row
            return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
        if self._node.op_type == "Conv":
            return columns(values, self._node)
        flat = values.reshape(-1, values.shape[-1])
        return flat[:: max(1, len(flat) // MOST_ROWS)]


class _Sums:
    """Second moments added up; rows are collected first, since one large product costs less than many small ones."""

    def __init__(self, size: int) -> None:
        self.gram, self.sum, self.count = np.zeros((size, size)), np.zeros(size), 0
        self._waiting: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows = np.concatenate(self._waiting)
            self._waiting = []
            self.gram += rows.T @ rows
            self.sum += rows.sum(axis=0, dtype=np.float64)
            self.count += len(rows)

    def moments(self, *, centred: bool) -> Moments:
        self._flush()
        gram, mean = self.gram / max(self.count, 1), self.sum / max(self.count, 1)
        return Moments(gram - np.outer(mean, mean), mean) if centred else Moments(gram, np.zeros(len(gram)))


def columns(values: np.ndarray, node: onnx.NodeProto) -> np.ndarray:
    """What a convolution multiplies: (places, pixels of the kernel × input channels), at most `MOST_ROWS` places.

    `values`: (N, C, H, W) or (N, C, L); the order of the columns is that of `prune_pattern.matrix`.
    """
    spatial = values.ndim - 2
    kernel = [int(k) for k in attribute(node, "kernel_shape")]
    steps = [int(s) for s in attribute(node, "strides", [1] * spatial)]
    gaps = [int(d) for d in attribute(node, "dilations", [1] * spatial)]
    pads = _pads(node, values.shape[2:], kernel, steps, gaps)
    padded = np.pad(values, [(0, 0), (0, 0), *pads])
    wide = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(padded, wide, axis=tuple(range(2, 2 + spatial)))
    places = int(np.prod([-(-n // s) for n, s in zip(seen.shape[2 : 2 + spatial], steps, strict=True)])) * len(values)
    thin = max(1, round((places / MOST_ROWS) ** (1 / spatial)))
    every, apart = [slice(None, None, s * thin) for s in steps], [slice(None, None, d) for d in gaps]
    seen = seen[(slice(None), slice(None), *every, *apart)]
    return np.moveaxis(seen, 1, -1).reshape(-1, int(np.prod(kernel)) * values.shape[1])


def _pads(
    node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and after each spatial axis, as ONNX spells it."""
    kind = attribute(node, "auto_pad", b"NOTSET")
    if kind in (b"SAME_UPPER", b"SAME_LOWER"):
        found = []
        for size, k, s, d in zip(sizes, kernel, steps, gaps, strict=True):
            whole = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = whole // 2, whole - whole // 2
            found.append((small, large) if kind == b"SAME_UPPER" else (large, small))
        return found
    flat = [int(p) for p in attribute(node, "pads", [0] * 2 * len(sizes))]
    return list(zip(flat[: len(sizes)], flat[len(sizes) :], strict=True))


def _before_pooling(graph: Graph, layer: Layer) -> str:
    """Where to look: behind a global average there is one row a sample, in front of it there are as many as pixels.

    Averaging and multiplying may change places, so the layer's fit to the pixels is a fit to their average too.
    """
    name = layer.source
    for _ in range(3):
        node = graph.producer.get(name)
        if node is None or layer.kind == "Conv":
            return layer.source
        if node.op_type == "GlobalAveragePool":
            return str(node.input[0])
        if node.op_type not in ("Flatten", "Reshape", "Squeeze"):
            return layer.source
        name = node.input[0]
    return layer.source
