"""Open Inference Protocol v2 over HTTP: JSON and the binary tensor extension, to and from numpy without copies.

Source: KServe "Open Inference Protocol" (REST) and "Binary Tensor Data Extension". BYTES (text tensors), BF16 and
the classification extension are refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import msgspec
import numpy as np

from edgekit.errors import InputError, RequestError
from edgekit.runtimes.session import dtype_name
from edgekit.serve.layout import DATATYPES, DTYPES, Layout, Layouts, Part
from edgekit.serve.parameters import Place, Step

_NESTED = re.compile(rb"\s*\[\s*\[")

Buffer = bytes | bytearray | memoryview


_encode = msgspec.json.Encoder().encode


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request. Inputs that came as binary are views of the request's body."""

    id: str
    inputs: Mapping[str, np.ndarray]
    outputs: tuple[tuple[str, bool], ...]
    "(name, wanted as binary), in the order to answer."
    places: Mapping[str, Place] = {}
    "Outputs that go into shared memory."
    deadline_ms: float | None = None
    priority: str | None = None
    no_cache: bool = False
    step: Step | None = None


Shared = Callable[[Place], memoryview]
"""Reads a part of a region for the caller; None where shared memory is off."""


def decode_request(
    body: Buffer, json_bytes: int | None, layouts: Layouts, shared: Shared | None = None
) -> InferenceRequest:
    """The request in `body`, whose first `json_bytes` are JSON (None: all of it).

    Raises InputError about a tensor, RequestError about the rest. A tensor's name, datatype, shape and size are all
    checked before memory is taken for it.
    """
    view = memoryview(body)
    if json_bytes is not None and not 0 < json_bytes <= len(view):
        raise RequestError(400, f"Inference-Header-Content-Length is {json_bytes}, the body has {len(view)} bytes")
    split = len(view) if json_bytes is None else json_bytes
    layout = layouts.find(view[:split], with_places=shared is not None)
    return InferenceRequest(
        id=layout.id,
        inputs=_inputs(layout, view[split:], shared),
        outputs=layout.outputs,
        places=layout.places,
        deadline_ms=layout.deadline_ms,
        priority=layout.priority,
        no_cache=layout.no_cache,
        step=layout.step,
    )


def _inputs(layout: Layout, binary: memoryview, shared: Shared | None) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for part in layout.parts:
        if part.place is not None:
            assert shared is not None, "without shared memory a layout has no places"
            arrays[part.name] = _from_binary(part, shared(part.place))
        elif part.data is not None:
            arrays[part.name] = _from_json(part, part.data)
        else:
            arrays[part.name] = _from_binary(part, binary[start:])
            start += part.size_bytes
    if start != len(binary):
        raise RequestError(400, f"{len(binary)} bytes of binary data follow the JSON, the inputs account for {start}")
    return arrays


def _from_binary(part: Part, rest: memoryview) -> np.ndarray:
    if part.size_bytes > len(rest):
        raise InputError(part.name, f"needs {part.size_bytes} bytes of binary data, {len(rest)} are left in the body")
    count = part.size_bytes // part.dtype.itemsize
    if part.dtype.kind == "b" and count and np.frombuffer(rest, np.uint8, count).max() > 1:
        raise InputError(part.name, "a BOOL is a byte of 0 or 1")
    array = np.frombuffer(rest, part.dtype, count).reshape(part.shape)
    # Kernels may use aligned loads; the first tensor always is (see http.Body), a later one after an odd size is not.
    return array if array.flags.aligned else array.copy()


def _from_json(part: Part, raw: bytes) -> np.ndarray:
    count = math.prod(part.shape)
    # Flat or nested, a list of n values has n - 1 commas: known before the values become objects.
    if raw.count(b",") + 1 != count:
        raise InputError(part.name, f"has {raw.count(b',') + 1} values, shape {list(part.shape)} needs {count}")
    depth = len(part.shape) if _NESTED.match(raw) else 1
    item: Any = {"b": bool, "f": float}.get(part.dtype.kind, int)
    kind = reduce(lambda inner, _: list[inner], range(depth), item)  # type: ignore[valid-type]
    try:
        array = _exact(msgspec.json.decode(raw, type=kind), part.dtype)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as e:
        raise InputError(part.name, f"data does not hold {DATATYPES[part.dtype.name]} values: {e}") from e
    if depth > 1 and array.shape != part.shape:
        raise InputError(part.name, f"data is nested as {list(array.shape)}, shape says {list(part.shape)}")
    if array.size != count:
        raise InputError(part.name, f"data is empty, shape {list(part.shape)} needs {count} values")
    return array.reshape(part.shape)


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
        datatype = DATATYPES.get(dtype_name(array.dtype))
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
