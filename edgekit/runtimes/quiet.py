"""Keep what C libraries print to stderr off the screen, and hand it to whoever explains a failure."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

_lock = threading.RLock()
_CHATTER = ("INFO:", "WARNING: All log messages before absl", "I0000", "W0000")


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Redirect file descriptor 2 for the block; yields a function that returns what was written so far.

    Python's own `sys.stderr` is flushed first. After a block that succeeds, lines that are not mere chatter are
    written to the real stderr, so another thread's message is never swallowed. The descriptor is process-wide:
    blocks in several threads wait for each other.
    """
    with _lock, tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        try:
            saved = os.dup(2)
        except OSError:  # no stderr at all (a daemon that closed it): nothing to keep quiet
            yield lambda: ""
            return
        os.dup2(file.fileno(), 2)

        def said() -> str:
            file.seek(0)
            return file.read().decode("utf-8", "replace")

        try:
            yield said
            worth_saying = [line for line in said().splitlines() if line.strip() and not line.startswith(_CHATTER)]
            if worth_saying:
                os.write(saved, ("\n".join(worth_saying) + "\n").encode())
        finally:
            os.dup2(saved, 2)
            os.close(saved)
