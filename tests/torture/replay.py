"""What a disk may hold after a power cut: recorded system calls, replayed, with what was not synced forgotten.

Two worst cases are drawn at each point: `strict` (a directory entry counts only after fsync of the directory or sync,
data only after fsync of the file or sync) and `metadata` (entries are kept in order, unsynced data is lost: what
ext4 with delayed allocation and XFS are known for). Nothing here is edgekit's; it knows only files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

TRACED = (
    "openat,open,creat,close,write,pwrite64,sendfile,ftruncate,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,"
    "symlink,symlinkat,unlink,unlinkat,rmdir,fsync,fdatasync,sync,syncfs"
)
_LINE = re.compile(r"^(?:\d+ +)?(?P<call>\w+)\((?P<args>.*)\) += (?P<result>-?\d+)")
_WORD = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?|(\[[^\]]*\](?: => \[[^\]]*\])?)|([^,\s"]+)')


class Node:
    """A file, folder or link, as the program sees it and as the disk would have it."""

    def __init__(self, kind: str, content: bytes | str = b"", mode: int = 0o644) -> None:
        self.kind, self.mode = kind, mode
        self.content = self.synced_content = content
        self.entries: dict[str, Node] = {}
        self.synced_entries: dict[str, Node] = {}


class Disk:
    """The tree below `top`, fed with calls in the order in which they were made."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._files: dict[int, Node] = {}
        self._fds: dict[int, tuple[Node, int]] = {}
        self._outside: dict[int, str] = {}
        self._root = self._load(top)
        self._sync_all()

    def _load(self, path: Path) -> Node:
        status = path.lstat()
        if path.is_symlink():
            return Node("link", os.readlink(path))
        if path.is_dir():
            node = Node("folder")
            node.entries = {child.name: self._load(child) for child in path.iterdir()}
            return node
        if status.st_ino not in self._files:  # hard links stay one file
            self._files[status.st_ino] = Node("file", path.read_bytes(), status.st_mode)
        return self._files[status.st_ino]

    def _sync_all(self) -> None:
        stack, seen = [self._root], set()
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            node.synced_content, node.synced_entries = node.content, dict(node.entries)
            stack += node.entries.values()

    def draw(self, to: Path, case: str) -> None:
        """Write the tree as the disk would have it now."""
        self._draw(self._root, to, case, {})

    def _draw(self, node: Node, to: Path, case: str, drawn: dict[int, Path]) -> None:
        if node.kind == "folder":
            to.mkdir()
            for name, child in (node.synced_entries if case == "strict" else node.entries).items():
                self._draw(child, to / name, case, drawn)
        elif node.kind == "link":
            to.symlink_to(str(node.content))
        elif id(node) in drawn:
            os.link(drawn[id(node)], to)
        else:
            to.write_bytes(node.synced_content)  # type: ignore[arg-type]
            to.chmod(node.mode & 0o777)
            drawn[id(node)] = to

    def feed(self, call: str, args: list[str], result: int) -> bool:
        """Apply one call that succeeded; True when it concerned our tree."""
        name = {"renameat2": "renameat", "fdatasync": "fsync", "syncfs": "sync", "creat": "open"}.get(call, call)
        handler = getattr(self, f"_{name}", None)
        return bool(handler(args, result)) if handler is not None else False

    def _find(self, text: str, at: str = "AT_FDCWD") -> tuple[Node, str] | None:
        """(folder, name) of a path below our top; None for any other."""
        node = self._root
        if text.startswith("/"):
            if text != str(self._top) and not text.startswith(f"{self._top}/"):
                return None
            text = text[len(str(self._top)) + 1 :]
        elif at.isdigit() and int(at) in self._fds:
            node = self._fds[int(at)][0]
        else:
            return None
        *folders, name = text.split("/")
        for folder in folders:
            if folder not in node.entries:
                return None
            node = node.entries[folder]
        return node, name

    def _open(self, args: list[str], result: int) -> bool:
        return self._openat(["AT_FDCWD", *args], result)

    def _openat(self, args: list[str], result: int) -> bool:
        place = self._find(args[1], args[0])
        self._fds.pop(result, None)
        if place is None:
            self._outside[result] = args[1]
            return False
        folder, name = place
        flags = args[2].split("|")
        node = folder.entries.get(name) if name else folder
        if node is None:
            node = folder.entries[name] = Node("file")
        changed = "O_CREAT" in flags or "O_TRUNC" in flags
        if "O_TRUNC" in flags:
            node.content = b""
        self._fds[result] = (node, len(node.content) if "O_APPEND" in flags else 0)
        return changed

    def _close(self, args: list[str], _result: int) -> bool:
        self._fds.pop(int(args[0]), None)
        return False

    def _put(self, fd: int, data: bytes) -> bool:
        if fd not in self._fds:
            return False
        node, at = self._fds[fd]
        assert isinstance(node.content, bytes)
        node.content = node.content[:at] + data + node.content[at + len(data) :]
        self._fds[fd] = (node, at + len(data))
        return True

    def _write(self, args: list[str], result: int) -> bool:
        return self._put(int(args[0]), args[1].encode("latin-1")[:result])

    def _sendfile(self, args: list[str], result: int) -> bool:
        at = int(re.findall(r"\d+", args[2])[0])
        source = self._fds.get(int(args[1]))
        content = source[0].content if source else Path(self._outside[int(args[1])]).read_bytes()
        assert isinstance(content, bytes)
        return self._put(int(args[0]), content[at : at + result])

    def _ftruncate(self, args: list[str], _result: int) -> bool:
        if int(args[0]) in self._fds:
            node = self._fds[int(args[0])][0]
            node.content = node.content[: int(args[1])]
        return int(args[0]) in self._fds

    def _mkdir(self, args: list[str], _result: int) -> bool:
        place = self._find(args[0])
        if place is not None:
            place[0].entries[place[1]] = Node("folder")
        return place is not None

    def _symlink(self, args: list[str], _result: int) -> bool:
        place = self._find(args[1])
        if place is not None:
            place[0].entries[place[1]] = Node("link", args[0])
        return place is not None

    def _link(self, args: list[str], _result: int) -> bool:
        old, new = self._find(args[0]), self._find(args[1])
        if old is None or new is None:
            return False
        new[0].entries[new[1]] = old[0].entries[old[1]]
        return True

    def _rename(self, args: list[str], _result: int) -> bool:
        old, new = self._find(args[0]), self._find(args[1])
        if old is None or new is None:
            return False
        new[0].entries[new[1]] = old[0].entries.pop(old[1])
        return True

    def _unlink(self, args: list[str], _result: int, at: str = "AT_FDCWD") -> bool:
        place = self._find(args[0], at)
        if place is not None:
            del place[0].entries[place[1]]
        return place is not None

    def _rmdir(self, args: list[str], result: int) -> bool:
        return self._unlink(args, result)

    def _unlinkat(self, args: list[str], result: int) -> bool:
        return self._unlink([args[1]], result, args[0])

    def _fsync(self, args: list[str], _result: int) -> bool:
        if int(args[0]) in self._fds:
            node = self._fds[int(args[0])][0]
            node.synced_content, node.synced_entries = node.content, dict(node.entries)
        return int(args[0]) in self._fds

    def _sync(self, _args: list[str], _result: int) -> bool:
        self._sync_all()
        return True


def calls(log: str) -> Iterator[tuple[str, list[str], int]]:
    """The calls that succeeded in a log of `strace -xx -s BIG`: name, arguments (strings as Latin-1 text), result."""
    for line in log.splitlines():
        found = _LINE.match(line)
        if found is None or int(found["result"]) < 0:
            continue
        args = []
        for text, offset, word in _WORD.findall(found["args"]):
            if offset or word:
                args.append(offset or word)
            else:
                args.append(bytes.fromhex(text.replace("\\x", "")).decode("latin-1"))
        yield found["call"], args, int(found["result"])
