"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(found: Callable[[], object], timeout_s: float = 20.0) -> bool:
    """Ask again until the answer is true; whether it came within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not found():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
