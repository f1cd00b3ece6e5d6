"""The reader: what it hears, asks, sends and survives; and `edgekit fleet`, which prints it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.config import MqttConfig
from edgekit.errors import ConfigError
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.connection import Outgoing
from edgekit.telemetry.link import Link, Opening
from edgekit.telemetry.messages import (
    Birth,
    Command,
    LaneMetrics,
    Metrics,
    ModelState,
    Readings,
    State,
    Status,
    encode,
    topic,
)
from edgekit.telemetry.recorder import Recorder
from edgekit.telemetry.watch import Watcher
from tests.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]
SECRET = "the-readers-secret"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def watching(broker: Broker) -> Iterator[Callable[..., Watcher]]:
    """Start watchers that end with the test."""
    started = []

    def watch(**options: object) -> Watcher:
        watcher = Watcher(MqttConfig(host="127.0.0.1", port=broker.port), **options)  # type: ignore[arg-type]
        started.append(watcher)
        watcher.start()
        assert until(lambda: watcher.connected)
        return watcher

    yield watch
    for watcher in started:
        watcher.stop()


@pytest.fixture
def speaker(broker: Broker) -> Iterator[Link]:
    """Someone who may publish anything."""
    link = Link(
        MqttConfig(host="127.0.0.1", port=broker.port),
        client_id="speaker",
        subscriptions=(),
        opening=Opening,
        on_message=lambda _: None,
    )
    link.start()
    assert until(lambda: link.state.connected)
    yield link
    link.stop()


def heard(watcher: Watcher, wanted: int, seen: list[str]) -> bool:
    seen += [m.topic for m in watcher.drain()]
    return len(seen) >= wanted


def test_it_hears_only_the_sites_it_was_asked_for(watching: Callable[..., Watcher], speaker: Link) -> None:
    one, everything = watching(sites=["hall"]), watching()
    for site in ("hall", "yard"):
        speaker.send(Outgoing(topic(site, "cam-1", "metrics"), b"{}"))
    seen_one: list[str] = []
    seen_all: list[str] = []
    assert until(lambda: heard(everything, 3, seen_all))
    assert until(lambda: heard(one, 2, seen_one))
    assert seen_one == [topic("hall", "_all", "rebirth"), topic("hall", "cam-1", "metrics")]
    assert {topic(site, "cam-1", "metrics") for site in ("hall", "yard")} <= set(seen_all)


def test_drain_gives_everything_once_in_order(watching: Callable[..., Watcher], speaker: Link) -> None:
    watcher = watching()
    for i in range(500):
        speaker.store(topic("hall", "cam-1", "event"), b"%d" % i)
    payloads: list[bytes] = []

    def all_there() -> bool:
        payloads.extend(m.payload for m in watcher.drain() if m.topic.endswith("/event"))
        return len(payloads) >= 500

    assert until(all_there)
    assert payloads == [b"%d" % i for i in range(500)]
    assert watcher.drain() == []


def test_a_reader_that_is_never_drained_is_bounded_and_counts(watching: Callable[..., Watcher], speaker: Link) -> None:
    watcher = watching(max_bytes=50_000)
    for _ in range(100):
        speaker.store(topic("hall", "cam-1", "event"), b"x" * 1_000)
    assert until(lambda: watcher.overrun >= 50)
    kept = watcher.drain()
    assert sum(len(m.payload) for m in kept) <= 50_000
    assert kept[-1].payload == b"x" * 1_000


def test_a_command_reaches_its_device_alone(watching: Callable[..., Watcher]) -> None:
    watcher, other = watching(), watching()
    assert watcher.send("hall", "cam-9", Command(id="7", verb="ping"))
    seen: list[str] = []
    assert until(lambda: heard(other, 2, seen) and topic("hall", "cam-9", "command") in seen)


def test_without_a_connection_nothing_is_sent_and_the_state_says_why(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        watcher = Watcher(MqttConfig(host="127.0.0.1", port=unused.getsockname()[1]))
        watcher.start()
        assert until(lambda: watcher.failed)
        assert not watcher.send("hall", "cam-1", Command(id="7", verb="ping"))
        assert "refused" in watcher.state
        watcher.stop()


def test_it_needs_a_host() -> None:
    with pytest.raises(ConfigError, match="host"):
        Watcher(MqttConfig())


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker with passwords and two devices: a dead one, and one that answers every new reader with a window."""
    folder = tmp_path_factory.mktemp("peopled")
    users = [
        User(name="reader", role=Role.READER, password=SECRET),
        *(User(name=f"hall/{name}", role=Role.DEVICE, password="d") for name in ("cam-1", "cam-2")),
    ]
    (folder / "reader").write_text(SECRET + "\n")
    (folder / "device").write_text("d\n")
    with start_broker(folder / "broker", users=users) as broker:
        links = [start_device(broker.port, folder / "device", name) for name in ("cam-1", "cam-2")]
        links[1].store(topic("hall", "cam-2", "metrics"), encode(window(0)))
        dead = Status(state=State.OFFLINE, epoch=3, reason="stopped by SIGTERM")
        assert links[1].stop([Outgoing(topic("hall", "cam-2", "status"), encode(dead), retain=True)])
        yield broker.port
        links[0].stop()


