"""Small releases: a daemon of a few lines, one wheel, one artifact. What they do wrong is chosen by name."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from edgekit.provision import slots
from edgekit.provision.release import LaunchSpec, Library, Release, ReleaseFile, Stored, seal

_READY = """
import os, signal, socket, sys
sys.path.insert(0, os.path.join(os.getcwd(), "site"))
def tell(text):
    address = os.environ["NOTIFY_SOCKET"]
    address = "\\0" + address[1:] if address[0] == "@" else address
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(text, address)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
def serve():
    tell(b"READY=1")
    signal.sigwait([signal.SIGTERM])  # signal.pause() could miss one that comes just before it
    tell(b"STOPPING=1")
"""
_AWAIT = """
import time
def wait(word):  # of its release's check
    while not os.path.exists(os.path.join(os.path.dirname(__file__), word)):
        time.sleep(0.02)
"""
_SAY = "import os\ndef say(word):\n    open(os.path.join(os.path.dirname(__file__), word), 'w').close()\n"
DAEMONS = {
    "good": _READY + "import answer\nserve()\n",
    "import": "import no_such_module_in_this_release\n",
    "library": "import ctypes\nctypes.CDLL('libno-such-library.so.1')\n",
    "silent": "import time\ntime.sleep(600)\n",
    "brief": _READY + "tell(b'READY=1')\n" + _AWAIT + "wait('begun')\nsys.exit(3)\n",
    "short": _READY + "tell(b'READY=1')\n" + _AWAIT + "wait('over')\ntime.sleep(0.5)\nsys.exit(3)\n",
    "stubborn": _READY + "import time\ntime.sleep(600)\n",
}
CHECKS = {
    "yes": _SAY + 'print(\'{"healthy": true, "p50_ms": 1.5}\', flush=True)\nsay("over")',
    "no": 'print(\'{"healthy": false, "reason": "p99 41.0 ms of 700 samples, the objective is 10.0 ms"}\')',
    "mute": "pass",
    "hang": _SAY + "import time\nsay('begun')\ntime.sleep(600)",
}


def wheel(members: Mapping[str, str | bytes], *, record: str | None = None) -> bytes:
    """A wheel `answer-1.0` of the given members, with a true RECORD unless another is given."""
    made = io.BytesIO()
    rows = []
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            archive.writestr(zipfile.ZipInfo(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
        rows.append("answer-1.0.dist-info/RECORD,,")
        text = "\n".join(rows) if record is None else record
        archive.writestr(zipfile.ZipInfo("answer-1.0.dist-info/RECORD"), text + "\n")
    return made.getvalue()


def make(
    library: Library,
    name: str,
    *,
    daemon: str = "good",
    check: str = "yes",
    soak_s: float = 0.0,
    artifact: bytes | None = None,
    sequence: int = 1,
    extra: Mapping[str, bytes] = MappingProxyType({}),
) -> Stored:
    """A release in `library`: `files/daemon.py`, `files/check.py`, `home/artifacts/…`, one wheel, and `extra`."""
    contents = {
        "files/daemon.py": DAEMONS[daemon].encode(),
        "files/check.py": CHECKS[check].encode(),
        "home/artifacts/digits/flash/model.bin": artifact or name.encode() * 100,
        "answer-1.0-py3-none-any.whl": wheel({"answer/__init__.py": "ANSWER = 42\n", "answer/more.py": "MORE = 1\n"}),
        **extra,
    }
    files, sources = [], {}
    for path, data in contents.items():
        digest = hashlib.sha256(data).hexdigest()
        source = library.folder / "sources" / digest
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(data)
        sources[digest] = source
        is_wheel = path.endswith(".whl")
        size = 2000 if is_wheel else 0
        files.append(
            ReleaseFile(path=path, sha256=digest, size_bytes=len(data), is_wheel=is_wheel, installed_bytes=size)
        )
    python = ("{python}", "-I", "-S", "-B")
    launch = LaunchSpec(
        run=(*python, "{slot}/files/daemon.py"),
        check=(*python, "{slot}/files/check.py"),
        ready_s=0.4 if daemon in ("silent", "stubborn") else 20.0,
        check_s=0.4 if check == "hang" and daemon == "good" else 20.0,
        soak_s=soak_s,
        stop_s=0.3,
    )
    stored = seal(Release(name=name, sequence=sequence, launch=launch, files=tuple(files)))
    library.save(stored, sources)
    return stored


class Guarded:
    """A guard as its own process, as systemd would start it; use as a context."""

    def __init__(self, root: Path, **environ: str) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, str(root / slots.GUARD), str(root)],
            stderr=subprocess.PIPE,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM, as a shutdown does; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=30)
        return self.process.returncode

    def wait_for_line(self, text: str) -> str:
        """The first line of its log with `text`; AssertionError when it ends without one."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line.decode():
                return line.decode()
        raise AssertionError(f"it ended without saying '{text}'")

    def wait(self, slot: str, state: str, timeout_s: float = 30.0) -> slots.Status:
        """The status once `slot` is in `state`. AssertionError with what there is when it does not come to that."""
        until_s = time.monotonic() + timeout_s
        while True:
            now = slots.status(self.root)
            if next(s for s in now.slots if s.slot == slot).state.value == state:
                return now
            assert time.monotonic() < until_s, now
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
