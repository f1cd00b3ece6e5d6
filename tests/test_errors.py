"""Errors are typed facts: the attributes stay, and the message is one line made from them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit import errors

Error = errors.EdgekitError
CASES: list[tuple[Callable[[], Error], dict[str, Any], str]] = [
    (lambda: errors.UsageError("--a goes with --b"), {}, "--a goes with --b"),
    (
        lambda: errors.ConfigError(Path("/etc/edgekit.toml"), "http.port", "is taken"),
        {"path": Path("/etc/edgekit.toml"), "key": "http.port", "problem": "is taken"},
        "/etc/edgekit.toml: http.port: is taken",
    ),
    (
        lambda: errors.ConfigError("edgekit.toml", None, "no such file"),
        {"path": "edgekit.toml", "key": None, "problem": "no such file"},
        "edgekit.toml: no such file",
    ),
    (
        lambda: errors.CatalogError("model.toml", "source.size_bytes", "this key is required"),
        {"path": "model.toml", "key": "source.size_bytes", "problem": "this key is required"},
        "model.toml: source.size_bytes: this key is required",
    ),
    (
        lambda: errors.ProbeError("/proc/meminfo", "has no MemTotal"),
        {"path": "/proc/meminfo", "problem": "has no MemTotal"},
        "/proc/meminfo: has no MemTotal",
    ),
    (
        lambda: errors.NoUsableArtifact("digits", [("int8", "too slow"), ("standard", "too large")]),
        {"model": "digits", "rejections": (("int8", "too slow"), ("standard", "too large"))},
        "digits: nothing fits: int8: too slow; standard: too large",
    ),
    (
        lambda: errors.NoUsableArtifact("digits", []),
        {"model": "digits", "rejections": ()},
        "digits: nothing fits: there are no candidates",
    ),
    (
        lambda: errors.ArtifactError(Path("a.onnx"), "is cut short"),
        {"path": Path("a.onnx"), "problem": "is cut short"},
        "a.onnx: is cut short",
    ),
    (
        lambda: errors.InputError("image", "is int64, the model takes float32"),
        {"name": "image", "problem": "is int64, the model takes float32"},
        "input image: is int64, the model takes float32",
    ),
    (
        lambda: errors.RequestError(413, "too large"),
        {"status": 413, "problem": "too large"},
        "too large",
    ),
    (
        lambda: errors.FetchError("https://example.org/m.onnx", "404 Not Found"),
        {"source": "https://example.org/m.onnx", "problem": "404 Not Found"},
        "https://example.org/m.onnx: 404 Not Found",
    ),
    (
        lambda: errors.RuntimeUnavailable("litert", "is not installed", "pip install ai-edge-litert"),
        {"runtime": "litert", "detail": "is not installed", "mend": "pip install ai-edge-litert"},
        "litert: is not installed; to mend it: pip install ai-edge-litert",
    ),
    (
        lambda: errors.RuntimeUnavailable("litert", "is not installed"),
        {"runtime": "litert", "detail": "is not installed", "mend": None},
        "litert: is not installed",
    ),
    (
        lambda: errors.BrokerError("127.0.0.1:1883", "Connection refused"),
        {"endpoint": "127.0.0.1:1883", "detail": "Connection refused"},
        "broker 127.0.0.1:1883: Connection refused",
    ),
    (
        lambda: errors.UnreachableError("pi.local", "no route to host"),
        {"host": "pi.local", "detail": "no route to host"},
        "pi.local: no route to host",
    ),
    (
        lambda: errors.ReleaseError("2026.11.1", "is not signed"),
        {"release": "2026.11.1", "problem": "is not signed"},
        "release 2026.11.1: is not signed",
    ),
    (
        lambda: errors.SlotError("b", "cannot be written", rolled_back=False),
        {"slot": "b", "detail": "cannot be written", "rolled_back": False},
        "slot b: cannot be written",
    ),
    (
        lambda: errors.SlotError("b", "did not answer", rolled_back=True),
        {"slot": "b", "detail": "did not answer", "rolled_back": True},
        "slot b: did not answer (rolled back)",
    ),
]
"""How it is made, the facts that it keeps, the line that it is."""


@pytest.mark.parametrize(("make", "facts", "line"), CASES, ids=[line[:40] for _, _, line in CASES])
def test_an_error_keeps_its_facts_and_is_one_line(make: Callable[[], Error], facts: dict[str, Any], line: str) -> None:
    error = make()
    assert str(error) == line
    for name, value in facts.items():
        assert getattr(error, name) == value
    assert isinstance(error, errors.EdgekitError)
    assert isinstance(error, Exception)


def test_every_kind_has_its_case_here() -> None:
    made = {type(make()) for make, _, _ in CASES}
    bare = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Error) and "__init__" not in vars(kind)
    }
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Error)}
    assert kinds - bare <= made, "a new kind of error needs its facts and its line here"


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Error)])
def test_every_kind_says_what_it_stands_for(kind: type[Error]) -> None:
    assert kind.__doc__
    assert kind.__doc__[0].isupper()


def test_a_broken_catalog_is_caught_as_a_broken_setting() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        raise errors.CatalogError("devices/x.toml", None, "not TOML")
    assert caught.value.path == "devices/x.toml"


def test_rejections_are_kept_as_they_were_when_it_was_raised() -> None:
    given = [("int8", "too slow")]
    error = errors.NoUsableArtifact("digits", given)
    given.append(("standard", "changed later"))
    assert error.rejections == (("int8", "too slow"),)


def test_a_slots_outcome_must_be_said_by_name() -> None:
    with pytest.raises(TypeError):
        errors.SlotError("b", "x", True)  # type: ignore[misc]


def test_the_module_imports_nothing_heavy() -> None:
    code = "import sys, edgekit.errors; print(sorted(n for n in sys.modules if n.startswith('edgekit')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['edgekit', 'edgekit.errors']"
