"""Bias correction: what rounding the weights shifts on average, known from the mean of what they multiply.

Source of the method: Nagel et al., Data-Free Quantization through Weight Equalization and Bias Correction, 2019; here
with means over calibration data instead of batch-norm statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.build.edit import Graph, attribute

_CHANNEL_AXIS = {"Conv": 1, "Gemm": -1, "MatMul": -1}


def channel_means(model: onnx.ModelProto, feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean of each channel of what Conv, Gemm and MatMul read, over all feeds: tensor -> float64 (channels,).

    A tensor that two of them read along different axes is left out.
    """
    graph = Graph(model)
    axes: dict[str, set[int]] = {}
    for node in graph.nodes:
        if node.op_type in _CHANNEL_AXIS and graph.is_constant(node.input[1]) and not graph.is_constant(node.input[0]):
            axes.setdefault(node.input[0], set()).add(_CHANNEL_AXIS[node.op_type])
    single = {name: next(iter(found)) for name, found in axes.items() if len(found) == 1}
    watched = onnx.ModelProto.FromString(model.SerializeToString())
    given = {value.name for value in watched.graph.input}
    known = {value.name for value in watched.graph.output}
    inner = [name for name in single if name not in given]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner if name not in known)
    session = ort.open_model(watched.SerializeToString(), "bias correction")
    sums: dict[str, np.ndarray] = {}
    for feed in feeds:
        values = dict(zip(inner, ort.run(session, inner, feed) if inner else [], strict=True)) | {
            name: feed[name] for name in single if name in given
        }
        for name, value in values.items():
            sums[name] = sums.get(name, np.zeros(1)) + _per_channel(value, single[name])
    return {name: total / len(feeds) for name, total in sums.items()}


def _per_channel(value: np.ndarray, axis: int) -> np.ndarray:
    kept = axis % value.ndim
    return np.asarray(value.mean(axis=tuple(i for i in range(value.ndim) if i != kept), dtype=np.float64))


def mean_shift(node: onnx.NodeProto, error: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """By how much an error of the weights moves each output channel on average, float32 (output channels,).

    Padding is counted as if it were data, which only matters at the border. `mean` is one value an input channel.
    """
    if node.op_type == "MatMul":
        return np.asarray(mean @ error, np.float32)
    if node.op_type == "Gemm":
        return np.asarray(error @ mean if attribute(node, "transB", 0) else mean @ error, np.float32)
    groups = int(attribute(node, "group", 1))
    taps = error.reshape(*error.shape[:2], -1).sum(axis=2, dtype=np.float64)  # (outputs, inputs a group)
    by_group = mean.reshape(groups, -1)
    outputs = np.einsum("goi,gi->go", taps.reshape(groups, -1, taps.shape[1]), by_group)
    return np.asarray(outputs.reshape(-1), np.float32)
