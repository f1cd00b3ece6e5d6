"""One HTTP/1.1 request and its response as values, and how a head is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

import httptools
import numpy as np

from edgekit.errors import RequestError
from edgekit.serve.protocol import error_body

ALIGNMENT = 64
MOST_PARTS = 64
"""At once: writev takes 1024 at most (Linux), and a model has few outputs."""
LEAST_BYTES = 64 * 1024
"""Less than that comes from memory that the allocator has at hand."""


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True, kw_only=True)
class Request:
    """`path` is without query; header names are lower case; `body` is the request's alone."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    keep_alive: bool
    parts: list[str]
    "Of the path, unquoted."
    length: int
    "Of the body in bytes, as the head says."
    json_bytes: int | None
    "How much of the body is JSON, where tensors follow it; None: all."
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    user: Callable[[], int | None] = lambda: None
    "Who sent it, where that can be told (see `shared.user_of`)."
    connection: int = 0
    "A number of the connection that it came by."


@dataclass(slots=True, kw_only=True)
class Response:
    """`parts` are sent one after the other as they are, without a copy."""

    status: int = 200
    content_type: str = "application/json"
    headers: str = ""
    "Further lines, each ended by CRLF."
    parts: list[bytes | memoryview]


def error_response(status: int, text: str, headers: str = "") -> Response:
    """The protocol's JSON error."""
    return Response(status=status, headers=headers, parts=[error_body(text)])


def head_of(response: Response, *, keep_alive: bool) -> bytes:
    """Status line and headers; the length is that of the body, sent or not."""
    length = sum(len(part) for part in response.parts)
    return (
        f"HTTP/1.1 {response.status} {_PHRASES[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\nContent-Length: {length}\r\n{response.headers}"
        f"{'' if keep_alive else 'Connection: close' + chr(13) + chr(10)}\r\n"
    ).encode("latin-1")


def send_some(fd: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """What the kernel does not take at once. Memoryviews are of bytes. Raises OSError: nobody is there any more."""
    try:
        sent = os.writev(fd, parts[:MOST_PARTS])
    except BlockingIOError:
        return parts
    for i, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[i + 1 :]]
        sent -= len(part)
    return []


Reply = Callable[[Response], None]
App = Callable[[Request, Reply], "Callable[[], None] | None"]
"""Answers by calling the reply once, on the loop; returns what to call if the client leaves first."""


class _Head:
    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.keep_alive = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.keep_alive = self.parser.should_keep_alive()  # a message without a body is forgotten right after this


def parse_head(head: bytes) -> Request:
    """The request line and headers of `head`, which ends in an empty line. Raises RequestError (400)."""
    parts = _Head()
    assert parts.parser is not None
    try:
        parts.parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an offer to switch protocols may be ignored (RFC 9110, 7.8)
    except httptools.HttpParserError as e:
        raise RequestError(400, f"not HTTP/1.1: {e}") from e
    finally:
        method = parts.parser.get_method().decode()
        parts.parser = None  # each knows the other: else every request would be work for the garbage collector
    path = parts.url.partition(b"?")[0].decode("latin-1")
    return Request(
        method=method,
        path=path,
        headers=parts.headers,
        keep_alive=parts.keep_alive,
        parts=[unquote(part) for part in path.strip("/").split("/")],
        length=_bytes_in(parts.headers, b"content-length") or 0,
        json_bytes=_bytes_in(parts.headers, b"inference-header-content-length"),
    )


def _bytes_in(headers: dict[bytes, bytes], name: bytes) -> int | None:
    """Raises RequestError (400) for anything but digits."""
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise RequestError(400, f"header {name.decode()} is not a number of bytes")
    return int(value)


class Buffers:
    """Memory for tensors, used again once nothing looks at it any more: in fresh memory each 4 KiB cost a page fault,
    which for 1.2 MB took longer than the copy. Not thread-safe.
    """

    def __init__(self, most_bytes: int = 8 * 2**20) -> None:
        """`most_bytes` are kept in all; what is larger, or too many, is taken from the system and given back."""
        self._most_bytes = most_bytes
        self._kept: list[np.ndarray] = []

    def take(self, size: int, at: int) -> memoryview:
        """`size` bytes of any content, whose byte `at` (where the first tensor begins) lies on a 64-byte boundary."""
        raw = self._free(size + ALIGNMENT)
        offset = -(raw.ctypes.data + at) % ALIGNMENT
        return raw.data[offset : offset + size]

    def _free(self, size: int) -> np.ndarray:
        if not LEAST_BYTES <= size <= self._most_bytes:
            return np.empty(size, np.uint8)
        for i in range(len(self._kept)):
            if sys.getrefcount(self._kept[i]) == _UNUSED and size <= self._kept[i].size <= 2 * size:
                self._kept.append(self._kept.pop(i))  # the longest unused comes first
                return self._kept[-1]
        self._kept.append(np.empty(size, np.uint8))
        while sum(one.size for one in self._kept) > self._most_bytes:
            self._kept.pop(0)  # whoever looks at it keeps it alive
        return self._kept[-1]


def _references_in_a_list() -> int:
    """How many references a call counts to what a list alone holds: the list's, and in most Pythons the call's own."""
    kept = [np.empty(0)]
    return sys.getrefcount(kept[0])


_UNUSED = _references_in_a_list()
