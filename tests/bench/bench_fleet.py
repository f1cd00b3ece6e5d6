"""bench-fleet: many simulated devices, a broker and a collector on this machine; then the collector's ceiling.

Prints a table and, as its last line, JSON: devices, windows, lost, duplicated, p99_ms, collector_cores, collector_mib,
ceiling_windows_s, record_us (a sample into a histogram), record_two_locked_us (a request into the daemon's recorder,
two samples and a lock). Lost and duplicated are counted window by window, by device, epoch and sequence number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import timeit
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.collect.store import Store
from edgekit.telemetry.broker import Broker, start_broker
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.recorder import Recorder

EDGEKIT = (sys.executable, "-m", "edgekit.cli.main")


class Collecting:
    """`edgekit collect` as a process, and what it cost."""

    def __init__(self, broker: Broker, data: Path) -> None:
        command = [*EDGEKIT, "collect", "--port", str(broker.port), "--data", str(data), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        while "connected" not in (line := self.process.stderr.readline()):
            if not line:
                raise SystemExit("the collector ended")
        self._began_s, self._cpu_s = time.monotonic(), self.cpu_s()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cores(self) -> float:
        """Of CPU since it connected, on average."""
        return (self.cpu_s() - self._cpu_s) / (time.monotonic() - self._began_s)

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        answer, talk = self.process.communicate(timeout=120)
        if self.process.returncode:
            raise SystemExit(talk)
        return dict(json.loads(answer))


def sim(broker: Broker, *options: str) -> dict[str, Any]:
    """Run `edgekit sim` to its end; a truthful no (something not acknowledged) is part of the result."""
    command = [*EDGEKIT, "sim", "--port", str(broker.port), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the simulator ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def compare(data: Path, made: Path) -> tuple[int, int, int]:
    """Windows made, lost and stored twice, by device, epoch and sequence number."""
    store = Store(data)
    stored = Counter((*store.names[w.device], w.epoch, w.seq) for w in store.windows())
    store.close()
    wanted = {
        (*name.split("/"), int(epoch), seq)
        for name, epochs in json.loads(made.read_text()).items()
        for epoch, count in epochs.items()
        for seq in range(count)
    }
    return len(wanted), len(wanted - stored.keys()), sum(stored.values()) - len(stored)


def record_us() -> tuple[float, float]:
    """Microseconds a sample, batches sorted in included: into a histogram, and through the daemon's recorder."""
    samples = np.random.default_rng(0).gamma(2.0, 3.0, 100_000).tolist()

    def histogram() -> None:
        record = HistogramBuilder().record
        for value in samples:
            record(value)

    def recorder() -> None:
        observe = Recorder().observe
        for value in samples:
            observe(model="m", lane="realtime", artifact="a", infer_ms=value, queue_ms=0.1)

    histogram_s, recorder_s = (min(timeit.repeat(work, number=1, repeat=5)) for work in (histogram, recorder))
    return histogram_s / len(samples) * 1e6, recorder_s / len(samples) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--flood-seconds", type=float, default=15.0)
    parser.add_argument("--flood-rate", type=float, default=12_000.0, help="windows a second offered to the ceiling")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, start_broker(Path(name) / "broker") as broker:
        folder = Path(name)
        collecting = Collecting(broker, folder / "history.db")
        options = ("--devices", str(args.devices), "--for", str(args.seconds), "--window", str(args.window))
        result = sim(broker, *options, "--made", str(folder / "made.json"), "--sites", "10")
        cores, mib = collecting.cores(), collecting.peak_mib()
        counts = collecting.stop()
        windows, lost, duplicated = compare(folder / "history.db", folder / "made.json")

        collecting = Collecting(broker, folder / "flood.db")
        rate = ("--cheap", str(args.flood_rate), "--for", str(args.flood_seconds))
        flooded = sim(broker, "--devices", str(args.devices), *rate)
        time.sleep(3.0)  # for what is on its way
        took = collecting.stop()
        ceiling = took["windows"] / flooded["seconds"]
    histogram_us, recorder_us = record_us()
    line = {
        "devices": result["devices"],
        "windows": windows,
        "lost": lost,
        "duplicated": duplicated,
        "p99_ms": counts["delay_p99_ms"] and round(counts["delay_p99_ms"], 1),
        "collector_cores": round(cores, 3),
        "collector_mib": round(mib, 1),
        "ceiling_windows_s": round(ceiling),
        "record_us": round(histogram_us, 2),
        "record_two_locked_us": round(recorder_us, 2),
    }
    print(f"{result['connections']} connections, {result['waiting']} messages not acknowledged at the end")
    print(f"of {flooded['windows']} offered at {args.flood_rate:.0f}/s the collector took {took['windows']}")
    for key, value in line.items():
        print(f"{key:20} {value}")
    print(json.dumps(line))
    return 0 if not lost and not duplicated else 1


if __name__ == "__main__":
    sys.exit(main())
