"""Four provisioned devices with real guards, daemons and updaters: a slowed release stops, an equal one reaches all.

`make soak-rollout` runs it: some two minutes on two idle cores. The suite runs the same conductor against devices that
pretend (`test_provision_rollout.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout_stage import Fleet
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(not os.environ.get("EDGEKIT_ROLLOUT"), reason="elsewhere: make soak-rollout"),
    pytest.mark.timeout(1200),
]
WAVES = ("--canary", "25", "--observe", "5", "--patience", "240")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), devices=4) as running:
        yield running


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def test_a_release_slowed_by_30_percent_is_stopped_within_the_canary(fleet: Fleet):
    fleet.publish("2.0", slower=1.3)
    code, out, err = ended(fleet.rollout("start", "2.0", "--repo", str(fleet.repository.folder), *WAVES))
    print(out)
    assert code == 1, err + "\n".join(fleet.logs())
    assert "2.0: stopped: wave 1 of 2, canary: net on " in out
    assert "x that of the others (" in out
    assert sorted(map(str, fleet.running().values())) == ["1.0", "1.0", "1.0", "2.0"]
    assert ended(fleet.rollout("abort", "2.0"))[0] == 0


def test_an_equal_release_reaches_everyone_although_the_operator_is_killed_in_between(fleet: Fleet):
    fleet.publish("3.0")
    operator = fleet.rollout("start", "3.0", "--repo", str(fleet.repository.folder), *WAVES)
    path = Path(fleet.folder / "state/3.0.json")
    assert until(lambda: path.exists() and fleet.state("3.0")["phase"] == "observed", 120), "\n".join(fleet.logs())
    code, _, err = ended(fleet.rollout("resume", "3.0"))
    assert (code, "drives it already" in err) == (3, True)
    operator.send_signal(signal.SIGKILL)
    operator.communicate()
    code, out, _ = ended(fleet.rollout("status", "3.0", "--json"))
    assert (code, json.loads(out)["condition"]) == (0, "running")
    code, out, err = ended(fleet.rollout("resume", "3.0"))
    print(*fleet.state("3.0")["history"], sep="\n")
    assert code == 0, out + err + "\n".join(fleet.logs())
    assert "3.0: done: all 2 waves have it" in out
    assert set(fleet.running().values()) == {"3.0"}
