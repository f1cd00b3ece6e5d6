"""The probe in one file: the same facts as the installed verb, on the oldest Python that a board brings."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli.main import main
from edgekit.device.probe import as_json, probe
from edgekit.profiles import board_tables

OWN_BOARDS = Path(__file__).parent / "boards"


@pytest.fixture(scope="module")
def python38() -> str:
    """An interpreter of Python 3.8: on the PATH, or one of pyenv's."""
    versions = sorted((Path.home() / ".pyenv/versions").glob("3.8*/bin/python"))
    for candidate in [*map(str, versions), shutil.which("python3.8")]:
        # Run, not only found: pyenv puts a python3.8 on the PATH that refuses unless a 3.8 is chosen.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("no Python 3.8 on the PATH or in pyenv")


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["probe", "--print-script"]) == 0
    path = tmp_path / "probe.py"
    path.write_text(capsys.readouterr().out)
    return path


def lasting(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts less what differs between Pythons (runtimes) and moments (available memory)."""
    facts = json.loads(json.dumps(facts))
    facts["runtimes"] = facts["memory"]["available_bytes"] = None
    return facts


def run(python: str, script: Path, *arguments: str) -> dict[str, Any]:
    """As it is piped over ssh: on standard input, without the package on the path."""
    command = [python, "-I", "-", *arguments]
    done = subprocess.run(command, input=script.read_text(), capture_output=True, text=True, check=True, cwd="/")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_python_3_8_says_the_same_of_this_machine(python38: str, script: Path) -> None:
    facts = run(python38, script)
    assert facts["runtimes"][0]["version"].startswith("3.8.")
    assert lasting(facts) == lasting(as_json(probe("/", board_tables())))


@pytest.mark.parametrize("case", sorted(path.name for path in OWN_BOARDS.iterdir())[::3])
def test_python_3_8_says_the_same_of_a_captured_tree(python38: str, script: Path, case: str) -> None:
    root = OWN_BOARDS / case / "root"
    assert lasting(run(python38, script, "--root", str(root))) == lasting(as_json(probe(root, board_tables())))


def test_the_script_is_one_ascii_file_of_modest_size(script: Path) -> None:
    data = script.read_bytes()
    assert data.isascii()
    assert len(data) < 250_000
    assert b"import subprocess" not in data


def test_the_script_needs_nothing_installed(script: Path) -> None:
    assert run(sys.executable, script)["board"]["profile"] == probe("/", board_tables()).board.profile
