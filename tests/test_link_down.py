"""A device in a network namespace of its own whose link goes down: the cable is cut, not the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.collect.collector import Collector
from edgekit.collect.store import Store
from edgekit.config import MqttConfig
from edgekit.fleet import Fleet, Presence, fold
from edgekit.telemetry.access import Role, User
from edgekit.telemetry.broker import find_mosquitto, start_broker
from edgekit.telemetry.keepalive import PROMISED_RATIO
from edgekit.telemetry.watch import Watcher
from tests.network import QUICK
from tests.waiting import until

DOWN_S = float(os.environ.get("EDGEKIT_LINK_DOWN_S", "0"))
"""`make soak` adds minutes to the cut."""
KEEPALIVE_S = 15
"""As devices have it when nobody sets anything."""
HERE, THERE = "198.18.77.1", "198.18.77.2"
"""Of a range for tests of networks (RFC 2544)."""
USERS = [
    User(name="hall/cam-1", role=Role.DEVICE, password="device"),
    User(name="reader", role=Role.READER, password="reader"),
    User(name="collector", role=Role.COLLECTOR, password="collector"),
]
DEVICE = """
import signal, sys, threading
from pathlib import Path
from edgekit.config import MqttConfig
from edgekit.telemetry.messages import Birth, Readings
from edgekit.telemetry.reporter import Recorder, Reporter
host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
sys.stdin.readline()  # the network is there
reporter = Reporter(
    MqttConfig(host=host, port=port, username="hall/cam-1", password_file=str(folder / "device"), window_s=0.2,
               commit_s=0.1, collector=True, history_per_s=500.0),
    site="hall", device="cam-1", state_folder=folder / "cam-1", readings=Readings, recorder=Recorder(),
    birth=lambda e: Birth(epoch=e, t_unix_ms=0, board="Pi 5", window_ms=200))
log, store = (folder / "stored").open("w"), reporter._link.store
def note(topic, payload, *, window=None):
    if window is not None:
        print(*window, file=log, flush=True)
    store(topic, payload, window=window)
reporter._link.store = note
leave = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leave.set())
reporter.start()
leave.wait()
sys.exit(0 if reporter.stop("done", timeout_s=10.0) else 1)
"""


def can_make_namespaces() -> bool:
    tools = all(map(shutil.which, ("ip", "unshare", "nsenter")))
    return tools and os.geteuid() == 0 and subprocess.run(["unshare", "-n", "true"], check=False).returncode == 0


pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(not can_make_namespaces(), reason="elsewhere: where root may make network namespaces"),
]


@pytest.fixture
def device_on_a_cable(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in a network of its own, and a pair of interfaces between it and us."""
    (tmp_path / "device").write_text("device\n")
    command = ["unshare", "-n", sys.executable, "-c", DEVICE, HERE, "18830", str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    inside = ["nsenter", "-t", str(process.pid), "-n"]
    own = os.readlink("/proc/self/ns/net")
    assert until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != own)
    for words in (
        ["ip", "link", "add", "ek-here", "type", "veth", "peer", "name", "ek-there", "netns", str(process.pid)],
        ["ip", "addr", "add", f"{HERE}/30", "dev", "ek-here"],
        ["ip", "link", "set", "ek-here", "up"],
        [*inside, "ip", "addr", "add", f"{THERE}/30", "dev", "ek-there"],
        [*inside, "ip", "link", "set", "ek-there", "up"],
    ):
        subprocess.run(words, check=True)
    yield process
    process.kill()
    process.communicate()
    subprocess.run(["ip", "link", "del", "ek-here"], check=False, capture_output=True)


def test_a_cut_cable_is_seen_within_one_and_a_half_keepalives_and_costs_no_window(
    device_on_a_cable: subprocess.Popen[str], tmp_path: Path
) -> None:
    with start_broker(tmp_path / "broker", host=HERE, port=18830, users=USERS):
        settings = {}
        for role in ("reader", "collector"):
            (tmp_path / role).write_text(role)
            settings[role] = MqttConfig(host=HERE, port=18830, username=role, password_file=str(tmp_path / role))
        collector = Collector(settings["collector"], tmp_path / "h.db", commit_s=0.05, back_off=QUICK)
        thread = threading.Thread(target=collector.run, daemon=True)
        thread.start()
        watcher, fleet = Watcher(settings["reader"], back_off=QUICK), Fleet()
        watcher.start()

        def presence() -> Presence | None:
            nonlocal fleet
            fleet = fold(fleet, watcher.drain(), now_s=time.time())
            found = fleet.devices.get(("hall", "cam-1"))
            return found.presence if found else None

        assert device_on_a_cable.stdin is not None
        device_on_a_cable.stdin.write("go\n")
        device_on_a_cable.stdin.flush()
        assert until(lambda: presence() is Presence.ONLINE, 20.0)
        subprocess.run(["ip", "link", "set", "ek-here", "down"], check=True)
        cut_s = time.monotonic()
        assert until(lambda: presence() is Presence.OFFLINE, PROMISED_RATIO * KEEPALIVE_S), presence()
        print(f"offline {time.monotonic() - cut_s:.1f} s after the cut; keep-alive {KEEPALIVE_S} s")
        time.sleep(DOWN_S)
        subprocess.run(["ip", "link", "set", "ek-here", "up"], check=True)
        assert until(lambda: presence() is Presence.ONLINE, 70.0), presence()
        device_on_a_cable.terminate()
        assert device_on_a_cable.wait(20.0) == 0
        stored = {tuple(map(int, line.split())) for line in (tmp_path / "stored").read_text().splitlines()}
        assert until(lambda: collector.view()[2]["windows"] >= len(stored))
        collector.stop()
        thread.join()
        watcher.stop()
    store = Store(tmp_path / "h.db")
    found = Counter((w.epoch, w.seq) for w in store.windows())
    store.close()
    assert len(stored) > 50
    assert found.keys() == stored
    assert set(found.values()) == {1}
