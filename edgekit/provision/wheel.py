"""Unpacks wheels into a slot without pip: a board needs no venv, no index and no compiler, only its Python.

Source: packaging.python.org, "Binary distribution format" (members, RECORD, `.data` folders).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekit.errors import ReleaseError
from edgekit.provision.release import problem_in_path

SITE = "site"
_IN_SITE = ("purelib", "platlib")
_ELSEWHERE = ("scripts", "data", "headers")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a wheel, where in the slot it goes, and the SHA-256 that RECORD promises (None: RECORD itself)."""

    info: zipfile.ZipInfo
    path: str
    sha256: bytes | None


def installed_bytes(wheel: Path) -> int:
    """What its files take when unpacked. Raises ReleaseError as `members` does."""
    with _open(wheel) as archive:
        return sum(member.info.file_size for member in members(archive, wheel.name))


def members(archive: zipfile.ZipFile, name: str) -> Iterator[Member]:
    """Every file of the wheel. Raises ReleaseError for a path that leaves the slot, a link, or no RECORD entry."""
    record = _record(archive, name)
    for info in archive.infolist():
        if info.is_dir():
            continue
        if stat.S_ISLNK(info.external_attr >> 16):
            raise ReleaseError(name, f"{info.filename!r} is a symbolic link")
        if problem := problem_in_path(info.filename):
            raise ReleaseError(name, f"{info.filename!r}: {problem}")
        if info.filename not in record:
            raise ReleaseError(name, f"{info.filename!r} is not in its RECORD")
        place = _place(info.filename)
        if place is None:
            raise ReleaseError(name, f"{info.filename!r} is of no scheme that wheels have")
        yield Member(info, place, record[info.filename])


def unpack(wheel: Path, slot: Path, *, name: str, limit_bytes: int) -> None:
    """Write the wheel's files below `slot`. Raises ReleaseError, also beyond `limit_bytes`; OSError."""
    total = 0
    with _open(wheel) as archive:
        for member in members(archive, name):
            total += member.info.file_size
            if total > limit_bytes:
                raise ReleaseError(name, f"unpacks to more than the {limit_bytes} bytes that its release says")
            path = slot / member.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member.info) as source, path.open("xb") as file:
                while piece := source.read(_PIECE_BYTES):
                    file.write(piece)
            if member.info.external_attr >> 16 & 0o111:
                path.chmod(0o755)


def verify(wheel: Path, slot: Path, *, name: str) -> None:
    """Read every unpacked file again and compare it with RECORD. Raises ReleaseError naming the first that differs."""
    with _open(wheel) as archive:
        for member in members(archive, name):
            data = (slot / member.path).read_bytes()
            if len(data) != member.info.file_size or (member.sha256 and hashlib.sha256(data).digest() != member.sha256):
                raise ReleaseError(name, f"{member.path} is not what was unpacked: the disk lost or changed it")


def _open(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as e:
        raise ReleaseError(wheel.name, f"is not a wheel: {e}") from e


def _place(filename: str) -> str | None:
    """`pkg-1.data/purelib/x` goes where `x` goes; other schemes keep their own folder. None: no such scheme."""
    top, _, rest = filename.partition("/")
    if not top.endswith(".data"):
        return f"{SITE}/{filename}"
    scheme, _, below = rest.partition("/")
    if scheme in _IN_SITE:
        return f"{SITE}/{below}"
    return f"{scheme}/{below}" if scheme in _ELSEWHERE else None


def _record(archive: zipfile.ZipFile, name: str) -> dict[str, bytes | None]:
    found = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD") and n.count("/") == 1]
    if len(found) != 1:
        raise ReleaseError(name, f"a wheel has one RECORD, this has {len(found)}")
    try:
        rows = list(csv.reader(io.StringIO(archive.read(found[0]).decode())))
        return {row[0]: _digest(row[1]) for row in rows if len(row) >= 2}
    except (UnicodeDecodeError, ValueError, zipfile.BadZipFile) as e:
        raise ReleaseError(name, f"its RECORD does not parse: {e}") from e


def _digest(text: str) -> bytes | None:
    kind, _, value = text.partition("=")
    if kind != "sha256":
        return None
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
