"""The built wheel, installed into a clean environment, holds the boards, the models and the console's styles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def quiet(*argv: str | Path, cwd: Path) -> str:
    """Run a command outside the checkout and return its stdout; a failure shows its stderr."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("EDGEKIT", "PYTHON"))}
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, cwd=cwd, env=environ, timeout=110)
    assert run.returncode == 0, f"{argv}: {run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds what a serving board installs, without a runtime."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, ROOT], capture_output=True, text=True)
    if built.returncode and "Could not find a version" in built.stderr:
        pytest.skip("the package index cannot be reached, so the build back end cannot be had")
    assert built.returncode == 0, built.stderr
    # Our pip installs into it: an own one, and byte code of all of numpy, would take most of the time.
    quiet(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env/bin/python"
    (wheel,) = folder.glob("edgekit_deploy-*.whl")
    into = [*pip, "--python", python, "install", "-q", "--no-compile"]
    quiet(*into, f"edgekit-deploy[serve] @ {wheel.as_uri()}", cwd=folder)
    return python.parent


@pytest.mark.network
@pytest.mark.slow
def test_the_wheel_lists_the_boards_and_models_of_the_checkout(clean_environment: Path, tmp_path: Path):
    boards = json.loads(quiet(clean_environment / "edgekit", "boards", "--json", cwd=tmp_path))
    assert len(boards["boards"] if isinstance(boards, dict) else boards) == len(list((ROOT / "devices").glob("*.toml")))
    models = json.loads(quiet(clean_environment / "edgekit", "models", "--json", cwd=tmp_path))
    assert {model["name"] for model in models} == {path.parent.name for path in (ROOT / "models").glob("*/model.toml")}


@pytest.mark.network
@pytest.mark.slow
def test_a_board_install_has_at_most_ten_distributions(clean_environment: Path, tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", clean_environment / "python"]
    listed = json.loads(quiet(*pip, "list", "--format=json", cwd=tmp_path))
    names = {entry["name"].lower() for entry in listed} - {"pip", "setuptools", "wheel"}
    assert len(names - {"tomli"}) <= 10, names
    readme = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    assert all(name in readme for name in names), names


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("edgekit-console", "--snapshot", "x.svg"), ("edgekit", "run", "digits"), ("edgekit", "build", "digits")],
)
def test_a_command_whose_extra_is_absent_says_so_in_one_line(
    clean_environment: Path, tmp_path: Path, command: tuple[str, ...]
):
    run = subprocess.run(
        [clean_environment / command[0], *command[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert run.returncode == 5, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert "pip install" in run.stderr


@pytest.mark.network
@pytest.mark.slow
def test_the_installed_doctor_and_probe_answer(clean_environment: Path, tmp_path: Path):
    facts = json.loads(quiet(clean_environment / "edgekit", "probe", "--json", cwd=tmp_path))
    assert facts["memory"]["total_bytes"] > 0
    run = subprocess.run(
        [clean_environment / "edgekit", "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode in (0, 1), run.stderr
    assert json.loads(run.stdout)
