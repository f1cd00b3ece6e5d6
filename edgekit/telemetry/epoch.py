"""The epoch counter of a device: it outlives the process and never repeats, so an old word never beats a new one.

A repeated epoch would be loss: a collector would take its windows for those that it has. A file alone cannot prevent
that (it is lost with its disk, restored from an old image, or not written because the disk is full), so an epoch is
also at least the number of seconds since 2026: time goes on whatever the disk remembers.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from edgekit.errors import ConfigError
from edgekit.files import write_atomic


class _State(msgspec.Struct, frozen=True):
    epoch: int
    sessions: tuple[str, ...] = ()
    "Of this process and those before it: their last words are our own, not a stranger's."


_KEPT_SESSIONS = 8
_BASE_UNIX_S = 1_767_225_600
"""2026-01-01."""


class EpochCounter:
    """The counter in its file. A damaged or missing file starts at 0 with `is_fresh`: the broker may know better.

    Raises ConfigError where the file may not be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epoch.json"
        self.session = secrets.token_hex(4)
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=_State)
        except (FileNotFoundError, msgspec.DecodeError):
            state = _State(epoch=0)
        except OSError as e:
            raise ConfigError(self._path, None, f"cannot be read: {e.strerror}") from e
        self.is_fresh = state.epoch == 0
        self.current = state.epoch
        self._sessions = (*state.sessions[-_KEPT_SESSIONS + 1 :], self.session)

    def advance(self, *, past: int = 0, unix_s: float = 0.0) -> int:
        """The next epoch, above `past` too and not behind the clock; on disk before it is returned. Raises OSError.

        `unix_s`: the wall clock, right or wrong: in 1970 it says nothing, and a wrong future is only a large number.
        """
        self.current = max(self.current + 1, past + 1, int(unix_s) - _BASE_UNIX_S)
        write_atomic(self._path, msgspec.json.encode(_State(epoch=self.current, sessions=self._sessions)))
        return self.current

    def is_own(self, session: str) -> bool:
        """Whether a status of this session came from this device's own state folder."""
        return session in self._sessions
