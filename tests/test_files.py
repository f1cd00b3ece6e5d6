"""A file is the old content or the new, whatever happens in between."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.files import sync_folder, write_atomic


def test_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a/b/c", b"x")
    assert (tmp_path / "a/b/c").read_bytes() == b"x"


@pytest.mark.skipif(os.name == "nt", reason="elsewhere: permission bits are a POSIX matter")
def test_the_mode_is_what_was_asked_for(tmp_path: Path) -> None:
    write_atomic(tmp_path / "open", b"x")
    write_atomic(tmp_path / "secret", b"x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_failed_write_keeps_the_old_content_and_leaves_no_temp_file(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    (target / "child").mkdir(parents=True)  # a folder that is not empty cannot be replaced by a file
    with pytest.raises(OSError):
        write_atomic(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_killed_writer_never_leaves_a_part(tmp_path: Path) -> None:
    """A child rewrites one file without pause and is killed; the file must hold one of its whole contents."""
    path = tmp_path / "state"
    script = (
        "import sys; from pathlib import Path; from edgekit.files import write_atomic\n"
        "path, i = Path(sys.argv[1]), 0\n"
        "while True:\n"
        "    write_atomic(path, bytes([i % 256]) * 100_000); i += 1\n"
        "    if i == 3: print('going', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
    finally:
        child.kill()
        child.communicate()
    content = path.read_bytes()
    assert len(content) == 100_000
    assert len(set(content)) == 1


def test_sync_of_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "absent")
