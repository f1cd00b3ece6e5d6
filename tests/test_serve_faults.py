"""What happens to a device in the field, done to a daemon: its clock jumps, its disk fills up, its broker is away."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import RequestError, UnreachableError
from edgekit.serve.client import Client
from tests.waiting import until

pytest.importorskip("onnxruntime", reason="the artifact that is served runs in onnxruntime")
pytest.importorskip("httptools", reason="the daemon's HTTP")

IMAGE = {"image": np.zeros((1, 8, 8, 1), np.float32)}
DIGITS = '[[model]]\nname = "digits"\nartifact = "standard"\nthreads = 1\n'
YEARS_S = 3e8


class Run:
    """`edgekit run`, its wall clock shifted by what a file says."""

    def __init__(self, folder: Path, config: str) -> None:
        self.shift, self._said = folder / "shift", ""
        self.set_clock(0.0)
        path = folder / "edgekit.toml"
        path.write_text(f'device = "unit"\n[http]\nport = 0\n{config}')
        script = (
            "import sys, time\n"
            "real, ns = time.time, time.time_ns\n"
            f"shift = lambda: float(open({str(self.shift)!r}).read())\n"
            "time.time = lambda: real() + shift()\n"
            "time.time_ns = lambda: ns() + int(shift() * 1e9)\n"
            "from edgekit.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, "run", "--config", str(path), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # not a file: the full disk is for what is the daemon's
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(folder / "home")},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said()
        self.client = Client(json.loads(line)["url"])

    def set_clock(self, ahead_s: float) -> None:
        part = self.shift.with_suffix(".part")
        part.write_text(str(ahead_s))
        part.replace(self.shift)

    def fill_disk(self) -> None:
        """From now on no file of the daemon's grows: every write fails, as on a full disk."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def said(self) -> str:
        return self._said

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said += line

    def answers(self) -> bool:
        return self.client.infer("digits", IMAGE)[0]["logits"].shape == (1, 10)

    def worker(self) -> int | None:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return next((int(child) for task in tasks for child in task.read_text().split()), None)

    def stop(self) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(30)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    runs: list[Run] = []

    def begin(config: str) -> Run:
        runs.append(Run(tmp_path, config))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that is taken and that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: the worker is found in Linux's /proc")
def test_a_clock_that_jumps_years_ahead_and_back_disturbs_nothing(start):
    run = start(
        "[cache]\nmb = 1\nttl_s = 60\n[health]\nfailures = 100\nprobe_s = 1\n" + DIGITS + 'isolation = "process"\n'
    )
    assert run.answers()
    for ahead_s in (YEARS_S, -YEARS_S, 0.0):
        run.set_clock(ahead_s)
        assert run.client.infer("digits", IMAGE)[1]["cached"], "kept by a clock that does not jump"
        with contextlib.suppress(RequestError):  # its own request may fail
            os.kill(run.worker(), signal.SIGKILL)
            run.client.infer("digits", IMAGE, no_cache=True)
        assert until(lambda: run.client.infer("digits", IMAGE, no_cache=True)[1]["artifact"])
        assert run.client._ask("GET", "/v2/health/live")[0] == 200
    assert run.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: the limit is set from outside by prlimit")
def test_a_full_disk_and_a_broker_that_is_away_cost_no_answer(start, nobody):
    run = start(
        f'[mqtt]\nhost = "127.0.0.1"\nport = {nobody}\nwindow_s = 0.2\ncommit_s = 0.2\n'
        f'[health]\nfailures = 100\n{DIGITS}isolation = "thread"\n'
    )
    assert run.answers()
    run.fill_disk()
    stop = threading.Event()
    failures: list[str] = []

    def load() -> None:
        with Client(run.client.url) as client:
            while not stop.wait(0.005):
                try:
                    client.infer("digits", IMAGE)
                except (RequestError, UnreachableError) as error:
                    failures.append(str(error))

    asking = threading.Thread(target=load)
    asking.start()
    time.sleep(1.5)  # several windows want to be written
    run.process.send_signal(signal.SIGHUP)  # and the configuration is read again
    assert until(lambda: "reloaded: serving digits" in run.said())
    run.free_disk()
    time.sleep(0.5)
    stop.set()
    asking.join()
    assert failures == []
    assert run.answers()
    assert run.process.poll() is None
    assert "Traceback" not in run.said()
    assert run.stop() == 0
