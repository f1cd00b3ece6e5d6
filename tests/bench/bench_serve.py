"""What the daemon adds to a bare `session.run` of the same artifact: all sides interleaved in one run.

The client is a raw keep-alive socket, so that its own cost is a few system calls. Plain JSON tensors against the same
daemon stand for what a server without the binary extension costs. Ends with one line of JSON; null: not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from edgekit.catalog import load_model
from edgekit.config import home
from edgekit.errors import FetchError
from edgekit.fetch import standard_artifact
from edgekit.runtimes.session import SessionSettings, open_session
from onnx import TensorProto, helper

FIELDS = (
    "overhead_ms_100kb", "overhead_ms_1200kb", "overhead_ms_shm", "peer_overhead_ms_100kb", "batching_gain",
    "peer_throughput_ratio", "realtime_p99_ratio", "idle_cores", "rss_extra_mib",
)  # fmt: skip
DETECTOR_SHAPE = (1, 3, 320, 320)
THREADS = 1
"""Each: the client and the daemon need a core each on the two that this is run on."""


@dataclass
class Job:
    """One model with one input, and the times of its sides in ms."""

    model: str
    path: Path
    shape: tuple[int, ...]
    bare_ms: list[float] = field(default_factory=list)
    binary_ms: list[float] = field(default_factory=list)
    json_ms: list[float] = field(default_factory=list)
    json_bare_ms: list[float] = field(default_factory=list)
    "Of the rounds in which JSON had a turn too."

    @property
    def input_kb(self) -> float:
        return math.prod(self.shape) * 4 / 1000


class RawClient:
    """Requests as bytes made beforehand, answers counted and not decoded."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(8 << 20)

    def ask(self, request: bytes) -> float:
        """The time from the first byte sent to the last received, in ms."""
        view, held, needed = memoryview(self._buffer), 0, None
        began = time.perf_counter()
        self._socket.sendall(request)
        while needed is None or held < needed:
            held += self._socket.recv_into(view[held:])
            if needed is None and (end := self._buffer.find(b"\r\n\r\n", 0, held)) >= 0:
                head = bytes(self._buffer[:end]).lower()
                needed = end + 4 + int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        took = (time.perf_counter() - began) * 1e3
        assert self._buffer[9:12] == b"200", bytes(self._buffer[:held])[:500]
        return took


def request_of(job: Job, x: np.ndarray, *, as_json: bool) -> bytes:
    tensor: dict = {"name": "x", "shape": x.shape, "datatype": "FP32"}
    if as_json:
        body = json.dumps({"inputs": [tensor | {"data": x.ravel().tolist()}]}).encode()
        extra = ""
    else:
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body = head + x.tobytes()
        extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    lines = f"POST /v2/models/{job.model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return lines.encode() + body


def write_tiny(path: Path, count: int) -> None:
    """The maximum of `count` floats: the cheapest inference that reads its whole input."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, count])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)
    model = helper.make_model(
        helper.make_graph([node], "tiny", [x], [y]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    onnx.save(model, path)


def make_jobs(folder: Path, *, only_tiny: bool) -> list[Job]:
    jobs = []
    for name, count in (("tiny-100kb", 25_600), ("tiny-1200kb", 300_000)):
        write_tiny(folder / f"{name}.onnx", count)
        jobs.append(Job(model=name, path=folder / f"{name}.onnx", shape=(1, count)))
    if only_tiny:
        return jobs
    try:
        path = standard_artifact(load_model("ocr-detector"), home()).path
    except FetchError as e:
        print(f"left out: the real model cannot be fetched here: {e}", file=sys.stderr)
        return jobs
    jobs.append(Job(model="ocr-detector", path=path, shape=DETECTOR_SHAPE))
    return jobs


def start_daemon(folder: Path, jobs: Sequence[Job]) -> tuple[subprocess.Popen[str], int]:
    """The daemon and its port, once it is ready."""
    tables = [
        f'[[model]]\nname = "{job.path if job.model.startswith("tiny") else job.model}"\n'
        f'artifact = "standard"\nthreads = {THREADS}\n'
        + ("axes = {side = 320}\n" if job.model == "ocr-detector" else "")
        for job in jobs
    ]
    config = folder / "edgekit.toml"
    config.write_text("[http]\nport = 0\n" + "".join(tables))
    command = [sys.executable, "-m", "edgekit.cli.main", "run", "--config", str(config), "--json"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    line = daemon.stdout.readline()
    if not line:
        raise SystemExit("the daemon did not start; its words are above")
    return daemon, int(json.loads(line)["url"].rpartition(":")[2])


def measure(job: Job, client: RawClient, settings: SessionSettings, *, rounds: int, json_every: int) -> None:
    """The sides take turns, so that what else happens on the machine happens to all of them."""
    session = open_session(job.path, settings)
    x = np.random.default_rng(0).random(job.shape, np.float32)
    binary, plain = (request_of(job, x, as_json=as_json) for as_json in (False, True))
    for i in range(-5, rounds):  # five untimed
        took = client.ask(binary)
        began = time.perf_counter()
        session.run({"x": x})
        bare = (time.perf_counter() - began) * 1e3
        if i < 0:
            continue
        job.binary_ms.append(took)
        job.bare_ms.append(bare)
        if i % json_every == 0:
            job.json_ms.append(client.ask(plain))
            job.json_bare_ms.append(bare)
    session.close()


def settings_of(job: Job) -> SessionSettings:
    """As the daemon opens it: the same threads, every axis fixed."""
    return SessionSettings(threads=THREADS, axes={f"x[{i}]": size for i, size in enumerate(job.shape)})


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def bare_rss_mib(jobs: Sequence[Job]) -> float:
    """Of a process that holds the same sessions and has run each, and nothing else of edgekit's."""
    script = (
        "import onnxruntime as ort, numpy as np, sys, re\n"
        "kept = []\n"
        "for path, shape in zip(sys.argv[1::2], sys.argv[2::2]):\n"
        "    o = ort.SessionOptions(); o.intra_op_num_threads = 1\n"
        "    s = ort.InferenceSession(path, o, providers=['CPUExecutionProvider']); kept.append(s)\n"
        "    x = np.ones([int(n) for n in shape.split(',')], np.float32)\n"
        "    for _ in range(10): s.run(None, {'x': x})\n"
        "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))\n"
    )
    words = [word for job in jobs for word in (str(job.path), ",".join(map(str, job.shape)))]
    return int(subprocess.check_output([sys.executable, "-c", script, *words], text=True)) / 1024


