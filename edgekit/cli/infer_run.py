"""Where `edgekit infer` sends its tensors: a session opened here, or a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import STANDARD, Artifact
from edgekit.bench.candidates import candidates, to_session
from edgekit.choose import load_selection
from edgekit.cli.progress import bytes_bar
from edgekit.config import Home, home
from edgekit.device.cpu import usable_cores
from edgekit.errors import RuntimeUnavailable, UsageError
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model
from edgekit.pipeline.stateful import Run
from edgekit.runtimes.ahead import why_not_here
from edgekit.runtimes.axes import OPEN, session_axes
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.client import Client

Array = np.ndarray[Any, Any]
Facts = dict[str, Any]
"""What ran and how long it took; filled while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What runs here, and how it came to be chosen."""

    artifact: Artifact
    settings: SessionSettings
    chosen_by: str


@contextmanager
def here(
    model: Model, inputs: Mapping[str, Array] | None, *, artifact: str | None, axes: Mapping[str, int], offline: bool
) -> Iterator[tuple[Run, Facts]]:
    """A session in this process: the artifact that was named, else the stored selection, else the standard.

    `inputs` are tensors given raw: their names are checked, and their shapes bind the axes that nothing declares.
    Raises UsageError (no such artifact, other names), and what fetching and opening raise.
    """
    state = home()
    with bytes_bar(f"fetching {model.name}") as bar:
        artifacts = all_artifacts(model, state, offline=offline, progress=bar)
    if inputs is not None and not model.inputs:
        axes = {f"{n}[{i}]": size for n, value in inputs.items() for i, size in enumerate(value.shape)} | dict(axes)
    choice = _named(model, artifacts, artifact, axes) if artifact else _chosen(model, artifacts, axes, state)
    if inputs is not None:
        _check_names(model, choice.artifact, inputs)
    started = time.perf_counter()
    session = open_session(choice.artifact.path, choice.settings)
    load_ms = (time.perf_counter() - started) * 1000
    facts: Facts = {"artifact": choice.artifact.record.name, "chosen_by": choice.chosen_by}
    facts |= {"runtime": choice.settings.runtime, "threads": choice.settings.threads, "load_ms": load_ms}
    try:
        yield session.run, facts
    finally:
        session.close()


def _named(model: Model, artifacts: Sequence[Artifact], name: str, axes: Mapping[str, int]) -> Choice:
    """That artifact on all usable cores. Raises UsageError for a name that is none, RuntimeUnavailable."""
    found = next((a for a in artifacts if a.record.name == name), None)
    if found is None:
        raise UsageError(f"--artifact {name}: {model.name} has {', '.join(a.record.name for a in artifacts)}")
    cores = usable_cores()
    ways = candidates(model, [found], cores=cores, threads=[cores], axes=axes)
    if not ways:
        mend = f"pip install {'onnxruntime' if found.record.format == 'onnx' else 'ai-edge-litert'}"
        raise RuntimeUnavailable(found.record.format, f"no installed runtime reads {found.path.name}", mend)
    return Choice(artifact=found, settings=ways[0].settings, chosen_by="--artifact")


def _chosen(model: Model, artifacts: Sequence[Artifact], axes: Mapping[str, int], state: Home) -> Choice:
    """The stored selection as it was measured, where it still holds for this input; else the standard, and why."""
    selection = load_selection(state, model.name)
    why = "nothing selected yet"
    if selection is not None:
        found = next((a for a in artifacts if a.record.sha256 == selection.artifact_sha256), None)
        why = _why_not(found, axes) or ""
        if found is not None and not why:
            settings = to_session(selection.settings).one_item()
            measured = settings.axes if not model.inputs else {}  # a bare file's are declared nowhere else
            return Choice(
                artifact=found,
                settings=replace(
                    settings,
                    axes={**measured, **session_axes(model, axes, found.record.axes)},
                    threads=min(settings.threads, usable_cores()),
                ),
                chosen_by="selection",
            )
    return replace(_named(model, artifacts, STANDARD, axes), chosen_by=why)


def _why_not(artifact: Artifact | None, axes: Mapping[str, int]) -> str | None:
    """Why the selected artifact does not take this input, or None if it does."""
    if artifact is None:
        return "the selected artifact has gone or changed"
    if problem := why_not_here(artifact.record.bound_to):
        return f"the selected artifact {problem}"
    other = [f"{name}={size}" for name, size in artifact.record.axes.items() if axes.get(name, size) != size]
    return f"the selected artifact is fixed at {', '.join(other)}" if other else None


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
