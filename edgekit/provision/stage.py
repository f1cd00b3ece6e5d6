"""Brings a release into the inactive slot: content first, then the tree, then every byte read again, then `staged`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from edgekit.artifact import verify_file
from edgekit.errors import ArtifactError, ReleaseError, SlotError
from edgekit.files import sync_folder
from edgekit.provision import launch, slots, wheel
from edgekit.provision.release import SHARED, ReleaseFile, Stored, Target

RESERVE_BYTES = 32 << 20
"""Left free on the disk: the state, logs and the daemon's outbox must still be written."""

Fetch = Callable[[ReleaseFile, Path], None]
"""Puts a file's content at a path, resuming what lies there, and raises EdgekitError when it cannot."""
Progress = Callable[[str, float], None]


def from_folder(blob_of: Callable[[str], Path]) -> Fetch:
    """Content that lies on this machine: a release library, a USB stick. `blob_of` maps a sha256 to its file."""

    def fetch(file: ReleaseFile, to: Path) -> None:
        try:
            shutil.copyfile(blob_of(file.sha256), to)
        except FileNotFoundError as e:
            raise ReleaseError(file.path, f"its content {file.sha256[:16]}… is missing: {e.filename}") from e

    return fetch


def install(
    root: Path, stored: Stored, fetch: Fetch, *, progress: Progress | None = None, retry_denied: bool = False
) -> str | None:
    """Stage the release and ask the guard to try it. The slot; None when it is the committed one already.

    Every step may be cut off and repeated. Raises SlotError, ReleaseError and what `fetch` raises; the active slot is
    untouched in every case.
    """
    with slots.updating(root):
        if is_committed(root, stored):
            return None
        slot = stage(root, stored, fetch, progress=progress or _silent, retry_denied=retry_denied)
        slots.switch(root, slot)
        return slot


def is_committed(root: Path, stored: Stored) -> bool:
    """True when the active slot holds this very release and is good."""
    now = slots.status(root)
    active = next((slot for slot in now.slots if slot.slot == now.active), None)
    return active is not None and active.state == slots.SlotState.GOOD and active.digest == stored.digest


def stage(root: Path, stored: Stored, fetch: Fetch, *, progress: Progress, retry_denied: bool = False) -> str:
    """Bring the release into the inactive slot, complete, verified and synced. Returns the slot."""
    if problem := why_not_here(stored.release.target):
        raise ReleaseError(stored.release.name, problem)
    slot = slots.begin(root, stored, retry_denied=retry_denied)
    if slots.status(root).slots["ab".index(slot)].state == slots.SlotState.STAGED:
        return slot
    folder = root / slot
    try:
        _remove(folder)
        missing = [file for file in _distinct(stored.release.files) if not _is_stored(root, file)]
        check_space(root, stored, missing)
        for i, file in enumerate(missing):
            progress(f"fetching {file.path}", i / max(1, len(missing)))
            _fetch(root, file, fetch)
        progress("unpacking", 0.0)
        _build(root, folder, stored)
        _hand_over(folder, root)
        progress("verifying", 0.9)
        _verify(root, folder, stored)
        os.sync()  # one call for thousands of small files; without it a power cut may leave them empty
    except OSError as e:
        where = f": {e.filename}" if e.filename else ""
        raise SlotError(slot, f"cannot be written: {e.strerror or e}{where}", rolled_back=False) from e
    slots.mark_staged(root, slot)
    return slot


def why_not_here(target: Target) -> str | None:
    """Why wheels for `target` do not run with this Python on this machine, or None."""
    machine, python = platform.machine(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if target.machine not in ("", machine):
        return f"is for {target.machine}, this machine is {machine}"
    if target.python not in ("", python):
        return f"is for Python {target.python}, this is {python}"
    return None


def check_space(root: Path, stored: Stored, missing: Iterable[ReleaseFile]) -> None:
    """Room for the download and the unpacked slot while the other slot stays. Raises SlotError with the figures."""
    download = sum(file.size_bytes for file in missing)
    unpacked = sum(file.installed_bytes for file in stored.release.files)
    needed, free = download + unpacked + RESERVE_BYTES, shutil.disk_usage(root).free
    if needed > free:
        text = (
            f"{root} has {free >> 20} MiB free, {stored.release.name} needs {needed >> 20}: {download >> 20} to "
            f"download, {unpacked >> 20} unpacked, {RESERVE_BYTES >> 20} in reserve; the slot to go back to stays"
        )
        raise SlotError("a and b", text, rolled_back=False)


def _distinct(files: Iterable[ReleaseFile]) -> list[ReleaseFile]:
    return list({file.sha256: file for file in files}.values())


def _is_stored(root: Path, file: ReleaseFile) -> bool:
    """Read, not remembered: the hash of a file that a failed try left behind proves nothing."""
    try:
        verify_file(root / "store" / file.sha256, sha256=file.sha256, size_bytes=file.size_bytes)
    except ArtifactError:
        return False
    return True


def _fetch(root: Path, file: ReleaseFile, fetch: Fetch) -> None:
    path, part = root / "store" / file.sha256, root / "store" / f"{file.sha256}.part"
    fetch(file, part)
    try:
        verify_file(part, sha256=file.sha256, size_bytes=file.size_bytes)
    except ArtifactError as e:
        part.unlink(missing_ok=True)
        raise ReleaseError(file.path, f"what arrived is not what was signed: {e.problem}") from e
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.chmod(0o444)
    part.replace(path)
    sync_folder(path.parent)


def _remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _build(root: Path, folder: Path, stored: Stored) -> None:
    folder.mkdir()
    for file in stored.release.files:
        content = root / "store" / file.sha256
        if file.is_wheel:
            wheel.unpack(content, folder, name=file.path, limit_bytes=file.installed_bytes)
            continue
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _link(content, path)
    shared = folder / SHARED
    shared.parent.mkdir(parents=True, exist_ok=True)
    up = "/".join([".."] * len(PurePosixPath(SHARED).parts))
    shared.symlink_to(f"{up}/shared/{SHARED.name}")
    spec = stored.release.launch
    table = {
        "schema": launch.SCHEMA,
        "run": list(spec.run),
        "check": list(spec.check),
        "env": dict(spec.env),
        "ready_s": spec.ready_s,
        "check_s": spec.check_s,
        "soak_s": spec.soak_s,
        "stop_s": spec.stop_s,
    }
    (folder / launch.FILE).write_text(json.dumps(table, indent=1), encoding="utf-8")
    (folder / "release.json").write_bytes(stored.raw)


def _hand_over(folder: Path, root: Path) -> None:
    """What root staged belongs to the service's user, who owns ROOT: its daemon keeps measurements in its slot."""
    owner = root.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid != owner.st_uid:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _link(content: Path, path: Path) -> None:
    """A second name for the same read-only bytes; a copy where the disk has no such names (FAT)."""
    try:
        os.link(content, path)
    except OSError:
        shutil.copyfile(content, path)


def _verify(root: Path, folder: Path, stored: Stored) -> None:
    for file in stored.release.files:
        if file.is_wheel:
            wheel.verify(root / "store" / file.sha256, folder, name=file.path)
            continue
        try:
            verify_file(folder / file.path, sha256=file.sha256, size_bytes=file.size_bytes)
        except ArtifactError as e:
            raise ReleaseError(stored.release.name, f"{file.path} in the slot is damaged: {e.problem}") from e


def _silent(_text: str, _share: float) -> None:
    """Nobody is watching."""