def cpu_s(pid: int) -> float:
    """Of all its threads, to the nanosecond. Source: kernel sched-stats, first field of schedstat."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def idle_cores(pid: int, seconds: float) -> float:
    began_s, before_s = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


def overhead_ms(served_ms: Sequence[float], bare_ms: Sequence[float]) -> float:
    """The median of the differences within a round: what disturbs both sides of a round cancels out."""
    return median(served - bare for served, bare in zip(served_ms, bare_ms, strict=True))


def print_table(jobs: Sequence[Job]) -> None:
    columns = ("bare", "binary", "overhead", "p90", "JSON", "overhead")
    print("\n" + f"{'median of one keep-alive client, ms':<38}" + "".join(f"{name:>10}" for name in columns))
    for job in jobs:
        p90 = sorted(job.binary_ms)[math.ceil(0.9 * len(job.binary_ms)) - 1]
        label = f"{job.model}, {job.input_kb:,.0f} kB in, n = {len(job.binary_ms)}"
        over, json_over = overhead_ms(job.binary_ms, job.bare_ms), overhead_ms(job.json_ms, job.json_bare_ms)
        figures = (median(job.bare_ms), median(job.binary_ms), over, p90, median(job.json_ms), json_over)
        print(f"{label:<38}" + "".join(f"{figure:>10.3f}" for figure in figures))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=600, help="requests a tiny model; a tenth of it for the real one")
    parser.add_argument("--idle-s", type=float, default=5.0, help="how long the idle daemon is watched")
    parser.add_argument("--tiny", action="store_true", help="leave the real model out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as name:
        jobs = make_jobs(Path(name), only_tiny=args.tiny)
        daemon, port = start_daemon(Path(name), jobs)
        try:
            extra_mib = rss_mib(daemon.pid) - bare_rss_mib(jobs)
            client = RawClient(port)
            for job in jobs:
                rounds = args.rounds if job.model.startswith("tiny") else max(10, args.rounds // 10)
                measure(job, client, settings_of(job), rounds=rounds, json_every=max(1, rounds // 30))
            idle = idle_cores(daemon.pid, args.idle_s)
        finally:
            daemon.terminate()
            daemon.wait(30)
    print_table(jobs)
    figures: dict[str, float | None] = dict.fromkeys(FIELDS)
    figures["overhead_ms_100kb"] = round(overhead_ms(jobs[0].binary_ms, jobs[0].bare_ms), 3)
    figures["overhead_ms_1200kb"] = round(overhead_ms(jobs[1].binary_ms, jobs[1].bare_ms), 3)
    figures["idle_cores"] = round(idle, 4)
    figures["rss_extra_mib"] = round(extra_mib, 1)
    print(
        f"\nidle: {idle:.2%} of a core; memory: {extra_mib:.0f} MiB over a process with the same three sessions alone"
    )
    print("null: shared memory, batching and lanes are not built yet; the peer server is not installed here")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
