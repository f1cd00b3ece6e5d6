"""The real program over a real broker: in a terminal that a person could sit at, and without one."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from edgekit.telemetry.messages import Command, Reply, encode, topic
from tests.tui import simulated
from tests.tui.live import CONSOLE, Mosquitto, Terminal, a_broker, a_terminal, lived_until_now, wait_for

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on the PATH"),
]
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not on the PATH")


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with a_broker() as started:
        yield started


@pytest.fixture
def terminal(broker: Mosquitto, tmp_path: Path) -> Iterator[Terminal]:
    with a_terminal(broker, tmp_path) as started:
        yield started


@needs_tmux
def test_the_console_from_start_to_quit(broker: Mosquitto, terminal: Terminal) -> None:
    terminal.shows("no devices yet", "edgekit run")
    broker.publish(*lived_until_now())
    terminal.shows("12 devices", "gate-north", "line-2-cam", "✖ offline", "ready after 4.1 s")
    terminal.press("/")
    terminal.press("board:orin")
    terminal.shows("5 of 14")
    terminal.press("Escape")
    terminal.shows("mail-scan")
    terminal.press("d", "d", "g", "Enter")
    terminal.shows("lab › bench-coral", "connection lost", "selection")
    terminal.press("Escape")
    terminal.shows("models on devices")
    terminal.press("?")
    terminal.shows("sort by", "662")
    terminal.press("Escape")
    broker.stop()
    terminal.shows("reconnecting…")
    broker.start()
    terminal.shows("● connected")
    terminal.tmux("resize-window", "-t", "t", "-x", "10", "-y", "3")
    terminal.tmux("resize-window", "-t", "t", "-x", "80", "-y", "24")
    terminal.shows("gate-north", "edgekit")
    terminal.press("q")
    wait_for(terminal.exit_file.exists, "the console to end", terminal.screen)
    wait_for(terminal.exit_file.read_text, "its exit code")
    assert terminal.exit_file.read_text().strip() == "0"


@needs_tmux
def test_a_real_device_answers_a_command_once(broker: Mosquitto, terminal: Terminal) -> None:
    device = Client(CallbackAPIVersion.VERSION2)
    asked: list[Command] = []

    def answer(client: Client, _data: object, message: MQTTMessage) -> None:
        command = msgspec.json.decode(message.payload, type=Command)
        asked.append(command)
        client.publish(
            topic("berlin", "gate-north", "reply"), encode(Reply(id=command.id, ok=True, text="pong")), qos=1
        )

    device.on_message = answer
    device.connect("127.0.0.1", broker.port)
    device.subscribe(topic("berlin", "gate-north", "command"), qos=1)
    device.loop_start()
    broker.publish(*lived_until_now(3))
    terminal.shows("gate-north")
    terminal.press(":")
    terminal.press("device gate-north", "Enter")
    terminal.shows("berlin › gate-north")
    terminal.press("P")
    terminal.shows("'ping' will be sent once to 1 device", "berlin/gate-north")
    assert asked == []
    terminal.press("y", "y")
    terminal.shows("1/1", "1 ok", "pong")
    assert [command.verb for command in asked] == ["ping"]
    device.disconnect()
    device.loop_stop()


@needs_tmux
def test_a_broker_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    broker = Mosquitto()
    terminal = Terminal(tmp_path, "--screen", "devices", "--port", str(broker.port), "--ascii", size="80x24")
    try:
        terminal.shows(f"connecting to broker 127.0.0.1:{broker.port}", "edgekit broker")
        assert terminal.screen().isascii()
        broker.start()
        terminal.shows("no devices yet")
        broker.publish(*lived_until_now(2))
        terminal.shows("gate-north", "12 dev")
        assert terminal.screen().isascii()
        pid = terminal.console_pid()
        terminal.close()
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the console to end with its terminal")
    finally:
        terminal.close()
        broker.stop()


def test_once_prints_the_table_and_json(broker: Mosquitto) -> None:
    ask = [*CONSOLE, "--port", str(broker.port), "--once", "--wait", "5"]
    reader = subprocess.Popen([*ask, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    broker.publish(*lived_until_now(12))
    out, err = reader.communicate(timeout=30)
    assert reader.returncode == 0, err
    value = json.loads(out)
    assert value["totals"]["devices"] == 12
    assert {row["device"] for row in value["rows"]} == {device for _, device, *_ in simulated.FLEET}
    again = subprocess.run([*ask[:-1], "1"], capture_output=True, text=True, timeout=30)
    assert again.returncode == 0, again.stderr
    assert "ocr-detector" in again.stdout, "births are retained: the models are known without a window"


def test_a_snapshot_of_an_empty_broker_is_a_truthful_no(broker: Mosquitto, tmp_path: Path) -> None:
    path = tmp_path / "empty.svg"
    ask = [*CONSOLE, "--port", str(broker.port), "--snapshot", str(path), "--wait", "1", "--size", "100x30"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done.stderr
    assert "no device was heard within 1 s" in done.stderr
    assert "no devices yet" in "".join(ET.parse(path).getroot().itertext()).replace("\xa0", " ")
