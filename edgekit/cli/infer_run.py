"""Where `edgekit infer` sends its tensors: a session opened here, or a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import STANDARD, Artifact
from edgekit.bench.candidates import candidates
from edgekit.cli.progress import bytes_bar
from edgekit.config import home
from edgekit.device.cpu import usable_cores
from edgekit.errors import RuntimeUnavailable, UsageError
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model
from edgekit.pipeline.stateful import Run
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.session import open_session
from edgekit.serve.client import Client

Array = np.ndarray[Any, Any]
Facts = dict[str, Any]
"""What ran and how long it took; filled while it runs."""


@contextmanager
def here(
    model: Model, inputs: Mapping[str, Array] | None, *, artifact: str | None, axes: Mapping[str, int], offline: bool
) -> Iterator[tuple[Run, Facts]]:
    """A session in this process, on all usable cores.

    `inputs` are tensors given raw: their names are checked, and their shapes bind the axes that nothing declares.
    Raises UsageError (no such artifact, other names), and what fetching and opening raise.
    """
    with bytes_bar(f"fetching {model.name}") as bar:
        artifacts = all_artifacts(model, home(), offline=offline, progress=bar)
    wanted = artifact or STANDARD
    found = next((a for a in artifacts if a.record.name == wanted), None)
    if found is None:
        raise UsageError(f"--artifact {wanted}: {model.name} has {', '.join(a.record.name for a in artifacts)}")
    if inputs is not None:
        _check_names(model, found, inputs)
        if not model.inputs:
            axes = {f"{n}[{i}]": size for n, value in inputs.items() for i, size in enumerate(value.shape)} | dict(axes)
    cores = usable_cores()
    ways = candidates(model, [found], cores=cores, threads=[cores], axes=axes)
    if not ways:
        mend = f"pip install {'onnxruntime' if found.record.format == 'onnx' else 'ai-edge-litert'}"
        raise RuntimeUnavailable(found.record.format, f"no installed runtime reads {found.path.name}", mend)
    started = time.perf_counter()
    session = open_session(found.path, ways[0].settings)
    load_ms = (time.perf_counter() - started) * 1000
    facts = {"artifact": wanted, "runtime": ways[0].settings.runtime, "threads": cores, "load_ms": load_ms}
    try:
        yield session.run, facts
    finally:
        session.close()


@contextmanager
def at_daemon(model: Model, url: str, token_file: Path | None) -> Iterator[tuple[Run, Facts]]:
    """The daemon at `url`. Raises UsageError, UnreachableError, RequestError."""
    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    except OSError as e:
        raise UsageError(f"--token-file {token_file}: cannot be read: {e.strerror}") from e
    facts: Facts = {"url": url}
    with Client(url, token=token) as client:

        def infer(inputs: Mapping[str, Array]) -> dict[str, Array]:
            outputs, parameters = client.infer(model.name, inputs)
            facts.update(parameters)
            return outputs

        yield infer, facts


def open_axes(model: Model) -> dict[str, int]:
    """Every axis with several sizes left open, so that one session takes lines of every length."""
    return {name: OPEN for name, sizes in model.axes.items() if len(sizes) > 1}


def _check_names(model: Model, artifact: Artifact, inputs: Mapping[str, Array]) -> None:
    """Other names fail here and not as an axis that does not exist. Raises UsageError."""
    from edgekit.runtimes.onnx_header import read_header

    if artifact.record.format != "onnx":
        return
    names = {spec.name for spec in read_header(artifact.path).inputs}
    given = set(inputs)
    if given not in (names, names - set(model.constants) - set(model.state)):
        takes = ", ".join(sorted(names))
        raise UsageError(f"--input: holds {', '.join(sorted(given)) or 'nothing'}; {model.name} takes {takes}")
