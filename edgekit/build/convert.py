"""ONNX to LiteRT by tools whose pins collide with ours: in an environment and a process of their own, within limits.

The tools are onnx2tf (direct backend, no TensorFlow) and ai-edge-quantizer. What is absent is said, not fatal.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgekit.config import convert_environment
from edgekit.errors import ArtifactError, RuntimeUnavailable

TIMEOUT_S = 300.0
MEMORY_BYTES = 8 * 1024**3
MEND = "make .venv-convert (needs Python 3.12 or newer)"
_OFFLINE = "http://127.0.0.1:9"  # the discard port: whatever the tools would fetch, they must do without
Feed = Mapping[str, np.ndarray]


class Converted(NamedTuple):
    """LiteRT files in the folder that was given."""

    floats: Path
    int8: Path | None
    "None without samples."


def python_of(environment: Path | None = None) -> Path:
    """The interpreter of the converting environment, by default where the configuration says it is.

    Raises RuntimeUnavailable, with the command that makes it.
    """
    found = (environment or convert_environment()) / "bin/python"
    if not found.is_file():
        raise RuntimeUnavailable("onnx2tf", f"there is no {found.parent.parent}", MEND)
    return found


def convert(
    source: Path,
    folder: Path,
    *,
    inputs: Sequence[str],
    feeds: Sequence[Feed],
    log: Path,
    python: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
) -> Converted:
    """`source` as `float.tflite` and, with feeds, `int8.tflite` in `folder`. What the tools say goes into `log`.

    Args:
        inputs: names of the model's inputs.
        feeds: to calibrate with, each input in the shape that the model takes.

    Raises:
        RuntimeUnavailable: no converting environment.
        ArtifactError: the tools failed, took too long, or too much memory; the last line that they wrote is the reason.
    """
    python = python or python_of()
    job = folder / "job.json"
    package = Path(__file__).resolve().parent
    job.write_text(
        json.dumps(
            {
                "source": str(source),
                "folder": str(folder),
                "inputs": list(inputs),
                "samples": _stored(feeds, folder),
                "memory_bytes": memory_bytes,
                "parent": os.getpid(),
                "lifeline": str(package.parent / "lifeline.py"),
            }
        )
    )
    command = [str(python), "-I", str(package / "convert_child.py"), str(job)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TQDM_DISABLE": "1", "http_proxy": _OFFLINE, "https_proxy": _OFFLINE}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as talk:
        child = subprocess.Popen(command, stdout=talk, stderr=talk, cwd=folder, env={**os.environ, **quiet})
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired as e:
            raise ArtifactError(source, f"converting took over {timeout_s:g} s and was stopped; log: {log}") from e
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    floats, int8 = folder / "float.tflite", folder / "int8.tflite"
    if code != 0 or not floats.is_file():
        raise ArtifactError(source, f"conversion to LiteRT failed: {reason(log, code)}; log: {log}")
    return Converted(floats, int8 if int8.is_file() else None)


def reason(log: Path, code: int) -> str:
    """The last line that a failed child wrote, at most 200 characters of it; a signal by its number."""
    if code < 0:
        return f"ended by signal {-code}"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = next((line for line in reversed(lines) if line), "")
    if said.startswith("MemoryError"):
        return "it needs more memory than it may take"
    return said[:200] or f"exit code {code}, and nothing was said"


def tools_of(python: Path) -> dict[str, str]:
    """The converters' distributions and versions, by asking their environment. Raises RuntimeUnavailable."""
    names = ("onnx2tf", "ai-edge-quantizer")
    code = f"import importlib.metadata as m; print('\\n'.join(m.version(n) for n in {names!r}))"
    try:
        told = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise RuntimeUnavailable("onnx2tf", f"{python} does not run: {e}", MEND) from e
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise RuntimeUnavailable("onnx2tf", f"is not complete in {python.parent.parent}: {last}", MEND)
    return dict(zip(names, told.stdout.split(), strict=True))


def _stored(feeds: Sequence[Feed], folder: Path) -> str:
    """The feeds as one .npz, stacked; empty when there are none."""
    if not feeds:
        return ""
    path = folder / "samples.npz"
    np.savez(path, **{name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]})  # type: ignore[arg-type]
    return str(path)
