"""Makes a folder of this machine a device: slots, guard, trust, a release judged by the guard, and the service.

The same code runs on a board over ssh: there it is started from the release that was just brought (see `remote`).
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.errors import ReleaseError, SlotError
from edgekit.files import write_atomic
from edgekit.provision import enrol, slots, stage, unit, update
from edgekit.provision.enrol import Own
from edgekit.provision.release import Library, Stored
from edgekit.provision.settings import Settings, read_settings, write_settings

logger = logging.getLogger(__name__)

SERVICES = ("auto", "system", "user", "none")
DEVICE_GROUPS = ("video", "render", "plugdev", "dialout", "gpio")
USER = "edgekit"
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the device is to become."""

    root: Path
    stored: Stored
    library: Library
    service: str = "auto"
    trust_root: bytes | None = None
    "The repository's root metadata: handed over here, never believed on first use."
    settings: Settings | None = None
    own: Own = field(default_factory=dict)
    "What this device alone is given: see `enrol`. Empty: as it is."
    retry_denied: bool = False
    later: bool = False
    "Leave the verdict to the guard at the device's next start: for image builds."


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do. `is_needed` False: it is so already."""

    what: str
    is_needed: bool


def plan(wish: Wish) -> tuple[Step, ...]:
    """What would be done, in order; nothing is touched. Raises for what could not end well.

    Raises ReleaseError (for another machine or Python), SlotError (not writable, too full, an update under way).
    """
    name = wish.stored.release.name
    if problem := stage.why_not_here(wish.stored.release.target):
        raise ReleaseError(name, problem)
    _check_writable(wish.root)
    is_new = not (wish.root / "state.json").exists()
    steps = [Step(what=f"make {wish.root} a device's folder with its guard", is_needed=is_new)]
    if wish.trust_root is not None:
        steps.append(Step(what="hand over the repository's root of trust", is_needed=not _trust(wish.root).exists()))
    if wish.settings is not None:
        same = not is_new and read_settings(wish.root) == wish.settings
        text = f"remember to look at {wish.settings.repository} as group {wish.settings.group}"
        steps.append(Step(what=text, is_needed=not same))
    if wish.own:
        text = f"give the device what is its own: {', '.join(wish.own)}"
        steps.append(Step(what=text, is_needed=not enrol.is_so(wish.root, wish.own)))
    committed = not is_new and stage.is_committed(wish.root, wish.stored)
    missing = {f.sha256: f.size_bytes for f in wish.stored.release.files if not _is_there(wish.root, f.sha256)}
    size = f"{sum(missing.values()) / 1024:.0f} KiB to copy"
    verdict = "the guard judges it at the next start" if wish.later else "wait for the guard's verdict"
    steps.append(Step(what=f"install release {name} ({size}), switch, {verdict}", is_needed=not committed))
    kind = service_kind(wish.service)
    if kind != "none":
        settings = wish.settings or (Settings() if is_new else read_settings(wish.root))
        for path, text in _units(kind, wish.root, follows=settings.repository is not None):
            is_needed = not path.exists() or path.read_text() != text
            steps.append(Step(what=f"install and start {path}", is_needed=is_needed))
    return tuple(steps)


def carry_out(wish: Wish, progress: Progress) -> update.Outcome | None:
    """Do it; safe to repeat. The verdict on the release; None when it was committed before. Raises as `plan` does."""
    plan(wish)
    root = wish.root
    try:
        slots.prepare(root)
        if wish.trust_root is not None and not _trust(root).exists():
            write_atomic(_trust(root), wish.trust_root)
        if wish.settings is not None:
            write_settings(root, wish.settings)
        has_changed = enrol.write_own(root, wish.own)
        fetch = stage.from_folder(wish.library.blob)
        slot = stage.install(root, wish.stored, fetch, progress=progress, retry_denied=wish.retry_denied)
        kind = service_kind(wish.service)
        if kind != "none":
            _install_service(kind, root, start=not wish.later)
        if has_changed and slot is None and not wish.later:
            _restart(kind)
    except OSError as e:
        raise SlotError("a and b", f"{root} cannot be written: {e.strerror or e}", rolled_back=False) from e
    if slot is None or wish.later:
        return None
    progress("waiting for the guard's verdict", 1.0)
    if kind != "none" or _is_guarded(root):
        return update.await_verdict(root, slot)
    return _judge_ourselves(root, slot)


def service_kind(wanted: str) -> str:
    """ "system" for root under systemd, "user" where a user's systemd runs, else "none"."""
    if wanted != "auto":
        return wanted
    if Path("/run/systemd/system").is_dir():
        if os.geteuid() == 0:
            return "system"
        if Path(f"/run/user/{os.geteuid()}/systemd").is_dir():
            return "user"
    return "none"


