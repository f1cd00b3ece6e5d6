"""`edgekit rollout` over a real broker: held, stopped, paused, killed and taken up again; one operator at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgekit.cli.main import main
from edgekit.config import MqttConfig
from edgekit.errors import BrokerError
from edgekit.provision import conductor, crier, keys
from edgekit.provision.release import Library
from edgekit.provision.repository import Repository
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.desired import Desired, Step
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import encode, topic
from tests.pretended_fleet import SITE, PretendedFleet
from tests.torture.small import make
from tests.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]
NAMES = ["a", "b", "c", "d"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for people and networks waits less."""
    monkeypatch.setattr(conductor, "LOOK_S", 0.15)
    monkeypatch.setattr(conductor, "TURN_S", 0.05)
    monkeypatch.setattr(conductor, "SETTLE_S", 0.1)
    monkeypatch.setattr(crier, "CLAIM_S", 0.2)


@pytest.fixture
def fleet(broker: Broker) -> Iterator[Callable[..., PretendedFleet]]:
    started = []

    def start(names: list[str] | None = None, **how: Any) -> PretendedFleet:
        made = PretendedFleet(MqttConfig(host="127.0.0.1", port=broker.port), names or NAMES, **how)
        started.append(made)
        return made.__enter__()

    yield start
    for made in started:
        made.__exit__()


@pytest.fixture
def rollout(broker: Broker, tmp_path: Path) -> Callable[..., int]:
    """`edgekit rollout …` in this process."""

    def call(*words: str, state: str = "state") -> int:
        where = ["--state", str(tmp_path / state)]
        port = ["--port", str(broker.port)] if words[0] != "status" else []
        quick = ["--listen", "0.4", "--observe", "0.3"] if words[0] == "start" else []
        return main(["rollout", *words, *where, *port, *quick])

    return call


def state_of(tmp_path: Path, release: str, folder: str = "state") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / folder / f"{release}.json").read_text())
    return found


def test_an_equal_release_reaches_everyone_wave_by_wave(fleet, rollout, tmp_path: Path, capsys: Capture):
    devices = fleet()
    assert rollout("start", "2.0", "--canary", "25") == 0
    told = capsys.readouterr()
    assert told.out == "2.0: done: all 2 waves have it\n"
    assert set(devices.running.values()) == {"2.0"}
    first, second = state_of(tmp_path, "2.0")["history"]
    assert first.startswith("wave 1 of 2, canary: m on pi: p")
    assert "the bound is" in second
    assert "wave 1 of 2, canary: 1 of 1 committed" in told.err
    assert "wave 2 of 2, group default: 3 of 3 committed" in told.err
    assert rollout("status") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "2.0: done, 4 of 4 devices have it",
        " ✓ wave 1  canary         1 of 1 committed",
    ]
    assert rollout("resume", "2.0") == 3
    assert "is done" in capsys.readouterr().err


def test_a_release_that_is_30_percent_slower_is_stopped_within_the_canary(fleet, rollout, tmp_path, capsys: Capture):
    devices = fleet(slower={"2.0": 1.3})
    assert rollout("start", "2.0", "--canary", "25", "--json") == 1
    assert sorted(devices.running.values()) == ["1.0", "1.0", "1.0", "2.0"]
    ended = json.loads(capsys.readouterr().out)
    assert ended["condition"] == "stopped"
    assert "x that of the others (1.2" in ended["why"]
    assert devices.asked.keys() == {ended["waves"][0]["devices"][0].split("/")[1]}
    assert rollout("start", "2.0") == 3
    assert "is unfinished: edgekit rollout resume 2.0, or abort 2.0" in capsys.readouterr().err
    assert rollout("abort") == 0
    assert "2.0: aborted" in capsys.readouterr().out
    assert rollout("start", "3.0", "--canary", "25") == 0  # the site is free again


def test_a_canary_whose_guard_goes_back_stops_it_with_the_measured_reason(fleet, rollout, capsys: Capture):
    devices = fleet(ends={"2.0": Step.ROLLED_BACK})
    assert rollout("start", "2.0", "--canary", "25") == 1
    said = capsys.readouterr().out
    assert "1 of 1 did not keep it, 5% may: hall/" in said
    assert "went back: m: p99 is 41.0 ms, the objective is 10.0 ms; resume 2.0 judges" in said
    assert set(devices.running.values()) == {"1.0"}
    assert until(lambda: list(devices.asked.values()) == [None])  # what was desired is taken back


