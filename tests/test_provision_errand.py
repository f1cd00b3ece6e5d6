"""What was desired and what is said of it: pure decisions, and a file that survives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgekit.errors import ReleaseError, RuntimeUnavailable, SlotError, UnreachableError
from edgekit.provision import errand as er
from edgekit.provision.errand import Errand, after, heard, may_receive, read_errand, refused, wait_s, write_errand
from edgekit.provision.report import Doing, has_left_our_hands, report, slot_of
from edgekit.provision.slots import Slot, SlotState, Status
from edgekit.telemetry.desired import FINAL, Desired, Reported, Step

DICE = random.Random(1)
TOLD = Errand(release="2.0", digest="d2", id="r1")
STAGED = replace(TOLD, slot="b", slot_digest="d2")


def slot(name: str, state: SlotState, release: str, digest: str, **more) -> Slot:
    return Slot(slot=name, state=state, release=release, digest=digest, **more)


OLD = slot("a", SlotState.GOOD, "1.0", "d1", committed_unix_s=5)


def status(second: Slot, *, active: str = "a", running: str | None = "a", **more) -> Status:
    release = {"a": "1.0", "b": second.release, None: None}[running]
    given = {"denied": {}, "journal": None, "guard_version": 1} | more
    return Status(active=active, running=running, running_release=release, slots=(OLD, second), **given)


def told(now: Status, errand: Errand | None, doing: Doing | None = None, **more) -> Reported:
    return report(now, errand, doing, group="canary", unix_ms=7, **more)


# --- what was heard ---


@pytest.mark.parametrize(
    ("before", "desired", "expected"),
    [
        (None, None, None),
        (None, Desired(release="2.0", id="r1"), Errand(release="2.0", id="r1", not_before_unix_s=9.0)),
        (TOLD, Desired(release="2.0", digest="d2", id="r1"), TOLD),
        (TOLD, Desired(release="2.0", digest="d2", id="r2"), replace(TOLD, id="r2", not_before_unix_s=9.0)),
        (STAGED, Desired(release="3.0"), Errand(release="3.0", not_before_unix_s=9.0)),
        (TOLD, None, replace(TOLD, outcome=Step.CANCELLED, reason="it was taken back")),
        (STAGED, None, STAGED),
        (refused(TOLD, "no"), None, refused(TOLD, "no")),
        (refused(TOLD, "no"), Desired(release="2.0", digest="d2", id="r1"), refused(TOLD, "no")),
        (
            refused(TOLD, "no"),
            Desired(release="2.0", digest="d2", id="r2"),
            replace(TOLD, id="r2", not_before_unix_s=9),
        ),
    ],
    ids=["nothing", "first", "again", "other-id", "other-release", "taken-back", "too-late", "over", "same", "anew"],
)
def test_a_wish_is_taken_once_however_often_the_broker_says_it(before, desired, expected):
    assert heard(before, desired, not_before_unix_s=9.0) == expected


def test_an_errand_survives_a_restart_and_newer_keys(tmp_path: Path):
    assert read_errand(tmp_path) is None
    write_errand(tmp_path, refused(STAGED, "wrong"))
    assert read_errand(tmp_path) == refused(STAGED, "wrong")
    path = tmp_path / er.FILE
    path.write_text(path.read_text().replace("{", '{"of_a_newer_release": [1],', 1))
    assert read_errand(tmp_path) == refused(STAGED, "wrong")


@pytest.mark.parametrize("damage", ["", "{", '{"release": 5}', '{"id": "x"}', "[]"])
def test_a_damaged_file_is_nothing_asked_and_no_crash(tmp_path: Path, damage: str):
    (tmp_path / er.FILE).write_text(damage)
    assert read_errand(tmp_path) is None


# --- attempts ---


def test_what_may_mend_itself_is_tried_again_ever_more_rarely_and_then_given_up():
    errand, waits = TOLD, []
    while errand.outcome is None:
        errand = after(errand, UnreachableError("repo", "refused"), now_s=1000.0, dice=DICE)
        waits.append(errand.not_before_unix_s - 1000.0)
    assert errand.attempts == er.MAX_ATTEMPTS
    assert errand.outcome is Step.FAILED
    assert errand.reason == "given up after 10 attempts: repo: refused"
    assert 7.5 <= waits[0] <= 15.0
    assert all(wait <= er.LONGEST_WAIT_S for wait in waits)
    assert waits[6] > 8 * waits[1]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UnreachableError("repo", "gone"), None),
        (SlotError("b", "disk full", rolled_back=False), None),
        (ReleaseError("2.0", "tampered"), Step.FAILED),
        (RuntimeUnavailable("update", "tuf is missing"), Step.FAILED),
    ],
)
def test_errors_are_permanent_or_transient(error, outcome):
    assert after(TOLD, error, now_s=0.0, dice=DICE).outcome is outcome


def test_a_clock_that_jumps_back_does_not_make_a_wait_endless():
    assert wait_s(replace(TOLD, not_before_unix_s=2e9), 5.0) == er.LONGEST_WAIT_S
    assert wait_s(replace(TOLD, not_before_unix_s=10.0), 12.0) == 0.0


def test_bytes_are_capped_over_all_attempts():
    assert may_receive(TOLD, 100)
    assert may_receive(replace(TOLD, received_bytes=3 * 10_000_000), 10_000_000)
    assert not may_receive(replace(TOLD, received_bytes=3 * 10_000_000 + er.BYTES_SLACK + 1), 10_000_000)


# --- what is said ---

FILLED = {"installed_unix_s": 10}


@pytest.mark.parametrize(
    ("second", "errand", "more", "step", "reason"),
    [
        (slot("b", SlotState.EMPTY, "", ""), None, {}, Step.IDLE, ""),
        (slot("b", SlotState.EMPTY, "", ""), TOLD, {}, Step.WAITING, ""),
        (slot("b", SlotState.EMPTY, "", ""), replace(TOLD, reason="repo gone"), {}, Step.WAITING, "repo gone"),
        (slot("b", SlotState.EMPTY, "", ""), refused(TOLD, "older"), {}, Step.REFUSED, "older"),
        (slot("b", SlotState.STAGED, "2.0", "d2"), STAGED, {}, Step.WAITING, ""),
        (slot("b", SlotState.PENDING, "2.0", "d2", **FILLED), STAGED, {}, Step.INSTALLED, ""),
        (
            slot("b", SlotState.PENDING, "2.0", "d2", **FILLED),
            STAGED,
            {"running": None},
            Step.INSTALLED,
            "no guard runs: start the service",
        ),
        (slot("b", SlotState.PENDING, "2.0", "d2", booted_unix_s=11), STAGED, {"running": "b"}, Step.BOOTED, ""),
        (slot("b", SlotState.GOOD, "2.0", "d2"), STAGED, {"active": "b", "running": "b"}, Step.COMMITTED, ""),
        (slot("b", SlotState.BAD, "2.0", "d2", reason="p99 41 ms"), STAGED, {}, Step.ROLLED_BACK, "p99 41 ms"),
        (slot("b", SlotState.BAD, "2.0", "d2"), STAGED, {}, Step.ROLLED_BACK, "it did not become healthy"),
        (
            slot("b", SlotState.GOOD, "2.0", "d2"),
            STAGED,
            {"denied": {"d2": {"reason": "the operator went back"}}},
            Step.ROLLED_BACK,
            "the operator went back",
        ),
        (slot("b", SlotState.GOOD, "2.0", "d2"), STAGED, {}, Step.ROLLED_BACK, "the other slot was made active again"),
        (slot("b", SlotState.PENDING, "3.0", "d3"), STAGED, {}, Step.FAILED, "another update has taken slot b since"),
    ],
)
def test_the_step_is_what_the_guards_state_says_and_else_what_the_updater_does(second, errand, more, step, reason):
    said = told(status(second, **more), errand)
    assert (said.step, said.reason) == (step, reason)


def test_installed_booted_healthy_and_committed_are_four_times_of_that_slot_alone():
    second = slot("b", SlotState.PENDING, "2.0", "d2", installed_unix_s=10, booted_unix_s=11)
    said = told(status(second), STAGED)
    assert (said.installed_unix_s, said.booted_unix_s, said.healthy_unix_s, said.committed_unix_s) == (
        10,
        11,
        None,
        None,
    )
    said = told(status(second), TOLD)  # not this errand's doing
    assert (said.installed_unix_s, said.committed_unix_s) == (None, None)


def test_what_runs_is_read_from_the_running_slot_and_not_from_the_link():
    second = slot("b", SlotState.PENDING, "2.0", "d2")
    said = told(status(second, active="b", running="a"), STAGED)
    assert (said.running, said.running_digest) == ("1.0", "d1")
    said = told(status(second, running=None), STAGED)
    assert (said.running, said.running_digest) == ("", "")


def test_progress_is_told_while_fetching_only_and_bounded():
    empty = slot("b", SlotState.EMPTY, "2.0", "d2")
    assert told(status(empty), TOLD, Doing(step=Step.FETCHING, reason="x", share=0.333)).share == 0.33
    assert told(status(empty), TOLD, Doing(step=Step.FETCHING, share=7.0)).share == 1.0
    assert told(status(empty), TOLD, Doing(step=Step.WAITING, share=0.5)).share == 0.0


def test_a_message_that_cannot_be_read_is_answered_with_the_reason():
    empty = slot("b", SlotState.EMPTY, "", "")
    assert told(status(empty), None, problem="not JSON").step is Step.REFUSED
    assert told(status(empty), TOLD, problem="not JSON").reason == "not JSON"


def test_a_reason_is_never_longer_than_the_wire_takes():
    assert len(told(status(slot("b", SlotState.EMPTY, "", "")), refused(TOLD, "x" * 9000)).reason) == 4000


@pytest.mark.parametrize(
    ("second", "errand", "left"),
    [
        (slot("b", SlotState.EMPTY, "", ""), TOLD, False),
        (slot("b", SlotState.STAGED, "2.0", "d2"), STAGED, False),
        (slot("b", SlotState.EMPTY, "2.0", "d2"), STAGED, False),
        (slot("b", SlotState.PENDING, "2.0", "d2"), STAGED, True),
        (slot("b", SlotState.GOOD, "2.0", "d2"), STAGED, True),
        (slot("b", SlotState.BAD, "2.0", "d2"), STAGED, True),
        (slot("b", SlotState.EMPTY, "3.0", "d3"), STAGED, True),
        (slot("b", SlotState.EMPTY, "", ""), refused(TOLD, "no"), True),
    ],
)
def test_nothing_more_is_brought_once_the_guard_has_it_or_it_was_given_up(second, errand, left):
    assert has_left_our_hands(status(second), errand) is left


def test_the_slot_is_the_errands_only_while_it_holds_what_was_put_there():
    assert slot_of(status(slot("b", SlotState.PENDING, "2.0", "d2")), STAGED) is not None
    assert slot_of(status(slot("b", SlotState.PENDING, "2.0", "d2")), TOLD) is None
    assert slot_of(status(slot("b", SlotState.PENDING, "3.0", "d3")), STAGED) is None


def test_final_steps_are_those_after_which_nothing_happens_by_itself():
    assert Step.WAITING not in FINAL
    assert {Step.COMMITTED, Step.ROLLED_BACK, Step.REFUSED, Step.FAILED, Step.CANCELLED} == FINAL
