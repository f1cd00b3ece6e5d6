"""Staging into the inactive slot, and what is refused: each ends in one clear line and an intact active slot."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from edgekit.errors import EdgekitError, ReleaseError, SlotError
from edgekit.provision import guard, program, slots, stage, state, update
from edgekit.provision.release import Library, ReleaseFile, Stored, seal
from tests.torture.small import make


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device that runs 1.0 from slot a. Its guard is tried out when it is made, so it is made once."""
    folder = tmp_path_factory.mktemp("provisioned")
    library, root = Library(folder / "library"), folder / "device"
    slots.prepare(root)
    stage.install(root, make(library, "1.0"), stage.from_folder(library.blob))
    commit(root, "a")
    return root


@pytest.fixture
def root(tmp_path: Path, library: Library, provisioned: Path) -> Path:
    """That device for one test alone, and its release in the test's own library."""
    make(library, "1.0")
    return Path(shutil.copytree(provisioned, tmp_path / "device", symlinks=True))


def commit(root: Path, slot: str) -> None:
    """What the guard does when a slot has become healthy."""
    assert guard.settle(root) == slot
    state.change(root, lambda t: state.mark_good(t, slot, 1.0))


def content(root: Path, slot: str) -> dict[str, bytes]:
    folder = root / slot
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def install(root: Path, library: Library, name: str = "2.0", **how: object) -> str | None:
    return stage.install(root, make(library, name), stage.from_folder(library.blob), **how)  # type: ignore[arg-type]


def test_a_staged_slot_holds_files_wheels_the_shared_folder_and_how_to_start(root: Path):
    held = content(root, "a")
    assert held["site/answer/__init__.py"] == b"ANSWER = 42\n"
    assert held["home/artifacts/digits/flash/model.bin"] == b"1.0" * 100
    assert {"launch.json", "release.json", "files/daemon.py"} <= held.keys()
    (root / "a/home/daemon/epoch").write_text("7")
    assert (root / "shared/daemon/epoch").read_text() == "7"


def test_an_update_goes_to_the_other_slot_and_never_touches_the_running_one(root: Path, library: Library):
    before, times = content(root, "a"), {p: p.stat().st_mtime_ns for p in (root / "a").rglob("*")}
    assert install(root, library) == "b"
    assert content(root, "a") == before
    assert {p: p.stat().st_mtime_ns for p in (root / "a").rglob("*")} == times
    commit(root, "b")
    assert slots.status(root).active == "b"


@pytest.mark.skipif(os.geteuid() != 0, reason="elsewhere: .ci/run is root, who alone can give files away")
def test_what_root_stages_belongs_to_the_user_of_the_service(root: Path, library: Library):
    os.chown(root, 12345, 12345)
    install(root, library)
    assert {path.lstat().st_uid for path in (root / "b").rglob("*")} == {12345}


def test_the_same_release_again_does_nothing(root: Path, library: Library):
    before = (root / "state.json").read_bytes()
    assert install(root, library, "1.0") is None
    assert (root / "state.json").read_bytes() == before


def test_unchanged_content_is_not_fetched_again(root: Path, library: Library):
    fetched: list[str] = []
    copy = stage.from_folder(library.blob)

    def fetch(file: ReleaseFile, to: Path) -> None:
        fetched.append(file.path)
        copy(file, to)

    stage.install(root, make(library, "2.0"), fetch)
    assert fetched == ["home/artifacts/digits/flash/model.bin"]


def test_content_that_rotted_in_the_store_is_fetched_again(root: Path, library: Library):
    stored = make(library, "2.0")
    victim = root / "store" / stored.release.files[0].sha256
    victim.unlink()
    victim.write_bytes(b"rot")
    assert stage.install(root, stored, stage.from_folder(library.blob)) == "b"


def test_a_lying_source_is_refused_and_the_active_slot_is_intact(root: Path, library: Library):
    before = content(root, "a")
    stored = make(library, "2.0")

    def fetch(file: ReleaseFile, to: Path) -> None:
        to.write_bytes(b"x" * file.size_bytes)

    with pytest.raises(ReleaseError, match="not what was signed"):
        stage.install(root, stored, fetch)
    assert content(root, "a") == before
    assert not list((root / "store").glob("*.part"))
    assert guard.settle(root) == "a"
    assert stage.install(root, stored, stage.from_folder(library.blob)) == "b"


