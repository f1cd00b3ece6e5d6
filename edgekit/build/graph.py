"""From a model file to one clean float graph: checked, upgraded, constants folded, axes bound, fused operators back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper, version_converter

from edgekit.build import ort
from edgekit.build.edit import Graph
from edgekit.build.rewrite import rewrite
from edgekit.errors import ArtifactError
from edgekit.manifest import TensorSpec
from edgekit.runtimes.axes import OPEN, bind
from edgekit.runtimes.onnx_header import read_header

OPSET = 17
"""LayerNormalization arrives in 17, per-channel Q/DQ in 13; what is newer gains nothing here."""
IR_VERSION = 8
"""The version that belongs to opset 17."""
LIMIT_BYTES = 2 * 1024**3
"""Protobuf cannot hold more in one message."""


def read_model(path: Path) -> onnx.ModelProto:
    """The model with its weights. Raises ArtifactError: missing, damaged, over 2 GiB, or NaN among the weights."""
    outside = [path.parent / name for name in read_header(path).external_files]
    size = sum(file.stat().st_size for file in (path, *outside))
    if size >= LIMIT_BYTES:
        problem = f"has {size / 1024**3:.1f} GiB with its external data; this version builds from less than 2 GiB"
        raise ArtifactError(path, problem)
    try:
        model = onnx.load(str(path))
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as e:
        raise ArtifactError(path, f"cannot be read as ONNX: {' '.join(str(e).split())[:200]}") from e
    for name, array in weights(model):
        if array.dtype.kind == "f" and np.isnan(array).any():  # infinities are legitimate: they mask
            raise ArtifactError(path, f"weight '{name}' holds NaN; export the model again")
    return model


def weights(model: onnx.ModelProto) -> Iterator[tuple[str, np.ndarray]]:
    """Initialisers and Constant nodes of the main graph, by the name of the tensor."""
    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], numpy_helper.to_array(attribute.t)


def clean(
    model: onnx.ModelProto, path: Path, axes: Mapping[str, int], notes: list[str], *, gates: bool = True
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The float graph that everything else starts from, and what was rewritten (kind -> count).

    `axes` holds sizes as `INPUT[i]`; axes that are not in it stay dynamic. What could not be done is added to `notes`.
    `gates` as in `rewrite`. Raises ArtifactError when the model does not load.
    """
    constants_to_initializers(model)
    drop_weight_inputs(model)
    model = upgrade(model, notes)
    name_and_bind_axes(model, path, axes)
    # level 1 of onnxruntime: constant folding, batch normalisation into convolutions, dead nodes; all of it is ONNX
    model = ort.optimized(model, path, "ORT_ENABLE_BASIC")
    drop_foreign_domains(model)
    done = rewrite(model, gates=gates)
    return model, done


def constants_to_initializers(model: onnx.ModelProto) -> None:
    """Constant nodes become initialisers: quantisers find weights only there (PP-OCR keeps all of them in nodes)."""
    graph, kept = model.graph, []
    for node in graph.node:
        value = next((a for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is None:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
    del graph.node[:]
    graph.node.extend(kept)


def drop_weight_inputs(model: onnx.ModelProto) -> None:
    """Weights listed as inputs too (IR version 3 asked for it) could be overridden, so that nobody may fold them."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    if len(kept) != len(model.graph.input):
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del model.graph.input[:]
        model.graph.input.extend(copies)
    model.ir_version = max(model.ir_version, IR_VERSION)


def upgrade(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """`model` at opset 17, or the newest it can be converted to; unchanged when it is newer or cannot be."""
    opset = Graph(model).opset
    for target in (OPSET, 15, 13):
        if opset >= target:
            break
        try:
            return version_converter.convert_version(model, target)
        except (RuntimeError, ValueError, IndexError) as e:  # the converter's C++ errors come as these
            reason = " ".join(str(e).split())[:120]
            notes.append(f"opset {opset} could not be raised to {target}: {reason}")
    return model


def name_and_bind_axes(model: onnx.ModelProto, path: Path, axes: Mapping[str, int]) -> None:
    """Write the sizes of `axes` into the inputs, name nameless axes, and drop shapes inferred with the old ones."""
    declared = read_header(path).inputs
    left_open = {
        f"{spec.name}[{i}]": OPEN for spec in declared for i, size in enumerate(spec.shape) if isinstance(size, str)
    }
    bound = {spec.name: spec for spec in bind(path, declared, {**left_open, **axes})}
    for value in model.graph.input:
        if value.name not in bound:
            continue
        for i, dimension in enumerate(value.type.tensor_type.shape.dim):
            size = bound[value.name].shape[i]
            if isinstance(size, int):
                dimension.dim_value = size
            elif dimension.dim_param in ("", "?"):
                dimension.dim_param = f"{value.name}_{i}"
    del model.graph.value_info[:]


def inputs_of(path: Path, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs by the manifest's axis names where it declares them, else by the file's own."""
    known = {spec.name: spec for spec in declared}
    return tuple(known.get(spec.name, spec) for spec in read_header(path).inputs)


def drop_foreign_domains(model: onnx.ModelProto) -> None:
    """Forget operator sets that no node uses: onnxruntime lists all of its own when it saves a graph."""
    used = set(domains(model.graph))
    kept = [opset for opset in model.opset_import if (opset.domain or "ai.onnx") in used or not opset.domain]
    copies = [onnx.OperatorSetIdProto.FromString(opset.SerializeToString()) for opset in kept]
    del model.opset_import[:]
    model.opset_import.extend(copies)


def domains(graph: onnx.GraphProto) -> Iterator[str]:
    """The operator domains that a graph and its subgraphs use."""
    for node in graph.node:
        yield node.domain or "ai.onnx"
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from domains(inner)
