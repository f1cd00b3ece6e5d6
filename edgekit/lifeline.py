"""A child process must not outlive its parent, however the parent dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int, how: int = signal.SIGTERM) -> None:
    """Ask Linux to send this process `how` when its parent (process id `parent`) dies; elsewhere a no-op.

    Called in the child, first thing. Exits at once when the parent is gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
