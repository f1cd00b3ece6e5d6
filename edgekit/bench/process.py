"""A worker as its parent sees it: ask, wait, and if it dies, hangs or eats too much, say why and go on."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from edgekit.bench import protocol as say
from edgekit.bench.worker import peak_memory_bytes

T = TypeVar("T")

_POLL_S = 0.1
_DEATHS = {
    "SIGKILL": "killed (SIGKILL): most likely the kernel ran out of memory",
    "SIGILL": "illegal instruction (SIGILL): this build of the runtime needs a CPU with more features",
    "SIGSEGV": "crashed (SIGSEGV) inside the runtime",
    "SIGABRT": "gave up (SIGABRT) inside the runtime",
    "SIGBUS": "crashed (SIGBUS): a file was cut short while it was in use, or memory is faulty",
}
_WINDOWS_DEATHS = {0xC0000005: "SIGSEGV", 0xC000001D: "SIGILL", 0xC0000409: "SIGABRT"}
"""Exit codes by which Windows tells the same (NTSTATUS)."""


class CandidateFailed(Exception):
    """The candidate cannot be measured; the text is the reason for its row. Caught by `bench`, never shown as such."""


class Process:
    """A running worker. Use as a context manager: nothing is left running."""

    def __init__(self, *, memory_limit_bytes: int | None = None) -> None:
        self._limit = memory_limit_bytes
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "edgekit.bench.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="worker-replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, request: say.Request, expected: type[T], *, timeout_s: float) -> T:
        """The worker's answer. Raises CandidateFailed."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(msgspec.json.encode(request) + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError as e:
            raise CandidateFailed(self._why_gone()) from e
        try:
            reply = msgspec.json.decode(self._line(timeout_s), type=say.Reply)
        except msgspec.DecodeError as e:
            raise CandidateFailed(f"answered nonsense: {e}") from e
        if isinstance(reply, say.Failed):
            raise CandidateFailed(reply.reason)
        assert isinstance(reply, expected), f"{type(request).__name__} was answered with {type(reply).__name__}"
        return reply

    def resident_bytes(self) -> int | None:
        """Memory the worker holds now. None where the kernel does not tell."""
        try:
            pages = int(Path(f"/proc/{self._child.pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int | None:
        """The most memory that the worker held so far. None where the kernel does not tell, or it is gone."""
        linux = sys.platform.startswith("linux")
        return peak_memory_bytes(Path(f"/proc/{self._child.pid}/status")) if linux else None

    def close(self) -> None:
        """End the worker. Idempotent."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._reader.join()  # the pipe has ended with the worker
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._stderr.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read(self) -> None:
        """Hand on every line of the worker's stdout, then an empty one: a thread, since Windows cannot poll a pipe."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _line(self, timeout_s: float) -> bytes:
        """The next line of the worker's stdout, watching its memory meanwhile."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                self._check_memory()
                if time.monotonic() < end:
                    continue
                self._child.kill()
                raise CandidateFailed(f"hangs: no answer in {timeout_s:.0f} s") from None
            if not line:
                raise CandidateFailed(self._why_gone())
            return line

    def _check_memory(self) -> None:
        held = self.resident_bytes() if self._limit is not None else None
        if held is not None and self._limit is not None and held > self._limit:
            self._child.kill()
            raise CandidateFailed(
                f"exceeds the memory limit: {held / 2**20:.0f} MiB held, {self._limit / 2**20:.0f} MiB allowed"
            )

    def _why_gone(self) -> str:
        code = self._child.wait()
        name = signal.Signals(-code).name if code < 0 else _WINDOWS_DEATHS.get(code)
        if name is not None:
            return _DEATHS.get(name, f"died with {name}")
        self._stderr.seek(0)
        said = self._stderr.read().decode("utf-8", "replace").strip()
        last = said.rpartition("\n")[2]
        return f"ended with exit code {code}" + (f": {last}" if last else "")
