"""Provisions a board over ssh: probe it, refuse early, bring the release, and let the board's own copy do the rest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.errors import ReleaseError, SlotError, UnreachableError
from edgekit.profiles import board_tables
from edgekit.provision.release import Library, Stored, Target
from edgekit.provision.settings import Settings
from edgekit.provision.ssh import Remote

OLDEST_PYTHON = (3, 10)
Progress = Callable[[str, float], None]

_LOOK = """
import json, os, platform, shutil, sys
root = os.path.expanduser(sys.argv[1])
folder = root
while not os.path.exists(folder):
    folder = os.path.dirname(folder)
try:
    import edgekit
    edgekit = True
except ImportError:
    edgekit = False
print(json.dumps({
    "root": root, "python": sys.version_info[:2], "machine": platform.machine(), "has_edgekit": edgekit,
    "is_writable": os.access(folder, os.W_OK), "free_bytes": shutil.disk_usage(folder).free,
}))
"""

# What is in the store already is linked to where the board's own copy looks; then: name -> size of all that is there.
_LIST = """
import json, os, sys
blobs, store = sys.argv[1:]
for name in os.listdir(store) if os.path.isdir(store) else ():
    if not name.endswith(".part") and not os.path.exists(os.path.join(blobs, name)):
        os.link(os.path.join(store, name), os.path.join(blobs, name))
print(json.dumps({name: os.path.getsize(os.path.join(blobs, name)) for name in os.listdir(blobs)}))
"""

_UNPACK = """
import os, shutil, sys, zipfile
boot, wheels = sys.argv[1], sys.argv[2:]
shutil.rmtree(boot, ignore_errors=True)
for wheel in wheels:
    zipfile.ZipFile(wheel).extractall(boot)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What we need to know of the far end before anything is sent."""

    root: str
    python: tuple[int, int]
    machine: str
    has_edgekit: bool
    is_writable: bool
    free_bytes: int
    device_id: str | None
    board_id: str | None


def look(remote: Remote, root: str, *, python: str) -> Board:
    """Raises UnreachableError, and SlotError for a board on which edgekit cannot run."""
    done = remote.run([python, "-", root], stdin=_LOOK.encode())
    if done.returncode in (126, 127):
        raise SlotError(
            "a and b", f"{remote.host} has no {python}; to mend it there: sudo apt install python3", rolled_back=False
        )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise SlotError(
            "a and b", f"{remote.host}: {python} fails: {said[-1] if said else 'no word'}", rolled_back=False
        )
    table = json.loads(done.stdout.splitlines()[-1])
    found = (int(table["python"][0]), int(table["python"][1]))
    if found < OLDEST_PYTHON:
        problem = (
            f"{remote.host} has Python {found[0]}.{found[1]}, edgekit needs 3.10; name a newer one with --interpreter"
        )
        raise SlotError("a and b", problem, rolled_back=False)
    facts = _facts(remote, python)
    return Board(**(table | {"python": found}), device_id=facts.get("device_id"), board_id=facts["board"].get("id"))


def _facts(remote: Remote, python: str) -> dict[str, Any]:
    from edgekit.device.script import as_script

    done = remote.run([python, "-"], stdin=as_script(board_tables()).encode())
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts | {"board": facts.get("board") or {}}
    except ValueError:
        return {"board": {}}


def why_not(board: Board, stored: Stored) -> str | None:
    """The first reason why the release cannot run on the board, or None."""
    target: Target = stored.release.target
    has = f"{board.python[0]}.{board.python[1]}"
    if target.machine not in ("", board.machine):
        return f"is for {target.machine}, the board is {board.machine}"
    if target.python not in ("", has):
        return f"is for Python {target.python}, the board has {has}"
    if not board.has_edgekit and not any(file.is_wheel for file in stored.release.files):
        return "has no wheels and the board has no edgekit; make it with --requirements and --wheel"
    needed = 2 * sum(file.size_bytes for file in stored.release.files)
    needed += sum(file.installed_bytes for file in stored.release.files)
    if needed > board.free_bytes:
        return f"needs {needed >> 20} MiB on the board, {board.free_bytes >> 20} are free"
    return None


def bring(
    remote: Remote, board: Board, stored: Stored, library: Library, progress: Progress, *, python: str = "python3"
) -> int:
    """Upload what the board lacks into ROOT/incoming, a library like any other. Returns the bytes sent."""
    incoming = f"{board.root}/incoming"
    made = remote.run(["mkdir", "-p", f"{incoming}/blobs"])
    if made.returncode != 0:
        raise SlotError("a and b", made.stderr.decode(errors="replace").strip(), rolled_back=False)
    files = list({file.sha256: file for file in stored.release.files}.values())
    total, sent = sum(file.size_bytes for file in files), 0

    def count(size: int) -> None:
        nonlocal sent
        sent += size
        progress(f"sending to {remote.host}", min(1.0, sent / max(1, total)))

    listed = remote.run([python, "-", f"{incoming}/blobs", f"{board.root}/store"], stdin=_LIST.encode())
    have: dict[str, int] = json.loads(listed.stdout or "{}")
    for file in files:
        if have.get(file.sha256) != file.size_bytes:
            there = f"{incoming}/blobs/{file.sha256}"
            remote.upload(library.blob(file.sha256), there, count, have=have.get(file.sha256, 0))
    put(remote, f"{incoming}/{stored.release.name}.json", stored.raw)
    return sent


def put(remote: Remote, path: str, data: bytes) -> None:
    """A small file, whole or not at all."""
    words = f"cat > {shlex.quote(path)}.new && mv {shlex.quote(path)}.new {shlex.quote(path)}"
    done = remote.run(["sh", "-c", words], stdin=data)
    if done.returncode != 0:
        raise SlotError("a and b", done.stderr.decode(errors="replace").strip(), rolled_back=False)


def finish(
    remote: Remote,
    board: Board,
    stored: Stored,
    *,
    python: str,
    extra: tuple[str, ...],
    trust_root: bytes | None,
    settings: Settings | None,
    own: bytes | None = None,
) -> tuple[int, str, str]:
    """Let the board provision itself from what was brought. (exit code, its answer, its talk)."""
    incoming = f"{board.root}/incoming"
    env: tuple[str, ...] = ()
    wheels = [f"{incoming}/blobs/{file.sha256}" for file in stored.release.files if file.is_wheel]
    if wheels:
        boot = f"{board.root}/boot"
        done = remote.run([python, "-", boot, *wheels], stdin=_UNPACK.encode())
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise UnreachableError(remote.host, f"its copy of edgekit cannot be unpacked: {said[-1] if said else ''}")
        env = ("env", f"PYTHONPATH={boot}")
    words = ["provision", f"local:{board.root}", "--release", stored.release.name, "--library", incoming, *extra]
    if trust_root is not None:
        put(remote, f"{incoming}/root-of-trust", trust_root)
        words += ["--trust-root", f"{incoming}/root-of-trust"]
    if own is not None:
        put(remote, f"{incoming}/own", own)
        words += ["--own", f"{incoming}/own"]
    if settings is not None:
        words += ["--repository", settings.repository or "", "--group", settings.group]
    done = remote.run([*env, python, "-m", "edgekit.cli.main", *words], timeout_s=7200.0)
    if done.returncode not in (0, 1) and not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ReleaseError(stored.release.name, f"{remote.host}: {said[-1] if said else 'ended without a word'}")
    remote.run(["rm", "-rf", incoming, f"{board.root}/boot"])
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
