"""What an ONNX file says of its inputs, read straight from its protobuf: no library, and no weights are loaded.

Loading a model only to learn its axes would double every cold start. Source: onnx.proto (field numbers) and the
protobuf wire format. Nested messages that are not needed (nodes, weights) are stepped over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekit.errors import ArtifactError
from edgekit.manifest import Dimension, TensorSpec
from edgekit.runtimes.sniff import looks_like, read_head

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "object",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
"""TensorProto.DataType -> numpy's name; text is an object array."""
_NO_AXIS_NAME = ("", "?")


class _Damaged(Exception):
    """A length that leads outside the file, or bytes that are no protobuf."""


@dataclass(frozen=True, slots=True)
class OnnxHeader:
    """Inputs and outputs as declared, unnamed dynamic axes named by their place (`x[0]`); files that hold weights."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    external_files: tuple[str, ...]


def read_header(path: Path) -> OnnxHeader:
    """Raises ArtifactError when the file is missing, of another kind, damaged, cut short or lacks its weights."""
    kind = looks_like(read_head(path))
    if kind != "unknown":
        raise ArtifactError(path, f"is {kind}, not an ONNX model")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            header = _header(data)
        except (_Damaged, IndexError, UnicodeDecodeError) as e:
            raise ArtifactError(path, f"is damaged or cut short ({len(data)} bytes), or not an ONNX model") from e
    missing = [name for name in header.external_files if not (path.parent / name).is_file()]
    if missing:
        raise ArtifactError(path, f"keeps its weights in {', '.join(missing)}, which is not beside it")
    return header


def _header(data: mmap.mmap) -> OnnxHeader:
    graph = next((span for number, span in _spans(data, (0, len(data))) if number == 7), None)
    if graph is None:
        raise _Damaged("no graph")
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    weights: set[str] = set()
    external: dict[str, None] = {}
    for number, span in _spans(data, graph):
        if number == 11:
            inputs.append(_value_info(data, span))
        elif number == 12:
            outputs.append(_value_info(data, span))
        elif number == 5:
            name, location = _weight(data, span)
            weights.add(name)
            if location:
                external[location] = None
    # before IR version 4 every weight was listed as an input too
    true_inputs = tuple(spec for spec in inputs if spec.name not in weights)
    return OnnxHeader(inputs=true_inputs, outputs=tuple(outputs), external_files=tuple(external))


def _value_info(data: mmap.mmap, span: tuple[int, int]) -> TensorSpec:
    parts = dict(_spans(data, span))
    name = _text(data, parts.get(1))
    tensor = dict(_fields(data, dict(_spans(data, parts.get(2, (0, 0)))).get(1, (0, 0))))
    dtype, shape = tensor.get(1, 0), tensor.get(2)
    dims = [value for number, value in _spans(data, shape) if number == 1] if isinstance(shape, tuple) else []
    return TensorSpec(
        name=name,
        dtype=_DTYPES.get(dtype if isinstance(dtype, int) else 0, "unknown"),
        shape=tuple(_dimension(data, dim, f"{name}[{i}]") for i, dim in enumerate(dims)),
    )


def _dimension(data: mmap.mmap, span: tuple[int, int], place: str) -> Dimension:
    parts = dict(_fields(data, span))
    size, label = parts.get(1), parts.get(2)
    if isinstance(size, int) and size > 0:
        return size if size < 1 << 63 else place  # a negative size is another way to say "dynamic"
    name = _text(data, label) if isinstance(label, tuple) else ""
    return place if name in _NO_AXIS_NAME else name


def _weight(data: mmap.mmap, span: tuple[int, int]) -> tuple[str, str | None]:
    """Name of a TensorProto and, when its values lie in another file, that file."""
    name, location = "", None
    for number, part in _spans(data, span):
        if number == 8:
            name = _text(data, part)
        elif number == 13:
            entry = dict(_spans(data, part))
            if _text(data, entry.get(1)) == "location":
                location = _text(data, entry.get(2))
    return name, location


def _text(data: mmap.mmap, span: tuple[int, int] | None) -> str:
    return data[span[0] : span[1]].decode("utf-8") if span else ""


def _spans(data: mmap.mmap, span: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """The length-delimited fields of a message: number and place of the content."""
    return ((number, value) for number, value in _fields(data, span) if isinstance(value, tuple))


def _fields(data: mmap.mmap, span: tuple[int, int]) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Every field of a message: its number, and its value (varint) or place (start, end)."""
    at, end = span
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise _Damaged(f"wire type {wire}")
        if at + size > end or number == 0:
            raise _Damaged(f"field {number} runs past the end")
        yield number, (at, at + size)
        at += size


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _Damaged("a number of more than ten bytes")
