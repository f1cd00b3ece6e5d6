"""Open Inference Protocol v2 over HTTP: JSON and the binary tensor extension, to and from numpy without copies.

Source: KServe "Open Inference Protocol" (REST) and "Binary Tensor Data Extension". BYTES (text tensors), BF16 and
the classification extension are refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
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
_NESTED = re.compile(rb"\s*\[\s*\[")

Buffer = bytes | bytearray | memoryview


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
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A decoded request. Inputs that came as binary are views of the request's body."""

    id: str
    inputs: Mapping[str, np.ndarray]
    outputs: tuple[tuple[str, bool], ...]
    "(name, wanted as binary), in the order to answer."
    places: Mapping[str, Place] = field(default_factory=dict)
    "Outputs that go into shared memory."
    deadline_ms: float | None = None
    priority: str | None = None
    no_cache: bool = False
    step: Step | None = None


Shared = Callable[[Place], memoryview]
"""Reads a part of a region for the caller; None where shared memory is off."""


def decode_request(
    body: Buffer, json_bytes: int | None, signature: Signature, shared: Shared | None = None
) -> InferenceRequest:
    """The request in `body`, whose first `json_bytes` are JSON (None: all of it).

    Raises InputError about a tensor, RequestError about the rest. A tensor's name, datatype, shape and size are all
    checked before memory is taken for it.
    """
    view = memoryview(body)
    if json_bytes is not None and not 0 < json_bytes <= len(view):
        raise RequestError(400, f"Inference-Header-Content-Length is {json_bytes}, the body has {len(view)} bytes")
    split = len(view) if json_bytes is None else json_bytes
    try:
        request = _decoder.decode(view[:split])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise RequestError(400, f"not an inference request: {e}") from e
    step = asked.step(request.parameters)
    if step is not None and not signature.state:
        raise RequestError(400, "parameter sequence_id: this model keeps no state from one request to the next")
    inputs = _decode_inputs(request.inputs, view[split:], signature, shared, in_sequence=step is not None)
    default = asked.flag(request.parameters, "binary_data_output")
    kept = signature.state.values() if step is not None else ()
    wanted = request.outputs or [_Output(spec.name) for spec in signature.outputs if spec.name not in kept]
    return InferenceRequest(
        id=request.id,
        inputs=inputs,
        outputs=tuple(_wanted(output, default, signature) for output in wanted),
        places={o.name: _place(o, shared) for o in wanted if "shared_memory_region" in o.parameters},
        deadline_ms=asked.deadline_ms(request.parameters),
        priority=asked.priority(request.parameters),
        no_cache=asked.flag(request.parameters, "no_cache"),
        step=step,
    )


