"""Which runtimes and providers are installed, and which of them really run a model as the current user.

"Available" in a library's own words means "was compiled in". The proof here is one operator that ran where it should,
in a child process, because a broken library can take the process with it.
"""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit.errors import EdgekitError
from edgekit.runtimes.session import RUNTIMES, SessionSettings, open_session

_PROOF_TIMEOUT_S = 60.0
_REMOTE = frozenset({"AzureExecutionProvider"})  # calls a server; nothing runs here
_MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai_edge_litert",
    "tflite": "tflite_runtime",
}
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn", "onnxruntime-rocm"),
    "openvino": ("openvino",),
    "litert": ("ai-edge-litert",),
    "tflite": ("tflite-runtime",),
}
"""Runtime -> the distributions that install it; two of one runtime overwrite each other's files."""

# y = x + x of four floats, the smallest file of each format
_PROOF_MODELS = {
    "onnx": "CAcSB2VkZ2VraXQ6NQoOCgF4CgF4EgF5IgNBZGQSAWdaDwoBeBIKCggIARIECgIIBGIPCgF5EgoKCAgBEgQKAggEQgQKABAN",
    "tflite": "GAAAAFRGTDMAAA4AGAAUABAADAAIAAQADgAAABQAAAAcAAAAJAAAAPQAAAADAAAAAQAAAAQAAAAU////BwAAAGVkZ2VraXQAAQAA"
    "ABAAAAAMABQAEAAMAAgABAAMAAAAEAAAAFAAAABUAAAAWAAAAAEAAAAUAAAAAAAOABQAAAAQAAwACwAEAA4AAAAQAAAAAAAACwwAAAAQAAAAeP//"
    "/wEAAAABAAAAAgAAAAAAAAAAAAAAAQAAAAEAAAABAAAAAAAAAAIAAAA0AAAABAAAAOD///8IAAAADAAAAAEAAAB5AAAAAgAAAAEAAAAEAAAADAAM"
    "AAgAAAAAAAQADAAAAAgAAAAMAAAAAQAAAHgAAAACAAAAAQAAAAQAAAABAAAACAAAAAQABAAEAAAA",
}


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An execution provider, delegate or device of a runtime; `problem` says why nothing ran on it."""

    name: str
    runs: bool
    problem: str | None = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime as found here; `version` is None when it is not installed."""

    name: str
    version: str | None
    loads: bool = False
    providers: tuple[Provider, ...] = ()
    problem: str | None = None
    mend: str | None = None


def installed_version(runtime: str) -> str | None:
    """The version of what installs `runtime`, or None. Imports nothing; a module without metadata is "unknown"."""
    for distribution in DISTRIBUTIONS[runtime]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec(_MODULES[runtime]) else None


def installed_runtimes() -> tuple[str, ...]:
    """The runtimes that are installed, in edgekit's order. Whether they load is another question: `survey`."""
    return tuple(name for name in RUNTIMES if installed_version(name))


def survey(runtimes: Sequence[str] = tuple(RUNTIMES)) -> tuple[Runtime, ...]:
    """Each runtime with what really runs, each proved in a child process of its own, all at once."""
    children = {name: _start_proof(name) for name in runtimes if installed_version(name)}
    return tuple(
        _result(name, children[name]) if name in children else Runtime(name=name, version=None) for name in runtimes
    )


def prove(runtime: str) -> Runtime:
    """Run the proof model on every provider of `runtime`, in this process."""
    version = installed_version(runtime)
    with tempfile.TemporaryDirectory(prefix="edgekit-proof-") as folder:
        model = Path(folder) / f"proof.{RUNTIMES[runtime]}"
        model.write_bytes(base64.b64decode(_PROOF_MODELS[RUNTIMES[runtime]]))
        try:
            providers = tuple(_prove_one(model, settings) for settings in _ways(runtime))
        except EdgekitError as e:
            return Runtime(name=runtime, version=version, problem=_detail(e), mend=getattr(e, "mend", None))
    works = any(provider.runs for provider in providers)
    problem = None if works else "; ".join(f"{p.name}: {p.problem}" for p in providers)
    return Runtime(name=runtime, version=version, loads=works, providers=providers, problem=problem)


def _ways(runtime: str) -> list[SessionSettings]:
    """One set of settings for each provider that the library says it has. Raises RuntimeUnavailable."""
    if runtime == "onnxruntime":
        from edgekit.runtimes import onnx

        names = [name for name in onnx.built_in_providers() if name not in _REMOTE]
        return [SessionSettings(providers=((name, {}),)) for name in names]
    if runtime == "openvino":
        from edgekit.runtimes import openvino

        return [SessionSettings(runtime=runtime, delegate=name) for name in openvino.devices()]
    return [SessionSettings(runtime=runtime)]


def _prove_one(model: Path, settings: SessionSettings) -> Provider:
    import numpy as np

    from edgekit.runtimes.warmup import random_inputs

    built_in = settings.providers[0][0] if settings.runtime == "onnxruntime" else "XNNPACK"
    name = settings.delegate or built_in
    try:
        session = open_session(model, settings)
        spec = session.inputs[0]
        inputs = {spec.name: 2 * np.ones_like(random_inputs([spec])[spec.name])}
        right = bool((session.run(inputs)[session.outputs[0].name] == 4).all())
        unused = session.placement(inputs).unused
    except EdgekitError as e:
        if not settings.delegate and settings.runtime != "onnxruntime":
            raise
        return Provider(name=name, runs=False, problem=_detail(e))
    if not right:
        return Provider(name=name, runs=False, problem="2 + 2 is not 4 on it")
    return Provider(name=name, runs=not unused, problem="loads, but the operator ran elsewhere" if unused else None)


def _detail(error: EdgekitError) -> str:
    return str(getattr(error, "detail", None) or getattr(error, "problem", None) or error)


def _start_proof(runtime: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgekit.runtimes.available", runtime],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _result(runtime: str, child: subprocess.Popen[bytes]) -> Runtime:
    version = installed_version(runtime)
    try:
        out, err = child.communicate(timeout=_PROOF_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Runtime(name=runtime, version=version, problem=f"hangs: no answer in {_PROOF_TIMEOUT_S:.0f} s")
    if child.returncode == 0:
        return msgspec.json.decode(out.splitlines()[-1], type=Runtime)
    if child.returncode < 0:
        return Runtime(name=runtime, version=version, problem=f"dies with {signal.Signals(-child.returncode).name}")
    last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return Runtime(name=runtime, version=version, problem=f"fails: {last}")


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(prove(sys.argv[1])) + b"\n")
