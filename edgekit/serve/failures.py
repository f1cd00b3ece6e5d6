"""Failures of runtimes, counted on disk, so that a daemon that they end knows of them when it starts again.

Two files: the failures of late, and a page of flags saying which artifact is in an inference at this moment. A process
that is aborted cannot write any more, but the kernel keeps what it wrote to the page: the next one reads who it was.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgekit.errors import ConfigError
from edgekit.files import write_atomic
from edgekit.strict import read_json

logger = logging.getLogger(__name__)

_PAGE = "running-"
_SLOT, _SLOTS = 64, 64
_KEY = 32


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`key` names an artifact as it is opened."""

    key: str
    how: str
    t_unix_s: float


class _Failures(msgspec.Struct, frozen=True, kw_only=True):
    failures: tuple[Failure, ...] = ()


def key_of(producer: str) -> str:
    return hashlib.sha256(producer.encode()).hexdigest()[:_KEY]


class Mark:
    """A flag of one lane in the page; up while it is in an inference."""

    def __init__(self, page: mmap.mmap, at: int) -> None:
        self._page, self.at = page, at

    def up(self) -> None:
        self._page[self.at] = 1

    def down(self) -> None:
        self._page[self.at] = 0


class Ledger:
    """Failures within the last `minutes`. A full disk is logged and counts in memory only."""

    def __init__(
        self, folder: Path, *, limit: int, minutes: float, boot_id: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._limit, self._within_s, self._clock = folder / "failures.json", limit, minutes * 60, clock
        folder.mkdir(parents=True, exist_ok=True)
        self._failures = self._load()
        self.blamed = self._blame(boot_id)
        "What was in an inference when the process before ended, if it was in this boot: (failure, ...)."
        self._page = self._new_page(boot_id)
        self._free = list(range(_SLOTS - 1, 0, -1))

    def record(self, producer: str, how: str) -> int:
        """Count a failure, on disk before anything else happens; how many there are of late."""
        self._add(Failure(key=key_of(producer), how=how, t_unix_s=self._clock()))
        return self.recent(producer)

    def recent(self, producer: str) -> int:
        """A clock that went back makes old failures count for longer, never for ever: there are few in the file."""
        since_s, key = self._clock() - self._within_s, key_of(producer)
        return sum(failure.key == key and failure.t_unix_s >= since_s for failure in self._failures)

    def is_out(self, producer: str) -> bool:
        """It failed too often of late to be tried again."""
        return self.recent(producer) >= self._limit

    def mark(self, producer: str) -> Mark:
        """The flag of a lane that opens `producer`. Past the last slot, lanes share it."""
        at = (self._free.pop() if self._free else _SLOTS - 1) * _SLOT
        self._page[at : at + 1 + _KEY] = b"\0" + key_of(producer).encode()
        return Mark(self._page, at)

    def close(self) -> None:
        """As the end of the process does: from now on the flags are read as those of one that is gone."""
        self._page.close()

    def release(self, mark: Mark) -> None:
        """Its lane is closed."""
        slot = mark.at // _SLOT
        if slot < _SLOTS - 1:
            self._free.append(slot)

    def _load(self) -> tuple[Failure, ...]:
        if not self._path.is_file():
            return ()
        try:
            return read_json(self._path, _Failures).failures
        except ConfigError as error:
            logger.warning("failures of before are forgotten: %s", error)
            return ()

    def _blame(self, boot_id: str) -> tuple[Failure, ...]:
        """Failures of daemons that are gone. A power cut ends every process, and is nobody's failure."""
        keys: list[str] = []
        for path in sorted(self._path.parent.glob(f"{_PAGE}*")):
            try:
                with path.open("rb") as file:
                    if _is_locked(file.fileno()):  # a daemon that lives
                        continue
                    keys += _raised(file.read(_SLOT * _SLOTS), boot_id)
                path.unlink()
            except OSError as error:
                logger.warning("%s: %s", path, error.strerror)
        found = tuple(Failure(key=key, how="it ended the daemon", t_unix_s=self._clock()) for key in keys)
        for failure in found:
            self._add(failure)
        return found

    def _new_page(self, boot_id: str) -> mmap.mmap:
        """A file of our own, never cut short while it is mapped and its blocks taken now: either would be a SIGBUS."""
        head = boot_id.encode()[:_SLOT]
        size = _SLOT * _SLOTS
        try:
            handle, path = tempfile.mkstemp(prefix=_PAGE, dir=self._path.parent)
            try:
                _is_locked(handle)  # locks it, for as long as the map lives
                if os.write(handle, head.ljust(size, b"\0")) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                return mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError as error:
            logger.warning("%s: %s: an abort will have nobody to blame", self._path.parent, error.strerror)
            return mmap.mmap(-1, size)

    def _add(self, failure: Failure) -> None:
        since_s = self._clock() - self._within_s
        self._failures = (*(f for f in self._failures if f.t_unix_s >= since_s), failure)
        try:
            write_atomic(self._path, msgspec.json.encode(_Failures(failures=self._failures)))
        except OSError as error:
            logger.warning("%s: %s: the failure counts in memory only", self._path, error.strerror)


def _raised(page: bytes, boot_id: str) -> list[str]:
    """The keys whose flags are up in a page of this boot."""
    if page[:_SLOT].rstrip(b"\0") != boot_id.encode()[:_SLOT]:
        return []
    slots = [page[at : at + _SLOT] for at in range(_SLOT, len(page), _SLOT)]
    return [slot[1 : 1 + _KEY].decode("ascii", "replace") for slot in slots if slot[:1] == b"\1"]


def _is_locked(handle: int) -> bool:
    """Whether another open file has the lock; else this one has it now, until it is closed or its process ends."""
    if sys.platform == "win32":  # an operator's desk: nobody is blamed for a daemon that lives
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def boot_id() -> str:
    """The same until the machine starts again; elsewhere than on Linux the empty text, so that nobody is blamed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"unknown-{os.getpid()}"
