"""INT8 for OpenVINO: Q/DQ around what multiplies and nothing else, the placement that it fuses best.

It computes activations, residual sums and gates as float steps of the integer convolution before them, so pairs that
`placement` sets there for onnxruntime only cut its fusions short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from edgekit.artifact import Accuracy
from edgekit.build import accuracy
from edgekit.build.calibrate import METHODS, Calibration, Range
from edgekit.build.edit import Graph
from edgekit.build.placement import COMPUTE, output_axis
from edgekit.build.search import check_feeds
from edgekit.build.tables import quantize_tables
from edgekit.build.workshop import NOT_SLOWER, Draft, Refusal, Workshop
from edgekit.runtimes.available import installed_version

RUNTIME = "openvino"


class _Trial(NamedTuple):
    method: str
    model: onnx.ModelProto
    accuracy: Accuracy | None


def for_openvino(shop: Workshop, *, must_pay: bool = True) -> Draft:
    """The first calibration method that holds the accuracy floor in OpenVINO, else the best one.

    Raises Refusal: OpenVINO is not here, no calibration data, nothing to multiply; with `must_pay`, also when it is
    slower than the standard in onnxruntime.
    """
    check_feeds(shop)
    if installed_version(RUNTIME) is None:
        raise Refusal("openvino is not installed; pip install 'edgekit-deploy[openvino]'")
    graph = Graph(shop.spelled_out)
    names = multiplied(graph)
    if not names:
        raise Refusal("nothing in it multiplies by float weights")
    calibration = Calibration(graph.model, inputs_of(graph, names), shop.samples.feeds)
    bits = shop.target.types.weight_bits
    best: _Trial | None = None
    for method in (shop.options.method,) if shop.options.method else METHODS:
        made = onnx.ModelProto.FromString(graph.model.SerializeToString())
        quantize_plainly(Graph(made), names, calibration.ranges(method, shop.advance), weight_bits=bits)
        quantize_tables(made)
        trial = _Trial(method, made, shop.measure(shop.on_disk(made, "plain"), RUNTIME))
        if trial.accuracy is None or accuracy.why_unfit(trial.accuracy, shop.model.accuracy_floor) is None:
            best = trial
            break
        if best is None or best.accuracy is None or trial.accuracy.value > best.accuracy.value:
            best = trial
    assert best is not None
    recipe = {
        "graph": "batch norm, scales and shifts folded; gates left as OpenVINO recognises them",
        "quantised": f"static, Q/DQ on inputs and weights of what multiplies, uint8 × {bits}-bit int8, per channel",
        "ranges": f"{best.method} over {len(shop.samples.feeds)} samples",
    }
    speed = shop.time(shop.on_disk(best.model, "plain"), RUNTIME)
    if must_pay and speed.own_ms > NOT_SLOWER * speed.standard_ms:
        raise Refusal(f"slower than the standard in onnxruntime: {speed.own_ms:.3g} against {speed.standard_ms:.3g} ms")
    bound_to = {"runtime": RUNTIME}
    return Draft(best.model, recipe, calibrated=True, accuracy=best.accuracy, speed=speed, bound_to=bound_to)


def multiplied(graph: Graph) -> list[str]:
    """The nodes worth integers, by their outputs: float32 products of something computed with constant weights."""
    found = []
    for node in graph.nodes:
        weight = graph.constant(node.input[1]) if node.op_type in COMPUTE else None
        if weight is None or weight.dtype != np.float32 or graph.is_constant(node.input[0]):
            continue
        if node.op_type == "MatMul" and weight.ndim != 2:
            continue
        found.append(node.output[0])
    return found


def inputs_of(graph: Graph, names: list[str]) -> list[str]:
    """The tensors whose range `quantize_plainly` needs."""
    return list(dict.fromkeys(graph.producer[name].input[0] for name in names))


def quantize_plainly(graph: Graph, names: list[str], ranges: Mapping[str, Range], *, weight_bits: int = 8) -> None:
    """Integers for the nodes of `names`, in place: int8 weights per channel, uint8 inputs over their range.

    `weight_bits`: 7 where the CPU sums pairs of products in 16 bits, which OpenVINO does not guard against either.
    """
    added: list[onnx.NodeProto] = []
    read_as = {name: _reading(graph, name, ranges[name], added) for name in inputs_of(graph, names)}
    for name in names:
        node = graph.producer[name]
        node.input[0] = read_as[node.input[0]]
        node.input[1] = _weights(graph, node, added, 2 ** (weight_bits - 1) - 1)
    graph.replace_nodes([], added)
    graph.drop_unread_constants()


def _reading(graph: Graph, name: str, span: Range, added: list[onnx.NodeProto]) -> str:
    """`name` as integers read back, over its range and zero."""
    low, high = min(span.low, 0.0), max(span.high, 0.0)
    scale = float(np.float32(max((high - low) / 255, 1e-10)))
    grid = [
        graph.share_constant(f"{name}.scale", np.array(scale, np.float32)),
        graph.share_constant(f"{name}.zero", np.array(round(-low / scale), np.uint8)),
    ]
    stored, reading = f"{name}.q", f"{name}.dq"
    added.append(helper.make_node("QuantizeLinear", [name, *grid], [stored], name=stored))
    added.append(helper.make_node("DequantizeLinear", [stored, *grid], [reading], name=reading))
    return reading


def _weights(graph: Graph, node: onnx.NodeProto, added: list[onnx.NodeProto], limit: int) -> str:
    weight, axis = graph.constant(node.input[1]), output_axis(node)
    assert weight is not None
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.maximum(np.abs(weight).max(axis=others) / limit, 1e-10).astype(np.float32)
    spread = scales.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    integers = np.clip(np.rint(weight / spread), -limit, limit).astype(np.int8)
    stored = graph.add_constant(f"{node.input[1]}.q", integers)
    scale = graph.add_constant(f"{stored}.scale", scales)
    zero = graph.add_constant(f"{stored}.zero", np.zeros(len(scales), np.int8))
    reading = f"{stored}.dq"
    added.append(helper.make_node("DequantizeLinear", [stored, scale, zero], [reading], name=reading, axis=axis))
    return reading
