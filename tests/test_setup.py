"""`.ci/venv` says in one line what is missing on a fresh machine, with the command that mends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script")


def set_up(folder: Path, python: str | Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci/venv", folder / "env", python, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
    )


def fake_python(folder: Path, body: str) -> Path:
    """A stand-in for an interpreter that lacks something."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def only_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1
    (line,) = [line for line in run.stderr.splitlines() if "installing into" not in line]
    return line


def test_no_python_names_the_package(tmp_path: Path):
    assert "sudo apt install python3 python3-venv" in only_line(set_up(tmp_path, "python-that-is-not-here"))


def test_an_old_python_names_its_version_and_how_to_choose_another(tmp_path: Path):
    python = fake_python(tmp_path, '[ "$1" = -V ] && echo "Python 3.9.2" && exit 0; exit 1')
    line = only_line(set_up(tmp_path, python))
    assert "Python 3.9.2" in line
    assert "make PYTHON=" in line


def test_a_python_without_venv_names_the_package_and_a_way_without_root(tmp_path: Path):
    python = fake_python(tmp_path, f'case "$*" in *ensurepip*|*virtualenv*) exit 1;; esac; exec {sys.executable} "$@"')
    line = only_line(set_up(tmp_path, python))
    assert "sudo apt install python3-venv" in line
    assert "virtualenv" in line
    assert not (tmp_path / "env").exists()


def test_an_interrupted_environment_is_made_again_and_without_a_network_says_where_the_story_is(tmp_path: Path):
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    run = set_up(tmp_path, sys.executable, "pip")  # there already: nothing is fetched
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "env/pyvenv.cfg").is_file()
    made_ns = (tmp_path / "env/pyvenv.cfg").stat().st_mtime_ns
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    run = set_up(tmp_path, sys.executable, "a-package-that-is-nowhere", **nowhere)
    assert "the package index cannot be reached" in only_line(run)
    assert (tmp_path / "env/pip.log").is_file()
    assert (tmp_path / "env/pyvenv.cfg").stat().st_mtime_ns == made_ns, "a whole environment is only completed"


@pytest.mark.parametrize("target", ["help", ""])
def test_make_lists_its_targets(target: str):
    run = subprocess.run(["make", "-C", ROOT, *target.split()], capture_output=True, text=True)
    assert run.returncode == 0
    assert "make demo" in run.stdout
    assert "make test" in run.stdout
