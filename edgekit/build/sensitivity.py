"""What INT8 costs and saves at each node: noise at the outputs when it alone is INT8, and its time in both forms."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from edgekit.build import ort
from edgekit.build.calibrate import Sample
from edgekit.build.edit import Graph
from edgekit.build.placement import COMPUTE
from edgekit.build.quantize import StaticInt8
from edgekit.build.store import write_model
from edgekit.build.workshop import Workshop
from edgekit.errors import EdgekitError
from edgekit.runtimes.onnx import OnnxSession

FEEDS = 2
RUNS = 5
_FUSED = ("Relu", "Clip", "HardSigmoid", "Sigmoid", "Tanh", "LeakyRelu", "Add")
"""What onnxruntime carries out as a step of the convolution or product before it."""
WORST_DB = -200.0


class Cost(NamedTuple):
    """Of one node in INT8."""

    noise_db: float | None
    "Signal to noise at the worst output when this node alone is INT8; None: not measured in the time there was."
    float_ms: float | None
    int8_ms: float | None
    "One thread, one run; its quantising and dequantising included. None: the runtime merged it into another."

    @property
    def saves_ms(self) -> float:
        """What INT8 saves at it; 0 when that is not known."""
        return self.float_ms - self.int8_ms if self.float_ms is not None and self.int8_ms is not None else 0.0

    def __str__(self) -> str:
        noise = "" if self.noise_db is None else f"alone {self.noise_db:.1f} dB above its noise at the output"
        times = "" if self.int8_ms is None or self.float_ms is None else _times(self.int8_ms, self.float_ms)
        return ", ".join(part for part in (noise, times) if part)


def _times(int8_ms: float, float_ms: float) -> str:
    return f"{int8_ms:.3f} ms in INT8, {float_ms:.3f} in float"


def costs(shop: Workshop, quantizer: StaticInt8, method: str, until_s: float) -> dict[str, Cost]:
    """The cost of each computing node that `quantizer` runs on integers, by its output.

    Noise is measured while the clock (`time.monotonic`) is below `until_s`, the nodes with the widest weights first:
    outliers are what eight bits represent worst.
    """
    graph = Graph(shop.graph)
    names = [n.output[0] for n in graph.nodes if n.op_type in COMPUTE and n.output[0] in quantizer.plan.integer]
    feeds = shop.samples.feeds[:FEEDS]
    whole = [name for name in quantizer.plan.integer if graph.producer[name].op_type in COMPUTE]
    noise = _noise(
        shop.graph, quantizer, method, sorted(names, key=lambda n: -_spread(graph, n)), whole, feeds, until_s
    )
    owners = _owners(graph, names)
    floats = node_times(shop, shop.graph, owners, "float")
    int8s = node_times(shop, quantizer.make(method), owners, "int8")
    return {name: Cost(noise.get(name), floats.get(name), int8s.get(name)) for name in names}


def _noise(
    model: onnx.ModelProto,
    quantizer: StaticInt8,
    method: str,
    names: Sequence[str],
    whole: Sequence[str],
    feeds: Sequence[Sample],
    until_s: float,
) -> dict[str, float]:
    truth = _outputs(model, feeds)
    found = {}
    for name in names:
        if time.monotonic() >= until_s:
            break
        alone = quantizer.make(method, skip=[other for other in whole if other != name] + list(quantizer.skipped))
        try:
            found[name] = worst_db(truth, _outputs(alone, feeds))
        except EdgekitError:  # a graph that onnxruntime cannot hold says nothing about the node
            continue
    return found


def _outputs(model: onnx.ModelProto, feeds: Sequence[Sample]) -> list[list[np.ndarray]]:
    session = ort.open_model(model.SerializeToString(), "sensitivity")
    return [ort.run(session, None, feed) for feed in feeds]


def worst_db(truth: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]]) -> float:
    """Signal to noise of the output that has most of it, in dB, over all feeds. Never below `WORST_DB`."""
    ratios = []
    for before, after in zip(zip(*truth, strict=True), zip(*found, strict=True), strict=True):
        signal = sum(float(np.sum(np.square(a, dtype=np.float64))) for a in before)
        noise = sum(float(np.sum(np.square(np.asarray(a, np.float64) - b))) for a, b in zip(before, after, strict=True))
        if not math.isfinite(noise) or not signal:
            return WORST_DB
        ratios.append(-WORST_DB if noise == 0 else 10 * math.log10(signal / noise))
    return max(WORST_DB, min(ratios))


def _spread(graph: Graph, name: str) -> float:
    """Largest weight over the root of their mean square."""
    weight = graph.constant(graph.producer[name].input[1])
    if weight is None or not weight.size:
        return 0.0
    return float(np.abs(weight).max() / (np.sqrt(np.mean(np.square(weight, dtype=np.float64))) or 1.0))


def _owners(graph: Graph, names: Sequence[str]) -> dict[str, str]:
    """What kernels may be called after -> the node whose work they do: a fused kernel bears its activation's name."""
    owners = {name: name for name in names}
    for name in names:
        reader = graph.only_reader(name)
        if reader is not None and reader.op_type in _FUSED:
            owners.setdefault(reader.output[0], name)
    return owners


def node_times(shop: Workshop, model: onnx.ModelProto, owners: Mapping[str, str], label: str) -> dict[str, float]:
    """Milliseconds of one run, one thread, at each node of `owners`, what converts to and from it included.

    By onnxruntime's own profile: it names its kernels after the nodes it made them from.
    """
    named = onnx.ModelProto.FromString(model.SerializeToString())
    for node in named.graph.node:
        node.name = node.output[0] if node.output else node.name
    path: Path = shop.scratch / f"profiled-{label}.onnx"
    write_model(path, named)
    session = OnnxSession(path, shop.opened_as(path))
    try:
        events = json.loads(session.profile_events(shop.feed, RUNS))
    finally:
        session.close()
    return _by_node(events, owners)


def _by_node(events: Sequence[Mapping[str, object]], owners: Mapping[str, str]) -> dict[str, float]:
    """Each kernel's least time over the runs, by the longest of the names that its own begins with."""
    ordered, least, sums = sorted(owners, key=len, reverse=True), dict[str, float](), dict[str, float]()
    for event in events:
        kernel, duration_us = str(event.get("name", "")), event.get("dur", 0)
        if event.get("cat") == "Node" and kernel.endswith("_kernel_time") and isinstance(duration_us, int | float):
            least[kernel] = min(duration_us / 1000, least.get(kernel, math.inf))
    for kernel, taken_ms in least.items():
        called = next((name for name in ordered if _belongs(kernel, name)), None)
        if called is not None:
            sums[owners[called]] = sums.get(owners[called], 0.0) + taken_ms
    return sums


def _belongs(kernel: str, name: str) -> bool:
    """A kernel is called as its node, with `_suffix` of the optimiser or `.part` of ours behind."""
    return kernel.startswith(name) and kernel[len(name) : len(name) + 1] in ("_", ".")
