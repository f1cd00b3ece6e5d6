"""The daemon's side of a session in a process of its own: feed it, and replace it when it hangs or dies.

Every generation has a process, a channel and a memory of its own, so nothing that the old one still does, or held
locked when it was killed, can reach the new one.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit.errors import ArtifactError, EdgekitError, InputError, RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes.session import Placement, Quantization, SessionSettings
from edgekit.serve.precedence import CAN_PAUSE, LOAN_EVERY_S, Precedence
from edgekit.serve.worker import Place, Region, receive, send

logger = logging.getLogger(__name__)

OPEN_S = 600.0
"""Some delegates build an engine for minutes when they open a model."""
END_S = 2.0


class WorkerLost(RuntimeUnavailable):
    """The process with the session died or did not answer in time; the next run has a new one."""


class RemoteSession:
    """A `Session` whose runtime lives in a child process. For one thread at a time."""

    def __init__(
        self,
        path: Path,
        settings: SessionSettings,
        *,
        stuck_s: float,
        is_lowered: bool = False,
        precedence: Precedence | None = None,
    ) -> None:
        """`precedence`: what its inferences are paused for. Raises what opening the artifact raises, and WorkerLost."""
        self._path, self._settings, self._stuck_s, self._is_lowered = path, settings, stuck_s, is_lowered
        self._precedence = precedence if CAN_PAUSE else None
        self.generation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        about = self._begin()
        self.runtime: str = about["runtime"]
        self.runtime_version: str = about["runtime_version"]
        self.inputs = msgspec.convert(about["inputs"], tuple[TensorSpec, ...])
        self.outputs = msgspec.convert(about["outputs"], tuple[TensorSpec, ...])
        self.active_providers: tuple[str, ...] = tuple(about["active_providers"])
        self.metadata: Mapping[str, str] = about["metadata"]
        self.quantization: Mapping[str, Quantization] = {}

    @property
    def pid(self) -> int | None:
        """Of the present generation."""
        return self._process.pid if self._process is not None else None

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference. Raises WorkerLost after `stuck_s` without an answer, and what the session raises."""
        if self._is_closed:
            raise RuntimeUnavailable(self.runtime, f"{self._path}: the session is closed")
        if self._process is None:
            self._begin()
        try:
            send(self._channel, self._region_in.place(inputs))
            if self._precedence is not None:
                self._wait(self._precedence)
            answer = receive(self._channel)
        except TimeoutError:
            raise self._lost(f"no answer within {self._stuck_s:g} s") from None
        except OSError as error:
            raise self._lost(str(error)) from error
        if answer is None:
            raise self._lost("it died")
        if "error" in answer:
            raise _as_error(self._path, answer)
        places = msgspec.convert(answer["outputs"], list[Place])
        # A copy: the next inference writes over them, and the answer may not have left by then.
        return {place.name: self._region_out.view(place).copy() for place in places}

    @property
    def paused_s(self) -> float:
        """For how long the inference that runs now has been paused; 0 when none runs or none is."""
        pid = self.pid
        return 0.0 if pid is None or self._precedence is None else self._precedence.paused_s(pid)

    def _wait(self, precedence: Precedence) -> None:
        """Until the answer begins to arrive. Raises TimeoutError; time in which it was paused does not count."""
        assert self._process is not None
        pid, began_s = self._process.pid, time.monotonic()
        look_s = min(LOAN_EVERY_S, self._stuck_s)
        arrival = select.poll()  # not select(): a daemon may have more than 1024 descriptors
        arrival.register(self._channel, select.POLLIN)
        precedence.begin(pid)
        try:
            while not arrival.poll(look_s * 1e3):
                if time.monotonic() - began_s - precedence.paused_s(pid) > self._stuck_s:
                    raise TimeoutError
                precedence.lend(pid)
        finally:
            precedence.end(pid)

    def placement(self, inputs: Mapping[str, np.ndarray]) -> Placement:  # noqa: ARG002
        """Not across processes: `bench` opens a session of its own for that."""
        raise RuntimeUnavailable(self.runtime, "a session in a process of its own does not tell its placement")

    def close(self) -> None:
        """End the process. Idempotent."""
        self._is_closed = True
        self._end()

    def _begin(self) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        self._region_in, self._region_out = Region(_unnamed_file()), Region(_unnamed_file())
        fds = (theirs.fileno(), self._region_in.fd, self._region_out.fd)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgekit.serve.worker", *map(str, fds), str(os.getpid())],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._channel = ours
        self.generation += 1
        ours.settimeout(OPEN_S)
        settings = msgspec.to_builtins(self._settings)
        try:
            send(ours, {"path": str(self._path), "settings": settings, "is_lowered": self._is_lowered})
            about = receive(ours)
        except OSError as error:
            raise self._lost(f"while it opened the model: {error}") from error
        if about is None:
            raise self._lost("it died while it opened the model")
        if "error" in about:
            self._end()
            raise _as_error(self._path, about)
        ours.settimeout(self._stuck_s)
        logger.info("%s: in a process of its own, %d", self._path.name, self._process.pid)
        found: dict[str, Any] = about
        return found

    def _lost(self, how: str) -> WorkerLost:
        """Kill what is left of this generation; how it ended is part of the error."""
        code = self._end()
        if how == "it died" and code is not None and code < 0:
            how = f"it was ended by {signal.Signals(-code).name}"
        return WorkerLost(self._settings.runtime, f"the process with {self._path.name} was lost: {how}")

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        self._channel.close()  # it ends by itself when it is well
        try:
            code = process.wait(END_S if self._is_closed else 0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for region in (self._region_in, self._region_out):
            region.close()
        return code


def _unnamed_file() -> int:
    """In memory where the system has such files (Linux), else on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("edgekit")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _as_error(path: Path, answer: Mapping[str, Any]) -> EdgekitError:
    if answer["error"] == "InputError":
        return InputError(answer["name"], answer["text"])
    if answer["error"] == "ArtifactError":
        return ArtifactError(path, answer["text"].removeprefix(f"{path}: "))
    return RuntimeUnavailable("worker", answer["text"])
