"""`edgekit slots` and `edgekit rollback`: what they say of a device's two slots, for people and for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli import slots as verb
from edgekit.cli.main import main
from edgekit.provision import guard, slots, stage, state
from edgekit.provision.release import Library
from edgekit.provision.slots import Slot, SlotState, Status
from tests.torture.small import make

Capture = pytest.CaptureFixture[str]


def slot(name: str = "a", **more: Any) -> Slot:
    return Slot(**({"slot": name, "state": SlotState.GOOD, "release": "1.0"} | more))


def status(*held: Slot, **more: Any) -> Status:
    blank = {
        "active": "a",
        "running": None,
        "running_release": None,
        "slots": held or (slot(), slot("b", state=SlotState.EMPTY, release=None)),
        "denied": {},
        "journal": None,
        "guard_version": 1,
    }
    return Status(**(blank | more))


def test_each_slot_is_a_line_with_its_state_release_and_marks() -> None:
    assert verb.describe(status(running="a")) == [
        "slot a  good     1.0              active running",
        "slot b  empty    -",
    ]


@pytest.mark.parametrize("state_", SlotState)
def test_every_state_has_its_word(state_: SlotState) -> None:
    assert verb.describe(status(slot(state=state_)))[0].split()[2] == state_.value


def test_what_runs_and_what_is_active_are_told_apart() -> None:
    lines = verb.describe(status(slot(), slot("b", release="2.0"), active="b", running="a"))
    assert (lines[0].split()[-1], lines[1].split()[-1]) == ("running", "active")


def test_how_far_a_release_came_is_four_times_in_utc() -> None:
    held = slot(installed_unix_s=0, booted_unix_s=60, healthy_unix_s=3600, committed_unix_s=86_400)
    assert verb.details(held) == [
        "installed 1970-01-01 00:00:00  booted 1970-01-01 00:01:00  "
        "healthy 1970-01-01 01:00:00  committed 1970-01-02 00:00:00"
    ]


def test_a_time_that_has_not_come_is_left_out() -> None:
    assert verb.details(slot(installed_unix_s=0)) == ["installed 1970-01-01 00:00:00"]
    assert verb.details(slot()) == []


FIGURES = {
    "model": "digits",
    "p50_ms": 1.234,
    "p99_ms": 5.678,
    "sample_count": 700,
    "agreement": 0.9876,
    "agreement_count": 32,
}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "measured: digits: p50 1.23 ms, p99 5.68 ms of 700 samples, agrees with 98.8% of 32 samples"),
        ({"p99_ms": None}, "measured: digits: p50 1.23 ms of 700 samples, agrees with 98.8% of 32 samples"),
        ({"p50_ms": None, "p99_ms": None}, "measured: digits: agrees with 98.8% of 32 samples"),
    ],
)
def test_what_was_measured_is_told_as_far_as_the_samples_support_it(change: dict[str, Any], line: str) -> None:
    assert verb.details(slot(verdict={"figures": [FIGURES | change]})) == [line]


def test_why_a_slot_is_bad_and_what_is_refused_are_told() -> None:
    bad = slot("b", state=SlotState.BAD, release="2.0", reason="p99 41.0 ms, the objective is 10.0 ms")
    lines = verb.describe(
        status(slot(), bad, denied={"f" * 64: {"failures": 3, "reason": "did not start"}}),
    )
    assert lines[2:] == [
        "        because: p99 41.0 ms, the objective is 10.0 ms",
        "refused ffffffffffff  3x: did not start",
    ]


def test_an_update_under_way_says_its_step() -> None:
    lines = verb.describe(status(journal={"release": "2.0", "slot": "b", "step": "verify"}))
    assert lines[-1] == "under way: 2.0 into slot b, step verify"


# On a device


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device that was updated from 1.0 to 2.0; both were good."""
    folder = tmp_path_factory.mktemp("updated")
    library, root = Library(folder / "library"), folder / "device"
    slots.prepare(root)
    for name, where in (("1.0", "a"), ("2.0", "b")):
        stage.install(root, make(library, name), stage.from_folder(library.blob))
        assert guard.settle(root) == where
        state.change(root, lambda table, held=where: state.mark_good(table, held, 1.0))
    return root


@pytest.fixture
def root(updated: Path, tmp_path: Path) -> Path:
    """That device for one test alone."""
    return Path(shutil.copytree(updated, tmp_path / "device", symlinks=True))


def test_json_is_the_status_with_its_states_as_words(root: Path, capsys: Capture) -> None:
    assert main(["slots", "--root", str(root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["active"] == "b"
    assert [(s["slot"], s["state"], s["release"]) for s in told["slots"]] == [
        ("a", "good", "1.0"),
        ("b", "good", "2.0"),
    ]
    assert told["running"] is None


def test_for_people_both_slots_are_lines(root: Path, capsys: Capture) -> None:
    assert main(["slots", "--root", str(root)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("slot")]
    assert [line.split()[:4] for line in lines] == [["slot", "a", "good", "1.0"], ["slot", "b", "good", "2.0"]]
    assert lines[1].endswith("active")


@pytest.mark.parametrize("words", [["slots"], ["rollback"], ["rollback", "--dry-run"], ["slots", "--json"]])
def test_a_folder_without_slots_is_exit_5_and_says_how_to_make_them(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert main([*words, "--root", str(tmp_path)]) == 5
    err = capsys.readouterr().err
    assert f"{tmp_path} holds no slots; make them with: edgekit provision local:{tmp_path}" in err
    assert err.count("\n") == 1


def test_a_dry_run_of_a_rollback_names_where_it_would_go_and_stays(root: Path, capsys: Capture) -> None:
    assert main(["rollback", "--root", str(root), "--dry-run"]) == 0
    assert capsys.readouterr().out == "would go back to slot a: 1.0\n"
    assert slots.status(root).active == "b"


def test_a_rollback_goes_back_and_refuses_what_it_left_with_the_reason(root: Path, capsys: Capture) -> None:
    assert main(["rollback", "--root", str(root), "--reason", "too slow in the hall"]) == 0
    assert capsys.readouterr().out == "slot a is active again: 1.0; it runs when the service starts\n"
    now = slots.status(root)
    assert now.active == "a"
    assert [denied["reason"] for denied in now.denied.values()] == ["too slow in the hall"]


def test_a_rollback_as_json_is_the_slots_afterwards(root: Path, capsys: Capture) -> None:
    assert main(["rollback", "--root", str(root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["active"] == "a"
    assert [denied["reason"] for denied in told["denied"].values()] == ["rolled back by the operator"]


def test_a_second_rollback_returns_and_the_release_it_goes_to_is_refused_no_more(root: Path, capsys: Capture) -> None:
    assert main(["rollback", "--root", str(root), "--reason", "first"]) == 0
    assert main(["rollback", "--root", str(root), "--reason", "second"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("slot b is active again: 2.0")
    now = slots.status(root)
    left = next(held.digest for held in now.slots if held.slot == "a")
    assert {digest: denied["reason"] for digest, denied in now.denied.items()} == {left: "second"}


# The check that the guard runs


def test_a_check_of_a_slot_without_a_release_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a").mkdir()
    assert main(["slots", "--self-check", str(tmp_path / "a")]) == 5
    assert capsys.readouterr().err == f"edgekit slots: release {tmp_path / 'a'}: holds no release to be checked\n"
