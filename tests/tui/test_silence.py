"""What the console costs while nothing happens, in the real program: nothing else may run beside this."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from edgekit.telemetry.messages import State
from tests.tui import simulated
from tests.tui.live import Mosquitto, Terminal, a_broker, a_terminal, wait_for

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on the PATH"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not on the PATH"),
]


def test_ten_silent_devices_cost_next_to_nothing(tmp_path: Path) -> None:
    with a_broker() as broker, a_terminal(broker, tmp_path) as terminal:
        check_silence(broker, terminal)


def check_silence(broker: Mosquitto, terminal: Terminal) -> None:
    now = time.time()
    devices = [(site, device) for site, device, *_ in simulated.FLEET[:10]]
    broker.publish(*(simulated.birth(*device, now) for device in devices))
    broker.publish(*(simulated.status(*device, State.ONLINE, now) for device in devices))
    terminal.shows("10 devices")
    pid = terminal.console_pid()
    time.sleep(1.5)
    before, started = cpu_s(pid), time.monotonic()
    time.sleep(3)
    share = (cpu_s(pid) - before) / (time.monotonic() - started)
    assert share <= 0.02, f"{share:.1%} of a core while nothing happens"
    os.kill(pid, signal.SIGTERM)
    wait_for(terminal.exit_file.exists, "the console to leave on SIGTERM", terminal.screen)
    wait_for(terminal.exit_file.read_text, "its exit code")
    assert terminal.exit_file.read_text().strip() == "0"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
