"""What the JSON of an inference request says, judged by a model's signature; clients send the same again and again.

A camera's requests differ in their tensors, not in the JSON before them: it is decoded and checked once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from edgekit.errors import InputError, RequestError
from edgekit.manifest import TensorSpec
from edgekit.serve import parameters as asked
from edgekit.serve.parameters import Place, Step, place_in
from edgekit.serve.signature import Signature

DTYPES: Mapping[str, str] = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
"""Datatype of the protocol -> numpy dtype name. Tensors are little-endian on the wire, as is every device we know."""

DATATYPES: Mapping[str, str] = {dtype: datatype for datatype, dtype in DTYPES.items()} | {"object": "BYTES"}
KNOWN = 64
KNOWN_BYTES = 4096
"""A longer JSON part is decoded each time."""


class _Input(msgspec.Struct, gc=False):
    name: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: dict[str, Any] = {}


class _Body(msgspec.Struct, gc=False):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One input: where its values are. Without `place` and `data` the next `size_bytes` of the binary part."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int
    place: Place | None = None
    data: bytes | None = None
    "JSON of a list."


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All that a request says beside its tensors. See `protocol.InferenceRequest` for the fields."""

    id: str
    parts: tuple[Part, ...]
    binary_bytes: int
    outputs: tuple[tuple[str, bool], ...]
    places: Mapping[str, Place]
    deadline_ms: float | None
    priority: str | None
    no_cache: bool
    step: Step | None


class Layouts:
    """Those seen of late for one signature, by their bytes. Used by one thread."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._known: OrderedDict[bytes, Layout] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, head: memoryview, *, with_places: bool) -> Layout:
        """`with_places`: tensors may be in shared memory; the same at each call.

        Raises InputError about a tensor, RequestError about the rest."""
        if len(head) > KNOWN_BYTES:
            return read_layout(head, self.signature, with_places=with_places)
        key = bytes(head)
        found = self._known.get(key)
        if found is None:
            found = read_layout(key, self.signature, with_places=with_places)
            if all(part.data is None for part in found.parts):  # values in the JSON do not come again
                self._known[key] = found
                if len(self._known) > KNOWN:
                    self._known.popitem(last=False)
        return found


def read_layout(head: bytes | memoryview, signature: Signature, *, with_places: bool) -> Layout:
    """The JSON part of a request. Raises as `Layouts.find`; nothing is allocated for a tensor here."""
    try:
        request = _decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise RequestError(400, f"not an inference request: {e}") from e
    step = asked.step(request.parameters)
    if step is not None and not signature.state:
        raise RequestError(400, "parameter sequence_id: this model keeps no state from one request to the next")
    parts = _parts(request.inputs, signature, with_places)
    signature.check_names((part.name for part in parts), in_sequence=step is not None)
    default = asked.flag(request.parameters, "binary_data_output")
    kept = signature.state.values() if step is not None else ()
    wanted = request.outputs or [_Output(spec.name) for spec in signature.outputs if spec.name not in kept]
    return Layout(
        id=request.id,
        parts=parts,
        binary_bytes=sum(part.size_bytes for part in parts if part.place is None and part.data is None),
        outputs=tuple(_wanted(output, default, signature) for output in wanted),
        places={o.name: _place(o, with_places) for o in wanted if "shared_memory_region" in o.parameters},
        deadline_ms=asked.deadline_ms(request.parameters),
        priority=asked.priority(request.parameters),
        no_cache=asked.flag(request.parameters, "no_cache"),
        step=step,
    )


def _parts(inputs: Sequence[_Input], signature: Signature, with_places: bool) -> tuple[Part, ...]:
    parts: dict[str, Part] = {}
    bound: dict[str, int] = {}
    for tensor in inputs:
        spec = signature.input(tensor.name)
        if tensor.name in parts:
            raise InputError(tensor.name, "given twice")
        dtype = _checked_dtype(tensor, spec)
        signature.check(spec, tensor.shape, bound)
        parts[tensor.name] = _part(tensor, dtype, with_places)
    return tuple(parts.values())


def _part(tensor: _Input, dtype: np.dtype[Any], with_places: bool) -> Part:
    expected = math.prod(tensor.shape) * dtype.itemsize
    place, data = None, None
    size = tensor.parameters.get("binary_data_size")
    if "shared_memory_region" in tensor.parameters:
        if not with_places:
            raise InputError(tensor.name, "shared memory is off; send the data in the request")
        place = place_in(tensor.parameters)
        if place.size_bytes != expected:
            text = f"shared_memory_byte_size is {place.size_bytes}, {tensor.shape} {tensor.datatype} has {expected}"
            raise InputError(tensor.name, text)
    elif size is None:
        data = bytes(tensor.data)
        if not data:
            raise InputError(tensor.name, "has neither data nor binary_data_size")
    elif type(size) is not int or size != expected:
        raise InputError(tensor.name, f"binary_data_size is {size!r}, {tensor.shape} {tensor.datatype} has {expected}")
    if tensor.data and data is None:
        raise InputError(tensor.name, "has both data and binary_data_size")
    return Part(name=tensor.name, dtype=dtype, shape=tuple(tensor.shape), size_bytes=expected, place=place, data=data)


def _checked_dtype(tensor: _Input, spec: TensorSpec) -> np.dtype[Any]:
    wanted = DATATYPES.get(spec.dtype, spec.dtype)
    if tensor.datatype != wanted:
        raise InputError(tensor.name, f"has datatype {tensor.datatype}, the model takes {wanted}")
    if tensor.datatype not in DTYPES:
        raise InputError(tensor.name, f"datatype {tensor.datatype} is not supported here")
    return np.dtype(DTYPES[tensor.datatype])


def _wanted(output: _Output, default: bool, signature: Signature) -> tuple[str, bool]:
    if all(output.name != spec.name for spec in signature.outputs):
        known = ", ".join(spec.name for spec in signature.outputs)
        raise RequestError(400, f"output {output.name}: no such output; the model has {known}")
    if output.parameters.get("classification"):
        raise RequestError(400, f"output {output.name}: parameter classification is not supported here")
    return output.name, asked.flag({"binary_data": default} | output.parameters, "binary_data")


def _place(output: _Output, with_places: bool) -> Place:
    if not with_places:
        raise RequestError(400, f"output {output.name}: shared memory is off; take the data in the response")
    return place_in(output.parameters)
