"""Where a rollout's state lies, who may drive it, and how another terminal asks its driver to pause or abort."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgekit.errors import ConfigError
from edgekit.files import write_atomic
from edgekit.provision.rollout import SCHEMA, Rollout
from edgekit.strict import read_json

REQUESTS = ("pause", "abort")


class RolloutFile:
    """`FOLDER/RELEASE.json`, replaced as a whole; beside it the driver's lock and what others ask of it."""

    def __init__(self, folder: Path, release: str) -> None:
        self.release, self.path = release, folder / f"{release}.json"
        self._lock, self._request = folder / f"{release}.lock", folder / f"{release}.request"

    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> Rollout:
        """Raises ConfigError naming the rollouts there are."""
        if not self.path.exists():
            known = ", ".join(names(self.path.parent)) or "none"
            raise ConfigError(self.path, None, f"there is no rollout of {self.release}; known: {known}")
        rollout = read_json(self.path, Rollout)
        if rollout.v != SCHEMA:
            raise ConfigError(self.path, "v", f"is {rollout.v}, this edgekit reads {SCHEMA}")
        return rollout

    def write(self, rollout: Rollout) -> None:
        write_atomic(self.path, msgspec.json.encode(rollout))

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock of the one who drives it; the kernel frees it however we end. Raises ConfigError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                lock.seek(0)
                who = lock.read().strip() or "someone"
                mend = f"watch it with: edgekit rollout status {self.release}"
                raise ConfigError(self.path, None, f"{who} drives it already; {mend}") from e
            lock.truncate(0)
            lock.write(operator())
            lock.flush()
            self._request.unlink(missing_ok=True)
            yield

    def is_driven(self) -> bool:
        """Whether a process drives it now."""
        try:
            with self._lock.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def ask(self, what: str) -> None:
        """Leave word for the driver."""
        write_atomic(self._request, what.encode())

    def asked(self) -> str | None:
        """What was asked since it is driven, once."""
        try:
            what = self._request.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        self._request.unlink(missing_ok=True)
        return what if what in REQUESTS else None


def names(folder: Path) -> list[str]:
    """Releases with a rollout here, the latest change first."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.stem for path in found]


def operator() -> str:
    """Who drives, for the one who is refused."""
    return f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"