def test_missing_content_is_named(root: Path, library: Library):
    stored = make(library, "2.0")
    shutil.rmtree(library.folder / "blobs")
    with pytest.raises(ReleaseError, match=r"model\.bin: its content .* is missing"):
        stage.install(root, stored, stage.from_folder(library.blob))


def test_a_wheel_that_says_less_than_it_unpacks_to_is_refused(root: Path, library: Library):
    made = make(library, "2.0").release
    files = tuple(msgspec.structs.replace(f, installed_bytes=10 if f.is_wheel else 0) for f in made.files)
    liar = seal(msgspec.structs.replace(made, name="3.0", files=files))
    with pytest.raises(ReleaseError, match="unpacks to more than the 10 bytes"):
        stage.install(root, liar, stage.from_folder(library.blob))
    assert guard.settle(root) == "a"


def test_too_little_space_is_said_with_figures_before_anything_is_fetched(root, library, monkeypatch):
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=40 << 20))
    made = make(library, "2.0").release
    files = tuple(msgspec.structs.replace(f, installed_bytes=(20 << 20) if f.is_wheel else 0) for f in made.files)
    with pytest.raises(SlotError, match=r"has 40 MiB free, 3\.0 needs 52: 0 to download, 20 unpacked, 32 in reserve"):
        stage.install(root, seal(msgspec.structs.replace(made, name="3.0", files=files)), no_fetch)
    assert guard.settle(root) == "a"


def no_fetch(file: ReleaseFile, _to: Path) -> None:
    raise AssertionError(f"{file.path} must not be fetched")


@pytest.mark.skipif(os.getuid() != 0, reason="elsewhere: .ci/run is root, who can mount a full file system")
def test_a_disk_that_really_fills_up_ends_in_one_line_and_an_intact_slot(tmp_path: Path, library: Library):
    mount = tmp_path / "small"
    mount.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {mount}") != 0:
        pytest.skip("elsewhere: file systems cannot be mounted in this container")
    try:
        root = mount / "device"
        slots.prepare(root)
        stored = make(library, "1.0", artifact=os.urandom(4 << 20))
        reserve, stage.RESERVE_BYTES = stage.RESERVE_BYTES, -(64 << 20)
        try:
            with pytest.raises(SlotError, match="cannot be written: No space left on device"):
                stage.install(root, stored, stage.from_folder(library.blob))
        finally:
            stage.RESERVE_BYTES = reserve
        assert slots.status(root).slots[0].state == "empty"
    finally:
        os.system(f"umount {mount}")


def test_no_update_while_another_awaits_its_verdict(root: Path, library: Library):
    install(root, library)
    with pytest.raises(SlotError, match=r"2\.0 still awaits its verdict"):
        install(root, library, "3.0")
    state.change(root, lambda t: state.mark_bad(t, "b", "slow", 1.0))
    assert guard.settle(root) == "a"
    assert install(root, library, "3.0") == "b"


def test_a_failed_release_is_refused_with_its_reason_until_its_time_or_an_operator(root: Path, library: Library):
    install(root, library)
    state.change(root, lambda t: state.mark_bad(t, "b", "p99 41 ms", 2e9))
    guard.settle(root)
    with pytest.raises(SlotError, match="failed here 1x: p99 41 ms"):
        install(root, library)
    assert install(root, library, retry_denied=True) == "b"


def test_a_denied_release_is_offered_again_after_its_time(root: Path, library: Library):
    install(root, library)
    state.change(root, lambda t: state.mark_bad(t, "b", "p99 41 ms", 2.0))
    guard.settle(root)
    assert install(root, library) == "b"


def test_a_release_for_a_newer_guard_is_refused(root: Path, library: Library):
    made = make(library, "2.0").release
    with pytest.raises(SlotError, match="needs guard version 99, this device has 2"):
        stage.install(root, seal(msgspec.structs.replace(made, name="3.0", guard_version=99)), no_fetch)


def test_two_updates_at_once_are_refused(root: Path, library: Library):
    with slots.updating(root), pytest.raises(SlotError, match="another update"):
        install(root, library)


