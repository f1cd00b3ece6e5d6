"""Collects the wheels that a target needs, from a hash-locked requirements list, for its machine and Python only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
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
_EXTRA = re.compile(r"""\s*(?:and\s+)?extra == ['"](?P<name>[^'"]+)['"]""")
_WHEEL = re.compile(r"^[^-]+-[^-]+(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")


def collect(requirements: Path, target: Target, folder: Path) -> list[Path]:
    """Every wheel that the list names, downloaded into `folder` and checked against its hashes by pip.

    Raises ReleaseError (the list is not locked, or has no wheel for the target), FetchError (no network).
    """
    options = _for(target)
    _check_lock(requirements)
    words = ["download", "--require-hashes", "--no-deps", *options, "--dest", str(folder)]
    _pip([*words, "--requirement", str(requirements)], what=str(requirements))
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        if problem := why_unfit(wheel.name, target):
            raise ReleaseError(wheel.name, problem)
    return wheels


def lock(packages: Sequence[str], target: Target) -> str:
    """A hash-locked list of what the packages need on the target, all of it wheels. Raises FetchError, ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="edgekit-lock-") as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        _pip([*words, *_for(target), *packages], what=", ".join(packages))
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = [f"# for {target.machine} with Python {target.python}; made by: edgekit release lock"]
    for entry in sorted(found, key=lambda entry: str(entry["metadata"]["name"]).lower()):
        digest = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{entry['metadata']['name']}=={entry['metadata']['version']} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def needs_of_edgekit(extras: Sequence[str]) -> list[str]:
    """What edgekit's own wheel depends on with these extras, as it is installed here. Raises ReleaseError."""
    try:
        declared = metadata.requires("edgekit-deploy") or []
    except metadata.PackageNotFoundError as e:
        raise ReleaseError("edgekit-deploy", "is not installed here, so its needs are unknown") from e
    found = []
    for requirement in declared:
        extra = _EXTRA.search(requirement)
        if extra is None:
            found.append(requirement)
        elif extra["name"] in extras:
            found.append(_EXTRA.sub("", requirement).rstrip("; "))
    return found


def _for(target: Target) -> list[str]:
    if target.machine not in TAGS:
        raise ReleaseError(target.machine, f"no wheels are known for this machine, only for {', '.join(TAGS)}")
    platforms = [word for tag in TAGS[target.machine] for word in ("--platform", tag)]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", target.python, *platforms]


def _pip(words: Sequence[str], *, what: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if run.returncode == 0:
        return
    said = run.stderr.strip().splitlines()
    last = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no word")
    if "DO NOT MATCH THE HASHES" in run.stderr:
        last = "a package is not what the list's hash says"
    raise FetchError(what, last.removeprefix("ERROR: "))


def _check_lock(requirements: Path) -> None:
    try:
        text = requirements.read_text(encoding="utf-8")
    except OSError as e:
        raise ReleaseError(str(requirements), f"cannot be read: {e.strerror}") from e
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line and not line.startswith(("#", "--hash")) and "--hash=sha256:" not in line:
            problem = f"'{line}' has no --hash=sha256:…; make the list with: edgekit release lock"
            raise ReleaseError(str(requirements), problem)


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
