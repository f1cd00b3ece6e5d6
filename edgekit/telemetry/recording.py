"""A fleet's traffic in a file, as it was received: written by `edgekit collect --record`, played again by readers.

The file is MessagePack, one [topic, payload, retained, received_s] after another, each behind its length (4 bytes, big
end first), after a line that names the format. A file that ends in the middle of a message is read up to there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from edgekit.errors import ConfigError
from edgekit.telemetry.messages import MAX_PAYLOAD_BYTES, Received

_MAGIC = b"edgekit recording 1\n"
_LENGTH = struct.Struct("!I")
_MOST_BYTES = MAX_PAYLOAD_BYTES * 2


class _Line(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    payload: bytes
    retained: bool
    received_s: float


class RecordingWriter:
    """A recording being made. Raises OSError from its methods when the disk does."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: the file exists, or cannot be made."""
        try:
            self._file = path.open("xb")
        except OSError as e:
            raise ConfigError(path, None, f"cannot be recorded to: {e.strerror}") from e
        self._file.write(_MAGIC)
        self.messages = 0

    def write(self, messages: Iterable[Received]) -> None:
        """Add messages; they are in the file when it is closed, or a moment later."""
        for m in messages:
            line = msgspec.msgpack.encode(_Line(m.topic, m.payload, m.retained, m.received_s))
            self._file.write(_LENGTH.pack(len(line)) + line)
            self.messages += 1

    def close(self) -> None:
        self._file.close()


def read_recording(path: Path) -> Iterator[Received]:
    """The messages of a recording, in order. Raises ConfigError for a file that is none."""
    try:
        file = path.open("rb")
    except OSError as e:
        raise ConfigError(path, None, f"cannot be read: {e.strerror}") from e
    with file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(path, None, "is no recording of edgekit collect --record")
        yield from _messages(path, file)


def _messages(path: Path, file: BinaryIO) -> Iterator[Received]:
    decoder = msgspec.msgpack.Decoder(_Line)
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise ConfigError(path, None, f"is damaged at byte {file.tell()}")
        body = file.read(length)
        if len(body) < length:
            return
        try:
            line = decoder.decode(body)
        except msgspec.DecodeError as e:
            raise ConfigError(path, None, f"is damaged at byte {file.tell()}: {e}") from e
        yield Received(topic=line.topic, payload=line.payload, retained=line.retained, received_s=line.received_s)
