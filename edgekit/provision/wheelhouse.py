"""Collects the wheels that a target needs, from a hash-locked requirements list, for its machine and Python only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from edgekit.errors import FetchError, ReleaseError
from edgekit.provision.release import Target

TAGS = {
    "x86_64": ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "aarch64": ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "armv7l": ("manylinux_2_31_armv7l", "manylinux_2_17_armv7l", "manylinux2014_armv7l", "linux_armv7l"),
    "riscv64": ("manylinux_2_39_riscv64", "manylinux_2_35_riscv64"),
}
"""`uname -m` -> platform tags of wheels that run there, newest first. Source: PEP 600."""
_TIMEOUT_S = 1800
_WHEEL = re.compile(r"^[^-]+-[^-]+(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")


def collect(requirements: Path, target: Target, folder: Path) -> list[Path]:
    """Every wheel that the list names, downloaded into `folder` and checked against its hashes by pip.

    Raises ReleaseError (the list is not locked, or has no wheel for the target), FetchError (no network).
    """
    if target.machine not in TAGS:
        raise ReleaseError(str(requirements), f"no wheels are known for '{target.machine}', only for {', '.join(TAGS)}")
    _check_lock(requirements)
    platforms = [word for tag in TAGS[target.machine] for word in ("--platform", tag)]
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--require-hashes",
        "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", target.python, *platforms,
        "--dest", str(folder), "--requirement", str(requirements),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        last = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no word")
        if "HASH" in run.stderr.upper() and "MATCH" in run.stderr.upper():
            last = "a package is not what the list's hash says"
        raise FetchError(str(requirements), last.removeprefix("ERROR: "))
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        if problem := why_unfit(wheel.name, target):
            raise ReleaseError(wheel.name, problem)
    return wheels


def _check_lock(requirements: Path) -> None:
    try:
        text = requirements.read_text(encoding="utf-8")
    except OSError as e:
        raise ReleaseError(str(requirements), f"cannot be read: {e.strerror}") from e
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line and not line.startswith(("#", "--hash")) and "--hash=sha256:" not in line:
            mend = f"pip-compile --generate-hashes, or: pip hash the wheel of {line.split()[0]}"
            raise ReleaseError(str(requirements), f"'{line}' has no --hash=sha256:…; make the list with {mend}")


def why_unfit(name: str, target: Target) -> str | None:
    """Why the wheel of that file name must not go to the target, or None."""
    found = _WHEEL.match(name)
    if found is None:
        return "is not the file name of a wheel"
    platforms = found["platform"].split(".")
    if target.machine and not any(p == "any" or p.endswith(f"_{target.machine}") for p in platforms):
        return f"is for {found['platform']}, the target is {target.machine}"
    wanted = target.python.replace(".", "")
    if wanted and not _runs_on(found["python"], found["abi"], wanted):
        return f"is for {found['python']} ({found['abi']}), the target has Python {target.python}"
    return None


def _runs_on(pythons: str, abi: str, wanted: str) -> bool:
    for tag in pythons.split("."):
        if tag in ("py3", f"py{wanted}", f"cp{wanted}"):
            return True
        older = re.match(r"^cp3(\d+)$", tag)
        if abi == "abi3" and older and int(older[1]) <= int(wanted[1:]):
            return True
    return False
