"""Strict files: every slip names its key, whichever format held it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import CatalogError, ConfigError
from edgekit.strict import convert, read_json, read_toml


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 0


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        ({}, "name", "this key is required"),
        ({"name": "a", "nmae": 1}, "nmae", "unknown key; did you mean 'name'?"),
        ({"name": "a", "zzz": 1}, "zzz", "unknown key"),
        ({"name": "a", "inner": {"sizes": 1}}, "inner.sizes", "unknown key; did you mean 'size'?"),
        ({"name": "a", "inner": {"size": "x"}}, "inner.size", "expected `int`, got `str`"),
        ({"name": 5}, "name", "expected `str`, got `int`"),
        ({"name": "a", "many": [{}, {"siz": 1}]}, "many[1].siz", "unknown key; did you mean 'size'?"),
        ([], None, "expected `object`, got `array`"),
    ],
)
def test_a_slip_in_a_file_names_the_key_as_dotted_text(
    table: Any, key: str | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        convert(table, Outer, path="f")
    assert (error.value.key, error.value.problem) == (key, problem)
    (tmp_path / "f.json").write_bytes(msgspec.json.encode(table))
    with pytest.raises(ConfigError) as told:
        read_json(tmp_path / "f.json", Outer)
    assert (told.value.key, told.value.problem) == (key, problem)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_one_error_of_the_kind_that_was_asked_for(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.toml"
        path.write_text(text, encoding="utf-8", errors="replace")
        with pytest.raises(CatalogError) as error:
            read_toml(path, Outer, error=CatalogError)
    assert str(error.value).startswith(str(path))
