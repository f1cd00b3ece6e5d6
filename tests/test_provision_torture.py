"""The crash harness with small counts; `make torture` cuts at every point. And that it would notice a lost write."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.torture import torture
from tests.torture.replay import TRACED, Disk, calls

pytestmark = [
    # the harness runs the guard on a thread, which it never is on a device
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace; to mend it: sudo apt install strace"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> torture.Bench:
    return torture.Bench(tmp_path_factory.mktemp("torture"))


def test_an_update_killed_at_writes_leaves_a_working_slot_and_succeeds_when_tried_again(bench: torture.Bench):
    results = torture.torture_killed(bench, 3)
    assert len(results) == 3
    assert [lost for _, lost in results if lost is not None] == []


def test_a_rollback_killed_at_writes_ends_with_the_old_release_and_takes_the_next(bench: torture.Bench):
    results = torture.torture_killed(bench, 3, "bad")
    assert len(results) == 3
    assert [lost for _, lost in results if lost is not None] == []


def test_an_update_whose_unsynced_writes_are_forgotten_does_too(bench: torture.Bench):
    results = torture.torture_forgotten(bench, 4)
    assert len(results) == 4
    assert [lost for _, lost in results if lost is not None] == []


def test_slots_change_with_each_update_and_never_otherwise(bench: torture.Bench):
    assert torture.soak(bench, 2, 4) == (2, 4)


def test_the_harness_notices_an_update_that_does_not_sync(bench: torture.Bench):
    """The recorded update without its sync(): right after the switch the new slot must be lost."""
    bench.fresh()
    assert bench.traced("-xx", "-s", "9999999", "-e", f"trace={TRACED}") == 0
    recorded = [call for call in calls(bench.log.read_text()) if call[0] != "sync"]
    bench.fresh()
    disk = Disk(bench.device)
    for call in recorded:
        disk.feed(*call)
        if call[0] == "rename" and call[1][1].endswith("/active"):
            break
    shutil.rmtree(bench.device)
    disk.draw(bench.device, "metadata")
    assert torture.outcome(bench, bench.device) is not None


def test_the_replayed_disk_knows_what_was_synced(tmp_path: Path):
    top = tmp_path / "disk"
    top.mkdir()
    (top / "old").write_bytes(b"old")
    log = "".join(
        f"{line}\n"
        for line in (
            rf'openat(AT_FDCWD, "{hexed(top / "new")}", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 5',
            r'write(5, "\x61\x62", 2) = 2',
            "fsync(5) = 0",
            r'write(5, "\x63", 1) = 1',
            "close(5) = 0",
            rf'rename("{hexed(top / "new")}", "{hexed(top / "old")}") = 0',
            rf'mkdir("{hexed(top / "sub")}", 0777) = -1 EEXIST (File exists)',
        )
    )
    disk = Disk(top)
    assert [disk.feed(*call) for call in calls(log)] == [True, True, True, True, False, True]
    disk.draw(tmp_path / "strict", "strict")
    disk.draw(tmp_path / "metadata", "metadata")
    assert {p.name: p.read_bytes() for p in (tmp_path / "strict").iterdir()} == {"old": b"old"}
    assert {p.name: p.read_bytes() for p in (tmp_path / "metadata").iterdir()} == {"old": b"ab"}


def hexed(path: Path) -> str:
    return "".join(f"\\x{byte:02x}" for byte in str(path).encode())
