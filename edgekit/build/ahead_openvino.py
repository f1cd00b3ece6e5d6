"""Ahead of time for OpenVINO: the compiled form of the artifact made for it, kept beside it where that pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edgekit.artifact import Artifact
from edgekit.build.plain import RUNTIME
from edgekit.build.workshop import Workshop
from edgekit.errors import ArtifactError, EdgekitError
from edgekit.runtimes import openvino_cache
from edgekit.runtimes.available import installed_version
from edgekit.runtimes.axes import bind
from edgekit.runtimes.onnx_header import read_header
from edgekit.runtimes.session import SessionSettings

PAYS = 0.8
"""The share of compiling that loading must stay below."""


class Compiled(NamedTuple):
    """What was kept, or why nothing was."""

    path: Path | None
    text: str


def compile_ahead(shop: Workshop, artifacts: Sequence[Artifact]) -> dict[str, Compiled]:
    """The compiled form of each fit artifact that is for OpenVINO only, made now where it is not there yet.

    By the artifact's name; empty where OpenVINO is not installed. At the model's default sizes, for every number of
    threads. Raises ArtifactError: disk full.
    """
    if installed_version(RUNTIME) is None or shop.target.isa != shop.here:
        return {}
    ours = [a for a in artifacts if a.record.fit and a.record.bound_to.get("runtime") == RUNTIME]
    return {artifact.record.name: _compile(shop, artifact) for artifact in ours}


def _compile(shop: Workshop, artifact: Artifact) -> Compiled:
    from edgekit.runtimes.openvino import OpenVinoSession, compile_options, compiled_form  # deferred: half a second

    settings: SessionSettings = replace(shop.opened_as(artifact.path), runtime=RUNTIME, providers=())
    inputs = bind(artifact.path, read_header(artifact.path).inputs, settings.axes)
    version = installed_version(RUNTIME) or ""
    where = openvino_cache.place(artifact.path, inputs, "CPU", compile_options(settings), version)
    if openvino_cache.load(where) is not None:
        return Compiled(where, "compiled before")
    try:
        begun = time.perf_counter()
        session = OpenVinoSession(artifact.path, settings)
        opened_ms = 1000 * (time.perf_counter() - begun)
        compiled = compiled_form(session)
        session.close()
    except EdgekitError as e:
        return Compiled(None, str(e))
    try:
        openvino_cache.save(where, compiled)
        begun = time.perf_counter()
        OpenVinoSession(artifact.path, settings).close()
        loaded_ms = 1000 * (time.perf_counter() - begun)
        if loaded_ms > PAYS * opened_ms:
            where.unlink()
            return Compiled(None, f"loads in {loaded_ms:.0f} ms and compiles in {opened_ms:.0f}: not worth a file")
    except OSError as e:
        raise ArtifactError(where, f"cannot be written: {e.strerror or e}") from e
    return Compiled(where, f"loads in {loaded_ms:.0f} ms instead of {opened_ms:.0f}")
