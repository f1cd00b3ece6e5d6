"""What a collector needs of its history, and the choice between one file and a database that collectors share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from edgekit.collect.ledger import Page
from edgekit.collect.rollup import Place, Rollup
from edgekit.errors import ConfigError

_NUMBERS = msgspec.json.Decoder(set[int])
_ROLLUP = msgspec.msgpack.Decoder(Rollup)
SCHEMES = ("postgresql://", "postgres://")


class Window(NamedTuple):
    """One window as stored."""

    number: int
    device: int
    epoch: int
    seq: int
    at_ms: int
    "When it ended: by the device's clock if that was synchronised, else when it was received."
    received_ms: int
    payload: bytes


class History(Protocol):
    """An open history with one writer. Its methods raise one of `errors` when the disk or the server does."""

    errors: tuple[type[Exception], ...]
    devices: dict[tuple[str, str], int]
    "(site, device) -> its number."
    names: dict[int, tuple[str, str]]
    next_number: int

    def device(self, site: str, device: str) -> int:
        """The number of a device, made at first sight; durable with the next commit."""

    def page(self, device: int, epoch: int) -> Page:
        """How far an epoch of a device is; an empty page for a new one."""

    def commit(
        self,
        windows: Iterable[Window],
        events: Iterable[tuple[int, int, bytes]],
        pages: Mapping[tuple[int, int], Page],
        *,
        now_ms: int,
    ) -> None:
        """Store windows, events (device, received_ms, payload) and how far the devices are: all or nothing."""

    def unpoured(self) -> Iterator[Window]:
        """Stored windows that no rollup contains yet, in the order in which they came."""

    def pour(self, places: Mapping[Place, Rollup], *, rolled: int) -> None:
        """Add rollups of five minutes to all levels; they contain every window up to `rolled`. All or nothing."""

    def rollups(self, level_s: int, *, from_s: float = 0.0, to_s: float = 2**62) -> Iterator[tuple[Place, Rollup]]:
        """Rollups of one level whose span begins in from_s <= start < to_s."""

    def forget_before(self, *, windows_ms: int, rollups_s: Mapping[int, float], pages_ms: int) -> None:
        """Delete what is older: windows and events received before, rollups by level, pages not touched since."""

    def forget(self, site: str, device: str) -> bool:
        """Delete everything of one device; whether there was anything."""

    def close(self) -> None: ...


def open_history(where: Path | str, *, sites: Sequence[str] = (), password_file: Path | None = None) -> History:
    """One SQLite file, or with a postgresql:// address a database that collectors of other sites may share.

    Raises ConfigError for what is no history of ours, and while another collector collects one of `sites`.
    """
    if isinstance(where, str) and where.startswith(SCHEMES):
        from edgekit.collect.postgres import Postgres  # deferred: an extra

        return Postgres(where, sites=sites, password_file=password_file)
    from edgekit.collect.store import Store

    return Store(Path(where))


def read_secret(path: Path) -> str:
    """A password kept in a file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as e:
        raise ConfigError(path, None, f"cannot be read: {e.strerror}") from e


def page_of(row: Sequence[object]) -> Page:
    """From (next, ahead, lost) as stored."""
    ahead, lost = (_NUMBERS.decode(bytes(blob)) if blob else set() for blob in row[1:])  # type: ignore[call-overload]
    return Page(next=int(str(row[0])), ahead=ahead, lost=lost)


def numbers(found: set[int]) -> bytes | None:
    """As it is stored; None for none."""
    return msgspec.json.encode(sorted(found)) if found else None


def rollup_of(payload: bytes) -> Rollup:
    return _ROLLUP.decode(payload)


def as_stored(rollup: Rollup) -> bytes:
    return msgspec.msgpack.encode(rollup)