def test_what_runs_is_told_once_the_guard_has_begun_the_other_slot(root: Path, library: Library):
    install(root, library)
    state.change(root, lambda t: state.mark_bad(t, "b", "slow", 1.0))
    assert guard.settle(root) == "a"
    with (root / "guard.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (root / "running").write_text("")
        begins = threading.Timer(0.5, lambda: (root / "running").write_text("a"))
        begins.start()
        outcome = update.await_verdict(root, "b")
        begins.join()
    assert (outcome.slot.state, outcome.running_release) == (slots.SlotState.BAD, "1.0")


def test_where_nothing_is_left_to_run_the_verdict_is_told_at_once(root: Path, library: Library, monkeypatch):
    install(root, library)
    for slot in "ab":
        state.change(root, lambda t, slot=slot: state.mark_bad(t, slot, "slow", 1.0))
    monkeypatch.setattr(update.time, "sleep", lambda _: pytest.fail("it waits for what cannot come"))
    assert update.await_verdict(root, "b").running_release is None


def test_rollback_goes_to_the_other_good_slot_and_refuses_what_it_left(root: Path, library: Library):
    with pytest.raises(SlotError, match="nothing good to go back to: the other slot is empty"):
        slots.roll_back(root, "try")
    install(root, library)
    commit(root, "b")
    assert slots.roll_back(root, "it smells") == "a"
    assert guard.settle(root) == "a"
    assert "it smells" in next(iter(slots.status(root).denied.values()))["reason"]


def test_a_rollback_while_pending_marks_the_new_slot_bad(root: Path, library: Library):
    install(root, library)
    guard.settle(root)
    slots.roll_back(root, "stop it")
    now = slots.status(root)
    assert (now.active, now.slots[1].state, now.slots[1].reason) == ("a", slots.SlotState.BAD, "stop it")


def test_tidy_keeps_what_both_slots_need_and_drops_the_rest(root: Path, library: Library):
    install(root, library)
    slots.tidy(root)  # not before the new one is good
    commit(root, "b")
    (root / "store/strange.part").write_bytes(b"half")
    slots.tidy(root)
    needed = {f.sha256 for name in ("1.0", "2.0") for f in library.load(name).release.files}
    assert {p.name for p in (root / "store").iterdir()} == needed
    install(root, library, "3.0")
    commit(root, "a")
    slots.tidy(root)
    assert {f.sha256 for f in library.load("1.0").release.files} - {p.name for p in (root / "store").iterdir()}


def test_a_folder_without_slots_says_how_to_make_them(tmp_path: Path):
    with pytest.raises(SlotError, match="edgekit provision local:"):
        slots.status(tmp_path)


def test_an_older_guard_is_replaced_and_a_newer_one_kept(root: Path, monkeypatch):
    monkeypatch.setattr(guard, "VERSION", 0)
    program.install_guard(root)
    assert program.guard_version(root) == 2
    (root / slots.GUARD).write_bytes(b"damaged")
    monkeypatch.undo()
    program.install_guard(root)
    assert program.guard_version(root) == 2


def test_a_guard_that_does_not_start_never_replaces_one_that_does(root: Path, monkeypatch):
    before = (root / slots.GUARD).read_bytes()
    monkeypatch.setattr(guard, "VERSION", guard.VERSION + 1)
    made = program.guard_program
    monkeypatch.setattr(program, "guard_program", lambda: made().replace(b"__main__.py", b"__mean__.py"))
    with pytest.raises(SlotError, match="the guard does not start here"):
        program.install_guard(root)
    assert (root / slots.GUARD).read_bytes() == before


def test_the_guard_program_is_the_same_bytes_every_time():
    assert program.guard_program() == program.guard_program()


def test_a_status_is_made_of_plain_values(root: Path):
    shown = msgspec.json.decode(msgspec.json.encode(slots.status(root)))
    assert shown.keys() == {f.name for f in dataclasses.fields(slots.Status)}
    assert shown["slots"][0]["state"] == "good"


@pytest.mark.parametrize("fault", ["unlink", "truncate"])
def test_what_changes_between_writing_and_verifying_is_found(root, library, fault, monkeypatch):
    build = stage._build

    def sabotage(root: Path, folder: Path, stored: Stored) -> None:
        build(root, folder, stored)
        victim = folder / "home/artifacts/digits/flash/model.bin"
        victim.unlink()
        if fault == "truncate":
            victim.write_bytes(b"")

    monkeypatch.setattr(stage, "_build", sabotage)
    with pytest.raises(EdgekitError, match=r"model\.bin"):
        install(root, library)
    assert guard.settle(root) == "a"
