"""A rollout as a value: who gets it when, how reports move it, what verdicts mean, and the file it lies in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgekit.errors import ConfigError
from edgekit.provision import rollout as ro
from edgekit.provision.compare import Bounds
from edgekit.provision.evidence import Evidence, Window
from edgekit.provision.figure import Answer
from edgekit.provision.rollout import Condition, Limits, Phase, Progress, Rollout
from edgekit.provision.rollout_file import RolloutFile, names, operator
from edgekit.provision.survey import Survey
from edgekit.provision.waves import Candidate, Wave, plan
from edgekit.telemetry.desired import Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Birth, Received, State, Status, encode, topic


def candidates(count: int, *, group: str = "default", kind: str = "pi5", online: bool = True) -> list[Candidate]:
    return [Candidate(key=f"hall/{kind}-{group}-{i}", group=group, kind=kind, is_online=online) for i in range(count)]


def sizes(waves: tuple[Wave, ...]) -> dict[str, int]:
    return {wave.name: len(wave.devices) for wave in waves}


# --- the plan ---


@pytest.mark.parametrize(
    ("count", "canary", "expected"),
    [
        (4, [0.25], {"canary": 1, "group default": 3}),
        (1, [0.1], {"canary": 1}),
        (3, [0.01], {"canary": 1, "group default": 2}),
        (200, [0.05], {"canary": 10, "group default": 190}),
        (100, [0.01, 0.1, 0.5], {"canary 1": 1, "canary 2": 9, "canary 3": 40, "group default": 50}),
        (2, [0.01, 0.02, 0.5], {"canary 1": 1, "canary 2": 1}),
        (5, [1.0], {"canary": 5}),
    ],
)
def test_canaries_come_first_and_everyone_is_in_exactly_one_wave(count: int, canary: list[float], expected):
    waves = plan(candidates(count), canary=canary, groups=["default"], seed="2.0")
    assert sizes(waves) == expected
    told = [key for wave in waves for key in wave.devices]
    assert sorted(told) == sorted(c.key for c in candidates(count))


def test_groups_follow_in_the_given_order_and_others_take_no_part():
    everyone = [*candidates(5, group="late"), *candidates(5, group="early"), *candidates(5, group="never")]
    waves = plan(everyone, canary=[0.2], groups=["early", "late"], seed="2.0")
    assert [wave.name for wave in waves] == ["canary", "group early", "group late"]
    assert not any("never" in key for wave in waves for key in wave.devices)
    assert plan(everyone, canary=[0.2], groups=["nobody"], seed="2.0") == ()


def test_canaries_are_of_every_kind_before_two_are_of_one():
    everyone = [*candidates(20, kind="pi5"), *candidates(3, kind="orin"), *candidates(3, kind="x86")]
    canary = plan(everyone, canary=[0.15], groups=["default"], seed="2.0")[0].devices
    assert sorted(key.split("/")[1].split("-")[0] for key in canary) == ["orin", "pi5", "pi5", "x86"]
    alone = plan(everyone, canary=[0.01], groups=["default"], seed="2.0")[0].devices
    assert alone[0].startswith("hall/pi5")  # one canary speaks for the commonest kind


def test_canaries_are_online_and_not_the_same_for_every_release():
    everyone = [*candidates(5, online=False, kind="pi5"), *candidates(5, group="b", kind="pi5")]
    chosen = {plan(everyone, canary=[0.1], groups=["default", "b"], seed=str(i))[0].devices[0] for i in range(20)}
    assert all("-b-" in key for key in chosen)
    assert len(chosen) > 2


# --- the value ---

WAVES = (Wave(name="canary", devices=("h/a",)), Wave(name="group x", devices=("h/b", "h/c")))
KINDS = {"h/a": "pi", "h/b": "pi", "h/c": "orin"}
START = Rollout(id="r", release="2.0", waves=WAVES, kinds=KINDS, began_unix_s=0.0)


def said(step: Step, *, wish: str = "r.0", reason: str = "") -> Reported:
    return Reported(t_unix_ms=0, desired="2.0", desired_id=wish, step=step, reason=reason)


def after(rollout: Rollout, **steps: Step) -> Rollout:
    for name, step in steps.items():
        rollout = ro.with_report(rollout, f"h/{name}", said(step, wish=rollout.wish_id, reason=f"why {name}"))
    return rollout


def test_a_report_counts_for_this_wish_and_for_devices_of_the_plan_only():
    assert ro.with_report(START, "h/z", said(Step.COMMITTED)) is START
    assert ro.with_report(START, "h/a", said(Step.COMMITTED, wish="r.1")) is START
    there = ro.with_report(START, "h/a", said(Step.FETCHING, reason="33 %"))
    assert there.devices == {"h/a": Progress(step=Step.FETCHING)}
    assert ro.with_report(there, "h/a", said(Step.FETCHING, reason="66 %")) is there  # nothing to write down
    assert ro.committed(after(there, a=Step.COMMITTED)) == ["h/a"]


@pytest.mark.parametrize(
    ("steps", "online", "answer", "words"),
    [
        ({}, ["h/b", "h/c"], Answer.OPEN, "0 of 2 committed, 2 needed; 2 to come"),
        ({}, [], Answer.OPEN, "none of them online"),
        ({"b": Step.COMMITTED}, ["h/b", "h/c"], Answer.OPEN, "1 of 2 committed, 2 needed; 1 to come"),
        ({"b": Step.COMMITTED, "c": Step.BOOTED}, ["h/c"], Answer.OPEN, "1 of 2"),
        ({"b": Step.COMMITTED, "c": Step.COMMITTED}, ["h/b"], Answer.WITHIN, "2 of 2 committed"),
        ({"b": Step.COMMITTED, "c": Step.ROLLED_BACK}, [], Answer.WORSE, "h/c went back: why c"),
        ({"b": Step.REFUSED}, [], Answer.WORSE, "1 of 2 did not keep it, 5% may: h/b refused: why b"),
        ({"b": Step.FAILED, "c": Step.FAILED}, [], Answer.WORSE, "h/b gave up: why b (and 1 more)"),
        ({"b": Step.CANCELLED}, [], Answer.WORSE, "h/b had it taken back"),
    ],
)
def test_what_the_guards_say_lets_a_wave_go_on_or_stops_it(steps, online, answer, words):
    found, text = ro.verdict_of_guards(after(replace(START, wave=1), **steps), online)
    assert found is answer
    assert words in text


def test_thresholds_are_shares_of_the_wave():
    tolerant = replace(START, wave=1, limits=Limits(success=0.5, failure=0.5))
    assert ro.verdict_of_guards(after(tolerant, b=Step.COMMITTED, c=Step.ROLLED_BACK), [])[0] is Answer.WITHIN
    away = after(tolerant, b=Step.COMMITTED)
    assert ro.verdict_of_guards(away, [])[0] is Answer.WITHIN  # the other is not there
    assert ro.verdict_of_guards(away, ["h/c"])[0] is Answer.OPEN  # it is, and is at it


def past(samples: int, stretches: int = 16) -> Evidence:
    builder = HistogramBuilder()
    builder.record_many([1.0] * samples)
    latency = builder.histogram()
    return Evidence({"m/realtime": tuple(Window(at, samples, latency=latency) for at in range(stretches))})


def test_a_wave_is_compared_with_devices_of_its_kind_that_were_not_told():
    assert ro.peers(START) == ["h/b", "h/c"]
    assert ro.without_peers(START) == []


def test_in_the_last_wave_those_of_earlier_ones_take_their_place():
    last = after(replace(START, wave=1), a=Step.COMMITTED)
    assert ro.peers(last) == ["h/a"]
    assert ro.without_peers(last) == ["h/c"]  # the only one of its kind
    half = replace(last, waves=(*WAVES, Wave(name="group y", devices=("h/d",))), kinds={**KINDS, "h/d": "pi"})
    assert ro.peers(half) == ["h/d"]  # as long as one of the kind is untold, it is the measure


def test_a_kind_without_any_peer_is_compared_with_its_own_past():
    last = replace(START, wave=1)
    assert (ro.peers(last), ro.without_peers(last)) == ([], ["h/b", "h/c"])
    assert ro.lacks_past(last, {}) == ["orin", "pi"]
    enough = past(4 * 662 // 16 + 1)
    assert ro.lacks_past(last, {"h/b": enough, "h/c": past(4 * 662 // 16)}) == ["orin"]
    assert ro.lacks_past(last, {"h/b": enough, "h/c": past(9000, stretches=15)}) == ["orin"]
    assert ro.lacks_past(last, {"h/b": enough, "h/c": enough}) == []
    assert ro.lacks_past(replace(last, bounds=Bounds(samples=0)), {}) == []
    odd = replace(START, kinds={**KINDS, "h/a": "rare"})
    assert ro.without_peers(odd) == ["h/a"]


def test_without_requests_there_is_nothing_to_judge_by():
    assert ro.verdict_of_telemetry(()) == (
        Answer.OPEN,
        "no requests on the updated devices and on others of their kind: nothing to judge by",
    )


def test_waves_follow_each_other_and_the_last_one_ends_it():
    second = ro.next_wave(replace(START, phase=Phase.OBSERVED, before={"h/a": past(1)}), "held")
    assert (second.wave, second.phase, second.before, second.history) == (1, Phase.BEFORE, {}, ("held",))
    done = ro.next_wave(second, "held too")
    assert (done.condition, done.why, done.history) == (Condition.DONE, "all 2 waves have it", ("held", "held too"))
    assert done.current is WAVES[1]


@pytest.mark.parametrize(("phase", "expected"), [(Phase.BEFORE, Phase.BEFORE), (Phase.OBSERVED, Phase.TOLD)])
def test_after_a_pause_those_without_it_are_told_by_another_wish(phase: Phase, expected: Phase):
    paused = after(replace(START, wave=1, phase=phase), a=Step.COMMITTED, b=Step.COMMITTED, c=Step.CANCELLED)
    anew = ro.told_anew(replace(paused, condition=Condition.STOPPED, why="x"))
    assert (anew.wish_id, anew.phase, anew.condition, anew.why) == ("r.1", expected, Condition.RUNNING, "")
    assert ro.committed(anew) == ["h/a", "h/b"]
    assert ro.failed(anew, anew.current) == []


# --- the file ---


def test_the_state_comes_back_as_it_was_written(tmp_path: Path):
    file = RolloutFile(tmp_path, "2.0")
    full = after(replace(START, before={"h/b": past(3)}, history=("x",)), a=Step.COMMITTED)
    with file.driving():
        file.write(full)
    assert file.read() == full
    assert names(tmp_path) == ["2.0"]


def test_a_rollout_that_is_not_there_names_those_that_are(tmp_path: Path):
    RolloutFile(tmp_path, "2.0").write(START)
    with pytest.raises(ConfigError, match=r"there is no rollout of 3\.0; known: 2\.0"):
        RolloutFile(tmp_path, "3.0").read()


@pytest.mark.parametrize("damage", ["", "{", '{"v": 1}', "[]"])
def test_a_damaged_file_is_an_error_and_no_new_beginning(tmp_path: Path, damage: str):
    file = RolloutFile(tmp_path, "2.0")
    file.write(START)
    file.path.write_text(damage)
    with pytest.raises(ConfigError, match=r"2\.0\.json"):
        file.read()


def test_a_state_of_a_newer_edgekit_is_not_misread(tmp_path: Path):
    file = RolloutFile(tmp_path, "2.0")
    file.write(replace(START, v=9))
    with pytest.raises(ConfigError, match="is 9, this edgekit reads 1"):
        file.read()


def test_one_drives_and_a_second_is_told_who(tmp_path: Path):
    file, second = RolloutFile(tmp_path, "2.0"), RolloutFile(tmp_path, "2.0")
    assert not file.is_driven()
    with file.driving():
        assert second.is_driven()
        with pytest.raises(ConfigError, match="drives it already") as told, second.driving():
            pytest.fail("two at once")
        assert operator() in str(told.value)
    assert not second.is_driven()
    with second.driving():
        pass


def test_what_is_asked_reaches_the_driver_once_and_not_the_next_one(tmp_path: Path):
    file, other = RolloutFile(tmp_path, "2.0"), RolloutFile(tmp_path, "2.0")
    other.ask("pause")  # nobody drives: whoever begins later must not find it
    with file.driving():
        assert file.asked() is None
        other.ask("pause")
        assert (file.asked(), file.asked()) == ("pause", None)
        other.ask("rm -rf")
        assert file.asked() is None


# --- the survey ---


def heard(survey: Survey, device: str, *, group: str, board: str = "pi5", online: bool = True) -> None:
    state = State.ONLINE if online else State.OFFLINE
    for leaf, payload in (
        ("status", encode(Status(state=state, epoch=1))),
        ("birth", encode(Birth(epoch=1, t_unix_ms=1, board="A board", board_id=board))),
        ("reported", encode(Reported(t_unix_ms=1, group=group, running="1.0"))),
    ):
        survey.hear(Received(topic=topic("hall", device, leaf), payload=payload, received_s=time.time()))


def test_a_survey_knows_groups_kinds_and_who_is_there():
    survey = Survey()
    heard(survey, "a", group="default")
    heard(survey, "b", group="x", board="", online=False)
    survey.hear(Received(topic=topic("hall", "c", "reported"), payload=b"{"))
    survey.hear(Received(topic=topic("hall", "_all", "desired"), payload=b"{}"))
    found = {c.key: (c.group, c.kind, c.is_online) for c in survey.candidates()}
    assert found == {"hall/a": ("default", "pi5", True), "hall/b": ("x", "A board", False)}


def test_a_plan_is_told_in_lines_and_an_empty_one_says_what_is_missing():
    survey = Survey()
    how = {"digest": "", "canary": [0.5], "sites": (), "bounds": Bounds(), "limits": Limits()}
    with pytest.raises(ConfigError, match="heard of: none at all; devices need: edgekit update --follow"):
        survey.plan("2.0", groups=["default"], **how)
    heard(survey, "a", group="default")
    heard(survey, "b", group="default", online=False)
    status = encode(Status(state=State.ONLINE, epoch=1))
    survey.hear(Received(topic=topic("hall", "old", "status"), payload=status))
    lines = survey.describe(survey.plan("2.0", groups=["default"], **how))
    assert lines[0] == "2.0: 2 devices in 2 waves"
    assert "canary             1  1 run 1.0  (hall/a)" in lines[1]
    assert "1 run 1.0; 1 not online  (hall/b)" in lines[2]
    assert "a wave goes on when 95% have committed and p50 at most 1.10x" in lines[3]
    assert lines[4] == "  1 devices report telemetry but have no updater; they take no part"
    with pytest.raises(ConfigError, match="no device with an updater is of group x; heard of: default"):
        survey.plan("2.0", groups=["x"], **how)
