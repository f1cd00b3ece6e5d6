"""kill -9 for device processes, broker and collector at random: what an outbox accepted is in the collector, once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from edgekit.collect.store import Store
from edgekit.telemetry.broker import Broker, find_mosquitto, start_broker
from edgekit.telemetry.outbox_file import OutboxFile
from tests.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]
KILLS = int(os.environ.get("EDGEKIT_KILLS", "20"))
"""`make soak` sets 200."""

DEVICE = """
import sys, time
from pathlib import Path
from edgekit.config import MqttConfig
from edgekit.telemetry.messages import Birth, Readings
from edgekit.telemetry.reporter import Recorder, Reporter
recorder = Recorder()
reporter = Reporter(
    MqttConfig(host="127.0.0.1", port=int(sys.argv[1]), window_s=0.1, commit_s=0.02, keepalive_s=2, collector=True,
               history_per_s=200.0),
    site="hall", device=sys.argv[2], state_folder=Path(sys.argv[3]), readings=Readings, recorder=recorder,
    birth=lambda e: Birth(epoch=e, t_unix_ms=0, board="Pi 5"))
reporter.start()
while True:
    recorder.observe(model="m", lane="realtime", artifact="a", infer_ms=1.0)
    time.sleep(0.02)
"""


class Rig:
    """Two devices, a broker and a collector, each of which may die at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.deaths = folder, 0
        self.broker: Broker = start_broker(folder / "broker", kind="mosquitto")
        self.accepted: set[tuple[str, int, int]] = set()
        self.processes = {name: self._start(name) for name in ("cam-1", "cam-2", "collector")}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        if name == "collector":
            options = ["--port", str(self.broker.port), "--data", str(self.folder / "h.db"), "--commit-ms", "50"]
            command = [sys.executable, "-m", "edgekit.cli.main", "collect", *options]
        else:
            command = [sys.executable, "-c", DEVICE, str(self.broker.port), name, str(self.folder / name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def assert_all_live(self) -> None:
        """Nobody ended but by our hand."""
        for name, process in self.processes.items():
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-2000:]

    def kill(self, name: str) -> None:
        if name == "broker":
            children = ["pgrep", "-P", str(self.broker.process.pid)]
            pid = int(subprocess.run(children, capture_output=True, text=True, check=True).stdout)
            os.kill(pid, signal.SIGKILL)
            self.broker.process.wait()
            self.broker.stop()
            self.broker = start_broker(self.folder / "broker", kind="mosquitto", port=self.broker.port)
            return
        self.processes[name].kill()
        self.processes[name].wait()
        if name != "collector":
            self.note_accepted(name)
            self.deaths += 1
            if self.deaths % 4 == 0:  # with its epoch it would lose windows, if a repeated one could pass for known
                (self.folder / name / "epoch.json").unlink(missing_ok=True)
        self.processes[name] = self._start(name)

    def note_accepted(self, name: str) -> int:
        """What the outbox of a dead device holds; how many windows."""
        if not (self.folder / name / "outbox.db").exists():
            return 0  # it died before it had begun
        look = self.folder / "look"
        shutil.rmtree(look, ignore_errors=True)
        shutil.copytree(self.folder / name, look)
        file = OutboxFile(look / "outbox.db")
        found = [item.window for item in file.read(-(2**62), 2**62, 100_000) if item.window]
        file.close()
        self.accepted |= {(name, *window) for window in found}
        return len(found)

    def waiting(self) -> int:
        """Windows left when both devices are stopped now; they are started again."""
        left = 0
        for name in ("cam-1", "cam-2"):
            self.processes[name].kill()
            self.processes[name].wait()
            left += self.note_accepted(name)
        return left

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.broker.stop()


def test_what_an_outbox_accepted_is_in_the_collector_exactly_once(tmp_path: Path) -> None:
    dice = random.Random(7)
    rig = Rig(tmp_path)
    try:
        assert until(lambda: all((tmp_path / name / "outbox.db").exists() for name in ("cam-1", "cam-2")), 60.0)
        for turn in range(KILLS):
            rig.kill(("broker", "cam-1", "collector", "cam-2")[turn % 4] if turn < 4 else dice.choice(VICTIMS))
            time.sleep(dice.uniform(0.1, 0.5))
        # Everyone lives on until both outboxes of a killed pair turn out to hold only what came in the last moment.
        for patience_s in (3.0, 6.0, 12.0, 24.0):
            time.sleep(patience_s)
            rig.assert_all_live()
            rig.waiting()
            stored = stored_windows(tmp_path / "h.db")
            missing = rig.accepted - stored.keys()
            if not missing:
                break
            for name in ("cam-1", "cam-2"):
                rig.processes[name] = rig._start(name)
    finally:
        rig.close()
    print(f"{KILLS} kills, {len(rig.accepted)} windows accepted, {len(missing)} lost, {len(stored)} stored")
    assert len(rig.accepted) > KILLS
    assert not missing
    assert max(stored.values()) == 1


VICTIMS = ("broker", "cam-1", "cam-2", "collector")


def stored_windows(path: Path) -> Counter[tuple[str, int, int]]:
    look = path.parent / "look.db"
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{look}{suffix}")
    store = Store(look)
    found = Counter((store.names[w.device][1], w.epoch, w.seq) for w in store.windows())
    store.close()
    return found
