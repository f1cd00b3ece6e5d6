"""Answers kept for inputs that come again, byte for byte: bounded in bytes and in age.

Only exact repetition hits. What an input is alike is for the model to say, not for a cache.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Outputs = Mapping[str, np.ndarray]

ENTRY_BYTES = 512
"""What an entry takes beside its tensors: key, dictionary, array objects."""


@dataclass(frozen=True, slots=True)
class _Entry:
    outputs: Outputs
    size_bytes: int
    until_s: float


def digest(inputs: Mapping[str, np.ndarray]) -> bytes:
    """A fingerprint of the names, dtypes, shapes and bytes of the inputs. About 0.6 ms a megabyte.

    SHA-256, because processors have instructions for it and nobody can make two inputs that share one.
    """
    state = hashlib.sha256()
    for name in sorted(inputs):
        array = np.ascontiguousarray(inputs[name])
        state.update(f"{name}\0{array.dtype.str}\0{inputs[name].shape}\0".encode())
        state.update(array.reshape(-1).data.cast("B") if array.size else b"")
    return state.digest()


class ResultCache:
    """Least recently used goes first. Thread-safe."""

    def __init__(self, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.is_paused = False
        "True: nothing new is kept."
        self._ttl_s, self._clock = ttl_s, clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer: str, fingerprint: bytes) -> Outputs | None:
        """What `producer` (an artifact as it is opened) answered to these inputs, if that is not too old."""
        key = (producer, fingerprint)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.until_s < self._clock():
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return entry.outputs

    def put(self, producer: str, fingerprint: bytes, outputs: Outputs) -> None:
        """Keep an answer, at the cost of the oldest ones. One of more than an eighth of the whole is not kept."""
        # A view would keep what it is a view of.
        own = {name: array if array.base is None else array.copy() for name, array in outputs.items()}
        size = ENTRY_BYTES + sum(array.nbytes for array in own.values())
        if self.is_paused or size > self.max_bytes // 8:
            return
        key = (producer, fingerprint)
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = _Entry(own, size, self._clock() + self._ttl_s)
            self.size_bytes += size
            while self.size_bytes > self.max_bytes:
                self._drop(next(iter(self._entries)))

    def clear(self) -> int:
        """Forget everything; the bytes that were freed."""
        with self._lock:
            freed, self.size_bytes = self.size_bytes, 0
            self._entries.clear()
        return freed

    def _drop(self, key: tuple[str, bytes]) -> None:
        self.size_bytes -= self._entries.pop(key).size_bytes