def test_devices_of_other_groups_are_left_alone_and_groups_follow_in_order(fleet, rollout, tmp_path):
    devices = fleet(groups=lambda name: {"a": "early", "b": "early", "c": "late", "d": "never"}[name])
    assert rollout("start", "2.0", "--group", "early", "--group", "late", "--canary", "10", "--samples", "0") == 0
    assert devices.running == {"a": "2.0", "b": "2.0", "c": "2.0", "d": "1.0"}
    names = [wave["name"] for wave in state_of(tmp_path, "2.0")["waves"]]
    assert names == ["canary", "group early", "group late"] or names == ["canary", "group early"]


def test_without_traffic_nothing_goes_on(fleet, rollout, capsys: Capture):
    devices = fleet(requests=0)
    assert rollout("start", "2.0", "--canary", "25", "--patience", "1") == 1
    said = capsys.readouterr().out
    assert "not decided within" in said
    assert "no requests on the updated devices and on others of their kind: nothing to judge by" in said
    assert sorted(devices.running.values()) == ["1.0", "1.0", "1.0", "2.0"]


def test_a_dry_run_prints_the_plan_and_tells_nobody(fleet, rollout, tmp_path, capsys: Capture):
    devices = fleet()
    assert rollout("start", "2.0", "--canary", "25", "--dry-run") == 0
    said = capsys.readouterr()
    assert said.out.startswith("2.0: 4 devices in 2 waves\n  wave 1  canary ")
    assert not devices.asked
    assert not (tmp_path / "state").exists()


def test_pause_from_another_terminal_and_resume_go_on_where_it_was(fleet, rollout, tmp_path, capsys: Capture):
    devices = fleet()
    codes: list[int] = []
    driving = threading.Thread(target=lambda: codes.append(rollout("start", "2.0", "--canary", "25")))
    driving.start()
    assert until(lambda: (tmp_path / "state/2.0.json").exists() and state_of(tmp_path, "2.0")["phase"] == "observed")
    assert rollout("pause") == 0
    driving.join(20)
    assert codes == [1]
    assert "2.0: paused: wave 1 of 2, canary: pause was asked for; go on with" in capsys.readouterr().out
    assert sorted(devices.running.values()) == ["1.0", "1.0", "1.0", "2.0"]
    assert rollout("resume") == 0
    assert set(devices.running.values()) == {"2.0"}
    assert state_of(tmp_path, "2.0")["round"] == 1


def test_pause_when_nobody_drives_is_written_down(fleet, rollout, tmp_path, capsys: Capture):
    fleet(slower={"2.0": 1.3})
    assert rollout("start", "2.0", "--canary", "25") == 1
    assert rollout("pause") == 0
    assert state_of(tmp_path, "2.0")["condition"] == "paused"
    assert rollout("abort") == 0
    assert rollout("pause") == 1  # a truthful no
    assert "2.0: aborted" in capsys.readouterr().out


