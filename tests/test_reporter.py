"""A device's telemetry end to end over real brokers: birth, windows, death however it dies, rebirth, commands."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from edgekit.config import MqttConfig
from edgekit.errors import ConfigError, UsageError
from edgekit.fleet import Device, Fleet, Presence, fold
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.epoch import EpochCounter
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import Ack, Birth, Command, Readings, Received, Reply, State, Status, encode, topic
from edgekit.telemetry.outbox import NOTHING
from edgekit.telemetry.reporter import Recorder, Reporter
from edgekit.telemetry.watch import Watcher
from tests.network import QUICK
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
KINDS = [pytest.param("mosquitto", marks=[pytest.mark.broker, needs_mosquitto]), "amqtt"]
WINDOW_S = 0.25
CAM = ("hall", "cam-1")


class Stage:
    """A broker, a reader that folds all it hears, and the devices of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fleet, self.heard = folder, Fleet(), list[Received]()
        self._ends = contextlib.ExitStack()
        self.watcher: Watcher | None = None

    def start_broker(self, kind: str = "mosquitto", port: int = 0, folder: str = "broker") -> Broker:
        if kind == "amqtt":
            pytest.importorskip("amqtt", reason="amqtt is not installed")
        self.broker = self._ends.enter_context(start_broker(self.folder / folder, kind=kind, port=port))
        return self.broker

    def watch(self) -> Watcher:
        self.watcher = Watcher(MqttConfig(host="127.0.0.1", port=self.broker.port), back_off=QUICK)
        self._ends.callback(self.watcher.stop)
        self.watcher.start()
        assert until(lambda: self.watcher is not None and self.watcher.connected)
        return self.watcher

    def reporter(
        self, device: str = "cam-1", *, state: str | None = None, **options: object
    ) -> tuple[Reporter, Recorder]:
        recorder = Recorder()
        settings = {"keepalive_s": 5, "window_s": WINDOW_S} | options.pop("settings", {})  # type: ignore[operator]
        reporter = Reporter(
            MqttConfig(host="127.0.0.1", port=self.broker.port, **settings),
            site="hall",
            device=device,
            state_folder=self.folder / (state or device),
            birth=lambda epoch: Birth(epoch=epoch, t_unix_ms=0, board="Pi 5"),
            readings=lambda: Readings(memory_available_bytes=5, memory_total_bytes=8),
            recorder=recorder,
            back_off=QUICK,
            **options,  # type: ignore[arg-type]
        )
        self._ends.callback(lambda: reporter.stop("the test ended", timeout_s=0.5))
        return reporter, recorder

    def see(self, condition: Callable[[Device], bool], device: str = "cam-1", timeout_s: float = 10.0) -> Device:
        """The device once it looks so to a reader; fails the test if it never does."""

        def looks_so() -> bool:
            assert self.watcher is not None
            news = self.watcher.drain()
            self.heard += news
            self.fleet = fold(self.fleet, news, now_s=time.time())
            found = self.fleet.devices.get(("hall", device))
            return found is not None and condition(found)

        assert until(looks_so, timeout_s), (self.fleet.devices.get(("hall", device)), self.heard)
        return self.fleet.devices["hall", device]

    def replies(self) -> dict[str, Reply]:
        self.see(lambda _: True)
        found = [m.payload for m in self.heard if m.topic.endswith("/reply")]
        return {reply.id: reply for reply in (msgspec.json.decode(p, type=Reply) for p in found)}

    def close(self) -> None:
        self._ends.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def is_online(device: Device) -> bool:
    return device.presence is Presence.ONLINE and device.birth is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_born_reports_and_says_goodbye_itself(stage: Stage, kind: str) -> None:
    stage.start_broker(kind)
    stage.watch()
    reporter, recorder = stage.reporter()
    reporter.start()
    for i in range(50):
        recorder.observe(model="digits", lane="realtime", artifact="int8", infer_ms=1.0 + i / 50)
    reporter.event("selection", "int8 chosen", model="digits")
    device = stage.see(lambda d: d.latency is not None and d.last_metrics is not None and is_online(d))
    assert device.latency is not None
    assert device.latency.count == 50
    assert device.last_metrics is not None
    assert device.last_metrics.system.memory_total_bytes == 8
    recorder.observe(model="digits", lane="realtime", artifact="int8", infer_ms=9.0)
    assert reporter.stop("stopped by SIGTERM")
    device = stage.see(lambda d: d.presence is Presence.OFFLINE)
    assert (device.reason, device.gaps, device.duplicates) == ("stopped by SIGTERM", 0, 0)
    assert device.latency is not None
    assert device.latency.count == 51
    assert [e.event.kind for e in stage.fleet.events] == ["selection"]


