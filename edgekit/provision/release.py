"""A release: files named by their content and one manifest that says where each goes and how they are started."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from edgekit.artifact import verify_file
from edgekit.errors import ArtifactError, ReleaseError
from edgekit.files import write_atomic

SCHEMA = 1
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 2000
MAX_BYTES = 16 << 30
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$")
SHA256 = re.compile(r"^[0-9a-f]{64}$")
OWN_NAMES = frozenset({"release.json", "launch.json", "site", "wheels", "scripts", "data", "headers"})
"""Top-level names of a slot that staging writes itself."""
SHARED = PurePosixPath("home/daemon")
"""In each slot a link to what both share: the daemon's epoch and outbox must survive a switch."""
CAPS_S = {"ready_s": 3600.0, "check_s": 3600.0, "soak_s": 24 * 3600.0, "stop_s": 300.0}


class ReleaseFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file: `path` below the slot, or for a wheel its own name; its content is unpacked into the slot's `site`."""

    path: str
    sha256: str
    size_bytes: int
    is_wheel: bool = False
    installed_bytes: int = 0
    "What a wheel takes when unpacked; 0 for a plain file."


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How the guard starts it: see `launch.Launch`."""

    run: tuple[str, ...]
    check: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    ready_s: float = 120.0
    check_s: float = 120.0
    soak_s: float = 30.0
    stop_s: float = 20.0
    "Patience between SIGTERM and SIGKILL."


class Objective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one model must do on the device before the release counts as healthy. None: not asked."""

    model: str
    samples: str
    "Path of an .npz in the release: `input:NAME` arrays with a leading sample axis, `output:NAME` what they must give."
    p50_ms: float | None = None
    p99_ms: float | None = None
    accuracy: float = 0.99
    "Least share of the samples whose answer agrees."
    memory_bytes: int | None = None
    "Most that the daemon may hold (VmHWM)."


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the wheels are for. An empty text: any."""

    machine: str = ""
    "As `uname -m`: x86_64, aarch64, armv7l."
    python: str = ""
    '"3.11"'


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest. Unknown keys of newer releases are ignored; `guard_version` says what must not be."""

    schema: int = SCHEMA
    name: str
    sequence: int
    "Orders releases: a device takes a lower one only when the repository allows the downgrade. Unix time of creation."
    guard_version: int = 1
    target: Target = Target()
    launch: LaunchSpec
    files: tuple[ReleaseFile, ...]
    objectives: tuple[Objective, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A manifest with its own bytes: the digest is over them, however later versions would write them."""

    release: Release
    raw: bytes

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the manifest: names the release and, through it, every byte of its files."""
        return hashlib.sha256(self.raw).hexdigest()


def seal(release: Release) -> Stored:
    """The release with the bytes that stand for it. Raises ReleaseError for one that no device would take."""
    return parse(msgspec.json.format(msgspec.json.encode(release, order="deterministic"), indent=1))


def parse(raw: bytes) -> Stored:
    """The manifest in `raw`. Raises ReleaseError for whatever does not hold; nothing in it is trusted before."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ReleaseError("manifest", f"has {len(raw)} bytes, more than {MAX_MANIFEST_BYTES}")
    try:
        release = msgspec.json.decode(raw, type=Release)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ReleaseError("manifest", f"is not one: {e}") from e
    problem = problem_in(release)
    if problem is not None:
        raise ReleaseError(release.name if NAME.match(release.name) else "manifest", problem)
    return Stored(release=release, raw=raw)


def problem_in(release: Release) -> str | None:
    """The first thing that the types cannot say, or None."""
    if release.schema != SCHEMA:
        return f"has schema {release.schema}, this edgekit reads {SCHEMA}"
    if not NAME.match(release.name):
        return "its name must be 1 to 63 of letters, digits, '.', '_', '+' and '-'"
    if not release.launch.run:
        return "launch.run is empty"
    for key, cap_s in CAPS_S.items():
        if not 0 <= getattr(release.launch, key) <= cap_s:
            return f"launch.{key} must be 0 to {cap_s:g}"
    if len(release.files) > MAX_FILES:
        return f"has {len(release.files)} files, more than {MAX_FILES}"
    for file in release.files:
        if problem := problem_in_file(file):
            return problem
    if sum(file.size_bytes + file.installed_bytes for file in release.files) > MAX_BYTES:
        return f"is larger than {MAX_BYTES} bytes"
    return _collision(release.files)


def problem_in_file(file: ReleaseFile) -> str | None:
    """Why `file` must not be written, or None."""
    if not SHA256.match(file.sha256):
        return f"{file.path!r}: sha256 must be 64 lower-case hexadecimal digits"
    if file.size_bytes < 0 or file.installed_bytes < 0:
        return f"{file.path!r}: a size below zero"
    if problem := problem_in_path(file.path):
        return f"{file.path!r}: {problem}"
    path = PurePosixPath(file.path)
    if file.is_wheel:
        return None if len(path.parts) == 1 and path.suffix == ".whl" else f"{file.path!r}: not the name of a wheel"
    if path.parts[0] in OWN_NAMES or path.is_relative_to(SHARED):
        return f"{file.path!r}: this place in a slot is edgekit's own"
    return None


def problem_in_path(path: str) -> str | None:
    """Why `path` would not stay below the folder it is written to, or None."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or re.search(r"[\x00-\x1f\x7f:]", path):
        return "must be a relative path without backslash, colon or control characters"
    if len(path) > 255 or any(part in ("", ".", "..") for part in parts):
        return "must have no '', '.' or '..' in it and at most 255 characters"
    return None


def _collision(files: Iterable[ReleaseFile]) -> str | None:
    """Two entries for one place; by folded case, since a stick may be FAT."""
    plain = [file.path.casefold() for file in files if not file.is_wheel]
    wheels = [file.path.casefold() for file in files if file.is_wheel]
    taken = set(plain)
    if len(taken) != len(plain) or len(set(wheels)) != len(wheels):
        return "names one path twice"
    for path in plain:
        for parent in PurePosixPath(path).parents:
            if str(parent) in taken:
                return f"'{parent}' is both a file and a folder"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """From one release to another. `shipped_bytes`: content that the device does not hold yet."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged_count: int
    shipped_bytes: int
    settings: tuple[str, ...]
    "Which of launch, objectives and target differ."


def diff(old: Release, new: Release) -> Diff:
    """What changes; content is told apart by its hash, so a file that only moves is not shipped again."""
    before = {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    held = {file.sha256 for file in old.files}
    missing = {file.sha256: file.size_bytes for file in new.files if file.sha256 not in held}
    both = before.keys() & after.keys()
    changed = sorted(path for path in both if before[path].sha256 != after[path].sha256)
    return Diff(
        added=tuple(sorted(after.keys() - both)),
        removed=tuple(sorted(before.keys() - both)),
        changed=tuple(changed),
        unchanged_count=len(both) - len(changed),
        shipped_bytes=sum(missing.values()),
        settings=tuple(k for k in ("launch", "objectives", "target") if getattr(old, k) != getattr(new, k)),
    )


class Library:
    """Releases in a folder: `<name>.json` manifests and the content of all of them, once, in `blobs/<sha256>`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, stored: Stored, sources: Mapping[str, Path]) -> None:
        """Add a release; `sources` gives for each sha256 a file with that content. Raises ReleaseError, ArtifactError.

        A name is given once: what was installed somewhere under a name must stay findable under it.
        """
        path = self.folder / f"{stored.release.name}.json"
        if path.exists() and path.read_bytes() != stored.raw:
            raise ReleaseError(stored.release.name, f"{path} is another release of this name; choose a new name")
        for file in stored.release.files:
            blob = self.blob(file.sha256)
            if not self.holds(file):
                write_atomic(blob, sources[file.sha256].read_bytes())
                verify_file(blob, sha256=file.sha256, size_bytes=file.size_bytes)
        write_atomic(path, stored.raw)

    def blob(self, sha256: str) -> Path:
        return self.folder / "blobs" / sha256

    def holds(self, file: ReleaseFile) -> bool:
        """Whether its content is here, every byte of it."""
        try:
            verify_file(self.blob(file.sha256), sha256=file.sha256, size_bytes=file.size_bytes)
        except ArtifactError:
            return False
        return True

    def load(self, name: str) -> Stored:
        """Raises ReleaseError naming the releases there are."""
        if not NAME.match(name) or not (path := self.folder / f"{name}.json").is_file():
            known = ", ".join(self.names()) or "none"
            raise ReleaseError(name, f"no such release in {self.folder}, which holds: {known}")
        return parse(path.read_bytes())

    def names(self) -> list[str]:
        """Every release here, oldest first."""
        found = [parse(path.read_bytes()) for path in self.folder.glob("*.json")]
        return [s.release.name for s in sorted(found, key=lambda s: (s.release.sequence, s.release.name))]
