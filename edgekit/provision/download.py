"""Brings a release's content to the device: resumed, slowed on wish, bounded in tries, bytes and time, cancellable."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from edgekit.artifact import sha256_of
from edgekit.errors import Cancelled, ReleaseError, UnreachableError
from edgekit.provision.release import ReleaseFile

logger = logging.getLogger(__name__)

BACKOFF_S = (1.0, 4.0, 15.0, 60.0)
STALL_S = 30.0
"""A server that sends nothing for so long counts as gone."""
LEAST_BYTES_PER_S, GRACE_S = 256.0, 60.0
"""Slower than this after the grace is no download but a way to keep us busy."""
_PIECE_BYTES = 1 << 16
_OVERHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How the network may be used."""

    bytes_per_s: float | None = None
    backoff_s: tuple[float, ...] = BACKOFF_S
    stall_s: float = STALL_S
    is_cancelled: Callable[[], bool] = lambda: False


class Download:
    """`stage.Fetch` from a repository's `blobs` folder, over http(s) or from file://. Counts the bytes it took."""

    def __init__(self, url: str, manners: Manners) -> None:
        self._url, self._manners = url.rstrip("/"), manners
        self.received_bytes = 0

    def __call__(self, file: ReleaseFile, to: Path) -> None:
        """Raises ReleaseError for what another try would not mend, UnreachableError after the last one, Cancelled."""
        url = f"{self._url}/blobs/{file.sha256}"
        budget = self.received_bytes + 2 * file.size_bytes + _OVERHEAD_BYTES
        problem = ""
        for wait_s in (*self._manners.backoff_s, None):
            try:
                self._attempt(url, file, to)
                if sha256_of(to) == file.sha256:
                    return
                problem = "what arrived is not what was signed"
                to.unlink()
            except (OSError, http.client.HTTPException) as e:
                problem = _classify(url, e)
            if self.received_bytes > budget:
                raise ReleaseError(file.path, f"{url}: {problem}; gave up after twice its size")
            logger.info("%s: %s", url, problem)
            if wait_s is not None:
                self._pause(wait_s)
        raise UnreachableError(self._url, f"{file.path}: {problem}; tried {len(self._manners.backoff_s) + 1} times")

    def _attempt(self, url: str, file: ReleaseFile, to: Path) -> None:
        have = to.stat().st_size if to.exists() else 0
        if have >= file.size_bytes:
            if have == file.size_bytes:
                return
            to.unlink()
            have = 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        with urllib.request.urlopen(request, timeout=self._manners.stall_s) as answer:
            is_resumed = have > 0 and (_resumes_at(answer, have) or _skipped(answer, url, have))
            with to.open("ab" if is_resumed else "wb") as part:
                self._copy(answer, part, file, have if is_resumed else 0)

    def _copy(self, answer: http.client.HTTPResponse, part: IO[bytes], file: ReleaseFile, have: int) -> None:
        started_s, taken = time.monotonic(), 0
        while piece := answer.read1(_PIECE_BYTES):
            have, taken = have + len(piece), taken + len(piece)
            self.received_bytes += len(piece)
            if have > file.size_bytes:
                part.truncate(0)
                raise ReleaseError(
                    file.path, f"the server sends more than the {file.size_bytes} bytes that were signed"
                )
            part.write(piece)
            if self._manners.is_cancelled():
                raise Cancelled(f"{file.path}: cancelled after {have} of {file.size_bytes} bytes")
            elapsed_s = time.monotonic() - started_s
            if elapsed_s > GRACE_S and taken / elapsed_s < LEAST_BYTES_PER_S:
                raise ConnectionError(f"{taken} bytes in {elapsed_s:.0f} s: too slow to ever end")
            if self._manners.bytes_per_s is not None:
                ahead_s = taken / self._manners.bytes_per_s - (time.monotonic() - started_s)
                self._pause(max(0.0, ahead_s))
        if have < file.size_bytes:
            raise ConnectionError(f"ended after {have} of {file.size_bytes} bytes")

    def _pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if self._manners.is_cancelled():
                raise Cancelled("cancelled while waiting")
            time.sleep(min(0.2, left_s))


def _resumes_at(answer: http.client.HTTPResponse, have: int) -> bool:
    """True when the server sends the rest that was asked for; a server without range support sends all, with 200."""
    where = answer.headers.get("Content-Range", "")
    return getattr(answer, "status", None) == 206 and where.startswith(f"bytes {have}-")


def _skipped(answer: http.client.HTTPResponse, url: str, have: int) -> bool:
    """A file has no ranges, but can be wound on."""
    if urlsplit(url).scheme != "file":
        return False
    left = have
    while left and (piece := answer.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
    return left == 0


def _classify(url: str, error: Exception) -> str:
    """The problem in words when it is worth another try. Raises ReleaseError when it is not."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        text = f"the server answers {error.code} {error.reason}"
        if error.code < 500 and error.code not in (408, 416, 425, 429):
            raise ReleaseError(url, text) from error
        return text
    if isinstance(error, urllib.error.URLError):
        if isinstance(error.reason, FileNotFoundError) or "No such file" in str(error.reason):
            raise ReleaseError(url, "there is no such file") from error
        return f"not reachable: {error.reason}"
    if isinstance(error, TimeoutError):
        return "the server sends nothing any more"
    if isinstance(error, ConnectionError | http.client.HTTPException):
        return f"{error or type(error).__name__}"
    raise error
