"""A folder of this machine made a device, and the unit that would start it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.errors import ReleaseError, SlotError
from edgekit.provision import local, slots, unit
from edgekit.provision.release import Library, Target, seal
from edgekit.provision.settings import Settings, read_settings
from tests.torture.small import Guarded, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def wish(tmp_path: Path, library: Library, name: str = "1.0", **how) -> local.Wish:
    given = {"service": "none"} | {k: how.pop(k) for k in ("trust_root", "settings", "retry_denied") if k in how}
    return local.Wish(root=tmp_path / "device", stored=make(library, name, **how), library=library, **given)


def silent(_text: str, _share: float) -> None:
    """Nobody is watching."""


def needed(steps: tuple[local.Step, ...]) -> list[bool]:
    return [step.is_needed for step in steps]


def test_a_plan_touches_nothing_and_says_what_is_done_already(tmp_path, library):
    asked = wish(tmp_path, library, trust_root=b"{}", settings=Settings(repository="file:///x"))
    assert needed(local.plan(asked)) == [True, True, True, True]
    assert not asked.root.exists()
    outcome = local.carry_out(asked, silent)
    assert outcome is not None
    assert outcome.is_committed
    assert needed(local.plan(asked)) == [False, False, False, False]
    assert local.carry_out(asked, silent) is None
    assert read_settings(asked.root).repository == "file:///x"


def test_the_first_root_of_trust_is_never_replaced(tmp_path, library):
    local.carry_out(wish(tmp_path, library, trust_root=b"first"), silent)
    local.carry_out(wish(tmp_path, library, "2.0", trust_root=b"second"), silent)
    assert (tmp_path / "device/trust/root.json").read_bytes() == b"first"


def test_a_bad_first_release_is_told_as_such_and_a_good_one_mends_it(tmp_path, library):
    outcome = local.carry_out(wish(tmp_path, library, daemon="import"), silent)
    assert outcome is not None
    assert not outcome.is_committed
    assert "no_such_module_in_this_release" in (outcome.slot.reason or "")
    outcome = local.carry_out(wish(tmp_path, library, "2.0"), silent)
    assert outcome is not None
    assert outcome.is_committed


def test_a_running_guard_is_used_and_not_a_second_one(tmp_path, library):
    local.carry_out(wish(tmp_path, library), silent)
    with Guarded(tmp_path / "device") as guarded:
        until_s = time.monotonic() + 30
        while slots.running_slot(tmp_path / "device") is None:  # it takes its lock before it starts anything
            assert time.monotonic() < until_s
            time.sleep(0.01)
        outcome = local.carry_out(wish(tmp_path, library, "2.0"), silent)
        assert outcome is not None
        assert outcome.running_release == "2.0"
        assert guarded.process.poll() is None


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (Target(machine="aarch128", python=""), "is for aarch128, this machine is"),
        (Target(machine="", python="2.7"), "is for Python 2.7, this is"),
    ],
)
def test_a_release_for_another_machine_or_python_is_refused_before_anything_is_made(tmp_path, library, target, problem):
    import msgspec

    asked = wish(tmp_path, library)
    foreign = seal(msgspec.structs.replace(asked.stored.release, name="1.1", target=target))
    other = local.Wish(root=asked.root, stored=foreign, library=library, service="none")
    with pytest.raises(ReleaseError, match=problem):
        local.carry_out(other, silent)
    assert not asked.root.exists()


def test_a_folder_below_a_file_is_said(tmp_path, library):
    (tmp_path / "file").write_text("")
    asked = local.Wish(root=tmp_path / "file/device", stored=make(library, "1.0"), library=library, service="none")
    with pytest.raises(SlotError, match="file is not a folder"):
        local.plan(asked)


def test_the_groups_of_device_nodes_are_those_that_exist(tmp_path):
    (tmp_path / "group").write_text("root:x:0:\nvideo:x:44:\nrender:x:105:\n")
    assert local.existing_groups(tmp_path / "group") == ("video", "render")


def test_flash_device_explains_itself_and_a_target_alone_is_a_usage_error(capsys):
    assert main(["provision"]) == 0
    assert "make flash-device TARGET=" in capsys.readouterr().out
    assert main(["provision", "local:/tmp/x"]) == 2
    assert "--model, --config or --release" in capsys.readouterr().err


def test_the_command_line_provisions_shows_and_rolls_back(tmp_path, library, capsys, edgekit_home):
    root = f"--root={tmp_path / 'device'}"
    for name in ("1.0", "2.0"):
        make(library, name)
        words = ["provision", f"local:{tmp_path / 'device'}", f"--release={name}", f"--library={library.folder}"]
        assert main([*words, "--service=none"]) == 0
    assert "2.0: committed; 2.0 runs" in capsys.readouterr().out
    assert main(["rollback", root, "--dry-run"]) == 0
    assert "would go back to slot a: 1.0" in capsys.readouterr().out
    assert main(["rollback", root]) == 0
    assert "slot a is active again: 1.0" in capsys.readouterr().out
    assert main(["slots", root]) == 0
    said = capsys.readouterr().out
    assert "slot a  good     1.0              active" in said
    assert "1x: rolled back by the operator" in said


# --- the unit ---

UNITS = [
    ("system", unit.system_unit(Path("/opt/edgekit"), python="/usr/bin/python3", user="root", groups=("video",))),
    ("user", unit.user_unit(Path("/home/pi/edgekit"), python="/usr/bin/python3")),
    ("system", unit.system_updater(Path("/opt/edgekit"), python="/usr/bin/python3", user="root")),
    ("user", unit.user_updater(Path("/home/pi/edgekit"), python="/usr/bin/python3")),
]
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze; to mend it: sudo apt install systemd"
)


@needs_analyze
@pytest.mark.parametrize(("kind", "text"), UNITS, ids=["system", "user", "system-updater", "user-updater"])
def test_systemd_takes_every_line_of_the_unit(tmp_path, kind, text):
    path = tmp_path / (unit.UPDATER if "--follow" in text else unit.NAME)
    path.write_text(text)
    run = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--{kind}", path], capture_output=True, text=True)
    ours = [line for line in run.stderr.splitlines() if path.name in line]
    assert ours == [], run.stderr


@needs_analyze
@pytest.mark.parametrize("make_unit", [unit.system_unit, unit.system_updater])
def test_the_system_units_are_hardened(tmp_path, make_unit):
    path = tmp_path / unit.NAME
    path.write_text(make_unit(Path("/opt/edgekit"), python="/usr/bin/python3", user="edgekit"))
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", path]
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]


@needs_analyze
@pytest.mark.parametrize(("make_unit", "is_allowed"), [(unit.system_unit, True), (unit.system_updater, False)])
def test_only_the_daemon_may_place_and_lower_its_threads(tmp_path, make_unit, is_allowed):
    path = tmp_path / unit.NAME
    text = make_unit(Path("/opt/edgekit"), python="/usr/bin/python3", user="edgekit")
    for call in ("sched_setaffinity", "setpriority"):
        path.write_text(re.sub(f"(?m)^(SystemCallFilter=.*{call}.*)$", f"SystemCallFilter={call}", text))
        words = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short", path]
        run = subprocess.run(words, capture_output=True, text=True)
        told = {row["json_field"]: row["description"] for row in json.loads(run.stdout)}
        assert (f"{call} is allowed" in told["SystemCallFilter_resources"]) == is_allowed, told


def test_a_root_in_a_home_stays_writable_under_the_hardening():
    assert "ProtectHome=read-only" in unit.system_unit(Path("/home/pi/x"), python="p", user="u")
    assert "ProtectHome=yes" in unit.system_unit(Path("/opt/x"), python="p", user="u")


def test_without_systemd_there_is_no_service(monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    assert local.service_kind("auto") == "none"
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert local.service_kind("auto") == ("system" if os.geteuid() == 0 else "user")
    assert local.service_kind("none") == "none"
