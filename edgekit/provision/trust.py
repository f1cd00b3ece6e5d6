"""What a device may believe of a repository: metadata checked by python-tuf's client, from a root that was handed over.

Beside what tuf checks (signatures, rollback, freeze, mix-and-match, sizes) stands a floor under the clock: a board
without one starts in 1970, where nothing has expired yet. The floor is the latest time that the repository signed.
"""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import Updater, UpdaterConfig
from tuf.ngclient.fetcher import FetcherInterface

from edgekit.errors import ReleaseError, UnreachableError
from edgekit.files import write_atomic
from edgekit.provision.release import MAX_MANIFEST_BYTES, Stored, parse
from edgekit.provision.repository import GROUP, SIGNED_AT, Offer, offer_of

logger = logging.getLogger(__name__)

TIMEOUT_S = 20.0
METADATA_S = 120.0
ROOT = "root.json"
_PIECE_BYTES = 1 << 16
_LIMITS = UpdaterConfig(root_max_length=64_000, snapshot_max_length=64_000, targets_max_length=1_000_000)


class Trust:
    """One repository as one device sees it. `folder` keeps the first root, the metadata, and the clock's floor."""

    def __init__(self, folder: Path, url: str, *, now: datetime | None = None) -> None:
        self._folder, self._url = folder, url.rstrip("/")
        self._now = now or datetime.now(timezone.utc)

    def offer(self, group: str) -> tuple[Offer, Stored] | None:
        """What the group is to have, and its manifest; None when the repository has nothing for it.

        Raises ReleaseError with the reason for what must not be believed, UnreachableError.
        """
        if not GROUP.match(group):
            raise ReleaseError(self._url, f"'{group}' is no name of a group")
        try:
            return self._offer(group)
        except exceptions.DownloadLengthMismatchError as e:
            raise ReleaseError(self._url, f"sends more than it may: {e}") from e
        except exceptions.DownloadError as e:
            # tuf hides what is not its own error behind one that only repeats the address
            is_hidden = str(e).startswith("Failed to download") and e.__cause__ is not None
            raise UnreachableError(self._url, str(e.__cause__ if is_hidden else e)) from e
        except exceptions.RepositoryError as e:
            raise ReleaseError(self._url, _explain(e)) from e
        except OSError as e:
            raise ReleaseError(self._url, f"its metadata cannot be kept in {self._folder}: {e.strerror or e}") from e

    def _offer(self, group: str) -> tuple[Offer, Stored] | None:
        try:
            bootstrap = (self._folder / ROOT).read_bytes()
        except FileNotFoundError as e:
            problem = f"{self._folder / ROOT} is missing: a device gets its first root when it is provisioned"
            raise ReleaseError(self._url, problem) from e
        cache = self._folder / "metadata"
        cache.mkdir(parents=True, exist_ok=True)
        updater = Updater(str(cache), f"{self._url}/metadata/", fetcher=Fetcher(), config=_LIMITS, bootstrap=bootstrap)
        updater.refresh()
        self._check_clock(cache)
        target = updater.get_targetinfo(f"group/{group}.json")
        if target is None:
            return None
        found = offer_of(target)
        if found.group != group:
            raise ReleaseError(self._url, f"offers to group {group} what was signed for group {found.group}")
        return found, self._manifest(updater, target)

    def _manifest(self, updater: Updater, target: TargetFile) -> Stored:
        if target.length > MAX_MANIFEST_BYTES:
            raise ReleaseError(self._url, f"its manifest has {target.length} bytes, more than {MAX_MANIFEST_BYTES}")
        kept = self._folder / "manifest.json"
        updater.download_target(target, str(kept), f"{self._url}/targets/")
        return parse(kept.read_bytes())

    def _check_clock(self, cache: Path) -> None:
        """Expiry against the later of the clock and its floor; then raise the floor by what is signed now."""
        floor = self._floor()
        reference = max(self._now, floor)
        timestamp = Metadata[Timestamp].from_file(str(cache / "timestamp.json")).signed
        others = (
            Metadata[Root].from_file(str(cache / ROOT)).signed,
            Metadata[Snapshot].from_file(str(cache / "snapshot.json")).signed,
            Metadata[Targets].from_file(str(cache / "targets.json")).signed,
        )
        for signed in (timestamp, *others):
            if signed.is_expired(reference):
                text = (
                    f"its {signed.type} expired on {signed.expires:%Y-%m-%d}, and it is {reference:%Y-%m-%d} at least"
                )
                raise ReleaseError(self._url, text)
        signed_at = timestamp.unrecognized_fields.get(SIGNED_AT)
        if isinstance(signed_at, int) and signed_at > floor.timestamp():
            write_atomic(self._folder / "clock-floor", str(signed_at).encode())
        if self._now < floor:
            logger.warning("the clock says %s, before %s: is it set?", self._now.isoformat(), floor.isoformat())

    def _floor(self) -> datetime:
        try:
            seconds = int((self._folder / "clock-floor").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            seconds = 0
        return datetime.fromtimestamp(seconds, timezone.utc)


def _explain(error: exceptions.RepositoryError) -> str:
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (exceptions.ExpiredMetadataError, "its metadata has expired, so it may be held back"),
        (exceptions.BadVersionNumberError, "its metadata is older than what was seen before"),
        (exceptions.UnsignedMetadataError, "its metadata is not signed by the keys that may"),
        (exceptions.LengthOrHashMismatchError, "a file is not what its metadata says"),
    )
    why = next((text for kind, text in kinds if isinstance(error, kind)), "its metadata does not hold")
    return f"{why}: {error}"


class Fetcher(FetcherInterface):
    """http(s) through the standard library, and file:// for a stick. tuf bounds what is read of each."""

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            scheme, port = urlsplit(url).scheme, urlsplit(url).port
        except ValueError as e:
            raise exceptions.DownloadError(f"'{url}' is no address: {e}") from e
        if scheme != "file" and (port == 0 or not url.isprintable() or " " in url):
            raise exceptions.DownloadError(f"'{url}' is no address")
        if scheme not in ("http", "https", "file"):
            raise exceptions.DownloadError(f"'{scheme}' is not fetched, only http, https and file")
        try:
            answer = urllib.request.urlopen(url, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as e:
            e.close()
            raise exceptions.DownloadHTTPError(f"the server answers {e.code} {e.reason} to {url}", e.code) from e
        except urllib.error.URLError as e:
            if scheme == "file" and not _exists(url):
                raise exceptions.DownloadHTTPError(f"there is no {url}", 404) from e
            raise exceptions.DownloadError(f"not reachable: {e.reason}") from e
        return self._pieces(answer)

    def _pieces(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        end_s = time.monotonic() + METADATA_S
        with answer:
            try:
                while piece := answer.read1(_PIECE_BYTES):
                    if time.monotonic() > end_s:
                        raise exceptions.SlowRetrievalError(f"takes over {METADATA_S:.0f} s for a few kilobytes")
                    yield piece
            except OSError as e:
                raise exceptions.DownloadError(f"broke off: {e}") from e


def _exists(url: str) -> bool:
    return Path(urllib.request.url2pathname(urlsplit(url).path)).exists()
