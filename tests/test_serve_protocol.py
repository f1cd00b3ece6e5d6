"""The Open Inference Protocol's encoding, against specs alone: no server, no session."""

from __future__ import annotations

import gc
import json
import math
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.errors import EdgekitError, InputError, RequestError
from edgekit.manifest import TensorSpec
from edgekit.serve import protocol
from edgekit.serve.exchange import LEAST_BYTES, Buffers, parse_head
from edgekit.serve.layout import DATATYPES, DTYPES, KNOWN, Layouts
from edgekit.serve.protocol import InferenceRequest, encode_response, error_body
from edgekit.serve.signature import Signature


def decode_request(body: bytes | memoryview, json_bytes: int | None, signature: Signature) -> InferenceRequest:
    return protocol.decode_request(body, json_bytes, Layouts(signature))


def signature(dtype: str = "float32", shape: tuple[int | str, ...] = (2, 3), *, second: bool = False) -> Signature:
    inputs = [TensorSpec(name="x", dtype=dtype, shape=shape)]
    if second:
        inputs.append(TensorSpec(name="z", dtype="float32", shape=(2,)))
    outputs = (TensorSpec(name="y", dtype=dtype, shape=shape), TensorSpec(name="w", dtype="float32", shape=()))
    return Signature(inputs=tuple(inputs), outputs=outputs, axes={"n": (2, 4)})


def body(*tensors: dict, binary: bytes = b"", **more: object) -> tuple[bytes, int | None]:
    """A request and the length of its JSON part (None: all JSON)."""
    head = json.dumps({"inputs": tensors, **more}).encode()
    return head + binary, len(head) if binary else None


def tensor(**changes: object) -> dict:
    return {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]} | changes


def binary_tensor(size: int = 24, **changes: object) -> dict:
    described = tensor(parameters={"binary_data_size": size}) | changes
    del described["data"]
    return described


X = np.arange(6, dtype=np.float32)


def test_a_binary_input_is_a_view_of_the_body():
    raw, head = body(binary_tensor(), binary=X.tobytes())
    store = bytearray(raw)
    x = decode_request(store, head, signature()).inputs["x"]
    store[head : head + 4] = np.float32(99).tobytes()
    assert x.shape == (2, 3)
    assert x[0, 0] == 99


def test_a_body_from_the_socket_puts_its_first_tensor_on_a_64_byte_boundary():
    for head in (0, 1, 63, 117):
        view = Buffers().take(500, head)
        assert len(view) == 500
        assert (np.frombuffer(view[head:], np.uint8).ctypes.data % 64) == 0


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_once_nothing_looks_at_it():
    buffers = Buffers()
    first = buffers.take(LEAST_BYTES, 5)
    array = np.frombuffer(first, np.uint8)[100:200].reshape(10, 10)  # a view of a view of a view
    where = address(first)
    del first
    second = buffers.take(LEAST_BYTES, 5)
    assert address(second) != where
    del array
    assert address(buffers.take(LEAST_BYTES, 5)) == where
    assert len(buffers.take(LEAST_BYTES - 100, 0)) == LEAST_BYTES - 100


def test_memory_in_use_is_no_ones_else_whatever_is_asked_for():
    buffers, chance = Buffers(most_bytes=1_000_000), random.Random(0)
    held: list[tuple[memoryview, int]] = []
    for number in range(2000):
        size = chance.choice((10, LEAST_BYTES, 100_000, 300_000, 2_000_000))
        view = buffers.take(size, chance.randrange(100))
        assert len(view) == size
        view[0] = view[-1] = number % 256
        held.append((view, number % 256))
        if len(held) > 12:
            held.pop(chance.randrange(12))
        assert all(view[0] == view[-1] == mark for view, mark in held)
        assert sum(one.size for one in buffers._kept) <= 1_000_000


