"""A converting environment that is not there, broken or half made is told, and what it would make is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.build import convert_recipe
from edgekit.build.convert import MEND, python_of, tools_of
from edgekit.errors import RuntimeUnavailable

pytest.importorskip("ai_edge_litert", reason="elsewhere: what is converted is judged in LiteRT")


def environment(folder: Path, script: str | None) -> Path:
    """A folder that looks like an environment whose python does what the script says."""
    if script is not None:
        python = folder / "bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    return folder


CASES = [
    (None, "there is no "),
    ("echo 'PackageNotFoundError: No package metadata was found for onnx2tf' >&2; exit 1", "is not complete in "),
    ("exit 1", "is not complete in "),
]


@pytest.mark.parametrize(("script", "words"), CASES)
def test_what_is_missing_is_said_with_the_command_and_ends_no_build(
    script: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = environment(tmp_path / "env", script)
    monkeypatch.setattr(convert_recipe, "python_of", lambda: python_of(folder))
    why = convert_recipe._absent(None)  # type: ignore[arg-type]
    assert why is not None
    assert words in why
    assert str(folder) in why
    assert why.endswith(f"to mend it: {MEND}")


def test_a_whole_environment_is_absent_in_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = environment(tmp_path / "env", "printf '1.28.0\\n0.4.0\\n'")
    monkeypatch.setattr(convert_recipe, "python_of", lambda: python_of(folder))
    assert convert_recipe._absent(None) is None  # type: ignore[arg-type]
    assert tools_of(python_of(folder)) == {"onnx2tf": "1.28.0", "ai-edge-quantizer": "0.4.0"}


def test_the_last_word_of_a_broken_environment_is_the_reason(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", "echo first >&2; echo 'ImportError: libx.so' >&2; exit 3")
    with pytest.raises(RuntimeUnavailable, match=r"is not complete in .*: ImportError: libx\.so"):
        tools_of(python_of(folder))


def test_a_python_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", "true")
    (folder / "bin/python").write_bytes(b"\x7fELF no program")
    with pytest.raises(RuntimeUnavailable, match="does not run: "):
        tools_of(python_of(folder))
