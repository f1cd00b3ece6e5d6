"""The epoch counter of a device: it outlives the process and never repeats, so an old word never beats a new one."""

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

    def advance(self, *, past: int = 0) -> int:
        """The next epoch, above `past` too; on disk before it is returned. Raises OSError."""
        self.current = max(self.current, past) + 1
        write_atomic(self._path, msgspec.json.encode(_State(epoch=self.current, sessions=self._sessions)))
        return self.current

    def is_own(self, session: str) -> bool:
        """Whether a status of this session came from this device's own state folder."""
        return session in self._sessions
