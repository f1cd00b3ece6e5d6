"""Strict decoding: every slip in a file is named by file, key and the nearest known key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgekit.errors import CatalogError, ConfigError
from edgekit.strict import convert, read_json, read_toml


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size_bytes: int
    colour: str = "red"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cut", tag_field="step"):
    depth: int = 1


class Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="glue", tag_field="step"):
    pass


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    steps: tuple[Step | Other, ...] = ()


def write(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text, encoding="utf-8")
    return path


def failure(path: Path, error: type[ConfigError] = ConfigError) -> ConfigError:
    with pytest.raises(error) as caught:
        read_toml(path, Outer, error=error)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    return caught.value


def test_a_good_file_becomes_a_frozen_value(tmp_path: Path) -> None:
    value = read_toml(write(tmp_path, 'name = "a"\n[[items]]\nsize_bytes = 1_000\n'), Outer)
    assert value == Outer(name="a", items=(Inner(size_bytes=1000),))
    with pytest.raises(AttributeError):
        value.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ('nam = "a"\n', "nam", "did you mean 'name'?"),
        ('name = "a"\n[inner]\nsize_byte = 1\n', "inner.size_byte", "did you mean 'size_bytes'?"),
        ('name = "a"\n[[items]]\nsize_bytes = 1\ncolor = "x"\n', "items[0].color", "did you mean 'colour'?"),
        ('name = "a"\n[[steps]]\nstep = "cut"\ndept = 1\n', "steps[0].dept", "did you mean 'depth'?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, key: str, hint: str) -> None:
    problem = failure(write(tmp_path, text))
    assert problem.key == key
    assert problem.problem == f"unknown key; {hint}"


def test_an_unknown_key_like_no_other_gets_no_misleading_hint(tmp_path: Path) -> None:
    assert failure(write(tmp_path, 'name = "a"\nzzzzqqq = 1\n')).problem == "unknown key"


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("", "name", "required"),
        ('name = "a"\n[inner]\n', "inner.size_bytes", "required"),
        ("name = 3\n", "name", "expected `str`, got `int`"),
        ('name = "a"\n[[items]]\nsize_bytes = "big"\n', "items[0].size_bytes", "expected `int`, got `str`"),
        ('name = "a"\n[[steps]]\nstep = "saw"\n', "steps[0].step", "invalid value 'saw'"),
    ],
)
def test_a_missing_or_wrong_value_is_named_by_its_key(tmp_path: Path, text: str, key: str, problem: str) -> None:
    error = failure(write(tmp_path, text), CatalogError)
    assert error.key == key
    assert problem in error.problem


def test_what_is_not_toml_says_where(tmp_path: Path) -> None:
    assert "not TOML" in failure(write(tmp_path, "name = \n")).problem
    assert "line 1" in failure(write(tmp_path, "name = \n")).problem


@pytest.mark.parametrize("text", ["name = " + "[" * 3000, "name = " + "9" * 5000, 'name = "a"\nname = "b"\n'])
def test_what_breaks_a_parser_is_one_error_too(tmp_path: Path, text: str) -> None:
    problem = failure(write(tmp_path, text)).problem
    assert problem.startswith("not TOML: ")
    assert "\n" not in problem


def test_a_missing_file_a_folder_and_binary_are_each_one_clear_error(tmp_path: Path) -> None:
    assert failure(tmp_path / "absent.toml").problem == "no such file"
    assert "cannot be read" in failure(tmp_path).problem
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in failure(binary).problem


def test_json_is_read_as_strictly(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"name": "a", "inner": {"size_bytes": 2}}')
    assert read_json(path, Outer) == Outer(name="a", inner=Inner(size_bytes=2))
    path.write_text('{"name": "a", "inner": {"size_bites": 2}}')
    with pytest.raises(ConfigError, match=r"inner\.size_bites: unknown key; did you mean 'size_bytes'"):
        read_json(path, Outer)
    path.write_text('{"name": ')
    with pytest.raises(ConfigError, match="not JSON"):
        read_json(path, Outer)
    path.write_text('{"name": ' + "[" * 100_000)
    with pytest.raises(ConfigError, match="not JSON"):
        read_json(path, Outer)
    with pytest.raises(ConfigError, match="no such file"):
        read_json(tmp_path / "absent.json", Outer)


def test_convert_names_a_source_that_is_no_file() -> None:
    with pytest.raises(ConfigError, match=r"^the command line: name: this key is required$"):
        convert({}, Outer, path="the command line")
