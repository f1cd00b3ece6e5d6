"""Sending without the loop: what the kernel does not take is left over, in order."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("httptools", reason="the daemon's HTTP")
from edgekit.serve.exchange import MOST_PARTS, send_some


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """One that sends without waiting and has little room, one that receives."""
    left, right = socket.socketpair()
    left.setblocking(False)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with left, right:
        yield left, right


@pytest.mark.parametrize("sizes", [(1,), (5, 0, 7), (100_000, 3, 100_000), (10,) * (3 * MOST_PARTS), ()])
def test_nothing_is_lost_or_doubled(ends: tuple[socket.socket, socket.socket], sizes: tuple[int, ...]):
    left, right = ends
    whole = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    parts: list[bytes | memoryview] = [part if i % 2 else memoryview(part) for i, part in enumerate(whole)]
    received = b""
    while parts:
        parts = send_some(left.fileno(), parts)
        received += right.recv(1_000_000)
    assert received == b"".join(whole)


def test_a_full_socket_takes_nothing(ends: tuple[socket.socket, socket.socket]):
    left, _ = ends
    rest = send_some(left.fileno(), [bytes(1_000_000)])
    assert 0 < len(rest[0]) < 1_000_000
    assert send_some(left.fileno(), rest) is rest


def test_nobody_at_the_other_end_is_an_error(ends: tuple[socket.socket, socket.socket]):
    left, right = ends
    right.close()
    with pytest.raises(OSError, match="pipe"):
        send_some(left.fileno(), [b"hello"])
