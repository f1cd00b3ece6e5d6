"""Everything that must work on a device before a model can: what is broken, and the exact command that mends it."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path

import msgspec

from edgekit.device.accelerators import Accelerator
from edgekit.device.installed import InstalledRuntime
from edgekit.device.probe import Facts
from edgekit.runtimes.available import DISTRIBUTIONS, Runtime

OK, MISSING, BROKEN = "ok", "missing", "broken"
_OLDEST_PYTHON = (3, 10)
_EXTRAS: tuple[tuple[str, str, str], ...] = (
    ("serving over HTTP", "httptools", "'httptools>=0.6' uvloop"),
    ("images", "PIL", "'pillow>=10.1'"),
    ("building flash artifacts", "onnx", "'onnx>=1.16'"),
    ("the console", "textual", "'textual>=8'"),
    ("a broker for trying out", "amqtt", "'amqtt>=0.11'"),
)
_EDGE_TPU_LIBRARY = "edgetpu"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at. "missing" is optional and absent; "broken" is wanted and does not work."""

    name: str
    state: str
    detail: str
    mend: str | None = None
    "The command to type."


def checkup(facts: Facts, runtimes: Sequence[Runtime], home: Path) -> tuple[Check, ...]:
    """Every check, in the order in which to mend. `runtimes` is what `available.survey` has proved."""
    proved = _runtimes(runtimes)
    return (
        _python(),
        *_environment(),
        _home(home),
        *proved,
        *_metadata(facts.runtimes, {check.name for check in proved if check.state == BROKEN}),
        *(check for accelerator in facts.accelerators for check in _accelerator(accelerator)),
        *_delegates(facts.accelerators),
        *_extras(),
        _broker(),
    )


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info < _OLDEST_PYTHON:
        wanted = ".".join(map(str, _OLDEST_PYTHON))
        return Check(name="python", state=BROKEN, detail=f"{version}, edgekit needs {wanted} or newer")
    return Check(name="python", state=OK, detail=f"{version} ({sys.executable})")


def _environment() -> list[Check]:
    """A Python that pip must not touch is worth a word before the first `pip install` fails."""
    if sys.prefix != sys.base_prefix:
        return [Check(name="environment", state=OK, detail=f"virtual environment {sys.prefix}")]
    marker = Path(os.__file__).parent / "EXTERNALLY-MANAGED"
    if not marker.is_file():
        return []
    detail = "this Python belongs to the system, pip will refuse to install into it"
    mend = f"{sys.executable} -m venv ~/edgekit-venv && . ~/edgekit-venv/bin/activate"
    return [Check(name="environment", state=MISSING, detail=detail, mend=mend)]


def _home(home: Path) -> Check:
    """Whether what must survive can be written. Tried by writing, not by looking at modes."""
    there = next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as e:
        mend = f"sudo chown -R $(id -un) {home}, or set EDGEKIT_HOME to a folder of yours"
        return Check(name="state folder", state=BROKEN, detail=f"{home}: {e.strerror}", mend=mend)
    return Check(name="state folder", state=OK, detail=str(home))


def _runtimes(runtimes: Sequence[Runtime]) -> list[Check]:
    checks = [_runtime(runtime) for runtime in runtimes if runtime.version or _can_install(runtime, runtimes)]
    if not any(runtime.loads for runtime in runtimes):
        mend = f"{sys.executable} -m pip install onnxruntime"
        checks.append(Check(name="any runtime", state=BROKEN, detail="none runs, so no model can", mend=mend))
    return checks


def _can_install(runtime: Runtime, runtimes: Sequence[Runtime]) -> bool:
    """tflite-runtime ended with Python 3.11, and who has its successor needs it no more."""
    successor = any(other.name == "litert" and other.loads for other in runtimes)
    return runtime.name != "tflite" or (sys.version_info < (3, 12) and not successor)


def _runtime(runtime: Runtime) -> Check:
    command = f"{sys.executable} -m pip install {DISTRIBUTIONS[runtime.name][0]}"
    if runtime.version is None:
        return Check(name=runtime.name, state=MISSING, detail="not installed", mend=command)
    if not runtime.loads:
        detail = f"{runtime.version} is installed but does not run: {runtime.problem}"
        return Check(
            name=runtime.name, state=BROKEN, detail=detail, mend=runtime.mend or f"{command} --force-reinstall"
        )
    parts = [p.name if p.runs else f"{p.name} does not run ({p.problem})" for p in runtime.providers]
    if all(provider.runs for provider in runtime.providers):
        return Check(name=runtime.name, state=OK, detail=f"{runtime.version}: ran a model on {', '.join(parts)}")
    return Check(name=runtime.name, state=BROKEN, detail=f"{runtime.version}: {', '.join(parts)}")


def _metadata(installed: Sequence[InstalledRuntime], known_broken: Container[str]) -> list[Check]:
    """What the probe found wrong with the installation itself, such as two packages that write one module."""
    said = {distribution for name, own in DISTRIBUTIONS.items() if name in known_broken for distribution in own}
    return [
        Check(name=package.distribution, state=BROKEN, detail=problem)
        for package in installed
        if package.distribution not in said
        for problem in package.problems
    ]


def _accelerator(accelerator: Accelerator) -> list[Check]:
    """An accelerator that is there and that this user may not touch; absent ones are no fault."""
    if not accelerator.present:
        return []
    refused = [node for node in accelerator.nodes if node.refused]
    if not refused and accelerator.usable is not False:
        return [Check(name=accelerator.name, state=OK, detail=accelerator.evidence)]
    mend = None
    if groups := sorted({node.group for node in refused if node.group}):
        mend = f"sudo usermod -aG {','.join(groups)} $USER, then log in again"
    why = accelerator.why_not_usable or f"no permission for {', '.join(node.path for node in refused)}"
    return [Check(name=accelerator.name, state=BROKEN, detail=why, mend=mend)]


def _delegates(accelerators: Sequence[Accelerator]) -> list[Check]:
    """A Coral without its library is a stick that gets warm."""
    if not any("edge tpu" in accelerator.name.lower() and accelerator.present for accelerator in accelerators):
        return []
    library = ctypes.util.find_library(_EDGE_TPU_LIBRARY)
    if library:
        return [Check(name="Edge TPU delegate", state=OK, detail=library)]
    detail = "an Edge TPU is there, its delegate libedgetpu.so.1 is not"
    return [Check(name="Edge TPU delegate", state=BROKEN, detail=detail, mend="sudo apt install libedgetpu1-std")]


def _extras() -> list[Check]:
    checks = []
    for name, module, packages in _EXTRAS:
        there = importlib.util.find_spec(module) is not None
        mend = None if there else f"{sys.executable} -m pip install {packages}"
        checks.append(Check(name=name, state=OK if there else MISSING, detail=module, mend=mend))
    return checks


def _broker() -> Check:
    path = shutil.which("mosquitto", path=os.pathsep.join([os.defpath, "/usr/sbin", "/usr/local/sbin"]))
    if path:
        return Check(name="mosquitto", state=OK, detail=path)
    mend = "sudo apt install mosquitto"
    return Check(name="mosquitto", state=MISSING, detail="not found; only a broker host needs it", mend=mend)