DEVICE_PROCESS = """
import sys, time
from pathlib import Path
from edgekit.config import MqttConfig
from edgekit.telemetry.messages import Birth, Readings
from edgekit.telemetry.outbox import NOTHING
from edgekit.telemetry.reporter import Recorder, Reporter
reporter = Reporter(
    MqttConfig(host="127.0.0.1", port=int(sys.argv[1]), window_s=0.25), site="hall", device="cam-1",
    state_folder=Path(sys.argv[2]), birth=lambda e: Birth(epoch=e, t_unix_ms=0, board="Pi 5"), readings=Readings,
    recorder=Recorder())
reporter.start()
time.sleep(60)
"""


def test_an_outbox_that_is_ready_before_its_link_exists_is_no_fault(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The outbox loads on its own thread; what that raises fails the test (warnings are errors).
    class SlowLink(Link):
        def __init__(self, *args: object, **options: object) -> None:
            time.sleep(0.3)
            super().__init__(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("edgekit.telemetry.reporter.Link", SlowLink)
    stage.start_broker("amqtt")
    stage.watch()
    reporter, _ = stage.reporter()
    reporter.start()
    assert stage.see(lambda device: device.presence is Presence.ONLINE).epoch >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_killing_the_process_makes_the_broker_publish_its_death(stage: Stage, kind: str) -> None:
    stage.start_broker(kind)
    stage.watch()
    command = [sys.executable, "-c", DEVICE_PROCESS, str(stage.broker.port), str(stage.folder / "state")]
    process = subprocess.Popen(command)
    try:
        first = stage.see(lambda d: is_online(d) and d.windows > 0)
    finally:
        process.kill()
        process.wait()
    dead = stage.see(lambda d: d.presence is Presence.OFFLINE)
    assert (dead.reason, dead.epoch) == ("connection lost", first.epoch)


@pytest.mark.broker
@needs_mosquitto
def test_a_reader_that_comes_later_learns_from_what_is_retained(stage: Stage) -> None:
    stage.start_broker()
    reporter, _ = stage.reporter()
    reporter.start()
    assert until(lambda: reporter.state.connected)
    assert reporter.stop("gone")
    stage.watch()
    assert stage.see(lambda d: d.birth is not None).presence is Presence.OFFLINE


@pytest.mark.broker
@needs_mosquitto
def test_a_restarted_broker_hears_the_birth_again_with_a_higher_epoch(stage: Stage) -> None:
    broker = stage.start_broker()
    stage.watch()
    reporter, _ = stage.reporter()
    reporter.start()
    first = stage.see(lambda d: is_online(d) and d.windows > 0)
    broker.stop()
    assert until(lambda: not reporter.state.connected)
    stage.start_broker(port=broker.port, folder="an-empty-one")
    again = stage.see(lambda d: is_online(d) and d.epoch > first.epoch and d.windows > first.windows, timeout_s=20.0)
    assert again.birth is not None
    assert again.birth.epoch == again.epoch == reporter.epoch
    assert until(lambda: reporter._link.outbox.depth <= 1)
    assert reporter._link.outbox.dropped == {}


@pytest.mark.broker
@needs_mosquitto
def test_a_starting_reader_asks_everyone_to_introduce_themselves(stage: Stage) -> None:
    stage.start_broker()
    reporter, _ = stage.reporter()
    reporter.start()
    assert until(lambda: reporter.state.connected)
    time.sleep(0.2)
    stage.watch()
    # What the broker retained does not count: on some brokers it never reaches a wildcard.
    stage.see(lambda d: any(m.topic.endswith("/birth") and not m.retained for m in stage.heard), timeout_s=5.0)


@pytest.mark.broker
@needs_mosquitto
def test_a_stale_or_cleared_status_on_its_own_topic_is_replaced(stage: Stage) -> None:
    stage.start_broker()
    watcher = stage.watch()
    reporter, _ = stage.reporter()
    reporter.start()
    stage.see(is_online)
    mine = topic(*CAM, "status")
    for lie in (encode(Status(state=State.OFFLINE, epoch=0, reason="an old will")), b""):
        count = len(stage.heard)
        watcher._link.send(Outgoing(mine, lie, retain=True))
        stage.see(lambda d, n=count: any(m.topic == mine and b"online" in m.payload for m in stage.heard[n:]))
    assert stage.see(is_online).epoch == reporter.epoch


@pytest.mark.broker
@needs_mosquitto
def test_a_device_that_lost_its_state_goes_on_above_what_the_broker_remembers(stage: Stage) -> None:
    stage.start_broker()
    watcher = stage.watch()
    remembered = 2**40  # by a clock that was far ahead
    old = Status(state=State.OFFLINE, epoch=remembered, reason="stopped", session="before")
    watcher._link.send(Outgoing(topic(*CAM, "status"), encode(old), retain=True))
    stage.see(lambda d: d.epoch == remembered)
    reporter, _ = stage.reporter()
    reporter.start()
    device = stage.see(lambda d: is_online(d) and d.windows > 0)
    assert device.epoch == remembered + 1
    assert EpochCounter(stage.folder / "cam-1").current == remembered + 1
    assert not stage.fleet.events


@pytest.mark.broker
@needs_mosquitto
def test_two_machines_with_one_id_are_reported(stage: Stage) -> None:
    stage.start_broker()
    stage.watch()
    for state in ("one", "other"):
        (stage.folder / state).mkdir()
        (stage.folder / state / "epoch.json").write_text('{"epoch":3}')
        reporter, _ = stage.reporter(state=state)
        reporter.start()
        assert until(lambda r=reporter: r.state.connected)
        time.sleep(0.3)
    stage.see(lambda _: any(e.event.kind == "collision" for e in stage.fleet.events), timeout_s=15.0)
    collision = next(e.event for e in stage.fleet.events if e.event.kind == "collision")
    assert "another machine uses the device id 'cam-1' at site 'hall'" in collision.text


def send(stage: Stage, **command: object) -> None:
    assert stage.watcher is not None
    assert stage.watcher.send(*CAM, Command(**command))  # type: ignore[arg-type]


@pytest.mark.broker
@needs_mosquitto
def test_commands_are_answered_once_and_only_the_allowed_ones_run(stage: Stage) -> None:
    acted = []

    def act(command: Command) -> Reply:
        acted.append(command.id)
        if command.args.get("fail"):
            raise UsageError("no such model")
        return Reply(id=command.id, ok=True, text="done")

    stage.start_broker()
    stage.watch()
    reporter, _ = stage.reporter(on_command=act, settings={"allowed_commands": ("ping", "reload")})
    reporter.start()
    stage.see(is_online)
    send(stage, id="p", verb="ping")
    for _ in range(3):
        send(stage, id="r", verb="reload")
    send(stage, id="f", verb="reload", args={"fail": True})
    send(stage, id="b", verb="rollback")
    send(stage, id="x", verb="ping", expires_unix_ms=1)
    assert until(lambda: len(stage.replies()) == 5)
    replies = stage.replies()
    assert {k: reply.ok for k, reply in replies.items()} == {"p": True, "r": True, "f": False, "b": False, "x": False}
    assert replies["f"].text == "no such model"
    assert "allows ping, reload" in replies["b"].text
    assert acted == ["r", "f"]


@pytest.mark.broker
@needs_mosquitto
def test_a_command_that_comes_again_after_a_restart_is_answered_and_not_acted_on(stage: Stage) -> None:
    acted = []

    def act(command: Command) -> Reply:
        acted.append(command.id)
        return Reply(id=command.id, ok=True, text=f"done by {len(acted)}")

    stage.start_broker()
    stage.watch()
    for _ in range(2):
        reporter, _ = stage.reporter(on_command=act, settings={"allowed_commands": ("reload",)})
        reporter.start()
        stage.see(lambda d, epoch=reporter.epoch: is_online(d) and d.epoch >= epoch)
        stage.heard.clear()
        send(stage, id="r", verb="reload")
        assert until(lambda: stage.replies().get("r") == Reply(id="r", ok=True, text="done by 1"))
        reporter.stop("restart")
    assert acted == ["r"]


@pytest.mark.broker
@needs_mosquitto
def test_a_retained_command_is_refused_because_it_would_come_again(stage: Stage) -> None:
    stage.start_broker()
    watcher = stage.watch()
    watcher._link.send(Outgoing(topic(*CAM, "command"), encode(Command(id="z", verb="ping")), retain=True))
    time.sleep(0.2)
    reporter, _ = stage.reporter()
    reporter.start()
    assert until(lambda: "z" in stage.replies())
    assert "retained" in stage.replies()["z"].text


@pytest.mark.broker
@needs_mosquitto
def test_garbage_commands_do_not_stop_the_windows(stage: Stage) -> None:
    stage.start_broker()
    watcher = stage.watch()
    reporter, _ = stage.reporter()
    reporter.start()
    windows = stage.see(is_online).windows
    for junk in (b"", b"\xff\x00", b"[" * 10_000, b'{"id":1}'):
        watcher._link.send(Outgoing(topic(*CAM, "command"), junk))
    stage.see(lambda d: d.windows > windows + 3)


@pytest.mark.broker
@needs_mosquitto
def test_epochs_rise_over_restarts_of_the_process(stage: Stage) -> None:
    stage.start_broker()
    stage.watch()
    epochs = []
    for _ in range(3):
        reporter, _ = stage.reporter()
        reporter.start()
        stage.see(lambda d: is_online(d) and d.epoch > max(epochs, default=0))
        epochs.append(reporter.epoch)
        reporter.stop("restart")
        stage.see(lambda d: d.presence is Presence.OFFLINE)
    assert epochs == sorted(set(epochs))
    assert not [e for e in stage.fleet.events if e.event.kind == "collision"]


def test_without_a_broker_everything_waits_and_stop_is_quick(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.broker = type("NoBroker", (), {"port": 9})()  # type: ignore[assignment]
    reporter, recorder = stage.reporter()
    reporter.start()
    recorder.observe(model="m", lane="l", artifact="a", infer_ms=1.0)
    assert until(lambda: "refused" in reporter.state.text)
    began = time.monotonic()
    assert not reporter.stop("done", timeout_s=1.0)
    assert time.monotonic() - began < 3.0
    assert "undelivered" in reporter.state.text


@pytest.mark.parametrize("name", ["_all", "", "a/b", "+", "Cam", "cam\n"])
def test_a_name_that_could_be_taken_for_more_than_itself_is_refused(tmp_path: Path, name: str) -> None:
    stage = Stage(tmp_path)
    stage.broker = type("NoBroker", (), {"port": 9})()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"device: '.*' must match"):
        stage.reporter(name)


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
def test_mosquitto_sub_reads_the_telemetry_as_json(stage: Stage) -> None:
    stage.start_broker()
    reporter, _ = stage.reporter()
    reporter.start()
    assert until(lambda: reporter.state.connected)
    command = ["mosquitto_sub", "-p", str(stage.broker.port), "-t", "edgekit/v1/#", "-v", "-C", "4", "-W", "5"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = {line.split(" ", 1)[0]: json.loads(line.split(" ", 1)[1]) for line in lines}
    assert seen["edgekit/v1/hall/cam-1/status"]["state"] == "online"
    assert seen["edgekit/v1/hall/cam-1/metrics"]["window_ms"] > 0


def test_a_link_that_is_not_ours_cannot_end_the_watcher(stage: Stage) -> None:
    stage.start_broker("amqtt")
    watcher = stage.watch()
    noisy = Link(
        MqttConfig(host="127.0.0.1", port=stage.broker.port),
        client_id="noise",
        subscriptions=(),
        opening=lambda: Opening(first=[Outgoing("edgekit/v1/hall/evil/metrics", b"\x00" * 50)]),
        on_message=lambda _: None,
    )
    noisy.start()
    assert until(lambda: bool([m for m in watcher.drain() if m.topic.endswith("evil/metrics")]))
    assert watcher.connected
    noisy.stop()


@pytest.mark.broker
@needs_mosquitto
def test_windows_wait_on_the_disk_until_the_collector_has_them(stage: Stage) -> None:
    stage.start_broker()
    watcher = stage.watch()
    reporter, _ = stage.reporter(settings={"collector": True, "commit_s": 0.05})
    reporter.start()
    first = stage.see(lambda d: d.windows >= 3).epoch
    reporter.stop("restart")
    # A new process sends all of them again; what the collector acknowledges is never sent a third time.
    again, _ = stage.reporter(settings={"collector": True})
    again.start()
    stage.see(lambda d: d.duplicates >= 3 and d.epoch > first)
    watcher._link.send(Outgoing(topic(*CAM, "ack"), encode(Ack(epoch=first, seq=1000))))
    assert until(lambda: not [i for i in again._link.outbox.after(NOTHING, 99) if i.window and i.window[0] == first])
    assert b'"historical":true' in b"".join(m.payload for m in stage.heard)
