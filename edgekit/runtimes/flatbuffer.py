"""Is this a whole LiteRT model? The runtime itself reads past the end of a damaged one and takes the process with it.

Walks every table of the file by the public schema (tensorflow/lite/schema.fbs) and checks that each offset, vector and
string lies inside the file. It does not judge the model: shapes, operators and quantisation are the runtime's to check.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from edgekit.errors import ArtifactError
from edgekit.runtimes.sniff import TFLITE_MAGIC, looks_like, read_head

_WIDTHS = {"u8": 1, "i32": 4, "f32": 4, "i64": 8}

# table -> {field slot: what is there}; a leading "*" is a vector of it
_SCHEMA: dict[str, dict[int, str]] = {
    "Model": {
        1: "*OperatorCode",
        2: "*SubGraph",
        3: "string",
        4: "*Buffer",
        5: "*i32",
        6: "*Metadata",
        7: "*Signature",
    },
    "OperatorCode": {1: "string"},
    "SubGraph": {0: "*Tensor", 1: "*i32", 2: "*i32", 3: "*Operator", 4: "string"},
    "Tensor": {0: "*i32", 3: "string", 4: "Quantization", 6: "Sparsity", 7: "*i32"},
    "Quantization": {0: "*f32", 1: "*f32", 2: "*f32", 3: "*i64"},
    "Sparsity": {0: "*i32", 1: "*i32", 2: "*DimensionMetadata"},
    "DimensionMetadata": {},
    "Operator": {1: "*i32", 2: "*i32", 5: "*u8", 7: "*u8", 8: "*i32"},
    "Buffer": {0: "*u8"},
    "Metadata": {0: "string"},
    "Signature": {0: "*TensorMap", 1: "*TensorMap", 2: "string"},
    "TensorMap": {0: "string"},
}


class _Damaged(Exception):
    """An offset that leads outside the file."""


def check_tflite(path: Path) -> None:
    """Raises ArtifactError when the file is missing, of another kind, damaged or cut short."""
    head = read_head(path)
    if head[4:8] != TFLITE_MAGIC:
        kind = looks_like(head)
        raise ArtifactError(path, f"is {kind}, not a LiteRT model" if kind != "unknown" else "is not a LiteRT model")
    reader = _Reader(path.read_bytes())
    try:
        reader.walk("Model", reader.offset(0))
    except (_Damaged, struct.error) as e:
        raise ArtifactError(path, f"is damaged or cut short ({len(reader.data)} bytes): {e}") from e


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self._seen: set[int] = set()

    def walk(self, kind: str, table: int) -> None:
        """Check `table` and everything below it; each place once, so that shared tables cost nothing."""
        if table in self._seen:
            return
        self._seen.add(table)
        fields = self._fields(table)
        for slot, what in _SCHEMA[kind].items():
            if at := fields.get(slot):
                self._check(what, self.offset(at))

    def _check(self, what: str, place: int) -> None:
        if what == "string":
            self._span(place, 1, terminator=1)
        elif what[0] != "*":
            self.walk(what, place)
        elif width := _WIDTHS.get(what[1:]):
            self._span(place, width)
        else:
            for entry in self.entries(place):
                self.walk(what[1:], entry)

    def entries(self, vector: int) -> Iterator[int]:
        """The tables that a vector of offsets points at."""
        count = self._span(vector, 4)
        for i in range(count):
            yield self.offset(vector + 4 + 4 * i)

    def offset(self, at: int) -> int:
        """Follow the forward offset stored at `at`."""
        target = at + self._u32(at)
        if target + 4 > len(self.data) or target == at:
            raise _Damaged(f"the offset at byte {at} leads to byte {target}")
        return target

    def _fields(self, table: int) -> dict[int, int]:
        """Field slot -> place in the file, from the table's vtable."""
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        if not 0 <= vtable <= len(self.data) - 4:
            raise _Damaged(f"the table at byte {table} has its layout outside the file")
        vtable_bytes, table_bytes = struct.unpack_from("<HH", self.data, vtable)
        if vtable + vtable_bytes > len(self.data) or table + table_bytes > len(self.data) or vtable_bytes < 4:
            raise _Damaged(f"the table at byte {table} runs past the end")
        slots = struct.unpack_from(f"<{vtable_bytes // 2 - 2}H", self.data, vtable + 4)
        if any(place >= table_bytes for place in slots if place):
            raise _Damaged(f"the table at byte {table} has a field outside itself")
        return {slot: table + place for slot, place in enumerate(slots) if place}

    def _span(self, vector: int, width: int, *, terminator: int = 0) -> int:
        count = self._u32(vector)
        if vector + 4 + count * width + terminator > len(self.data):
            raise _Damaged(f"the {count} entries at byte {vector} run past the end")
        return count

    def _u32(self, at: int) -> int:
        value: int = struct.unpack_from("<I", self.data, at)[0]
        return value