def test_a_tensor_that_lies_unaligned_is_copied_to_where_kernels_may_load_it():
    specs = (TensorSpec(name="b", dtype="bool", shape=(3,)), TensorSpec(name="x", dtype="float32", shape=(2, 3)))
    both = Signature(inputs=specs, outputs=(specs[1],), axes={})
    odd = {"name": "b", "shape": [3], "datatype": "BOOL", "parameters": {"binary_data_size": 3}}
    raw, head = body(odd, binary_tensor(), binary=b"\1\0\1" + X.tobytes())
    view = Buffers().take(len(raw), head)
    view[:] = raw
    inputs = decode_request(view, head, both).inputs
    assert inputs["x"].flags.aligned
    assert inputs["x"].ravel().tolist() == X.tolist()
    assert inputs["b"].tolist() == [True, False, True]


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]], [[1.0, 2, 3e0], [4, 5, 6]]])
def test_json_data_may_be_flat_or_nested(data):
    raw, head = body(tensor(data=data))
    assert decode_request(raw, head, signature()).inputs["x"].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("datatype", DTYPES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_every_datatype_comes_back_bit_for_bit_in_both_encodings(datatype, data):
    dtype = np.dtype(DTYPES[datatype])
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    x = data.draw(hnp.arrays(dtype, (2, 3), elements=hnp.from_dtype(dtype, **finite)))
    for parameters in ({"binary_data_output": True}, {}):
        described = tensor(datatype=datatype, parameters={"binary_data_size": x.nbytes})
        del described["data"]
        raw, head = body(described, binary=x.tobytes(), outputs=[{"name": "y"}], parameters=parameters)
        request = decode_request(raw, head, signature(dtype.name))
        head_bytes, parts = encode_response(
            request, {"y": request.inputs["x"]}, model="m", version="1", parameters={"artifact": "standard"}
        )
        answer = json.loads(head_bytes)
        output = answer["outputs"][0]
        assert (output["datatype"], output["shape"]) == (datatype, [2, 3])
        if parts:
            assert output["parameters"]["binary_data_size"] == x.nbytes
            assert bytes(parts[0]) == x.tobytes()
        else:
            again, head = body(tensor(datatype=datatype, data=output["data"]))
            assert decode_request(again, head, signature(dtype.name)).inputs["x"].tobytes() == x.tobytes()


def test_binary_outputs_are_views_of_the_sessions_arrays():
    raw, head = body(tensor(), parameters={"binary_data_output": True}, outputs=[{"name": "y"}])
    y = np.zeros((2, 3), np.float32)
    _, parts = encode_response(decode_request(raw, head, signature()), {"y": y}, model="m", version="1", parameters={})
    y[0, 0] = 7
    assert np.frombuffer(parts[0], np.float32)[0] == 7


def test_outputs_mix_encodings_and_keep_the_order_that_was_asked_for():
    wanted = [{"name": "w"}, {"name": "y", "parameters": {"binary_data": True}}]
    raw, head = body(tensor(), outputs=wanted, id="42")
    request = decode_request(raw, head, signature())
    outputs = {"y": X.reshape(2, 3), "w": np.array(math.pi, np.float32)}
    head_bytes, parts = encode_response(request, outputs, model="m", version="7", parameters={})
    answer = json.loads(head_bytes)
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", "m", "7")
    assert [output["name"] for output in answer["outputs"]] == ["w", "y"]
    assert np.float32(answer["outputs"][0]["data"][0]) == np.float32(math.pi)
    assert answer["outputs"][0]["shape"] == []
    assert bytes(parts[0]) == X.tobytes()


def test_the_per_output_choice_wins_over_the_requests():
    wanted = [{"name": "w", "parameters": {"binary_data": False}}, {"name": "y"}]
    raw, head = body(tensor(), outputs=wanted, parameters={"binary_data_output": True})
    assert decode_request(raw, head, signature()).outputs == (("w", False), ("y", True))


def test_parameters_of_ours_are_read_and_unknown_ones_ignored():
    ours = {"deadline_ms": 25, "priority": "tolerant", "no_cache": True, "something_else": [1]}
    raw, head = body(tensor(), parameters=ours)
    request = decode_request(raw, head, signature())
    assert (request.deadline_ms, request.priority, request.no_cache) == (25.0, "tolerant", True)
    raw, head = body(tensor())
    request = decode_request(raw, head, signature())
    assert (request.deadline_ms, request.priority, request.no_cache) == (None, None, False)


def test_a_named_axis_takes_each_of_its_sizes_and_no_other():
    for n in (2, 4):
        raw, head = body(tensor(shape=[n, 3], data=[0] * n * 3))
        assert decode_request(raw, head, signature(shape=("n", 3))).inputs["x"].shape == (n, 3)
    raw, head = body(tensor(shape=[3, 3], data=[0] * 9))
    with pytest.raises(InputError, match=r"has shape \[3, 3\], the model takes \[n \(2 or 4\), 3\]"):
        decode_request(raw, head, signature(shape=("n", 3)))


def test_not_a_number_becomes_null_in_json_and_survives_in_binary():
    y = np.array([[np.nan, np.inf, 1]] * 2, np.float32)
    raw, head = body(tensor(), outputs=[{"name": "y"}])
    text, _ = encode_response(decode_request(raw, head, signature()), {"y": y}, model="m", version="1", parameters={})
    assert json.loads(text)["outputs"][0]["data"][:3] == [None, None, 1.0]


TENSOR_FAULTS = {
    "unknown name": (tensor(name="q"), "no such input; the model has x"),
    "wrong datatype": (tensor(datatype="INT8"), "has datatype INT8, the model takes FP32"),
    "invented datatype": (tensor(datatype="COMPLEX"), "has datatype COMPLEX, the model takes FP32"),
    "wrong rank": (tensor(shape=[6]), r"has shape \[6\], the model takes \[2, 3\]"),
    "wrong size": (tensor(shape=[3, 2]), r"has shape \[3, 2\], the model takes \[2, 3\]"),
    "enormous": (tensor(shape=[2**40, 2**40]), "the model takes"),
    "too few values": (tensor(data=[1, 2]), "has 2 values, shape .* needs 6"),
    "too many values": (tensor(data=[1] * 7), "has 7 values"),
    "no data": ({"name": "x", "shape": [2, 3], "datatype": "FP32"}, "neither data nor binary_data_size"),
    "text as data": (tensor(data="1,2,3,4,5,6"), "does not hold FP32 values"),
    "text among data": (tensor(data=[1, 2, 3, 4, 5, "6"]), "does not hold FP32 values"),
    "booleans as numbers": (tensor(data=[True] * 6), "does not hold FP32 values"),
    "null among data": (tensor(data=[1, 2, 3, 4, 5, None]), "does not hold FP32 values"),
    "nested otherwise": (tensor(data=[[1, 2], [3, 4], [5, 6]]), r"nested as \[3, 2\]"),
    "ragged": (tensor(data=[[1, 2, 3, 4], [5, 6]]), "does not hold FP32 values"),
    "too deep": (tensor(data=[[[1, 2, 3], [4, 5, 6]]]), "does not hold FP32 values"),
    "too large for the dtype": (tensor(data=[1e300] * 6), "outside"),
    "size that does not fit the shape": (binary_tensor(20), "binary_data_size is 20, .* has 24"),
    "size that is no number": (binary_tensor("24"), "binary_data_size is '24'"),
    "size below zero": (binary_tensor(-24), "binary_data_size is -24"),
    "size that is a boolean": (binary_tensor(True), "binary_data_size is True"),
    "both encodings": (tensor(parameters={"binary_data_size": 24}), "both data and binary_data_size"),
    "shared memory": (tensor(parameters={"shared_memory_region": "r"}), "shared memory is off"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_faulty_tensor_is_refused_by_name(fault):
    described, message = TENSOR_FAULTS[fault]
    raw, head = body(described, binary=X.tobytes() if "parameters" in described else b"")
    with pytest.raises(InputError, match=message) as caught:
        decode_request(raw, head, signature())
    assert caught.value.name in ("x", "q")


def test_whole_numbers_are_refused_where_the_dtype_cannot_hold_them():
    for datatype, value in (("UINT8", 256), ("INT8", -129), ("UINT64", -1), ("INT64", 2**63), ("INT32", 1.5)):
        raw, head = body(tensor(datatype=datatype, data=[0, 0, 0, 0, 0, value]))
        with pytest.raises(InputError, match=f"does not hold {datatype} values"):
            decode_request(raw, head, signature(DTYPES[datatype]))


def test_a_bool_byte_is_0_or_1():
    described = binary_tensor(6, datatype="BOOL")
    raw, head = body(described, binary=b"\0\1\0\1\0\2")
    with pytest.raises(InputError, match="byte of 0 or 1"):
        decode_request(raw, head, signature("bool"))


def test_text_tensors_are_refused_with_a_reason():
    raw, head = body(tensor(datatype="BYTES", data=["a"] * 6))
    with pytest.raises(InputError, match="BYTES is not supported here"):
        decode_request(raw, head, signature("object"))


def test_binary_data_must_be_exactly_what_the_inputs_say():
    raw, head = body(binary_tensor(), binary=X.tobytes() + b"\0")
    with pytest.raises(RequestError, match="25 bytes of binary data follow the JSON, the inputs account for 24"):
        decode_request(raw, head, signature())
    raw, head = body(binary_tensor(), binary=X.tobytes()[:-1])
    with pytest.raises(InputError, match="needs 24 bytes of binary data, 23 are left"):
        decode_request(raw, head, signature())


def test_every_input_is_needed_and_none_twice():
    raw, head = body(tensor())
    with pytest.raises(InputError, match="input z: missing"):
        decode_request(raw, head, signature(second=True))
    raw, head = body(tensor(), tensor())
    with pytest.raises(InputError, match="input x: given twice"):
        decode_request(raw, head, signature())


REQUEST_FAULTS = {
    "no JSON": b"hello",
    "empty": b"",
    "JSON of another kind": b"[1, 2]",
    "no inputs": b'{"id": "1"}',
    "inputs of another kind": b'{"inputs": {"x": 1}}',
    "a size below zero": b'{"inputs": [{"name": "x", "shape": [-2, 3], "datatype": "FP32", "data": [1]}]}',
    "a size that is no number": b'{"inputs": [{"name": "x", "shape": ["2", 3], "datatype": "FP32", "data": [1]}]}',
    "bytes that are no text": b'{"inputs": [{"name": "\xff", "shape": [], "datatype": "FP32", "data": [1]}]}',
    "nested without end": b'{"inputs": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("fault", REQUEST_FAULTS)
def test_a_body_that_is_no_request_is_refused(fault):
    with pytest.raises(RequestError, match="not an inference request") as caught:
        decode_request(REQUEST_FAULTS[fault], None, signature())
    assert caught.value.status == 400


@pytest.mark.parametrize("length", [0, 10_000])
def test_a_json_length_outside_the_body_is_refused(length):
    raw, _ = body(tensor())
    with pytest.raises(RequestError, match=f"Inference-Header-Content-Length is {length}, the body has"):
        decode_request(raw, length, signature())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"parameters": {"deadline_ms": 0}}, "deadline_ms is 0"),
        ({"parameters": {"deadline_ms": "5"}}, "deadline_ms is '5'"),
        ({"parameters": {"priority": "urgent"}}, "priority is 'urgent'"),
        ({"parameters": {"no_cache": 1}}, "no_cache is 1"),
        ({"parameters": {"binary_data_output": "yes"}}, "binary_data_output is 'yes'"),
        ({"outputs": [{"name": "v"}]}, "output v: no such output; the model has y, w"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification is not supported"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "output y: shared memory is off"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused_not_ignored(more, message):
    raw, head = body(tensor(), **more)
    with pytest.raises(RequestError, match=message):
        decode_request(raw, head, signature())


@settings(deadline=None)
@given(st.binary(max_size=400), st.one_of(st.none(), st.integers(0, 400)))
def test_no_body_whatever_raises_anything_but_our_errors(raw, head):
    with pytest.raises(EdgekitError):
        decode_request(raw, head, signature())


def test_an_output_that_the_wire_cannot_carry_is_said():
    raw, head = body(tensor(), outputs=[{"name": "y"}])
    request = decode_request(raw, head, signature())
    with pytest.raises(RequestError, match="cannot be sent") as caught:
        encode_response(request, {"y": np.array(["a"], object)}, model="m", version="1", parameters={})
    assert caught.value.status == 500


def test_an_error_is_the_protocols_object():
    assert json.loads(error_body('say "what"')) == {"error": 'say "what"'}


def test_every_datatype_has_one_dtype_and_back():
    assert {DATATYPES[dtype]: dtype for dtype in DTYPES.values()} == dict(DTYPES)


def test_the_json_of_requests_that_differ_only_in_their_tensors_is_read_once():
    layouts = Layouts(signature())
    raw, head = body(binary_tensor(), binary=bytes(24))
    for value in range(3):
        sent = raw[:head] + np.full((2, 3), value, np.float32).tobytes()
        assert protocol.decode_request(sent, head, layouts).inputs["x"].tolist() == [[value] * 3] * 2
    assert len(layouts) == 1
    for i in range(2 * KNOWN):
        other, length = body(binary_tensor(), binary=bytes(24), id=str(i))
        assert protocol.decode_request(other, length, layouts).id == str(i)
    assert len(layouts) == KNOWN


def test_json_that_was_refused_or_holds_values_is_read_again():
    layouts = Layouts(signature())
    sent, _ = body(tensor())
    assert protocol.decode_request(sent, None, layouts).inputs["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    faulty, _ = body(tensor(datatype="INT8"))
    for _ in range(2):
        with pytest.raises(InputError, match="has datatype INT8"):
            protocol.decode_request(faulty, None, layouts)
    assert len(layouts) == 0


def test_the_binary_part_is_judged_anew_for_each_request():
    layouts = Layouts(signature())
    raw, head = body(binary_tensor(), binary=bytes(24))
    protocol.decode_request(raw, head, layouts)
    with pytest.raises(InputError, match="needs 24 bytes of binary data, 23 are left"):
        protocol.decode_request(raw[:-1], head, layouts)
    with pytest.raises(RequestError, match="25 bytes of binary data follow"):
        protocol.decode_request(raw + b"0", head, layouts)


def test_a_head_leaves_nothing_for_the_garbage_collector():
    """Else it would be called every few hundred requests, in the midst of one."""
    good, bad = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n", b"nonsense\r\n\r\n"
    parse_head(good)
    gc.collect()
    gc.disable()
    try:
        assert parse_head(good).method == "POST"
        with pytest.raises(RequestError):
            parse_head(bad)
        assert gc.collect() == 0
    finally:
        gc.enable()