def window(seq: int) -> Metrics:
    recorder = Recorder()
    for i in range(700):
        recorder.observe(model="ocr-detector", lane="realtime", artifact="static-int8", infer_ms=5.0 + i / 100)
    lanes: tuple[LaneMetrics, ...] = recorder.take()
    return Metrics(
        epoch=3, seq=seq, t_unix_ms=0, t_mono_ms=0, window_ms=10_000, lanes=lanes, system=Readings(temperature_c=61.5)
    )


def start_device(port: int, password: Path, name: str) -> Link:
    model = ModelState(model="ocr-detector", artifact="static-int8", precision="int8", runtime="onnxruntime")
    birth = Birth(epoch=3, t_unix_ms=0, board="Pi 5", models=(model,))
    online = Status(state=State.ONLINE, epoch=3)
    first = [
        Outgoing(topic("hall", name, "status"), encode(online), retain=True),
        Outgoing(topic("hall", name, "birth"), encode(birth), retain=True),
    ]
    config = MqttConfig(host="127.0.0.1", port=port, username=f"hall/{name}", password_file=str(password))
    link: Link
    sequence = iter(range(1_000_000))

    def answer(_: object) -> None:
        link.store(topic("hall", name, "metrics"), encode(window(next(sequence))))

    link = Link(
        config,
        client_id=f"hall/{name}",
        subscriptions=(topic("_all", "_all", "rebirth"), topic("hall", "_all", "rebirth")),
        opening=lambda: Opening(first=first),
        on_message=answer,
    )
    link.start()
    assert until(lambda: link.state.connected)
    return link


@pytest.fixture
def options(peopled: int, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    password = tmp_path_factory.mktemp("secret") / "reader"
    password.write_text(SECRET)
    return ["fleet", "--port", str(peopled), "--username", "reader", "--password-file", str(password), "--for", "0.7"]


def test_the_verb_prints_the_fleet_as_a_table(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    living, dead = (next(line for line in lines if f"hall/{name}" in line) for name in ("cam-1", "cam-2"))
    assert "online" in living
    assert "ocr-detector" in living
    assert "61.5" in living
    assert "offline (stopped by" in dead
    assert "never" in dead
    assert "2 devices" in lines[-1]


def test_the_verb_prints_the_same_as_json_with_a_true_p99(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--json"]) == 0
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    living, dead = json.loads(captured.out)["devices"]
    assert (living["presence"], dead["presence"], dead["p99_ms"]) == ("online", "offline", None)
    assert living["latency"]["count"] >= 700
    assert living["p99_ms"] == pytest.approx(5.0 + 6.93, rel=0.03)
    assert "track" not in living


def test_watching_prints_one_line_of_json_each_time_until_interrupted(options: list[str]) -> None:
    command = [sys.executable, "-m", "edgekit.cli.main", *options, "--watch", "0.3", "--json"]
    verb = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert verb.stdout is not None
    turns = [json.loads(verb.stdout.readline()) for _ in range(3)]
    verb.send_signal(signal.SIGINT)
    _, talk = verb.communicate(timeout=60)
    assert verb.returncode == 130
    assert "Traceback" not in talk
    assert turns[0]["at_s"] < turns[1]["at_s"] < turns[2]["at_s"]


def test_a_dead_device_is_forgotten_and_a_living_one_is_not(
    options: list[str], broker: Broker, speaker: Link, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, alive = Status(state=State.OFFLINE, epoch=1), Status(state=State.ONLINE, epoch=1)
    for name, status in (("gone", dead), ("here", alive)):
        speaker.send(Outgoing(topic("yard", name, "status"), encode(status), retain=True))
    verb = ["fleet", "forget", "yard/gone", "yard/here", "--port", str(broker.port), "--for", "0.4"]
    assert main(verb) == 1
    captured = capsys.readouterr()
    assert captured.out == "yard/gone: forgotten\n"
    assert "yard/here reports still" in captured.err
    assert main(["fleet", "--port", str(broker.port), "--site", "yard", "--for", "0.4", "--json"]) == 0
    assert [d["device"] for d in json.loads(capsys.readouterr().out)["devices"]] == ["here"]
    for wrong in (["forget"], ["forget", "yard"], ["forget", "yard/#"], ["show", "yard/gone"]):
        assert main(["fleet", *wrong, "--port", str(broker.port)]) == 2


def test_an_empty_fleet_is_a_truthful_no(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--site", "nowhere", "--for", "0.2"]) == 1
    assert "no device was heard" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [[], ["--username", "reader", "--password-file", __file__]])
def test_a_broker_that_refuses_us_is_exit_4_and_one_line(
    peopled: int, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "--port", str(peopled), *extra]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "Not authorized" in lines[0]


def test_an_unreachable_broker_is_exit_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--port", "9"]) == 4
    assert "127.0.0.1:9: Connection refused" in capsys.readouterr().err


def test_times_that_make_no_sense_are_usage_errors() -> None:
    assert main(["fleet", "--for", "0"]) == 2
    assert main(["fleet", "--watch", "-1"]) == 2
