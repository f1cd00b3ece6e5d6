"""Child processes that never outlive the demo, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from edgekit.errors import EdgekitError

STOP_TIMEOUT_S = 8.0


class Child:
    """One child with its talk kept: the last lines explain a failure."""

    def __init__(self, name: str, argv: Sequence[str | Path]) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=20)
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, text: str, timeout_s: float) -> str:
        """The first line that holds `text`. Raises EdgekitError with the child's last words when it does not come."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or self.process.poll() is not None, timeout_s)
            if line := found():
                return line
            last = " / ".join(list(self.lines)[-3:]) or "it said nothing"
            raise EdgekitError(f"the {self.name} did not start within {timeout_s:.0f} s: {last}")

    def stop(self) -> int:
        """SIGTERM, then SIGKILL when it does not heed. Returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(1.0)
        return code


class Children:
    """A group of children that stops, last started first, when the `with` block ends."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, argv: Sequence[str | Path]) -> Child:
        """Start a child; it is stopped with the group."""
        child = Child(name, argv)
        self._stack.callback(child.stop)
        return child

    def edgekit(self, name: str, *words: str | Path) -> Child:
        """An `edgekit` verb as a child, in this same Python."""
        return self.start(name, [sys.executable, "-m", "edgekit.cli.main", *words])
