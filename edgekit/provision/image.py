"""The same as over ssh, for a stick or an image build: a folder with a release, the device's own, and a starter.

The folder may lie on a FAT stick: no links, no names that differ by case only. What makes it complete, `order.json`, is
written last, so that a folder that was not finished says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.errors import ReleaseError
from edgekit.files import sync_folder, write_atomic
from edgekit.provision.enrol import Own
from edgekit.provision.release import Library, Stored
from edgekit.provision.settings import Settings

ORDER, STARTER, LIBRARY, OWN_FOLDER, ROOT_OF_TRUST = "order.json", "install.py", "library", "own", "root-of-trust"
SCHEMA = 1
Progress = Callable[[str, float], None]

_README = """\
edgekit: {name}{where}

On the device, with this folder at hand:

    sudo {python} install.py             into /opt/edgekit, as a system service
    {python} install.py FOLDER           into a folder of yours, as a service of your user
    {python} install.py FOLDER --later   in an image build: it is judged when the device first starts

It needs {python} and no network. It may be run again: what is done is not done twice.
"""

_STARTER = '''\
"""Installs the release beside this file on this machine. Standard library only; made by `edgekit provision`."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print("usage: install.py [FOLDER] [--later] [--service auto|system|user|none] [--retry-denied] [--dry-run]")
        return 0
    try:
        with open(os.path.join(here, "order.json")) as file:
            order = json.load(file)
    except (OSError, ValueError):
        sys.exit("install.py: order.json is missing or damaged: this folder was not written to its end; write it again")
    if order["schema"] != 1:
        sys.exit("install.py: order.json is of another edgekit; write the folder again with the one that is installed")
    has = "%d.%d" % sys.version_info[:2]
    if order["python"] not in ("", has):
        sys.exit("install.py: this release is for Python %s, this is %s; try: python%s install.py"
                 % (order["python"], has, order["python"]))
    if sys.version_info < (3, 10):
        sys.exit("install.py: edgekit needs Python 3.10 or newer, this is " + has)
    machine = os.uname().machine
    if order["machine"] not in ("", machine):
        sys.exit("install.py: this release is for %s, this is %s" % (order["machine"], machine))
    root = words.pop(0) if words and not words[0].startswith("-") else None
    if root is None:
        root = "/opt/edgekit" if os.geteuid() == 0 else os.path.expanduser("~/edgekit")
    library = os.path.join(here, "library")
    boot = tempfile.mkdtemp(prefix="edgekit-boot-")
    try:
        for digest in order["wheels"]:
            with open(os.path.join(library, "blobs", digest), "rb") as file:
                content = file.read()
            if hashlib.sha256(content).hexdigest() != digest:
                sys.exit("install.py: library/blobs/%s is damaged; write the folder again" % digest)
            zipfile.ZipFile(os.path.join(library, "blobs", digest)).extractall(boot)
        env = dict(os.environ)
        if order["wheels"]:
            env["PYTHONPATH"] = boot
        command = [sys.executable, "-m", "edgekit.cli.main", "provision", "local:" + os.path.abspath(root)]
        command += ["--release", order["release"], "--library", library] + order["words"]
        if order["own"]:
            command += ["--own", os.path.join(here, "own")]
        if order["trusts"]:
            command += ["--trust-root", os.path.join(here, "root-of-trust")]
        return subprocess.call(command + words, env=env)
    except OSError as error:
        sys.exit("install.py: %s" % error)
    finally:
        shutil.rmtree(boot, ignore_errors=True)


sys.exit(main())
'''


def write_image(
    folder: Path,
    stored: Stored,
    library: Library,
    progress: Progress,
    *,
    own: Own,
    trust_root: bytes | None = None,
    settings: Settings | None = None,
    words: Sequence[str] = (),
) -> int:
    """Write the folder; what an earlier run left is used again. Returns the bytes copied.

    Raises ReleaseError when `folder` holds something else, or cannot be written.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / STARTER).exists():
        raise ReleaseError(str(folder), "holds something that is not edgekit's; give a new or an empty folder")
    target, release = stored.release.target, stored.release
    order = {
        "schema": SCHEMA,
        "release": release.name,
        "machine": target.machine,
        "python": target.python,
        "wheels": [file.sha256 for file in release.files if file.is_wheel],
        "words": [*words, *_settings_words(settings)],
        "own": bool(own),
        "trusts": trust_root is not None,
    }
    try:
        (folder / ORDER).unlink(missing_ok=True)
        write_atomic(folder / STARTER, _STARTER.encode())
        copied = _copy(folder / LIBRARY, stored, library, progress)
        shutil.rmtree(folder / OWN_FOLDER, ignore_errors=True)
        for name, content in own.items():
            write_atomic(folder / OWN_FOLDER / name, content, mode=0o600)
        if trust_root is not None:
            write_atomic(folder / ROOT_OF_TRUST, trust_root)
        where = f", for {target.machine} with Python {target.python}" if target.machine else ""
        text = _README.format(name=release.name, where=where, python=f"python{target.python or '3'}")
        write_atomic(folder / "README.txt", text.encode())
        write_atomic(folder / ORDER, json.dumps(order, indent=1).encode())
    except OSError as e:
        raise ReleaseError(str(folder), f"cannot be written: {e.strerror or e}") from e
    return copied


def _copy(folder: Path, stored: Stored, library: Library, progress: Progress) -> int:
    """The release's content, each file checked; what an older release left behind goes."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    wanted = {file.sha256: file for file in stored.release.files}
    for path in [*blobs.iterdir(), *folder.glob("*.json")]:
        if path.name not in wanted and path.name != f"{stored.release.name}.json":
            path.unlink()
    copy, copied = Library(folder), 0
    for number, file in enumerate(wanted.values()):
        progress(f"copying {file.path}", number / len(wanted))
        if not copy.holds(file):
            part = blobs / f".{file.sha256}.part"
            shutil.copyfile(library.blob(file.sha256), part)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(copy.blob(file.sha256))
            copied += file.size_bytes
            if not copy.holds(file):
                raise ReleaseError(file.path, f"{library.blob(file.sha256)} is damaged; make the release again")
    sync_folder(blobs)
    copy.save(stored, {})
    return copied


def _settings_words(settings: Settings | None) -> list[str]:
    if settings is None or settings.repository is None:
        return []
    return ["--repository", settings.repository, "--group", settings.group]
