"""The outbox and power cuts: after one at any write or sync it holds all it reported as stored, and nothing torn.

A child's system calls are recorded; what the disk may hold is rebuilt as it was after each of them, and opened.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgekit.telemetry.outbox_file import OutboxFile

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

CHILD = """
import os, sys
from pathlib import Path
from edgekit.telemetry import outbox_file
from edgekit.telemetry.outbox_file import Item, OutboxFile
outbox_file.WAL_BYTES = 30_000  # so that the log is poured into the file several times
file, number = OutboxFile(Path(sys.argv[1])), 0
for turn in range(8):
    items = []
    for _ in range(turn * 3 % 7 + 1):
        items.append(Item(number, "t", b"%05d" % number * (100 + number * 37 % 400), 0.0, (1, number)))
        number += 1
    if turn == 5:
        os.write(1, b"removing 0")
        file.remove_acknowledged(1, 4)
    if turn == 7:
        assert len(file.make_room(8_000, file.bytes)) > 0
    file.commit(items, {"dropped:outbox full": turn})
    os.write(1, b"stored %d" % number)
file.close()
"""
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass
class File:
    """One file: what is surely on the disk, and what was written since the last sync."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    "(where, what), or (size, None) for a truncation."
    name_synced: bool = False

    def content(self, case: str, dice: random.Random) -> bytes:
        """In the case "killed" all of it; after a power cut nothing unsynced, or some sectors of it."""
        content = bytearray(self.synced)
        for at, data in self.pending if case != "nothing" else ():
            if data is None:
                if case == "killed" or dice.random() < 0.5:
                    content[at:] = b"\0" * (at - len(content)) if at > len(content) else b""
                continue
            for sector in range(0, len(data), 512):
                if case == "killed" or dice.random() < 0.5:
                    part, where = data[sector : sector + 512], at + sector
                    content.extend(b"\0" * (where - len(content)))
                    content[where : where + len(part)] = part
        return bytes(content)

    def sync(self) -> None:
        self.synced, self.pending = self.content("killed", random.Random()), []


@dataclass
class Point:
    """The disk after one system call."""

    call: str
    files: dict[str, File]
    stored: int
    taken_away: bool


def text_of(argument: str) -> bytes:
    found = _TEXT.search(argument)
    return bytes.fromhex(found[1].replace("\\x", "")) if found else b""


def points(trace: Path, top: Path) -> Iterator[Point]:
    files: dict[str, File] = {}
    opened: dict[int, str] = {}
    stored, taken = 0, False
    for line in trace.read_text().splitlines():
        if (parsed := _CALL.match(line)) is None or int(parsed[3]) < 0:
            continue
        call, arguments, result = parsed[1], parsed[2], int(parsed[3])
        fd = int(number[0]) if (number := re.match(r"\d+", arguments)) else -1
        if call == "openat":
            path = text_of(arguments).decode()
            opened.pop(result, None)
            if not path.startswith(str(top)):
                continue
            opened[result] = path
            if path == str(top) or path in files:
                continue
            files[path] = File()
        elif call == "unlink":
            if files.pop(text_of(arguments).decode(), None) is None:
                continue
        elif call == "write" and fd == 1:
            word, count = text_of(arguments).split()
            stored, taken = max(stored, int(count)), taken or word == b"removing"
            continue
        elif fd not in opened:
            continue
        elif call in ("fsync", "fdatasync"):
            if opened[fd] == str(top):
                for file in files.values():
                    file.name_synced = True
            else:
                files[opened[fd]].sync()
        elif call in ("pwrite64", "write"):
            where = int(arguments.rpartition(",")[2]) if call == "pwrite64" else -1
            assert where >= 0, line
            files[opened[fd]].pending.append((where, text_of(arguments)[:result]))
        elif call == "ftruncate":
            files[opened[fd]].pending.append((int(arguments.rpartition(",")[2]), None))
        else:
            continue
        yield Point(call, files, stored, taken)


def payload(number: int) -> bytes:
    return b"%05d" % number * (100 + number * 37 % 400)


def survivors(point: Point, folder: Path, case: str, seed: int) -> list[tuple[int, bytes]]:
    """What an outbox opened on such a disk holds: (seq, payload)."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    dice = random.Random(seed)
    for path, file in point.files.items():
        if case == "nothing" and not file.name_synced:
            continue
        (folder / Path(path).name).write_bytes(file.content(case, dice))
    opened = OutboxFile(folder / "outbox.db")
    found = [(item.window[1], item.payload) for item in opened.read(-(2**62), 2**62, 1000) if item.window]
    assert not opened.is_replacement, "taken for damaged"
    opened.close()
    return found


def test_whatever_was_reported_as_stored_is_there_after_a_power_cut_at_any_call(tmp_path: Path) -> None:
    top, trace = tmp_path / "state", tmp_path / "trace"
    top.mkdir()
    calls = "openat,unlink,write,pwrite64,ftruncate,fsync,fdatasync"
    command = ["strace", "-f", "-xx", "-s", "100000", "-e", f"trace={calls}", "-o", str(trace)]
    subprocess.run([*command, sys.executable, "-c", CHILD, str(top / "outbox.db")], check=True, capture_output=True)
    seen, poured = 0, 0
    for seed, point in enumerate(points(trace, top)):
        seen += 1
        poured += point.call == "ftruncate"
        # What is surely on the disk changes only with a sync; of the many ways to lose a part, each call gets one.
        for case in ("killed", "nothing", "some") if "sync" in point.call else ("killed", "some")[seed % 2 :]:
            found = survivors(point, tmp_path / "after", case, seed)
            where = f"after call {seed} ({point.call}), {case}"
            assert all(data == payload(seq) for seq, data in found), where
            there = {seq for seq, _ in found}
            # What was reported stays, but for the oldest: acknowledged, or gone to make room.
            first = min(there, default=0) if point.taken_away else 0
            assert set(range(first, point.stored)) <= there, where
    assert seen > 60
    assert poured >= 2
