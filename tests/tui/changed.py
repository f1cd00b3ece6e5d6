"""A frozen value with some fields changed, whichever kind of value it is."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def replace(value: Value, **changes: Any) -> Value:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
