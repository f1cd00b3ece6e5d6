"""Strict decoding of TOML and JSON into frozen structs, with errors that name file, key and the nearest known key."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgekit.errors import ConfigError
from edgekit.toml import read_table

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`")
_AT = re.compile(r" - at `\$?(?P<where>[^`]*)`$")


def read_toml(path: Path, kind: type[T], *, error: type[ConfigError] = ConfigError) -> T:
    """The file as a `kind`. Raises `error` naming the file, the key and what is wrong."""
    return convert(read_table(path, error=error), kind, path=path, error=error)


def read_json(path: Path, kind: type[T], *, error: type[ConfigError] = ConfigError) -> T:
    """The JSON file as a `kind`. Raises `error` as `read_toml` does."""
    try:
        table = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as e:
        raise error(path, None, "no such file") from e
    except OSError as e:
        raise error(path, None, f"cannot be read: {e}") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise error(path, None, f"not JSON: {e}") from e
    return convert(table, kind, path=path, error=error)


def convert(table: Any, kind: type[T], *, path: Path | str, error: type[ConfigError] = ConfigError) -> T:
    """`table` as a `kind`; the error names the key as dotted text, and for a typing slip the nearest known key."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as e:
        raise error(path, *_explain(str(e), kind)) from e


def _explain(message: str, kind: type) -> tuple[str | None, str]:
    at = _AT.search(message)
    where = at["where"].lstrip(".") if at else ""
    message = _AT.sub("", message)
    if unknown := _UNKNOWN.search(message):
        near = difflib.get_close_matches(unknown["key"], sorted(_field_names(kind)), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return _join(where, unknown["key"]), f"unknown key{hint}"
    if missing := _MISSING.search(message):
        return _join(where, missing["key"]), "this key is required"
    return where or None, message[:1].lower() + message[1:]


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _field_names(kind: Any) -> set[str]:
    """Every key that a file of this kind may hold, at any depth."""
    names: set[str] = set()
    pending: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: set[type] = set()
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            names.update(field.encode_name for field in info.fields)
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += info.types
        else:
            for name in ("item_type", "value_type", "key_type"):
                inner = getattr(info, name, None)
                if inner is not None:
                    pending.append(inner)
            pending += getattr(info, "item_types", ())
    return names