def test_the_operator_is_killed_and_another_process_takes_it_up(broker, fleet, rollout, tmp_path, capsys: Capture):
    devices = fleet()
    words = ["rollout", "start", "2.0", "--canary", "25", "--listen", "0.6", "--observe", "60"]
    operator = subprocess.Popen(
        [sys.executable, "-m", "edgekit.cli.main", *words, "--state", tmp_path / "state", "--port", str(broker.port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"EDGEKIT_HOME": str(tmp_path)},
    )
    try:
        path = tmp_path / "state/2.0.json"
        assert until(lambda: path.exists() and state_of(tmp_path, "2.0")["phase"] == "observed", 40)
        assert rollout("resume") == 3  # a second operator of the same state
        assert f"(process {operator.pid}) drives it already" in capsys.readouterr().err
        assert rollout("start", "3.0", state="elsewhere") == 3  # and one with another state, on another machine
        assert "rolls out 2.0 there; finish or abort it there, or take over with" in capsys.readouterr().err
    finally:
        operator.send_signal(signal.SIGKILL)
        operator.wait()
    assert rollout("status") == 0
    assert "nobody drives it; go on with: edgekit rollout resume 2.0" in capsys.readouterr().out
    table = state_of(tmp_path, "2.0")
    table["limits"]["observe_s"] = 0.5
    path.write_text(json.dumps(table))
    before = dict(devices.asked)
    assert rollout("resume") == 0
    assert set(devices.running.values()) == {"2.0"}
    canary = next(iter(before))
    assert devices.asked[canary] == before[canary]  # not told twice


def test_taking_over_is_said_aloud_and_works(fleet, rollout, capsys: Capture):
    fleet(slower={"2.0": 1.3})
    assert rollout("start", "2.0", "--canary", "25") == 1
    assert rollout("start", "3.0", "--canary", "25", state="elsewhere") == 3
    assert rollout("start", "3.0", "--canary", "25", "--take-over", state="elsewhere") == 0
    assert "3.0: done" in capsys.readouterr().out


def test_the_repository_must_offer_it_to_the_groups(fleet, rollout, tmp_path, capsys: Capture):
    library, repository = Library(tmp_path / "library"), Repository(tmp_path / "repo")
    keys.create(tmp_path / "keys")
    repository.create(tmp_path / "keys")
    for name, sequence, groups in (("1.0", 10, ["default", "late"]), ("2.0", 20, ["default"])):
        repository.publish(library, make(library, name, sequence=sequence), tmp_path / "keys", groups=groups)
    repo = ("--repo", str(tmp_path / "repo"))
    assert rollout("start", "9.9", *repo) == 5
    assert "offers it to no group; to mend it: edgekit repo publish 9.9" in capsys.readouterr().err
    assert rollout("start", "2.0", *repo, "--group", "late") == 5
    assert "offers 1.0 to group late" in capsys.readouterr().err
    devices = fleet()
    assert rollout("start", "2.0", *repo, "--samples", "0", "--canary", "25") == 0
    assert {d.digest for d in devices.asked.values() if d} == {library.load("2.0").digest}


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("start", "2.0", "--canary", "0"), 2, "--canary 0: expected growing percentages"),
        (("start", "2.0", "--canary", "50,10"), 2, "expected growing percentages"),
        (("start", "2.0", "--canary", "ten"), 2, "expected growing percentages"),
        (("start", "2.0", "--p99", "0"), 2, "--p99 0: must be a finite number"),
        (("start", "2.0", "--success", "120"), 2, "--success 120: must be from 0 to 100"),
        (("status",), 3, "there is no rollout here yet; begin one with"),
        (("resume", "7.0"), 3, "there is no rollout of 7.0; known: none"),
        (("start", "2.0"), 3, "heard of: none at all; devices need: edgekit update --follow"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(rollout, capsys: Capture, words, code, problem):
    assert rollout(*words) == code
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


def test_a_broker_that_is_not_there_is_said(tmp_path: Path, capsys: Capture):
    assert main(["rollout", "start", "2.0", "--state", str(tmp_path), "--port", "9"]) == 4
    assert "broker 127.0.0.1:9: Connection refused" in capsys.readouterr().err


def test_a_device_that_was_away_is_told_when_it_is_back(broker, fleet, rollout, tmp_path):
    """What is desired is retained: it waits at the broker."""
    assert fleet().running
    assert rollout("start", "2.0", "--canary", "25", "--samples", "0") == 0
    late = PretendedFleet(MqttConfig(host="127.0.0.1", port=broker.port), ["a"])
    with late:
        assert until(lambda: late.running["a"] == "2.0")
    assert SITE in state_of(tmp_path, "2.0")["waves"][0]["devices"][0]


def test_by_the_access_rules_operators_claim_and_devices_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crier, "CONFIRM_S", 1.0)
    (tmp_path / "secret").write_text("a-password-for-all")
    users = [
        User(name=name, role=role, password="a-password-for-all")
        for name, role in (("ops", Role.OPERATOR), ("watch", Role.READER), (f"{SITE}/cam", Role.DEVICE))
    ]
    ours = crier.Claim(id="2.0-1", release="2.0", operator="ops@here")
    with start_broker(tmp_path / "broker", users=users) as broker:

        def settings(name: str) -> MqttConfig:
            secret = str(tmp_path / "secret")
            return MqttConfig(host="127.0.0.1", port=broker.port, username=name, password_file=secret)

        with crier.Crier(settings("ops"), [SITE]) as calling:
            calling.claim(ours, [SITE], take_over=False, hear=lambda _: None)
            calling.tell(f"{SITE}/cam", encode(Desired(release="2.0")))
            assert calling.settle()
        heard: list[bytes] = []
        device = Link(
            settings(f"{SITE}/cam"),
            client_id="cam/updater",
            subscriptions=(topic(SITE, "cam", "desired"),),
            opening=Opening,
            on_message=lambda message: heard.append(message.payload),
        )
        device.start()
        assert until(lambda: heard == [encode(Desired(release="2.0"))])
        device.stop()
        for stranger in ("watch", f"{SITE}/cam"):
            claim = crier.Claim(id="2.0-1", release="6.6", operator=stranger)
            with (
                crier.Crier(settings(stranger), [SITE]) as calling,
                pytest.raises(BrokerError, match="does not confirm the claim"),
            ):
                calling.claim(claim, [SITE], take_over=False, hear=lambda _: None)
