"""What both slots share: durable, readable by the release before, and the pure choice of the slot to run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.provision import state
from edgekit.provision.state import MAX_TRIES, State, choose, is_superseded, mark_bad, mark_good

NOW_S = 1_700_000_000.0


def table(a: str, b: str, **entry: object) -> State:
    """Two slots in the given states; `entry` goes into b's."""
    return {
        "schema": 1,
        "slots": {"a": {"state": a, "digest": "aa"}, "b": {"state": b, "digest": "bb", **entry}},
        "denied": {},
        "journal": {"step": "judge"},
    }


@pytest.mark.parametrize(
    ("a", "b", "active", "expected"),
    [
        ("good", "empty", "a", "a"),
        ("good", "good", "b", "b"),
        ("good", "pending", "a", "b"),  # the cut came between the state and the link
        ("good", "pending", "b", "b"),
        ("good", "staged", "a", "a"),
        ("good", "bad", "b", "a"),  # the cut came between the verdict and the link
        ("empty", "good", None, "b"),
        ("pending", "empty", None, "a"),
        ("bad", "empty", "a", None),
        ("empty", "empty", None, None),
    ],
)
def test_the_slot_to_run_follows_from_the_states_wherever_the_power_was_cut(a, b, active, expected):
    assert choose(table(a, b), active, NOW_S) == expected


def test_a_pending_slot_that_had_its_tries_becomes_bad_and_its_release_is_denied_with_the_reason():
    before = table("good", "pending", tries=MAX_TRIES)
    assert choose(before, "b", NOW_S) == "a"
    assert before["slots"]["b"]["state"] == "bad"
    assert "3 starts" in before["denied"]["bb"]["reason"]
    assert "power cut" in before["denied"]["bb"]["reason"]
    assert before["journal"] is None


def test_the_third_try_still_runs_since_brown_outs_at_first_start_are_common():
    assert choose(table("good", "pending", tries=MAX_TRIES - 1), "b", NOW_S) == "b"


def test_each_failure_of_a_release_is_refused_for_longer_until_it_needs_an_operator():
    tried = table("good", "bad")
    waits = []
    for _ in range(4):
        mark_bad(tried, "b", "slow", NOW_S)
        waits.append(tried["denied"]["bb"]["not_before_unix_s"] - NOW_S)
    assert waits[:3] == [3600, 6 * 3600, 24 * 3600]
    assert waits[3] > 1e9
    assert tried["denied"]["bb"]["failures"] == 4


def test_good_is_final_and_forgives_the_release():
    judged = table("good", "pending", tries=2)
    mark_bad(judged, "b", "slow", NOW_S)
    mark_good(judged, "b", NOW_S)
    assert judged["slots"]["b"]["committed_unix_s"] == NOW_S
    assert judged["slots"]["b"]["tries"] == 0
    assert judged["denied"] == {}


@given(st.permutations(["good", "pending"]), st.sampled_from(["a", "b", None]))
def test_a_running_slot_gives_way_exactly_when_another_one_is_to_run(states, active):
    now = table(*states)
    for running in state.SLOTS:
        chosen = choose(now, active, NOW_S)
        if active == chosen:
            assert is_superseded(now, active, running) == (running != chosen)


def test_unknown_keys_of_a_newer_release_survive_a_change_by_this_one(tmp_path: Path):
    newer = table("good", "empty") | {"weather": "fine"}
    newer["slots"]["a"]["mood"] = "new"
    (tmp_path / "state.json").write_text(json.dumps(newer))
    state.change(tmp_path, lambda t: state.mark_bad(t, "b", "slow", NOW_S))
    kept = json.loads((tmp_path / "state.json").read_text())
    assert (kept["weather"], kept["slots"]["a"]["mood"], kept["slots"]["b"]["state"]) == ("fine", "new", "bad")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"slots": {"a": {}}}', '{"slots": []}', "\x00\x00"])
def test_a_damaged_state_is_refused_and_never_taken_for_an_empty_one(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ValueError):
        state.read_state(tmp_path)


def test_changes_of_several_writers_are_all_kept(tmp_path: Path):
    def count(t: State) -> None:
        t["count"] = t.get("count", 0) + 1

    threads = [threading.Thread(target=lambda: [state.change(tmp_path, count) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.read_state(tmp_path)["count"] == 80


def test_a_failed_change_leaves_the_state_and_no_temporary_file(tmp_path: Path):
    state.change(tmp_path, lambda t: t.update(count=1))

    def fail(t: State) -> None:
        t["count"] = {1, 2}  # not JSON

    with pytest.raises(TypeError):
        state.change(tmp_path, fail)
    assert state.read_state(tmp_path)["count"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "state.lock"]


def test_the_active_link_is_replaced_and_a_strange_one_is_no_slot(tmp_path: Path):
    assert state.active_slot(tmp_path) is None
    state.change(tmp_path, lambda _: "a")
    state.change(tmp_path, lambda _: "b")
    assert state.active_slot(tmp_path) == "b"
    (tmp_path / "active").unlink()
    (tmp_path / "active").symlink_to("/etc")
    assert state.active_slot(tmp_path) is None
