"""What `edgekit rollout` prints: how far it is, one line why it ended, and the bounds that its flags make."""

from __future__ import annotations

import argparse
import json

import pytest
from msgspec.structs import replace

from edgekit.cli.rollout import _limits, _print, add_arguments, describe, verdict
from edgekit.provision.compare import Bounds
from edgekit.provision.evidence import Evidence
from edgekit.provision.rollout import Condition, Limits, Phase, Progress, Rollout
from edgekit.provision.waves import Wave
from edgekit.telemetry.desired import Step

PLAN = Rollout(
    id="r",
    release="2.0",
    waves=(Wave(name="canary", devices=("h/a",)), Wave(name="group x", devices=("h/b", "h/c"))),
    kinds={"h/a": "pi", "h/b": "pi", "h/c": "pi"},
    began_unix_s=0.0,
)
GOOD = Progress(step=Step.COMMITTED)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_a_rollout_under_way_shows_each_wave_and_where_it_stands():
    second = replace(PLAN, wave=1, phase=Phase.TOLD, devices={"h/a": GOOD, "h/b": GOOD})
    assert describe(second, is_driven=True) == [
        "2.0: running, 2 of 3 devices have it",
        " ✓ wave 1  canary         1 of 1 committed",
        " > wave 2  group x        1 of 2 committed  told",
    ]
    assert describe(second, is_driven=False)[-1] == "nobody drives it; go on with: edgekit rollout resume 2.0"


def test_devices_that_did_not_keep_it_are_named_with_their_reason():
    bad = Progress(step=Step.ROLLED_BACK, reason="m: p99 is 41.0 ms")
    stopped = replace(PLAN, condition=Condition.STOPPED, why="wave 1 of 2, canary: h/a went back", devices={"h/a": bad})
    lines = describe(stopped, is_driven=False)
    assert "        h/a rolled_back: m: p99 is 41.0 ms" in lines
    assert lines[-1] == "wave 1 of 2, canary: h/a went back"


def test_a_finished_one_has_a_mark_at_every_wave():
    done = replace(
        PLAN, wave=1, condition=Condition.DONE, why="all 2 waves have it", devices=dict.fromkeys(PLAN.kinds, GOOD)
    )
    lines = describe(done, is_driven=False)
    assert [line[:2] for line in lines[1:3]] == [" ✓", " ✓"]
    assert lines[-1] == "all 2 waves have it"


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        (Condition.DONE, "2.0: done: because"),
        (Condition.ABORTED, "2.0: aborted: because"),
        (Condition.PAUSED, "2.0: paused: because; go on with: edgekit rollout resume 2.0"),
        (Condition.STOPPED, "2.0: stopped: because; resume 2.0 judges the wave again, abort 2.0 ends it"),
    ],
)
def test_the_end_is_one_line_with_what_to_do_next(condition: Condition, line: str):
    assert verdict(replace(PLAN, condition=condition, why="because")) == line


def test_as_json_the_measured_past_is_left_out(capsys: pytest.CaptureFixture[str]):
    _print(replace(PLAN, before={"h/a": Evidence()}))
    told = json.loads(capsys.readouterr().out)
    assert "before" not in told
    assert (told["release"], told["condition"], told["waves"][0]["devices"]) == ("2.0", "running", ["h/a"])


def test_flags_in_percent_and_points_become_shares():
    words = (
        "--errors",
        "2",
        "--shadow",
        "0",
        "--success",
        "80",
        "--failure",
        "0",
        "--samples",
        "0",
        "--canary",
        "1,10",
    )
    bounds, limits, canary = _limits(parsed("start", "2.0", *words))
    assert (bounds.failed, bounds.disagreed, bounds.samples) == (0.02, 0.0, 0)
    assert (limits.success, limits.failure) == (0.8, 0.0)
    assert canary == [0.01, 0.1]


def test_without_flags_the_bounds_are_those_of_the_types():
    bounds, limits, canary = _limits(parsed("start", "2.0"))
    assert (bounds, limits, canary) == (Bounds(), Limits(), [0.1])


def test_patience_is_never_shorter_than_the_observation():
    _, limits, _ = _limits(parsed("start", "2.0", "--observe", "900", "--patience", "60"))
    assert limits.patience_s == 900.0
