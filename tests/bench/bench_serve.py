"""What the daemon adds to a bare `session.run` of the same artifact: all sides interleaved in one run.

The client is a raw keep-alive socket, so that its own cost is a few system calls. Plain JSON tensors against the same
daemon stand for what a server without the binary extension costs. Ends with one line of JSON; null: not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from serve_clients import (
    RawClient,
    SharedInput,
    binary_request,
    echoing,
    http_request,
    json_request,
    least,
    many_clients,
    percentile,
    write_perceptron,
    write_tiny,
)
from serve_peer import MLSERVER, peer
from serve_saturation import saturation

from edgekit.catalog import load_model
from edgekit.config import home
from edgekit.errors import FetchError
from edgekit.fetch import standard_artifact
from edgekit.runtimes.session import SessionSettings, open_session

FIELDS = (
    "overhead_ms_100kb", "overhead_ms_1200kb", "overhead_ms_shm", "peer_overhead_ms_100kb", "batching_gain",
    "peer_throughput_ratio", "realtime_p99_ratio", "idle_cores", "rss_extra_mib", "least_ms_shm",
)  # fmt: skip
DETECTOR_SHAPE = (1, 3, 320, 320)
WIDTH, LAYERS = 1024, 6
"""25 MB of weights: a small model for which batches pay, since its matrices do not fit into the cache."""
CLIENTS = 16
TURN = 25
SAMPLES_FOR_P99 = 662
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
    shared_ms: list[float] = field(default_factory=list)
    json_ms: list[float] = field(default_factory=list)
    json_bare_ms: list[float] = field(default_factory=list)
    "Of the rounds in which JSON had a turn too."
    echo_ms: list[float] = field(default_factory=list)
    "Of a program that does nothing but answer."
    least_ms: list[float] = field(default_factory=list)
    "Of a program that copies out of shared memory, infers and answers, over a bare inference."
    beside_ms: list[float] = field(default_factory=list)
    "The daemon's with shared memory, over the same bare inference."

    @property
    def input_kb(self) -> float:
        return math.prod(self.shape) * 4 / 1000


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


def job_tables(jobs: Sequence[Job]) -> str:
    return "".join(
        f'[[model]]\nname = "{job.path if job.model.startswith("tiny") else job.model}"\n'
        f'artifact = "standard"\nthreads = {THREADS}\n'
        + ("axes = {side = 320}\n" if job.model == "ocr-detector" else "")
        for job in jobs
    )


def load_tables(folder: Path, width: int) -> str:
    """One file served three ways: one by one, in batches, and in two lanes."""
    tables = ""
    for name, more in (
        ("plain", ""),
        ("batched", "[model.batch]\nmax = 16\n"),
        ("lanes", '[model.tolerant]\nartifact = "standard"\n'),
    ):
        path = folder / f"{name}.onnx"
        write_perceptron(path, width, LAYERS)
        tables += f'[[model]]\nname = "{path}"\nartifact = "standard"\nthreads = 1\naxes = {{n = 1}}\n{more}'
    return tables


@contextmanager
def serving(folder: Path, tables: str) -> Iterator[tuple[int, int]]:
    """A daemon's process id and port, once it is ready."""
    config = folder / "edgekit.toml"
    config.write_text(f"[http]\nport = 0\nshared_memory = true\n{tables}")
    command = [sys.executable, "-m", "edgekit.cli.main", "run", "--config", str(config), "--json"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    try:
        line = daemon.stdout.readline()
        if not line:
            raise SystemExit("the daemon did not start; its words are above")
        yield daemon.pid, int(json.loads(line)["url"].rpartition(":")[2])
    finally:
        daemon.terminate()
        daemon.wait(30)


def measure(
    job: Job, client: RawClient, echo: RawClient, settings: SessionSettings, *, rounds: int, json_every: int
) -> None:
    """The sides take turns, so that what else happens on the machine happens to all of them."""
    session = open_session(job.path, settings)
    x = np.random.default_rng(0).random(job.shape, np.float32)
    binary, plain, small = binary_request(job.model, x), json_request(job.model, x), http_request("/", b"")
    shared = SharedInput(client, job.model, x) if job.model.startswith("tiny") else None
    for i in range(-5, rounds):  # five untimed
        echo_ms = echo.ask(small)
        took = client.ask(binary)
        shared_ms = shared.ask(client) if shared else None
        began = time.perf_counter()
        session.run({"x": x})
        bare = (time.perf_counter() - began) * 1e3
        if i < 0:
            continue
        job.binary_ms.append(took)
        job.bare_ms.append(bare)
        job.echo_ms.append(echo_ms)
        if shared_ms is not None:
            job.shared_ms.append(shared_ms)
        if i % json_every == 0:
            job.json_ms.append(client.ask(plain))
            job.json_bare_ms.append(bare)
    session.close()
    if shared is not None:
        shared.close(client)


def measure_least(job: Job, client: RawClient, settings: SessionSettings, rounds: int) -> None:
    """Shared memory through the daemon and through the least that could serve it, in turns."""
    session = open_session(job.path, settings)
    x = np.random.default_rng(0).random(job.shape, np.float32)
    shared = SharedInput(client, job.model, x)
    with least(job.path, job.shape[1], shared.path) as other:
        for i in range(-5, rounds):
            daemon_ms, least_ms = shared.ask(client), other.ask(b"go")
            began = time.perf_counter()
            session.run({"x": x})
            bare_ms = (time.perf_counter() - began) * 1e3
            if i >= 0:
                job.beside_ms.append(daemon_ms - bare_ms)
                job.least_ms.append(least_ms - bare_ms)
    session.close()
    shared.close(client)


def measure_batching(port: int, width: int, seconds: float) -> tuple[float, float, str]:
    """Of 16 clients, in turns: the gain in answers a second by batching, those with it, and a line about it."""
    x = np.random.default_rng(0).random((1, width), np.float32)
    times: dict[str, list[float]] = {"plain": [], "batched": []}
    for _ in range(3):
        for model, taken in times.items():
            taken += many_clients(port, binary_request(model, x), CLIENTS, seconds)
    each_s = {model: len(taken) / (3 * seconds) for model, taken in times.items()}
    gain = each_s["batched"] / each_s["plain"]
    p99 = {model: percentile(taken, 0.99) for model, taken in times.items()}
    text = f"{each_s['plain']:.0f} answers/s one by one (p99 {p99['plain']:.1f} ms), "
    return (
        gain,
        each_s["batched"],
        text + f"{each_s['batched']:.0f} in batches (p99 {p99['batched']:.1f} ms): {gain:.2f}x",
    )


def measure_lanes(port: int, width: int, samples: int) -> tuple[float | None, str]:
    """The p99 of one real-time client beside two tolerant ones that saturate, over its p99 alone.

    In short turns: what else happens on the machine happens to both.
    """
    x = np.random.default_rng(0).random((1, width), np.float32)
    urgent, patient = (binary_request("lanes", x, priority=priority) for priority in ("realtime", "tolerant"))
    client = RawClient(port)
    alone: list[float] = []
    beside: list[float] = []
    with saturation(port, patient, 2) as load:
        for _ in range(math.ceil(samples / TURN)):
            alone += [client.ask(urgent) for _ in range(TURN)]
            with load:
                beside += [client.ask(urgent) for _ in range(TURN)]
    if len(alone) < SAMPLES_FOR_P99:
        return None, f"lanes: too few samples for a p99, {len(alone)} of {SAMPLES_FOR_P99}"
    p99, beside_p99 = percentile(alone, 0.99), percentile(beside, 0.99)
    medians = f"median {median(alone):.2f} and {median(beside):.2f} ms, n = {len(alone)} each"
    text = f"real-time p99 {p99:.2f} ms alone, {beside_p99:.2f} ms beside {load.answers} tolerant answers ({medians})"
    return beside_p99 / p99, f"{text}: {beside_p99 / p99:.2f}x"


@dataclass
class Peer:
    """What a peer took, with plain JSON since it has no binary tensors over HTTP; None: there is none."""

    overhead_ms: float | None = None
    answers_s: float | None = None
    text: str = "the peer server is not installed here"


def measure_peer(port: int, tiny: Job, *, width: int, rounds: int, seconds: float) -> Peer:
    """The overhead over a bare inference at 100 KB, and the answers a second of 16 clients."""
    session = open_session(tiny.path, settings_of(tiny))
    x = np.random.default_rng(0).random(tiny.shape, np.float32)
    client, request = RawClient(port), json_request(tiny.model, x)
    peer_ms, bare_ms = [], []
    for i in range(-3, rounds):
        took = client.ask(request)
        began = time.perf_counter()
        session.run({"x": x})
        if i >= 0:
            peer_ms.append(took)
            bare_ms.append((time.perf_counter() - began) * 1e3)
    session.close()
    row = np.random.default_rng(0).random((1, width), np.float32)
    taken = many_clients(port, json_request("plain", row), CLIENTS, 3 * seconds)
    over, each_s = overhead_ms(peer_ms, bare_ms), len(taken) / (3 * seconds)
    text = f"MLServer: {over:.2f} ms over bare at 100 KB, {each_s:.0f} answers/s to {CLIENTS} clients"
    return Peer(over, each_s, f"{text} (p99 {percentile(taken, 0.99):.1f} ms)")


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
    parser.add_argument("--load-s", type=float, default=2.0, help="length of each turn of the 16 clients")
    parser.add_argument("--samples", type=int, default=2000, help="real-time requests alone, and beside tolerant ones")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the matrices of the model under load")
    parser.add_argument("--peer", type=Path, default=MLSERVER, help="MLServer's program, in an environment of its own")
    parser.add_argument("--tiny", action="store_true", help="leave the real model out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as name:
        jobs = make_jobs(Path(name), only_tiny=args.tiny)
        with serving(Path(name), job_tables(jobs)) as (pid, port):
            extra_mib = rss_mib(pid) - bare_rss_mib(jobs)
            client = RawClient(port)
            with echoing() as echo:
                for job in jobs:
                    rounds = args.rounds if job.model.startswith("tiny") else max(10, args.rounds // 10)
                    measure(job, client, echo, settings_of(job), rounds=rounds, json_every=max(1, rounds // 30))
            for job in jobs[:2]:
                measure_least(job, client, settings_of(job), args.rounds)
            idle = idle_cores(pid, args.idle_s)
        with serving(Path(name), load_tables(Path(name), args.width)) as (_, port):
            gain, batched_s, about_batches = measure_batching(port, args.width, args.load_s)
            ratio, about_lanes = measure_lanes(port, args.width, args.samples)
        models = {jobs[0].model: jobs[0].path, "plain": Path(name) / "plain.onnx"}
        (Path(name) / "peer").mkdir()
        with peer(args.peer, Path(name) / "peer", models) as port_or_none:
            found = Peer()
            if port_or_none is not None:
                found = measure_peer(
                    port_or_none, jobs[0], width=args.width, rounds=max(20, args.rounds // 10), seconds=args.load_s
                )
    print_table(jobs)
    figures: dict[str, float | None] = dict.fromkeys(FIELDS)
    figures["overhead_ms_100kb"] = round(overhead_ms(jobs[0].binary_ms, jobs[0].bare_ms), 3)
    figures["overhead_ms_1200kb"] = round(overhead_ms(jobs[1].binary_ms, jobs[1].bare_ms), 3)
    figures["overhead_ms_shm"] = round(overhead_ms(jobs[1].shared_ms, jobs[1].bare_ms), 3)
    figures["batching_gain"] = round(gain, 2)
    figures["realtime_p99_ratio"] = None if ratio is None else round(ratio, 2)
    figures["idle_cores"] = round(idle, 4)
    figures["rss_extra_mib"] = round(extra_mib, 1)
    print(
        f"\nidle: {idle:.2%} of a core; memory: {extra_mib:.0f} MiB over a process with the same three sessions alone"
    )
    print(f"{CLIENTS} clients: {about_batches}\n{about_lanes}")
    print(
        f"a program that only answers takes {median(jobs[0].echo_ms):.3f} ms: the way there and back is in every figure"
    )
    small_ms = overhead_ms(jobs[0].shared_ms, jobs[0].bare_ms)
    print(f"shared memory: {small_ms:.3f} ms over bare at 100 kB, {figures['overhead_ms_shm']} ms at 1,200 kB (a copy)")
    figures["least_ms_shm"] = round(median(jobs[1].least_ms), 3)
    for job in jobs[:2]:
        print(
            f"  beside the least that could serve it (wait, copy, infer, answer), at {job.input_kb:,.0f} kB:"
            f" {median(job.beside_ms):.3f} against {median(job.least_ms):.3f} ms over bare"
        )
    if found.overhead_ms is not None and found.answers_s is not None:
        figures["peer_overhead_ms_100kb"] = round(found.overhead_ms, 3)
        figures["peer_throughput_ratio"] = round(batched_s / found.answers_s, 2)
    print(found.text if found.overhead_ms is not None else f"null: {found.text}")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
