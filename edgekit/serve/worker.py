"""A session in a process of its own: what it runs may hang or abort without taking the daemon along.

Started by `edgekit.serve.remote`; tensors travel through shared memory, only their places through the socket.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edgekit.errors import EdgekitError, InputError
from edgekit.lifeline import die_with_parent
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.precedence import lower_this_thread

if TYPE_CHECKING:
    from edgekit.runtimes.session import Session

ALIGNMENT = 64


class Place(msgspec.Struct, array_like=True):
    """Where a tensor lies in the shared memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int


def send(channel: socket.socket, message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    channel.sendall(len(body).to_bytes(4, "little") + body)


def receive(channel: socket.socket) -> Any:
    """The next message, or None when the other side is gone. Raises TimeoutError as the socket is set."""
    size = _exactly(channel, 4)
    body = _exactly(channel, int.from_bytes(size, "little")) if size else None
    return None if body is None else msgspec.msgpack.decode(body)


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    pieces = b""
    while len(pieces) < size:
        piece = channel.recv(size - len(pieces))
        if not piece:
            return None
        pieces += piece
    return pieces


class Region:
    """Memory that two processes see, by a file without a name. It only grows."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    def place(self, tensors: Mapping[str, np.ndarray]) -> list[Place]:
        """Copy `tensors` in, one after the other, each at its alignment."""
        places, at = [], 0
        for name, array in tensors.items():
            places.append(Place(name, array.dtype.str, array.shape, at))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if at > os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, at)
        for found, array in zip(places, tensors.values(), strict=True):
            self.view(found)[...] = array
        return places

    def close(self) -> None:
        """The memory is freed with the last view of it."""
        self._map = None
        os.close(self.fd)

    def view(self, place: Place) -> np.ndarray:
        """The tensor, without a copy."""
        dtype = np.dtype(place.dtype)
        count = int(np.prod(place.shape, dtype=np.int64))
        if not count:
            return np.empty(place.shape, dtype)
        if self._map is None or place.at + count * dtype.itemsize > len(self._map):
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)  # the old map lives as long as views of it
        return np.frombuffer(self._map, dtype, count, place.at).reshape(place.shape)


def main() -> None:
    """The process: open what the first message names, then answer until the other side is gone."""
    channel_fd, in_fd, out_fd, parent = map(int, sys.argv[1:5])
    die_with_parent(parent)
    channel = socket.socket(fileno=channel_fd)
    request = receive(channel)
    if request is None:
        return
    if request["is_lowered"]:
        lower_this_thread()
    try:
        session = open_session(Path(request["path"]), msgspec.convert(request["settings"], SessionSettings))
    except EdgekitError as error:
        send(channel, {"error": type(error).__name__, "text": str(error)})
        return
    send(channel, description(session))
    _serve(channel, session, Region(in_fd), Region(out_fd))


def description(session: Session) -> dict[str, Any]:
    """What the other side must know of a session, as plain values."""
    return {
        "runtime": session.runtime,
        "runtime_version": session.runtime_version,
        "inputs": session.inputs,
        "outputs": session.outputs,
        "active_providers": session.active_providers,
        "metadata": dict(session.metadata),
    }


def _serve(channel: socket.socket, session: Session, inputs: Region, outputs: Region) -> None:
    while (message := receive(channel)) is not None:
        places = msgspec.convert(message, list[Place])
        try:
            answer = session.run({place.name: inputs.view(place) for place in places})
        except InputError as error:
            send(channel, {"error": "InputError", "text": error.problem, "name": error.name})
        except EdgekitError as error:
            send(channel, {"error": type(error).__name__, "text": str(error)})
        else:
            send(channel, {"outputs": outputs.place(answer)})


if __name__ == "__main__":
    main()
