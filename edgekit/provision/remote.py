"""Provisions a board over ssh: probe it, refuse early, bring the release, and let the board's own copy do the rest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edgekit.board import Board as Profile
from edgekit.catalog import load_boards
from edgekit.errors import ReleaseError, SlotError
from edgekit.profiles import board_tables
from edgekit.provision.enrol import Own
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
    "is_root": os.geteuid() == 0,
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

_READ_ONLY = "cannot be written, even by root: is that file system read-only?"

# The nearest folder that exists must let us write.
_WRITABLE = """
folder=$1
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
t="$folder/.edgekit-$$"; : > "$t" && rm "$t"
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
    is_root: bool
    free_bytes: int
    device_id: str | None
    board_id: str | None


def look(remote: Remote, root: str, *, python: str) -> Board:
    """Raises UnreachableError, and SlotError for a board on which edgekit cannot run; nothing is changed there."""
    done = remote.run([python, "-", root], stdin=_LOOK.encode())
    if done.returncode in (126, 127):
        raise refused(f"{remote.host} has no {python}; to mend it there: sudo apt install python3")
    if done.returncode != 0:
        raise refused(f"{remote.host}: {python} fails: {_last_line(done.stderr)}")
    table = json.loads(done.stdout.splitlines()[-1])
    found = (int(table["python"][0]), int(table["python"][1]))
    facts = _facts(remote, python)
    board = _profile(facts["board"].get("id"))
    if found < OLDEST_PYTHON:
        because = f" ({board.name}: {board.support_reason})" if board and board.support != "daemon" else ""
        problem = f"{remote.host} has Python {found[0]}.{found[1]}, edgekit needs 3.10{because}"
        raise refused(f"{problem}; name a newer one with --interpreter")
    if board and board.support == "probe-only":
        raise refused(f"{remote.host} is a {board.name}, and edgekit does not run there. {board.support_reason}")
    return Board(**(table | {"python": found}), device_id=facts.get("device_id"), board_id=facts["board"].get("id"))


def become_root(remote: Remote, board: Board, *, service: str) -> None:
    """Where this user may not do what is asked, go on through `sudo -n`. Raises SlotError when that is not allowed.

    A folder that the user can write needs no root, and its service is then one of the user's own systemd.
    """
    if board.is_writable and (board.is_root or service != "system"):
        return
    if board.is_root:
        raise refused(f"{remote.host}: {board.root} {_READ_ONLY}")
    asked = "a system service needs root" if board.is_writable else f"{board.root} cannot be written by this user"
    tried = remote.run(["sudo", "-n", "true"])
    if tried.returncode == 127:
        problem = f"{remote.host}: {asked}, and there is no sudo"
    elif tried.returncode != 0:
        problem = f"{remote.host}: {asked}, and sudo there wants a password"
    elif remote.run(["sudo", "-n", "sh", "-c", _WRITABLE, "sh", board.root]).returncode != 0:
        problem = f"{remote.host}: {board.root} {_READ_ONLY}"
    else:
        remote.become = ("sudo", "-n")
        return
    raise refused(f"{problem}; give a folder that is yours, such as {remote.host}:edgekit")


def refused(problem: str) -> SlotError:
    """Before anything was changed there."""
    return SlotError("a and b", problem, rolled_back=False)


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no word"


def _profile(board_id: str | None) -> Profile | None:
    if board_id is None:
        return None
    return next((board for board in load_boards() if board.id == board_id), None)


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
        raise refused(f"{remote.host}: {_last_line(made.stderr)}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gifts:
    """What the operator hands over beside the release."""

    trust_root: bytes | None = None
    settings: Settings | None = None
    own: Own = field(default_factory=dict)


def put(remote: Remote, path: str, data: bytes) -> None:
    """A small file, whole or not at all, for its owner's eyes only."""
    words = f"umask 077 && cat > {shlex.quote(path)}.new && mv {shlex.quote(path)}.new {shlex.quote(path)}"
    done = remote.run(["sh", "-c", words], stdin=data)
    if done.returncode != 0:
        raise refused(f"{remote.host}: {_last_line(done.stderr)}")


def finish(
    remote: Remote, board: Board, stored: Stored, gifts: Gifts, *, python: str, extra: tuple[str, ...]
) -> tuple[int, str, str]:
    """Let the board provision itself from what was brought. (exit code, its answer, its talk)."""
    incoming = f"{board.root}/incoming"
    env: tuple[str, ...] = ()
    wheels = [f"{incoming}/blobs/{file.sha256}" for file in stored.release.files if file.is_wheel]
    if wheels:
        boot = f"{board.root}/boot"
        done = remote.run([python, "-", boot, *wheels], stdin=_UNPACK.encode())
        if done.returncode != 0:
            raise refused(f"{remote.host}: its copy of edgekit cannot be unpacked: {_last_line(done.stderr)}")
        env = ("env", f"PYTHONPATH={boot}")
    words = ["provision", f"local:{board.root}", "--release", stored.release.name, "--library", incoming, *extra]
    words += _hand_over(remote, incoming, gifts)
    done = remote.run([*env, python, "-m", "edgekit.cli.main", *words], timeout_s=7200.0)
    if done.returncode not in (0, 1) and not done.stdout:
        raise ReleaseError(stored.release.name, f"{remote.host}: {_last_line(done.stderr)}")
    remote.run(["rm", "-rf", incoming, f"{board.root}/boot"])
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _hand_over(remote: Remote, incoming: str, gifts: Gifts) -> list[str]:
    words = []
    if gifts.trust_root is not None:
        put(remote, f"{incoming}/root-of-trust", gifts.trust_root)
        words += ["--trust-root", f"{incoming}/root-of-trust"]
    if gifts.settings is not None:
        words += ["--repository", gifts.settings.repository or "", "--group", gifts.settings.group]
    if gifts.own:
        remote.run(["mkdir", "-p", f"{incoming}/own"])
        for name, content in gifts.own.items():
            put(remote, f"{incoming}/own/{name}", content)
        words += ["--own", f"{incoming}/own"]
    return words
