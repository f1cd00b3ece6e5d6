"""Bounded reads below a root folder: whatever lies there, a read gives a value or None and comes back soon.

The files read are the kernel's, but the root may be a captured tree or a hostile one, so nothing here raises,
follows a link out of the root, opens what is not a regular file, or reads without a limit.
"""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

TEXT_LIMIT = 256 * 1024
"Longest file read, in bytes: /proc/cpuinfo of a 128-core server has about 200 KiB."
NAMES_LIMIT = 4096
"Most entries taken from one folder."
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
"Without the flags that an operator's Windows lacks."
_LINKS_LIMIT = 40  # the kernel's own limit on links in one path


class Tree:
    """A root folder to read from; `live` when it is this machine's own."""

    def __init__(self, root: Union[str, Path] = "/") -> None:
        self.root = os.path.abspath(str(root))
        self.live = self.root == os.path.abspath(os.sep)
        self._links: Dict[str, Optional[str]] = {}

    def path(self, name: str) -> Optional[str]:
        """Where `name` (no leading slash) lies here, with links followed inside the root. None: a link loop."""
        if self.live:
            return "/" + name
        return self._inside(name)

    def _inside(self, name: str) -> Optional[str]:
        """`name` with every link resolved as if the root were "/", so that a captured tree cannot point at the host."""
        pending = _parts(name)[::-1]
        done: List[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                del done[-1:]
                continue
            target = self._link("/".join([*done, part]))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _LINKS_LIMIT or len(pending) > NAMES_LIMIT:
                return None
            if target.startswith("/"):
                done = []
            pending += _parts(target)[::-1]
        return os.path.join(self.root, *done)

    def _link(self, name: str) -> Optional[str]:
        if name not in self._links:
            try:
                self._links[name] = os.readlink(os.path.join(self.root, name))
            except (OSError, ValueError):
                self._links[name] = None
        return self._links[name]

    def data(self, name: str, limit: int = TEXT_LIMIT) -> Optional[bytes]:
        """The first `limit` bytes of a regular file, or None: missing, unreadable, or not a regular file."""
        path = self.path(name)
        if path is None:
            return None
        try:
            # Looked at before it is opened: opening a device or a pipe can act or wait.
            if not stat.S_ISREG(os.stat(path).st_mode):
                return None
            handle = os.open(path, _FLAGS)
        except (OSError, ValueError):
            return None
        try:
            return _read(handle, limit)
        except OSError:
            return None
        finally:
            os.close(handle)

    def text(self, name: str, limit: int = TEXT_LIMIT) -> Optional[str]:
        """`data` as text; bytes that are no UTF-8 become U+FFFD."""
        data = self.data(name, limit)
        return None if data is None else data.decode("utf-8", "replace")

    def line(self, name: str) -> Optional[str]:
        """The first line without NULs and outer space, or None when there is nothing in it."""
        text = self.text(name, 4096)
        return (text.replace("\0", " ").strip().split("\n")[0].strip() or None) if text else None

    def integer(self, name: str, base: int = 10) -> Optional[int]:
        """The one number that the file holds, or None."""
        return to_int(self.line(name), base)

    def names(self, name: str) -> Tuple[str, ...]:
        """The entries of a folder, sorted; empty when there is no such folder."""
        path = self.path(name)
        if path is None:
            return ()
        try:
            with os.scandir(path) as entries:
                return tuple(sorted(entry.name for entry in islice(entries, NAMES_LIMIT)))
        except (OSError, ValueError):
            return ()

    def exists(self, name: str) -> bool:
        """Whether something lies at `name`, of any type; a link counts even where its target was not captured."""
        entry = self._entry(name)
        try:
            return entry is not None and os.path.lexists(entry)
        except ValueError:
            return False

    def target(self, name: str) -> Optional[str]:
        """The last part of where a link points: `driver -> ../../bus/pci/drivers/hailo` gives "hailo"."""
        entry = self._entry(name)
        try:
            return None if entry is None else os.path.basename(os.readlink(entry)) or None
        except (OSError, ValueError):
            return None

    def _entry(self, name: str) -> Optional[str]:
        """`name` with the links of its folder followed, but not a link that it is itself."""
        folder, _, last = name.rpartition("/")
        parent = self.path(folder)
        return None if parent is None else os.path.join(parent, last)

    def status(self, name: str) -> Optional[os.stat_result]:
        """The stat of what lies at `name`, links followed."""
        path = self.path(name)
        try:
            return None if path is None else os.stat(path)
        except (OSError, ValueError):
            return None


def to_int(text: Optional[str], base: int = 10) -> Optional[int]:
    """`text` as a whole number of at most 20 digits (an unsigned 64-bit value), or None."""
    if not text or len(text) > 24:
        return None
    try:
        return int(text.strip(), base)
    except ValueError:
        return None


def span(text: Optional[str]) -> Tuple[int, ...]:
    """The kernel's list format: "0-2,5" gives (0, 1, 2, 5). Nonsense gives nothing; at most 4,096 numbers."""
    found: List[int] = []
    for piece in (text or "").strip().split(",")[:NAMES_LIMIT]:
        first, _, last = piece.partition("-")
        low, high = to_int(first), to_int(last or first)
        if low is None or high is None or low < 0 or high < low:
            return ()
        found += range(low, min(high, low + NAMES_LIMIT) + 1)
        if len(found) > NAMES_LIMIT:
            return ()
    return tuple(sorted(set(found)))


def _parts(name: str) -> List[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _read(handle: int, limit: int) -> bytes:
    pieces: List[bytes] = []
    while limit > 0:
        piece = os.read(handle, min(limit, 65536))
        if not piece:
            break
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)
