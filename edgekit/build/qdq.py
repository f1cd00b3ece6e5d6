"""Writes the Q/DQ pairs that a placement asks for: scales, zero points, INT8 weights, INT32 biases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from edgekit.build.bias import mean_shift
from edgekit.build.calibrate import Range
from edgekit.build.edit import Graph, attribute, rename_reads, set_input
from edgekit.build.grids import Grid, Grids, Types, gate_window
from edgekit.build.placement import COMPUTE, SAME_SCALE, Placement, output_axis
from edgekit.build.upsample import repeat_pixels, whole_factors


class Writer:
    """Turns `graph` into its Q/DQ form in place."""

    def __init__(
        self,
        graph: Graph,
        plan: Placement,
        ranges: Mapping[str, Range],
        types: Types,
        means: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.graph, self.plan, self.types = graph, plan, types
        self.means = means or {}
        self.make = Grids(graph, plan, ranges, types)
        self.low, self.high = self.make.low, self.make.high
        self.added: list[onnx.NodeProto] = []
        self.read_as: dict[str, str] = {}
        self.stored: dict[str, str] = {}
        self.grids: dict[str, Grid] = {}
        self.renamed: dict[str, dict[str, str]] = {}
        self.repeats = {n: f for n, f in whole_factors(graph).items() if n in plan.integer}

    def write(self) -> None:
        """Replace every placed node by its quantised form."""
        graph, plan, made = self.graph, self.plan, []
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.nodes]
        for node in nodes:
            name = node.output[0] if node.output else ""
            if name in plan.absorbed or name in plan.shifts:
                continue  # carried out by the Q/DQ pair after the node that makes its input
            if name in plan.gates:
                self._gate(node)
                continue
            if name in self.repeats:
                self._repeat(node)
                continue
            made.append(node)
            if name in plan.integer:
                self._integer(node)
        for node in made:
            if node.output[0] not in plan.integer:
                rename_reads(node, self.read_as | self.renamed.get(node.output[0], {}))
        graph.replace_nodes(list(graph.nodes), made + self.added)
        graph.drop_unread_constants()

    def _repeat(self, node: onnx.NodeProto) -> None:
        """Upsampling, on the stored integers themselves."""
        name, source = node.output[0], node.input[0]
        self._reading(source)
        stored = f"{name}.q"
        self.added += repeat_pixels(self.graph, self.stored[source], stored, *self.repeats[name])
        self._dequantize(stored, self.grids[source], name)

    def _integer(self, node: onnx.NodeProto) -> None:
        name = node.output[0]
        for position, source in enumerate(node.input):
            if not source or (position and node.op_type in ("Reshape", "Resize", "Slice", "Squeeze", "Unsqueeze")):
                continue
            if not self.graph.is_constant(source):
                node.input[position] = self._reading(source)
            elif node.op_type not in COMPUTE:
                node.input[position] = self._small_constant(source)
        if node.op_type in COMPUTE:
            self._weights(node)
            if node.op_type != "Conv" and not self._feeds_integers(name):
                self._bias_after(node)
                return  # onnxruntime has a kernel from integers to float for these
        final, shift = self._settled(name)
        source_grid = self.grids.get(self._origin(node.input[0])) if node.op_type in SAME_SCALE else None
        grid = source_grid or self.make.of(final, shift)
        written = Grid(grid.scale, grid.zero + round(shift / grid.scale))
        node.output[0] = f"{name}.float"
        stored = self._quantize(node.output[0], written, name)
        self._dequantize(stored, grid, final)
        self.read_as[name], self.stored[name], self.grids[name] = self.read_as[final], stored, grid

    def _settled(self, name: str) -> tuple[str, float]:
        """The tensor after the Relu, Clip or shift that the pair behind `name` carries out, and the shift."""
        reader = self.graph.only_reader(name)
        if reader is None:
            return name, 0.0
        result = reader.output[0]
        if result in self.plan.absorbed:
            return result, 0.0
        return (result, self.plan.shifts[result]) if result in self.plan.shifts else (name, 0.0)

    def _gate(self, node: onnx.NodeProto) -> None:
        """HardSigmoid: times alpha into a window where saturation clips, then read again with beta as zero point.

        The product by a constant rather than a bare Q/DQ pair: it has an integer kernel, and no optimiser may merge it.
        """
        name, source = node.output[0], node.input[0]
        step = float(np.float32(1 / (self.high - self.low)))
        beta = float(attribute(node, "beta", 0.5))
        stored = self.stored.get(source)
        if stored is None or self.grids[source] != self.make.exact(*gate_window(node)):
            alpha = np.array([attribute(node, "alpha", 0.2)], np.float32)
            factor = self._quantized_constant(f"{name}.alpha", alpha)
            product = f"{name}.float"
            self.added.append(helper.make_node("Mul", [self._reading(source), factor], [product], name=product))
            stored = self._quantize(product, Grid(step, self.low + round(beta / step)), name)
        self._dequantize(stored, Grid(step, self.low), name)

    def _reading(self, name: str) -> str:
        """`name` as integers read back; quantised here if float code makes it."""
        if name not in self.read_as:
            grid = self.make.spread(*self.make.ranges[name])
            self._dequantize(self._quantize(name, grid, name), grid, name)
        return self.read_as[name]

    def _origin(self, reading: str) -> str:
        return next((name for name, read in self.read_as.items() if read == reading), reading)

    def _feeds_integers(self, name: str) -> bool:
        final, _ = self._settled(name)
        roles = self.plan.integer | self.plan.gates | self.plan.shifts.keys()
        return final != name or any(r.output[0] in roles for r in self.graph.consumers.get(name, []))

    def _quantize(self, source: str, grid: Grid, name: str) -> str:
        stored = f"{name}.q"
        inputs = [source, *self._grid_constants(grid, name)]
        self.added.append(helper.make_node("QuantizeLinear", inputs, [stored], name=stored))
        return stored

    def _dequantize(self, stored: str, grid: Grid, name: str) -> None:
        is_made_by_float = (
            name not in self.plan.integer | self.plan.absorbed | self.plan.gates | self.plan.shifts.keys()
        )
        reading = f"{name}.dq" if is_made_by_float or name not in self.graph.outputs else name
        inputs = [stored, *self._grid_constants(grid, name)]
        self.added.append(helper.make_node("DequantizeLinear", inputs, [reading], name=f"{name}.dq"))
        self.read_as[name], self.stored[name], self.grids[name] = reading, stored, grid

    def _grid_constants(self, grid: Grid, name: str) -> list[str]:
        scale = self.graph.share_constant(f"{name}.scale", np.array(grid.scale, np.float32))
        return [scale, self.graph.share_constant(f"{name}.zero", np.array(grid.zero, self.types.activation))]

    def _small_constant(self, name: str) -> str:
        """A constant operand of Add or Mul, quantised over its own range."""
        array = self.graph.constant(name)
        assert array is not None
        return self._quantized_constant(name, array)

    def _quantized_constant(self, name: str, array: np.ndarray) -> str:
        grid = self.make.spread(float(array.min()), float(array.max()))
        integers = np.clip(np.rint(array / grid.scale) + grid.zero, self.low, self.high).astype(self.types.activation)
        stored = self.graph.add_constant(f"{name}.q", integers)
        reading = f"{stored}.dq"
        inputs = [stored, *self._grid_constants(grid, stored)]
        self.added.append(helper.make_node("DequantizeLinear", inputs, [reading], name=reading))
        return reading

    def _weights(self, node: onnx.NodeProto) -> None:
        """INT8 weights, per output channel and symmetric; INT32 bias in units of input scale times weight scale."""
        weight = self.graph.constant(node.input[1])
        assert weight is not None
        axis = output_axis(node)
        input_name = self._origin(node.input[0])
        input_scale = self.grids[input_name].scale
        bias = self.graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        bias = None if bias is None else bias.reshape(-1)
        shift = self._residual_shift(input_name)
        if shift and node.op_type == "Conv":
            added = weight.sum(axis=tuple(range(1, weight.ndim))) * shift
            bias = added if bias is None else bias + added
        scales = self._weight_scales(weight, axis, bias, input_scale)
        spread = scales.reshape([-1 if i == axis else 1 for i in range(weight.ndim)]) if scales.ndim else scales
        limit = 2 ** (self.types.weight_bits - 1) - 1
        integers = np.clip(np.rint(weight / spread), -limit, limit).astype(np.int8)
        mean = self.means.get(self.given_to(node))
        if mean is not None and node.op_type != "MatMul":
            moved = mean_shift(node, integers * spread - weight, mean)
            bias = -moved if bias is None else bias - moved
        node.input[1] = self._dequantized(f"{node.output[0]}.weight", integers, scales, axis)
        if bias is not None:
            unit = (scales * input_scale).astype(np.float32)
            integers32 = np.rint(np.asarray(bias, np.float64) / unit).astype(np.int32)
            set_input(node, 2, self._dequantized(f"{node.output[0]}.bias", integers32, unit, 0))

    def _bias_after(self, node: onnx.NodeProto) -> None:
        """The bias that is added to a matrix product, as INT32 too.

        Once shapes are known onnxruntime joins the two to a Gemm, and runs that on integers only with such a bias:
        otherwise it would turn all weights back to float, in every run.
        """
        add = self.graph.only_reader(node.output[0]) if node.op_type == "MatMul" else None
        if add is None or add.op_type != "Add":
            return
        other = next((name for name in add.input if name != node.output[0]), "")
        bias, weight_reading = self.graph.constant(other), next(n for n in self.added if node.input[1] in n.output)
        scales = self.graph.constant(weight_reading.input[1])
        if bias is None or scales is None or bias.dtype != np.float32 or bias.shape != scales.shape:
            return
        mean = self.means.get(self.given_to(node))
        weight = self.graph.constant(self.graph.producer[node.output[0]].input[1])
        stored = self.graph.constant(weight_reading.input[0])
        if mean is not None and weight is not None and stored is not None:
            bias = bias - mean_shift(node, stored * scales - weight, mean)
        unit = (scales * self.grids[self._origin(node.input[0])].scale).astype(np.float32)
        integers = np.clip(np.rint(np.asarray(bias, np.float64) / unit), -(2**31), 2**31 - 1).astype(np.int32)
        self.renamed[add.output[0]] = {other: self._dequantized(f"{add.output[0]}.bias", integers, unit, 0)}

    def given_to(self, node: onnx.NodeProto) -> str:
        """The tensor that a copied node reads in the float graph."""
        return str(self.graph.producer[node.output[0]].input[0])

    def _residual_shift(self, name: str) -> float:
        """What rounding a shift to whole steps of the zero point left over; it goes into the next bias."""
        shift = self.plan.shifts.get(name, 0.0)
        scale = self.grids[name].scale
        return shift - round(shift / scale) * scale

    def _weight_scales(self, weight: np.ndarray, axis: int, bias: np.ndarray | None, input_scale: float) -> np.ndarray:
        limit = 2 ** (self.types.weight_bits - 1) - 1
        others = tuple(i for i in range(weight.ndim) if i != axis) if self.types.per_channel else None
        peaks = np.abs(weight).max(axis=others)
        scales = np.where(peaks > 0, peaks / limit, 1.0)
        if bias is not None:  # a channel of tiny weights must not push its bias out of 32 bits
            scales = np.maximum(scales, np.abs(bias if scales.ndim else np.abs(bias).max()) / input_scale / 2**30)
        return np.asarray(scales, np.float32)

    def _dequantized(self, name: str, integers: np.ndarray, scales: np.ndarray, axis: int) -> str:
        stored = self.graph.add_constant(f"{name}.q", integers)
        inputs = [stored, self.graph.share_constant(f"{name}.scale", scales)]
        inputs.append(self.graph.share_constant(f"{name}.zero", np.zeros(scales.shape, integers.dtype)))
        options = {"axis": axis} if scales.ndim else {}
        self.added.append(
            helper.make_node("DequantizeLinear", inputs, [f"{stored}.dq"], name=f"{stored}.dq", **options)
        )
        return f"{stored}.dq"


def tensors_to_observe(graph: Graph, plan: Placement) -> list[str]:
    """The tensors whose range a `Writer` needs."""
    roles = plan.integer | plan.absorbed | plan.shifts.keys()
    wanted = dict.fromkeys(name for node in graph.nodes for name in node.output if name in roles)
    for node in graph.nodes:
        if node.output and node.output[0] in plan.integer:
            wanted.update(
                (i, None)
                for i in node.input[: 1 if node.op_type in COMPUTE else None]
                if i and not graph.is_constant(i)
            )
    return list(wanted)


def whatever_may_be_read(graph: Graph, plan: Placement) -> list[str]:
    """The tensors whose range a `Writer` needs when any of the nodes that `plan` places go back to float."""
    wanted: dict[str, None] = {}
    placed = plan.integer | plan.absorbed | plan.gates | plan.shifts.keys()
    for node in graph.nodes:
        if node.output and node.output[0] in placed:
            read = node.input[:1] if node.op_type in COMPUTE else node.input
            wanted.update((name, None) for name in (*read, node.output[0]) if name and not graph.is_constant(name))
    return list(wanted)
