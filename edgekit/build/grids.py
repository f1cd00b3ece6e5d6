"""Which scale and zero point each tensor gets, from the range of its values and from what reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.build.calibrate import Range
from edgekit.build.edit import Graph, attribute
from edgekit.build.placement import SAME_SCALE, Placement


class Types(NamedTuple):
    """Integer types for a CPU. uint8 activations with int8 weights is what VNNI multiplies."""

    activation: type[np.uint8] | type[np.int8] = np.uint8
    weight_bits: int = 8
    "7 where 16-bit sums of two products would saturate (x86 without VNNI)."
    per_channel: bool = True


class Grid(NamedTuple):
    """real = (integer - zero) * scale."""

    scale: float
    zero: int


class Grids:
    """Ranges as grids of integers, for the activations of one placement."""

    def __init__(self, graph: Graph, plan: Placement, ranges: Mapping[str, Range], types: Types) -> None:
        self.graph, self.plan = graph, plan
        limits = np.iinfo(types.activation)
        self.low, self.high = int(limits.min), int(limits.max)
        self.ranges: Mapping[str, Range] = ranges
        self.ranges = {**ranges, **self._joint_ranges()}

    def of(self, final: str, shift: float) -> Grid:
        """The grid of a tensor as its readers see it; `shift` is what a constant Add before them amounts to."""
        low, high = self.ranges[final]
        if shift:
            low, high = min(low, shift), max(high, shift)
        if final in self.plan.absorbed:
            low = max(low, 0.0) if self.graph.producer[final].op_type == "Relu" else low
        gates = [r for r in self.graph.consumers.get(final, []) if r.output[0] in self.plan.gates]
        if gates:
            bottom, top = gate_window(gates[0])
            if len(self.graph.consumers[final]) == 1:
                return self.exact(bottom, top)
            if self._only_swished(final, gates[0]):
                low = max(low, bottom)
        return self.spread(low, high)

    def _only_swished(self, name: str, gate: onnx.NodeProto) -> bool:
        """Whether `name` is read by its gate and the product with it alone: below the gate's window all is zero."""
        others = [r for r in self.graph.consumers[name] if r.output[0] != gate.output[0]]
        return all(r.op_type == "Mul" and gate.output[0] in r.input for r in others)

    def spread(self, low: float, high: float) -> Grid:
        """The grid over [low, high] and zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (self.high - self.low) or 1.0
        scale = float(np.float32(max(scale, 1e-10)))
        return Grid(scale, int(np.clip(round(self.low - low / scale), self.low, self.high)))

    def exact(self, low: float, high: float) -> Grid:
        """The grid whose ends are `low` and `high`: beyond them integers saturate, which is the point."""
        scale = float(np.float32((high - low) / (self.high - self.low)))
        return Grid(scale, self.low + round(-low / scale))

    def _joint_ranges(self) -> dict[str, Range]:
        """One range for all that is concatenated and read nowhere else: on one grid, joining is copying."""
        joint = {}
        for node in self.graph.nodes:
            if node.op_type != "Concat" or node.output[0] not in self.plan.integer:
                continue
            origins = [self._made_as(name) for name in node.input]
            names = [name for name in (*origins, node.output[0]) if name is not None]
            low = min(self.ranges[name].low for name in names)
            joint.update(dict.fromkeys(names, Range(low, max(self.ranges[name].high for name in names))))
        return joint

    def _made_as(self, name: str) -> str | None:
        """Where the grid of `name` is decided, if it is decided for its one reader alone."""
        while self.graph.only_reader(name) is not None and name in self.ranges:
            producer = self.graph.producer.get(name)
            if producer is None or producer.op_type not in SAME_SCALE or name not in self.plan.integer:
                return name
            name = producer.input[0]
        return None


def gate_window(node: onnx.NodeProto) -> tuple[float, float]:
    """Where HardSigmoid is neither 0 nor 1."""
    alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
    return -beta / alpha, (1 - beta) / alpha
