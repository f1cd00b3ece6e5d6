"""What one layer multiplies, as the untouched graph and the graph pruned so far make it, as second moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.build.edit import Graph, attribute
from edgekit.build.prune_pattern import Layer
from edgekit.build.prune_solve import Moments

MOST_ROWS = 512
"""Places of one sample that are looked at, evenly taken: neighbouring pixels say much the same."""
AT_ONCE = 4096
"""Rows that are multiplied at once."""
Feed = Mapping[str, np.ndarray]


class Watched:
    """A float model that computes one inner tensor and nothing behind it."""

    def __init__(self, model: onnx.ModelProto, tensor: str) -> None:
        watched = onnx.ModelProto()
        watched.CopyFrom(model)
        self._is_input = tensor in {value.name for value in model.graph.input}
        self._tensor = tensor
        del watched.graph.output[:]
        watched.graph.output.append(onnx.ValueInfoProto(name=tensor))
        self._session: Any = None if self._is_input else ort.open_model(watched.SerializeToString(), "pruning")

    def __call__(self, feed: Feed) -> np.ndarray:
        return feed[self._tensor] if self._is_input else ort.run(self._session, [self._tensor], feed)[0]


def moments_of(before: onnx.ModelProto, now: onnx.ModelProto, layer: Layer, feeds: Sequence[Feed]) -> Moments:
    """Moments of the inputs of `layer` over `feeds`, one sample in memory at a time; float64."""
    source = _before_pooling(Graph(before), layer)
    node = Graph(before).producer[layer.name]
    plain = source != layer.source
    old, new = Watched(before, source), Watched(now, source)
    size = layer.channels if plain or layer.kind != "Conv" else layer.channels * _pixels(before, node)
    sums = _Sums(size)
    for feed in feeds:
        sums.add(_rows(old(feed), node, plain), _rows(new(feed), node, plain) if now is not before else None)
    return sums.moments(centred=layer.bias is not None)  # without a bias the means are part of what must be fitted


class _Sums:
    """Second moments added up; rows are collected first, since one large product costs less than many small ones."""

    def __init__(self, size: int) -> None:
        self.gram, self.cross, self.own = (np.zeros((size, size)) for _ in range(3))
        self.now, self.before, self.rows = np.zeros(size), np.zeros(size), 0
        self._waiting: list[tuple[np.ndarray, np.ndarray | None]] = []

    def add(self, before: np.ndarray, now: np.ndarray | None) -> None:
        """`now` None: the same as before."""
        self._waiting.append((before, now))
        if sum(len(rows) for rows, _ in self._waiting) >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        a = np.concatenate([before for before, _ in self._waiting])
        b = np.concatenate([before if now is None else now for before, now in self._waiting])
        is_same = self._waiting[0][1] is None
        self._waiting = []
        gram = b.T @ b
        self.gram += gram
        self.cross += gram if is_same else a.T @ b
        self.own += gram if is_same else a.T @ a
        self.before += a.sum(axis=0, dtype=np.float64)
        self.now += b.sum(axis=0, dtype=np.float64)
        self.rows += len(a)

    def moments(self, *, centred: bool) -> Moments:
        self._flush()
        gram, cross, own = self.gram / self.rows, self.cross / self.rows, self.own / self.rows
        if not centred:
            return Moments(gram, cross, own, np.zeros(len(gram)), np.zeros(len(gram)))
        now, before = self.now / self.rows, self.before / self.rows
        gram -= np.outer(now, now)
        cross -= np.outer(before, now)
        own -= np.outer(before, before)
        return Moments(gram, cross, own, now, before)


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


def _rows(values: np.ndarray, node: onnx.NodeProto, plain: bool) -> np.ndarray:
    if plain:  # in front of a global average: every pixel is one row
        return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    if node.op_type == "Conv":
        return columns(values, node)
    flat = values.reshape(-1, values.shape[-1])
    return flat[:: max(1, len(flat) // MOST_ROWS)]


def _pixels(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    weight = Graph(model).constant(node.input[1])
    assert weight is not None
    return int(np.prod(weight.shape[2:]))


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