def _judge_ourselves(root: Path, slot: str) -> update.Outcome:
    """Without a service nobody starts the guard: run it until it has judged, so that the answer is a true one."""
    log = root / "guard.log"
    with log.open("ab") as file:
        running = subprocess.Popen(
            [sys.executable, str(root / slots.GUARD), str(root)], stdout=file, stderr=file, start_new_session=True
        )
        try:
            return update.await_verdict(root, slot)
        finally:
            running.terminate()
            running.wait()


def _is_guarded(root: Path) -> bool:
    return slots.running_slot(root) is not None


def _check_writable(root: Path) -> None:
    """The nearest folder that exists must let us write."""
    folder = root
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise SlotError("a and b", f"{folder} is not a folder", rolled_back=False)
    probe = folder / f".edgekit-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise SlotError("a and b", f"{folder} cannot be written: {e.strerror}", rolled_back=False) from e


def _trust(root: Path) -> Path:
    return root / "trust" / "root.json"


def _is_there(root: Path, sha256: str) -> bool:
    return (root / "store" / sha256).exists()


def _units(kind: str, root: Path, *, follows: bool) -> list[tuple[Path, str]]:
    """(path, content) of the guard's unit, and of the updater's where the device was told where to look."""
    python = sys.executable
    if kind == "user":
        folder = Path.home() / ".config/systemd/user"
        guard, updater = unit.user_unit(root, python=python), unit.user_updater(root, python=python)
    else:
        folder = Path("/etc/systemd/system")
        guard = unit.system_unit(root, python=python, user=USER, groups=existing_groups())
        updater = unit.system_updater(root, python=python, user=USER)
    return [(folder / unit.NAME, guard), *([(folder / unit.UPDATER, updater)] if follows else [])]


def existing_groups(file: Path = Path("/etc/group")) -> tuple[str, ...]:
    """Those of the device nodes' groups that this system has."""
    known = {line.partition(":")[0] for line in file.read_text(encoding="utf-8").splitlines()}
    return tuple(group for group in DEVICE_GROUPS if group in known)


def _install_service(kind: str, root: Path, *, start: bool = True) -> None:
    units = _units(kind, root, follows=read_settings(root).repository is not None)
    if kind == "system":
        if subprocess.run(["id", USER], capture_output=True, check=False).returncode != 0:
            _run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER])
        _run(["chown", "-R", f"{USER}:{USER}", str(root)])
    systemctl = ["systemctl"] if kind == "system" else ["systemctl", "--user"]
    stale = [(path, text) for path, text in units if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        write_atomic(path, text.encode())
    names = [path.name for path, _ in units]
    if not start:  # in an image build no systemd runs that could be told
        _run([*systemctl, "enable", *names])
        return
    if stale:
        _run([*systemctl, "daemon-reload"])
    _run([*systemctl, "enable", "--now", *names])
    if kind == "user" and shutil.which("loginctl"):  # else it ends when its user logs out
        _run(["loginctl", "enable-linger"])


def _restart(kind: str) -> None:
    """The running daemon read what is its own when it started."""
    if kind == "none":
        logger.warning("what was given to the device counts from its daemon's next start")
    else:
        _run(["systemctl", *(["--user"] if kind == "user" else []), "restart", unit.NAME])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise SlotError(
            "a and b", f"'{' '.join(command)}' failed: {said[-1] if said else 'no word'}", rolled_back=False
        )
