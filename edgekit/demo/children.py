"""`edgekit` verbs as child processes that never outlive the demo, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from edgekit.errors import EdgekitError

STOP_TIMEOUT_S = 8.0
_CODE = (
    "import sys; from edgekit.lifeline import die_with_parent; die_with_parent(int(sys.argv.pop(1))); "
    "from edgekit.cli.main import main; sys.exit(main())"
)


class Child:
    """One verb as a child. What it says is kept: its last lines explain a failure."""

    def __init__(self, name: str, *words: str | Path) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=50)
        self._news = threading.Condition()
        self._is_silent = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(os.getpid()), *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C reaches the demo alone, which then stops its children in order.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_for(self, text: str, timeout_s: float) -> str:
        """The first line that holds `text`. Raises EdgekitError with the child's last words when it does not come."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._is_silent, timeout_s)
            if line := found():
                return line
        raise EdgekitError(f"{self.name} did not start within {timeout_s:.0f} s: {self.last_words}")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def last_words(self) -> str:
        """Its last three lines in one."""
        return " / ".join(list(self.lines)[-3:]) or "it said nothing"

    def stop(self) -> int:
        """SIGTERM, then SIGKILL when it does not heed. Returns the exit code; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(1.0)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                with self._news:
                    self.lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._is_silent = True
            self._news.notify_all()
