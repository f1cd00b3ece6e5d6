"""The real program over a real broker, driven in a terminal that a person could sit at."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from edgekit.telemetry.messages import Received
from tests.tui import simulated

CONSOLE = [sys.executable, "-m", "edgekit_tui.main"]


class Mosquitto:
    """A broker on a port of its own, open to this machine alone."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["mosquitto", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.answers, "mosquitto to listen")

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def publish(self, *messages: Received) -> None:
        """As the devices would: what they say of themselves is retained."""
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        for one in messages:
            retain = one.topic.endswith(("/status", "/birth"))
            client.publish(one.topic, one.payload, qos=1, retain=retain).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()


class Terminal:
    """A tmux session of its own server, running the console."""

    def __init__(self, folder: Path, *options: str, size: str = "120x40") -> None:
        self.socket, self.exit_file = str(folder / "tmux"), folder / "exit"
        width, height = size.split("x")
        line = f"{' '.join(CONSOLE)} {' '.join(options)}; echo $? > {self.exit_file}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", width, "-y", height, "sh", "-c", line)

    def tmux(self, *args: str) -> str:
        # pytest loads readline, which exports LINES and COLUMNS behind Python's back and to the workers of xdist
        env = {key: value for key, value in os.environ.items() if key not in ("LINES", "COLUMNS")}
        command = ["tmux", "-S", self.socket, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, env=env).stdout

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "t")

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", "t", *keys)

    def shows(self, *words: str) -> None:
        """Wait until all words stand on the screen."""
        wait_for(lambda: all(word in self.screen() for word in words), f"{words} on the screen", self.screen)

    def console_pid(self) -> int:
        pane = self.tmux("list-panes", "-F", "#{pane_pid}").strip()
        return int(Path(f"/proc/{pane}/task/{pane}/children").read_text().split()[0])

    def close(self) -> None:
        self.tmux("kill-server")


def wait_for(true: object, what: str, tell: object = lambda: "", *, within_s: float = 20) -> None:
    until = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until, f"waited {within_s:g} s for {what}:\n{tell()}"  # type: ignore[operator]
        time.sleep(0.1)


@contextmanager
def a_broker() -> Iterator[Mosquitto]:
    """A running mosquitto."""
    mosquitto = Mosquitto()
    mosquitto.start()
    try:
        yield mosquitto
    finally:
        mosquitto.stop()


@contextmanager
def a_terminal(broker: Mosquitto, folder: Path) -> Iterator[Terminal]:
    """The console's devices in a terminal of 120 x 40."""
    started = Terminal(folder, "--screen", "devices", "--port", str(broker.port))
    try:
        yield started
    finally:
        started.close()


def lived_until_now(windows: int = 12) -> list[Received]:
    return [message for batch in simulated.life(time.time(), windows=windows) for message in batch]
