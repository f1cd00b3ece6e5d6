"""ONNX headers written byte by byte: what the wire format allows is read, what it does not is one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import ArtifactError
from edgekit.manifest import TensorSpec
from edgekit.runtimes.onnx_header import _DTYPES, read_header

GRAPH, INPUT, OUTPUT, WEIGHT, NODE = 7, 11, 12, 5, 1


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def words(field: int, text: str) -> bytes:
    return message(field, text.encode())


def dimension(size: int | str | None) -> bytes:
    inner = number(1, size) if isinstance(size, int) else words(2, size) if size else b""
    return message(1, inner)


def value_info(name: str, dtype: int, shape: list[int | str | None] | None) -> bytes:
    tensor = number(1, dtype) + (message(2, *map(dimension, shape)) if shape is not None else b"")
    return words(1, name) + message(2, message(1, tensor))


def weight(name: str, location: str | None = None) -> bytes:
    body = number(2, 1) + words(8, name) + message(9, b"\0" * 16)
    if location is not None:
        body += message(13, words(1, "location") + words(2, location))
    return message(WEIGHT, body)


def model(*parts: bytes) -> bytes:
    return number(1, 8) + words(2, "by hand") + message(GRAPH, *parts)


def read(data: bytes, folder: Path) -> Any:
    (folder / "m.onnx").write_bytes(data)
    return read_header(folder / "m.onnx")


NAMES = st.text(alphabet="abcxyz_0", min_size=1, max_size=6)
SIZES = st.one_of(st.integers(1, 2**40), NAMES, st.none())
INFOS = st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(_DTYPES)), st.lists(SIZES, max_size=4)), max_size=4)


def declared(name: str, dtype: int, shape: list[Any]) -> TensorSpec:
    dims = tuple(size if size is not None else f"{name}[{i}]" for i, size in enumerate(shape))
    return TensorSpec(name=name, dtype=_DTYPES[dtype], shape=dims)


@settings(max_examples=30)
@given(INFOS, INFOS, st.binary(max_size=20))
def test_what_was_written_is_read_whatever_else_the_file_holds(
    inputs: dict[str, Any], outputs: dict[str, Any], noise: bytes
) -> None:
    import tempfile

    parts = [message(INPUT, value_info(name, *info)) for name, info in inputs.items()]
    parts.append(message(NODE, noise))
    parts += [message(OUTPUT, value_info(name, *info)) for name, info in outputs.items()]
    with tempfile.TemporaryDirectory() as folder:
        header = read(model(*parts) + words(99, "of a newer release"), Path(folder))
    assert header.inputs == tuple(declared(name, *info) for name, info in inputs.items())
    assert header.outputs == tuple(declared(name, *info) for name, info in outputs.items())
    assert header.external_files == ()


@pytest.mark.parametrize(("number_", "name"), sorted(_DTYPES.items()))
def test_every_type_of_tensor_has_numpys_name(number_: int, name: str, tmp_path: Path) -> None:
    header = read(model(message(INPUT, value_info("x", number_, [1]))), tmp_path)
    assert header.inputs[0].dtype == name


def test_a_type_of_a_newer_release_is_unknown_and_no_crash(tmp_path: Path) -> None:
    assert read(model(message(INPUT, value_info("x", 77, [1]))), tmp_path).inputs[0].dtype == "unknown"


@pytest.mark.parametrize(
    ("size", "axis"),
    [(5, 5), ("n", "n"), (None, "x[0]"), (0, "x[0]"), (-1, "x[0]"), ("?", "x[0]"), ("", "x[0]")],
)
def test_an_axis_is_a_size_a_name_or_its_place(size: Any, axis: Any, tmp_path: Path) -> None:
    assert read(model(message(INPUT, value_info("x", 1, [size]))), tmp_path).inputs[0].shape == (axis,)


def test_a_tensor_without_a_shape_has_none(tmp_path: Path) -> None:
    assert read(model(message(INPUT, value_info("x", 1, None))), tmp_path).inputs[0].shape == ()


def test_weights_listed_as_inputs_are_none(tmp_path: Path) -> None:
    parts = [message(INPUT, value_info(name, 1, [1])) for name in ("w", "x", "b")]
    header = read(model(*parts, weight("w"), weight("b")), tmp_path)
    assert [spec.name for spec in header.inputs] == ["x"]


def test_weights_in_files_beside_it_are_named_once(tmp_path: Path) -> None:
    (tmp_path / "m.data").write_bytes(b"x")
    data = model(weight("a", "m.data"), weight("b", "m.data"), weight("c"))
    assert read(data, tmp_path).external_files == ("m.data",)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ArtifactError, match=r"keeps its weights in m\.data, which is not beside it"):
        read(data, tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        number(1, 8) + words(2, "no graph") + b"\0" * 4,
        model()[:-1] if len(model()) > 12 else b"\x3a\x05\x08",
        varint(7 << 3 | 2) + varint(1000) + b"short",
        varint(7 << 3 | 3) + b"group",
        varint(7 << 3 | 2) + b"\xff" * 11,
        b"\x08" + b"\x80" * 12,
        message(GRAPH, varint(11 << 3 | 2) + varint(50) + b"x"),
        message(GRAPH, message(INPUT, message(1, b"\xff\xfe"))),
    ],
)
def test_bytes_that_are_no_header_are_one_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as error:
        read(b"\x08\x08" + data if data[:1] != b"\x08" else data, tmp_path)
    assert "\n" not in str(error.value)


WHOLE = model(
    message(INPUT, value_info("image", 1, ["batch", 3, 8, 8])), weight("w"), message(OUTPUT, value_info("y", 1, [1]))
)


@pytest.mark.parametrize("end", range(1, len(WHOLE), 7))
def test_a_file_cut_anywhere_is_refused_or_has_fewer_tensors(end: int, tmp_path: Path) -> None:
    try:
        header = read(WHOLE[:end], tmp_path)
    except ArtifactError:
        return
    assert len(header.inputs) + len(header.outputs) < 2


@settings(max_examples=80)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_one_wrong_byte_is_an_error_or_another_header_and_never_a_crash(at: int, byte: int) -> None:
    import tempfile

    data = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            header = read(data, Path(folder))
        except ArtifactError:
            return
    assert all(isinstance(spec.name, str) for spec in (*header.inputs, *header.outputs))
