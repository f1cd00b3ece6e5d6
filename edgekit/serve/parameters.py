"""What a request's `parameters` ask for, in our own words and in Triton's: its clients cannot send others.

Source: KServe "Binary Tensor Data Extension", Triton "Schedule Policy" and "Sequence" extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.errors import RequestError

PRIORITIES = ("realtime", "tolerant")
SEQUENCE_ID_LENGTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request's place in its sequence, for a model that keeps state from one request to the next."""

    id: int | str
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A part of a region, as a request names it; `offset` counts from the region's beginning."""

    region: str
    offset: int
    size_bytes: int


def flag(parameters: Mapping[str, Any], name: str) -> bool:
    """False when absent. Raises RequestError (400) for anything but true and false."""
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise RequestError(400, f"parameter {name} is {value!r}, must be true or false")
    return value


def deadline_ms(parameters: Mapping[str, Any]) -> float | None:
    """`deadline_ms`, else Triton's `timeout` (microseconds). Raises RequestError (400) unless it is above 0."""
    for name, unit in (("deadline_ms", 1.0), ("timeout", 1e-3)):
        value = parameters.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 < value < 1e15:
            raise RequestError(400, f"parameter {name} is {value!r}, must be a number above 0")
        return float(value) * unit
    return None


def priority(parameters: Mapping[str, Any]) -> str | None:
    """The lane asked for. Of Triton's numbers 0 is none, 1 (its highest) real-time, every other tolerant.

    Raises RequestError (400).
    """
    value = parameters.get("priority")
    if type(value) is int and value >= 0:
        return None if value == 0 else PRIORITIES[min(value, 2) - 1]
    if value is not None and value not in PRIORITIES:
        raise RequestError(400, f"parameter priority is {value!r}, must be 'realtime' or 'tolerant'")
    return value


def step(parameters: Mapping[str, Any]) -> Step | None:
    """Where in which sequence the request stands; None outside of any. Raises RequestError (400)."""
    value = parameters.get("sequence_id")
    if value is None or value in (0, ""):  # Triton: no sequence
        return None
    if type(value) not in (int, str) or (type(value) is str and len(value) > SEQUENCE_ID_LENGTH):
        raise RequestError(400, f"parameter sequence_id must be a number or at most {SEQUENCE_ID_LENGTH} characters")
    return Step(id=value, is_first=flag(parameters, "sequence_start"), is_last=flag(parameters, "sequence_end"))


def place_in(parameters: Mapping[str, Any]) -> Place:
    """What a tensor's parameters name. Raises RequestError (400)."""
    region = parameters.get("shared_memory_region")
    size, offset = parameters.get("shared_memory_byte_size"), parameters.get("shared_memory_offset", 0)
    if type(region) is not str or type(size) is not int or type(offset) is not int or size < 0 or offset < 0:
        raise RequestError(400, "shared_memory_region, shared_memory_byte_size or shared_memory_offset is not valid")
    return Place(region=region, offset=offset, size_bytes=size)
