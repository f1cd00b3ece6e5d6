"""Mixed load on one daemon with reloads, lane changes, cache churn and a runtime that is killed; then: what has grown?

Ends with one line of JSON. `--minutes 30` is the promised length; shorter runs show the same leaks, less surely.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from edgekit.errors import RequestError, UnreachableError
from edgekit.serve.client import Client

CONFIGS = (
    'artifact = "standard"\n[model.tolerant]\nartifact = "int8"\n',
    'artifact = "int8"\nshadow = 0.2\n',
    'artifact = "int8"\nisolation = "process"\n',
    'artifact = "standard"\ncache = false\n',
)
HEAD = '[http]\nport = 0\n[cache]\nmb = 2\nttl_s = 5\n[health]\nfailures = 1000000\n[[model]]\nname = "digits"\n'


class Load:
    """Clients of three kinds until `stop`; whatever is neither an answer nor a deliberate refusal is a failure."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.answers = self.refusals = 0
        self.failures: list[str] = []
        self.is_hurting = False
        "A runtime is being killed: its own requests may fail."
        self._threads = [threading.Thread(target=self._work, args=(seed,)) for seed in range(3)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, seed: int) -> None:
        rng, client = random.Random(seed), Client(self._url)
        while not self._stop.is_set():
            x = np.full((1, 8, 8, 1), rng.randrange(40 if seed else 10_000) / 40, np.float32)
            how = rng.choice(({}, {"priority": "tolerant"}, {"deadline_ms": 500.0}, {"deadline_ms": 0.001}))
            try:
                client.infer("digits", {"image": x}, **how)
                self.answers += 1
            except (RequestError, UnreachableError) as error:
                if isinstance(error, RequestError) and (error.status == 503 or self.is_hurting):
                    self.refusals += 1
                else:
                    self.failures.append(str(error))
            if rng.random() < 0.01:
                client.close()  # connections come and go
            time.sleep(0.001)
        client.close()


def size(pid: int) -> tuple[float, int]:
    """(RSS in MiB, open descriptors)"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    rss = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
    return rss, len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    return [int(c) for task in Path(f"/proc/{pid}/task").glob("*/children") for c in task.read_text().split()]


def most_open(sizes: Sequence[tuple[float, float, int]]) -> int:
    """Descriptors; the most, since lanes in processes of their own, with three each, come and go."""
    return max(count for _, _, count in sizes)


def slope_of(points: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """(slope, its standard error) of the straight line through the means of ten stretches of `points`.

    Neighbouring sizes are not independent; the means of long stretches nearly are. (None, None) with fewer than 20.
    """
    if len(points) < 20:
        return None, None
    stretches = np.array([np.mean(part, axis=0) for part in np.array_split(np.array(points), 10)])
    (slope, _), covariance = np.polyfit(stretches[:, 0], stretches[:, 1], 1, cov=True)
    return round(float(slope), 2), round(float(np.sqrt(covariance[0, 0])), 2)


def soak(folder: Path, minutes: float, every_s: float) -> dict[str, object]:
    config = folder / "edgekit.toml"
    config.write_text(HEAD + CONFIGS[0])
    command = [sys.executable, "-m", "edgekit.cli.main", "run", "--config", str(config), "--json"]
    environ = os.environ | {"EDGEKIT_HOME": str(folder / "home")}
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ)
    assert daemon.stdout is not None
    load = Load(json.loads(daemon.stdout.readline())["url"])
    sizes: list[tuple[float, float, int]] = []
    reloads, began_s, end_s = 0, time.monotonic(), time.monotonic() + 60 * minutes
    while time.monotonic() < end_s and daemon.poll() is None:
        reloads += 1
        config.write_text(HEAD + CONFIGS[reloads % len(CONFIGS)])
        daemon.send_signal(signal.SIGHUP)
        time.sleep(every_s)
        workers = children(daemon.pid)
        if workers:
            load.is_hurting = True
            os.kill(workers[0], signal.SIGKILL)
            time.sleep(every_s)
            load.is_hurting = False
        if reloads % len(CONFIGS) == 0:
            sizes.append(((time.monotonic() - began_s) / 3600, *size(daemon.pid)))
    load.stop()
    daemon.terminate()
    code = daemon.wait(30)
    late = sizes[len(sizes) // 4 :]  # the first quarter warms up
    half = len(late) // 2
    slope, error = slope_of([(hours, rss) for hours, rss, _ in late])
    return {
        "minutes": minutes,
        "answers": load.answers,
        "deliberate_refusals": load.refusals,
        "failures": len(load.failures),
        "first_failures": load.failures[:3],
        "reloads": reloads,
        "rss_mib": round(median(rss for _, rss, _ in late), 1) if late else None,
        "rss_slope_mib_per_hour": slope,
        "rss_slope_error": error,
        "descriptors_grown": most_open(late[half:]) - most_open(late[:half]) if half else None,
        "exit_code": code,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every-s", type=float, default=1.0, help="between reloads")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-serve-") as name:
        figures = soak(Path(name), args.minutes, args.every_s)
    print(json.dumps(figures))
    return 0 if figures["failures"] == 0 and figures["exit_code"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
