"""The guard as a process of its own, with daemons that fail in every way a release can fail."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgekit.provision import guard, slots, stage, state
from edgekit.provision.release import Library
from tests.torture.small import Guarded, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def root(tmp_path: Path, library: Library) -> Path:
    """A device with release 1.0 in slot a, not judged yet."""
    root = tmp_path / "device"
    slots.prepare(root)
    put(root, library, "1.0")
    return root


def put(root: Path, library: Library, name: str, **how: object) -> str | None:
    return stage.install(root, make(library, name, **how), stage.from_folder(library.blob))  # type: ignore[arg-type]


def slot(now: slots.Status, name: str) -> slots.Slot:
    return next(s for s in now.slots if s.slot == name)


def until(root: Path, running_release: str, timeout_s: float = 20.0) -> slots.Status:
    end_s = time.monotonic() + timeout_s
    while (now := slots.status(root)).running_release != running_release:
        assert time.monotonic() < end_s, now
        time.sleep(0.02)
    return now


def test_the_first_release_becomes_good_and_its_four_times_are_told_apart(root: Path):
    with Guarded(root) as guarded:
        now = guarded.wait("a", "good")
        first = slot(now, "a")
        assert first.installed_unix_s is not None
        assert first.booted_unix_s is not None
        assert first.installed_unix_s <= first.booted_unix_s <= first.healthy_unix_s <= first.committed_unix_s
        assert first.verdict == {"healthy": True, "p50_ms": 1.5}
        assert until(root, "1.0").running == "a"
        assert guarded.stop() == 0
    assert slots.status(root).running is None


@pytest.mark.parametrize(
    ("how", "reason", "tries"),
    [
        ({"daemon": "import"}, "no_such_module_in_this_release", 3),
        ({"daemon": "library"}, "libno-such-library.so.1: cannot open shared object file", 3),
        ({"daemon": "silent"}, "not ready within 0.4 s", 3),
        ({"daemon": "brief", "check": "hang"}, "the daemon ended with 3 during its check", 3),
        ({"daemon": "short", "soak_s": 60.0}, "the daemon ended with 3 while soaking", 3),
        ({"check": "no"}, "p99 41.0 ms of 700 samples, the objective is 10.0 ms", 1),
        ({"check": "mute"}, "its check ended with 0 and no verdict", 3),
        ({"check": "hang"}, "its check took over 0.4 s", 3),
    ],
)
def test_a_release_that_fails_is_rolled_back_by_the_guard_alone_with_the_reason(root, library, how, reason, tries):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
        put(root, library, "2.0", **how)
        now = guarded.wait("b", "bad")
        assert reason in slot(now, "b").reason
        assert slot(now, "b").tries == tries
        assert [reason in denied["reason"] for denied in now.denied.values()] == [True]
        assert until(root, "1.0").active == "a"
        assert slot(slots.status(root), "a").state == "good"


def test_a_daemon_that_ignores_sigterm_is_killed_and_the_old_slot_runs_again(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
        put(root, library, "2.0", daemon="stubborn")
        guarded.wait("b", "bad")
        assert until(root, "1.0").running == "a"


def test_a_try_is_counted_before_it_begins_so_that_power_cuts_end_in_a_rollback(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    put(root, library, "2.0", soak_s=60.0)
    for expected in (1, 2, 3):
        guarded = Guarded(root)
        until(root, "2.0")
        assert slot(slots.status(root), "b").tries == expected
        os.killpg(guarded.process.pid, signal.SIGKILL)
        guarded.process.communicate()
    with Guarded(root) as guarded:
        now = guarded.wait("b", "bad")
        assert "ended without a word" in slot(now, "b").reason
        assert until(root, "1.0").active == "a"


def test_an_orderly_shutdown_during_the_soak_costs_the_release_no_try(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    put(root, library, "2.0", soak_s=60.0)
    for _ in range(4):
        guarded = Guarded(root)
        until(root, "2.0")
        assert guarded.stop() == 0
    second = slot(slots.status(root), "b")
    assert (second.state, second.tries) == ("pending", 0)


def test_the_daemon_does_not_outlive_a_killed_guard(root: Path):
    guarded = Guarded(root)
    guarded.wait("a", "good")
    children = subprocess.run(["pgrep", "-P", str(guarded.process.pid)], capture_output=True, text=True).stdout.split()
    assert len(children) == 1
    guarded.process.kill()
    guarded.process.communicate()
    end_s = time.monotonic() + 5
    while Path(f"/proc/{children[0]}").exists() and time.monotonic() < end_s:
        if "Z" in Path(f"/proc/{children[0]}/stat").read_text().split()[2]:
            break
        time.sleep(0.02)
    assert time.monotonic() < end_s


def test_systemd_hears_ready_and_status_but_no_stopping_while_slots_are_switched(root, library, tmp_path):
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(10)
        with Guarded(root, NOTIFY_SOCKET=address) as guarded:
            guarded.wait("a", "good")
            put(root, library, "2.0", daemon="short", soak_s=60.0)
            guarded.wait("b", "bad")
            until(root, "1.0")
            guarded.stop()
        heard = []
        systemd.setblocking(False)
        while True:
            try:
                heard.append(systemd.recv(4096).decode())
            except BlockingIOError:
                break
    assert heard.count("READY=1") >= 3
    assert heard.count("STOPPING=1") == 1
    assert heard[-1] == "STOPPING=1"


def test_whoever_asks_which_slot_runs_does_not_keep_a_guard_from_starting(root: Path):
    with (root / "guard.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Timer(0.6, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        with Guarded(root) as guarded:
            guarded.wait("a", "good")
            assert slots.running_slot(root) == "a"


def test_a_second_guard_of_the_same_folder_refuses(root: Path):
    with Guarded(root) as first:
        first.wait("a", "good")
        second = Guarded(root)
        assert b"another guard" in second.process.communicate(timeout=20)[1]
        assert second.process.returncode == 1


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b""), Path.unlink], ids=["emptied", "deleted"])
def test_without_a_readable_state_the_active_slot_keeps_running(root: Path, spoil):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    spoil(root / "state.json")
    with Guarded(root) as guarded:
        guarded.wait_for_line("taken for good")
        assert until(root, "1.0").running == "a"
    assert slot(slots.status(root), "a").state == "good"


def test_a_committed_slot_whose_files_are_gone_gives_way_to_the_other_good_one(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
        put(root, library, "2.0")
        guarded.wait("b", "good")
    shutil.rmtree(root / "b")
    with Guarded(root):
        now = until(root, "1.0")
    assert slot(now, "b").state == "bad"
    assert "launch.json" in slot(now, "b").reason


def test_an_operators_rollback_takes_effect_while_the_guard_runs(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
        put(root, library, "2.0")
        guarded.wait("b", "good")
        until(root, "2.0")
        assert slots.roll_back(root, "it smells") == "a"
        assert until(root, "1.0").active == "a"


def test_what_a_killed_guard_said_to_run_is_not_believed(root: Path, library: Library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    (root / "running").write_text("b")
    with Guarded(root) as guarded:
        now = until(root, "1.0")
    assert (now.running, now.active) == ("a", "a")
    (root / "running").write_text("b")
    assert slots.status(root).running is None  # nobody holds the lock


def test_with_nothing_to_run_it_says_what_to_do(tmp_path: Path):
    slots.prepare(tmp_path / "device")
    empty = Guarded(tmp_path / "device")
    said = empty.process.communicate(timeout=20)[1].decode()
    assert empty.process.returncode == guard.CONFIG_FAULT
    assert "edgekit provision" in said


def test_a_launch_file_of_a_newer_schema_is_a_reason_and_no_crash(root, library):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    put(root, library, "2.0")
    table = json.loads((root / "b/launch.json").read_text()) | {"schema": 99}
    (root / "b/launch.json").write_text(json.dumps(table))
    with Guarded(root) as guarded:
        now = guarded.wait("b", "bad")
    assert "schema 99" in slot(now, "b").reason


def test_the_guard_needs_nothing_but_the_standard_library(root: Path):
    code = (
        "import sys, runpy\nsys.argv = ['guard.pyz', '--version']\n"
        f"try:\n    runpy.run_path({str(root / slots.GUARD)!r}, run_name='__main__')\nexcept SystemExit:\n    pass\n"
        "print({n.split('.')[0] for n in sys.modules} & {'msgspec', 'numpy', 'rich', 'paho'})"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str(guard.VERSION), "set()"]


def test_the_state_after_every_run_is_one_that_this_release_reads(root: Path):
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    assert state.read_state(root)["slots"]["a"]["state"] == "good"


def test_a_switch_that_overtakes_a_starting_guard_is_not_undone(root, library, monkeypatch):
    """Found by the torture: the guard chose by the state, the updater switched, and the guard set the link back."""
    with Guarded(root) as guarded:
        guarded.wait("a", "good")
    chose = guard.choose

    def choose_and_be_overtaken(table, active, now_s):
        writer = threading.Thread(target=put, args=(root, library, "2.0"))
        writer.start()
        writer.join(0.3)  # it waits for our lock, or has switched already
        return chose(table, active, now_s)

    monkeypatch.setattr(guard, "choose", choose_and_be_overtaken)
    assert guard.settle(root) == "a"
    monkeypatch.undo()
    end_s = time.monotonic() + 10
    while slots.status(root).slots[1].state != "pending" and time.monotonic() < end_s:
        time.sleep(0.01)
    assert guard.settle(root) == "b"
    assert slots.status(root).active == "b"
