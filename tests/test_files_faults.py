"""Whatever fails while a file is written: the old content or the new, never a part, and nothing left beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit import files
from edgekit.artifact import ArtifactRecord, load_artifacts, save_record
from edgekit.bench.record import Settings
from edgekit.choose import save_selection
from edgekit.config import Home
from edgekit.files import write_atomic
from edgekit.limits import Limits
from edgekit.selection import Selection

OLD, NEW = b"old content", b"new content, which is longer"
CALLS = ("fsync", "replace", "fchmod", "open")


class Broken(OSError):
    """The disk's answer in these tests."""


def fail_at(call: str, number: int, patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The `number`-th call of os.`call` fails; gives how often it was called."""
    real, seen = getattr(os, call), [0]

    def wrapper(*args: Any, **more: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            raise Broken(28, "No space left on device")
        return real(*args, **more)

    patch.setattr(files.os, call, wrapper)
    return lambda: seen[0]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_leaves_the_old_or_the_new_and_no_part(
    call: str, number: int, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    if exists:
        path.write_bytes(OLD)
    with monkeypatch.context() as patch:
        count = fail_at(call, number, patch)
        try:
            write_atomic(path, NEW)
            was_told = False
        except Broken:
            was_told = True
        reached = count() >= number
    assert was_told == reached, "a failure is never swallowed"
    found = path.read_bytes() if path.exists() else None
    assert found in ((OLD, NEW) if exists else (None, NEW))
    assert [p.name for p in tmp_path.iterdir()] == (["state.json"] if found is not None else [])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interruption_in_the_middle_leaves_nothing_beside_the_old(
    interruption: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(OLD)

    def interrupted(*_: Any) -> None:
        raise interruption

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(interruption):
        write_atomic(path, NEW)
    assert path.read_bytes() == OLD
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_never_has_wider_rights_than_it_is_to_have(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = os.replace

    def looking(temp: str, path: Path) -> None:
        seen.append(os.stat(temp).st_mode & 0o777)
        real(temp, path)

    monkeypatch.setattr(files.os, "replace", looking)
    write_atomic(tmp_path / "f", NEW, mode=mode)
    assert seen == [mode], "before it has its name"
    assert (tmp_path / "f").stat().st_mode & 0o777 == mode


def test_the_folder_is_made_durable_after_the_name_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)

        def noted(*args: Any, call: str = call, real: Any = real) -> Any:
            order.append(call)
            return real(*args)

        monkeypatch.setattr(files.os, call, noted)
    write_atomic(tmp_path / "f", NEW)
    assert order == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("data", [b"", b"\0" * 100_000, bytes(range(256))])
def test_any_bytes_come_back(data: bytes, tmp_path: Path) -> None:
    write_atomic(tmp_path / "deep" / "er" / "f", data)
    assert (tmp_path / "deep" / "er" / "f").read_bytes() == data


# What is written this way


RECORD = ArtifactRecord(
    model="m", name="a", file="a.onnx", format="onnx", precision="int8", sha256="a" * 64, size_bytes=1
)
SELECTION = Selection(
    model="m",
    artifact="a",
    artifact_sha256="a" * 64,
    precision="int8",
    settings=Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
    reasons=(),
    rejections=(),
    p50_ms=None,
    p99_ms=None,
    peak_memory_bytes=None,
    accuracy_ratio=None,
    limits=Limits(),
)


@pytest.mark.parametrize(
    "save",
    [
        lambda home: save_record(home.artifacts("m") / "a", RECORD),
        lambda home: save_selection(home, SELECTION),
    ],
    ids=["record", "selection"],
)
def test_state_that_could_not_be_written_is_not_there_at_all(
    save: Callable[[Home], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    with monkeypatch.context() as patch:
        fail_at("replace", 1, patch)
        with pytest.raises(Broken):
            save(home)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert load_artifacts(home.artifacts("m")) == []
    save(home)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
