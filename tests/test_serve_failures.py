"""Failures of runtimes are counted where a process that they end can find them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.serve.failures import Ledger, key_of


def ledger(folder: Path, *, boot_id: str = "boot", now: float = 1000.0, limit: int = 3) -> Ledger:
    return Ledger(folder, limit=limit, minutes=10, boot_id=boot_id, clock=lambda: now)


def test_an_artifact_is_out_after_so_many_failures_and_in_again_later(tmp_path):
    first = ledger(tmp_path)
    assert [first.record("a", "stuck") for _ in range(3)] == [1, 2, 3]
    assert first.is_out("a")
    assert not first.is_out("b")
    again = ledger(tmp_path, now=1000 + 599)
    assert again.is_out("a"), "a new process knows"
    assert not ledger(tmp_path, now=1000 + 601).is_out("a")


def test_what_was_in_an_inference_when_the_process_was_aborted_is_to_blame(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from edgekit.serve.failures import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]), limit=3, minutes=10, boot_id='boot')\n"
        "idle, busy, done = (ledger.mark(name) for name in ('idle', 'busy', 'done'))\n"
        "busy.up(); done.up(); done.down(); os.abort()\n"
    )
    code = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode
    assert code == -6
    found = Ledger(tmp_path, limit=3, minutes=10, boot_id="boot")
    assert [failure.key for failure in found.blamed] == [key_of("busy")]
    assert (found.recent("busy"), found.recent("idle"), found.recent("done")) == (1, 0, 0)
    assert ledger(tmp_path).blamed == (), "blamed once"


def test_a_power_cut_is_nobodys_failure(tmp_path):
    before = ledger(tmp_path)
    before.mark("a").up()
    before.close()
    assert ledger(tmp_path, boot_id="the next boot").blamed == ()


def test_an_orderly_end_blames_nobody(tmp_path):
    before = ledger(tmp_path)
    mark = before.mark("a")
    mark.up()
    mark.down()
    before.close()
    assert ledger(tmp_path).blamed == ()


@pytest.mark.parametrize("content", [b"", b"junk", b"boot" + b"\0" * 60 + b"\1\xff\xfe"])
def test_damaged_files_are_no_obstacle(tmp_path, content):
    (tmp_path / "running-x").write_bytes(content)
    (tmp_path / "failures.json").write_bytes(content)
    found = ledger(tmp_path)
    found.record("a", "stuck")
    assert ledger(tmp_path).recent("a") == 1


def test_a_lane_that_is_closed_leaves_its_flag_to_others(tmp_path):
    found = ledger(tmp_path)
    for i in range(200):
        found.release(found.mark(f"lane {i}"))
    found.mark("a").up()
    found.mark("b").up()
    found.close()
    assert [failure.key for failure in ledger(tmp_path).blamed] == [key_of("a"), key_of("b")]


def test_more_lanes_than_flags_share_the_last_one(tmp_path):
    found = ledger(tmp_path)
    for i in range(80):
        found.mark(f"lane {i}").up()
    found.close()
    assert len(ledger(tmp_path).blamed) == 63


def test_a_daemon_that_lives_is_neither_blamed_nor_disturbed(tmp_path):
    """Two daemons under one name are a mistake, and no reason for either to crash."""
    first = ledger(tmp_path)
    mark = first.mark("a")
    mark.up()
    assert ledger(tmp_path).blamed == ()
    mark.down()
    mark.up()
    first.close()
    assert [failure.key for failure in ledger(tmp_path).blamed] == [key_of("a")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is made with a small tmpfs on Linux")
def test_a_full_disk_counts_in_memory(tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], check=False).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        (folder / "filler").write_bytes(bytes(8192))
        found = ledger(folder)
        found.mark("a").up()
        assert [found.record("a", "stuck") for _ in range(2)] == [1, 2]
        found.close()
    finally:
        subprocess.run(["umount", folder], check=True)
