"""Tensors of clients on the same machine, by name instead of by value: KServe's system shared memory extension.

A region is read and written through its file descriptor and never mapped: a client that shortens its region gets an
error then, where a mapping would end the daemon with SIGBUS, and what a client changes meanwhile changes no inference.
Source: Triton "Shared-Memory Extension".
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import RequestError
from edgekit.serve.exchange import Buffers
from edgekit.serve.parameters import Place

FOLDER = Path("/dev/shm")
MAX_REGIONS = 64
_KEY = re.compile(r"^/?([A-Za-z0-9_.-]{1,200})$")


class _Registration(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    name: str
    key: str
    offset: int
    byte_size: int
    user: int
    fd: int


class SharedMemory:
    """The regions that clients have registered. Used on the server's loop alone."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder, self._buffers = folder, Buffers()
        self._regions: dict[str, _Region] = {}

    def register(self, name: str, body: bytes | memoryview, user: int | None) -> None:
        """Raises RequestError: 400 for a region that is not what it is said to be, 403 for another user's."""
        try:
            wanted = msgspec.json.decode(body, type=_Registration)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise RequestError(400, f"not a registration: {e}") from e
        if name in self._regions:
            raise RequestError(400, f"shared memory region '{name}' is registered already")
        if len(self._regions) >= MAX_REGIONS:
            raise RequestError(400, f"{MAX_REGIONS} regions are registered; unregister some")
        match = _KEY.match(wanted.key)
        if match is None or match[1] in (".", ".."):
            raise RequestError(400, f"'{wanted.key}' is not the key of a shared memory object")
        fd = self._open(match[1], wanted, user)
        self._regions[name] = _Region(
            name=name, key=wanted.key, offset=wanted.offset, byte_size=wanted.byte_size, user=user or 0, fd=fd
        )

    def _open(self, key: str, wanted: _Registration, user: int | None) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self._folder / key, flags)
        except OSError as e:
            raise RequestError(400, f"shared memory object '{wanted.key}' cannot be opened: {e.strerror}") from e
        found = os.fstat(fd)
        problem = None
        if user is None or found.st_uid != user:
            problem = RequestError(403, f"shared memory object '{wanted.key}' belongs to another user than the caller")
        elif not stat.S_ISREG(found.st_mode):
            problem = RequestError(400, f"'{wanted.key}' is not a shared memory object")
        elif wanted.offset < 0 or wanted.byte_size <= 0 or wanted.offset + wanted.byte_size > found.st_size:
            text = f"offset {wanted.offset} and byte_size {wanted.byte_size} reach beyond its {found.st_size} bytes"
            problem = RequestError(400, f"shared memory object '{wanted.key}': {text}")
        if problem is not None:
            os.close(fd)
            raise problem
        return fd

    def unregister(self, name: str | None, user: int | None) -> None:
        """One region, or all of this user's. One that is not there is no error. Raises RequestError (403)."""
        if name is not None and name in self._regions:
            self._of(name, user)
        for region in [r for r in self._regions.values() if r.user == user and name in (None, r.name)]:
            os.close(self._regions.pop(region.name).fd)

    def status(self, name: str | None, user: int | None) -> list[dict[str, Any]]:
        """What this user has registered. Raises RequestError (400, 403) for a name that is not."""
        regions = [self._of(name, user)] if name else [r for r in self._regions.values() if r.user == user]
        return [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions]

    def read(self, place: Place, user: int | None) -> memoryview:
        """A copy, aligned for tensors. Raises RequestError."""
        region = self._within(place, user)
        buffer = self._buffers.take(place.size_bytes, 0)
        if os.preadv(region.fd, [buffer], region.offset + place.offset) != place.size_bytes:
            raise RequestError(400, f"shared memory region '{place.region}' has become shorter")
        return buffer

    def write(self, place: Place, data: memoryview, user: int | None) -> None:
        """Raises RequestError."""
        region = self._within(place, user)
        at = region.offset + place.offset
        if len(data) > place.size_bytes or at + len(data) > os.fstat(region.fd).st_size:
            text = f"{len(data)} bytes of output do not fit into {place.size_bytes} of region '{place.region}'"
            raise RequestError(400, text)
        os.pwrite(region.fd, data, at)

    def close(self) -> None:
        for region in self._regions.values():
            os.close(region.fd)
        self._regions.clear()

    def _of(self, name: str, user: int | None) -> _Region:
        region = self._regions.get(name)
        if region is None:
            raise RequestError(400, f"unknown shared memory region '{name}'")
        if region.user != user or user is None:
            raise RequestError(403, f"shared memory region '{name}' belongs to another user")
        return region

    def _within(self, place: Place, user: int | None) -> _Region:
        region = self._of(place.region, user)
        if place.offset + place.size_bytes > region.byte_size:
            text = f"offset {place.offset} and {place.size_bytes} bytes reach beyond its {region.byte_size} bytes"
            raise RequestError(400, f"shared memory region '{place.region}': {text}")
        return region


def user_of(connection: socket.socket) -> int | None:
    """The user at the other end of a local connection, None when there is no telling.

    Sources: unix(7), SO_PEERCRED; proc(5), /proc/net/tcp. Check by hand: cat /proc/net/tcp
    """
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    ours, theirs = (_as_kernel(address) for address in (connection.getsockname(), connection.getpeername()))
    table = Path("/proc/net/tcp6" if connection.family == socket.AF_INET6 else "/proc/net/tcp")
    try:
        rows = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    for row in rows:
        fields = row.split()
        if fields[1] == theirs and fields[2] == ours:
            return int(fields[7])
    return None


def _as_kernel(address: tuple[Any, ...]) -> str:
    """`0100007F:1F90`: the address's words in the machine's byte order."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    raw = socket.inet_pton(family, address[0])
    words = (raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return f"{b''.join(words).hex().upper()}:{address[1]:04X}"