def _decode_inputs(
    inputs: Sequence[_Input], binary: memoryview, signature: Signature, shared: Shared | None, *, in_sequence: bool
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    bound: dict[str, int] = {}
    start = 0
    for tensor in inputs:
        spec = signature.input(tensor.name)
        if tensor.name in arrays:
            raise InputError(tensor.name, "given twice")
        dtype = _checked_dtype(tensor, spec)
        signature.check(spec, tensor.shape, bound)
        if "shared_memory_region" in tensor.parameters:
            arrays[tensor.name] = _from_shared(tensor, dtype, shared)
            continue
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            arrays[tensor.name] = _from_json(tensor, dtype)
            continue
        arrays[tensor.name] = _from_binary(tensor, dtype, size, binary[start:])
        start += size
    signature.check_names(arrays, in_sequence=in_sequence)
    if start != len(binary):
        raise RequestError(400, f"{len(binary)} bytes of binary data follow the JSON, the inputs account for {start}")
    return arrays


def _checked_dtype(tensor: _Input, spec: TensorSpec) -> np.dtype[Any]:
    wanted = DATATYPES.get(spec.dtype, spec.dtype)
    if tensor.datatype != wanted:
        raise InputError(tensor.name, f"has datatype {tensor.datatype}, the model takes {wanted}")
    if tensor.datatype not in DTYPES:
        raise InputError(tensor.name, f"datatype {tensor.datatype} is not supported here")
    return np.dtype(DTYPES[tensor.datatype])


def _from_shared(tensor: _Input, dtype: np.dtype[Any], shared: Shared | None) -> np.ndarray:
    if shared is None:
        raise InputError(tensor.name, "shared memory is off; send the data in the request")
    place = place_in(tensor.parameters)
    expected = math.prod(tensor.shape) * dtype.itemsize
    if place.size_bytes != expected:  # before a byte is allocated
        text = f"shared_memory_byte_size is {place.size_bytes}, {tensor.shape} {tensor.datatype} has {expected}"
        raise InputError(tensor.name, text)
    return _from_binary(tensor, dtype, expected, shared(place))


def _from_binary(tensor: _Input, dtype: np.dtype[Any], size: Any, rest: memoryview) -> np.ndarray:
    count = math.prod(tensor.shape)
    if type(size) is not int or size != count * dtype.itemsize:
        expected = count * dtype.itemsize
        raise InputError(tensor.name, f"binary_data_size is {size!r}, {tensor.shape} {tensor.datatype} has {expected}")
    if tensor.data:
        raise InputError(tensor.name, "has both data and binary_data_size")
    if size > len(rest):
        raise InputError(tensor.name, f"needs {size} bytes of binary data, {len(rest)} are left in the body")
    if dtype.kind == "b" and size and np.frombuffer(rest, np.uint8, count).max() > 1:
        raise InputError(tensor.name, "a BOOL is a byte of 0 or 1")
    array = np.frombuffer(rest, dtype, count).reshape(tensor.shape)
    # Kernels may use aligned loads; the first tensor always is (see http.Body), a later one after an odd size is not.
    return array if array.flags.aligned else array.copy()


def _from_json(tensor: _Input, dtype: np.dtype[Any]) -> np.ndarray:
    raw = bytes(tensor.data)
    if not raw:
        raise InputError(tensor.name, "has neither data nor binary_data_size")
    count = math.prod(tensor.shape)
    # Flat or nested, a list of n values has n - 1 commas: known before the values become objects.
    if raw.count(b",") + 1 != count:
        raise InputError(tensor.name, f"has {raw.count(b',') + 1} values, shape {tensor.shape} needs {count}")
    depth = len(tensor.shape) if _NESTED.match(raw) else 1
    item: Any = {"b": bool, "f": float}.get(dtype.kind, int)
    kind = reduce(lambda inner, _: list[inner], range(depth), item)  # type: ignore[valid-type]
    try:
        array = _exact(msgspec.json.decode(raw, type=kind), dtype)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as e:
        raise InputError(tensor.name, f"data does not hold {tensor.datatype} values: {e}") from e
    if depth > 1 and list(array.shape) != tensor.shape:
        raise InputError(tensor.name, f"data is nested as {list(array.shape)}, shape says {tensor.shape}")
    if array.size != count:
        raise InputError(tensor.name, f"data is empty, shape {tensor.shape} needs {count} values")
    return array.reshape(tensor.shape)


def _exact(values: list[Any], dtype: np.dtype[Any]) -> np.ndarray:
    """Raises OverflowError for a value that the dtype cannot hold, ValueError for a ragged list."""
    if dtype.kind == "b":
        return np.array(values, dtype)
    wide = np.array(values, {"f": "float64", "u": "uint64"}.get(dtype.kind, "int64"))
    if wide.size and dtype.kind != "f":
        limits = np.iinfo(dtype)
        if int(wide.min()) < limits.min or int(wide.max()) > limits.max:
            raise OverflowError(f"outside {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(array).all():  # JSON has no infinity, so a cast made it
        raise OverflowError(f"outside ±{np.finfo(dtype).max}")
    return array


def _wanted(output: _Output, default: bool, signature: Signature) -> tuple[str, bool]:
    if all(output.name != spec.name for spec in signature.outputs):
        known = ", ".join(spec.name for spec in signature.outputs)
        raise RequestError(400, f"output {output.name}: no such output; the model has {known}")
    if output.parameters.get("classification"):
        raise RequestError(400, f"output {output.name}: parameter classification is not supported here")
    return output.name, asked.flag({"binary_data": default} | output.parameters, "binary_data")


def _place(output: _Output, shared: Shared | None) -> Place:
    if shared is None:
        raise RequestError(400, f"output {output.name}: shared memory is off; take the data in the response")
    return place_in(output.parameters)


def encode_response(
    request: InferenceRequest,
    outputs: Mapping[str, np.ndarray],
    *,
    model: str,
    version: str,
    parameters: Mapping[str, Any],
    write: Callable[[Place, memoryview], None] | None = None,
) -> tuple[bytes, list[memoryview]]:
    """The JSON of the answer and the binary tensors that follow it, the latter as views of `outputs`.

    JSON has no NaN and no infinity: they become null there. Raises RequestError(500) for a tensor of text.
    """
    described: list[dict[str, Any]] = []
    binary: list[memoryview] = []
    for name, as_binary in request.outputs:
        array = outputs[name]
        datatype = DATATYPES.get(array.dtype.name)
        if datatype not in DTYPES:
            raise RequestError(500, f"output {name}: {array.dtype.name} cannot be sent")
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        place = request.places.get(name)
        if place is not None and write is not None:
            write(place, np.ascontiguousarray(array).reshape(-1).data.cast("B"))
            entry["parameters"] = {
                "shared_memory_region": place.region,
                "shared_memory_offset": place.offset,
                "shared_memory_byte_size": array.nbytes,
            }
        elif as_binary:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            # reshape(-1): a view of a scalar cannot be cast
            binary.append(np.ascontiguousarray(array).reshape(-1).data.cast("B"))
        else:
            entry["data"] = array.ravel().tolist()
        described.append(entry)
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        head["id"] = request.id
    head["parameters"] = parameters
    head["outputs"] = described
    return _encode(head), binary


def error_body(text: str) -> bytes:
    """The protocol's error object."""
    return _encode({"error": text})
