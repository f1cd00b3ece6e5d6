"""A running daemon, in a process of its own: changed while it works, and hurt in ways that happen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import RequestError
from edgekit.serve.client import Client

onnx = pytest.importorskip("onnx", reason="the models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")
pytest.importorskip("uvloop", reason="the daemon's loop")

READY_S = 40.0
FOREVER = 2**60
IMAGE = {"image": np.zeros((1, 8, 8, 1), np.float32)}


class Run:
    """`edgekit run --config` as a child, with a client of it."""

    def __init__(self, folder: Path, config: str, *, command: tuple[str, ...] = ("-m", "edgekit.cli.main")) -> None:
        self.config = folder / "edgekit.toml"
        self.config.write_text(f'device = "unit"\n[http]\nport = 0\n{config}')
        self.err = ""
        self.process = subprocess.Popen(
            [sys.executable, *command, "run", "--config", str(self.config), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(folder / "home")},
        )
        self._reader = threading.Thread(target=self._read_err)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"exit {self.wait()}: {self.err}"
        self.ready = json.loads(line)
        self.url: str = self.ready["url"]
        self.client = Client(self.url)

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line

    def wait(self) -> int:
        code = self.process.wait(READY_S)
        self._reader.join()
        return code

    def artifact(self) -> str:
        return str(self.client.infer("digits", IMAGE)[1]["artifact"])

    def reload(self, config: str) -> None:
        self.config.write_text(f'device = "unit"\n[http]\nport = 0\n{config}')
        self.process.send_signal(signal.SIGHUP)

    def gauge(self, name: str) -> float:
        text = self.client._ask("GET", "/metrics")[1].decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(config: str, **more: object) -> Run:
        runs.append(Run(tmp_path, config, **more))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x after `n` turns of a loop: with a large n the runtime is stuck for good."""
    kind, made = onnx.TensorProto, onnx.helper.make_tensor_value_info
    inside = [made("i", kind.INT64, []), made("go", kind.BOOL, []), made("s", kind.FLOAT, [4])]
    out = [made("go2", kind.BOOL, []), made("s2", kind.FLOAT, [4])]
    steps = [onnx.helper.make_node("Identity", ["go"], ["go2"]), onnx.helper.make_node("Abs", ["s"], ["s2"])]
    body = onnx.helper.make_graph(steps, "turn", inside, out)
    loop = onnx.helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    x, y = made("x", kind.FLOAT, [4]), made("y", kind.FLOAT, [4])
    graph = onnx.helper.make_graph([loop], "counter", [made("n", kind.INT64, []), x], [y])
    path = tmp_path_factory.mktemp("model") / "counter.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def turns(n: int) -> dict[str, np.ndarray]:
    return {"n": np.array(n, np.int64), "x": np.arange(4, dtype=np.float32)}


def wait_for(found: Callable[[], object], timeout_s: float = 20.0) -> bool:
    until = time.monotonic() + timeout_s
    while not found():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def model(name: str | Path, artifact: str = "standard", more: str = "") -> str:
    return f'[[model]]\nname = "{name}"\nartifact = "{artifact}"\nthreads = 1\n{more}'


# Change while it runs


def test_a_reload_swaps_adds_and_removes_models_without_a_failed_request(start, counter):
    run = start(model("digits", "int8") + model(counter))
    assert run.artifact() == "int8"
    failures: list[str] = []
    seen: list[str] = []
    done = threading.Event()

    def ask() -> None:
        with Client(run.url) as client:
            while not done.is_set():
                try:
                    seen.append(client.infer("digits", IMAGE)[1]["artifact"])
                except RequestError as error:
                    failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    run.reload(model("digits", "standard", '[model.tolerant]\nartifact = "int8"\n'))
    assert wait_for(lambda: "reloaded: serving digits" in run.err), run.err
    time.sleep(0.1)
    run.reload(model("digits", "int8") + model(counter))
    assert wait_for(lambda: "reloaded: serving digits, counter" in run.err), run.err
    time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {"int8", "standard"} == set(seen)
    assert run.artifact() == "int8"
    assert run.client.infer("counter", turns(1))[0]["y"].tolist() == [0, 1, 2, 3]


def test_the_tolerant_lane_is_another_artifact(start):
    run = start(model("digits", "standard", '[model.tolerant]\nartifact = "int8"\n'))
    _, said = run.client.infer("digits", IMAGE, priority="tolerant")
    assert (said["artifact"], said["lane"]) == ("int8", "tolerant")
    assert run.artifact() == "standard"
    assert "tolerant lane: int8 with" in run.ready["models"][0]["reasons"][-1]
    with pytest.raises(RequestError, match="ms of work are ahead of it and it takes"):
        run.client.infer("digits", IMAGE, deadline_ms=0.0001)


def test_a_configuration_that_does_not_hold_is_refused_and_the_old_goes_on(start, tmp_path):
    run = start(model("digits", "int8"))
    for config, words in (
        ("[[modle]]\n", "modle: unknown key"),
        (model("digits", "absent"), "there is no 'absent' here"),
        (model("digits", "standard") + model(tmp_path / "absent.onnx"), "no such file"),
    ):
        run.reload(config)
        assert wait_for(lambda words=words: words in run.err), run.err
        assert wait_for(lambda: run.artifact() == "int8")
    assert run.err.count("not reloaded, the configuration of before goes on") == 3
    assert run.client.is_ready()


# Hurt


def test_a_stuck_runtime_in_our_process_ends_the_daemon_and_is_counted_first(start, counter, tmp_path):
    health = "[health]\nstuck_s = 1\nfailures = 1\n"
    run = start(health + model("digits") + model(counter, more='isolation = "thread"\n'))
    with pytest.raises(Exception, match=r"Remote end closed|reset|aborted|timed out|not answer"):
        run.client.infer("counter", turns(FOREVER))
    assert run.wait() == 5
    assert "counter: standard is stuck in an inference for" in run.err
    stored = json.loads((tmp_path / "home/daemon/unit/failures.json").read_text())
    assert [failure["how"][:5] for failure in stored["failures"]] == ["stuck"]
    again = start(health + model(counter, more='isolation = "thread"\n'))
    assert "counter: standard with onnxruntime CPU 1t fails again and again, and there is nothing else" in again.err
    assert again.client.infer("counter", turns(1))[0]["y"].tolist() == [0, 1, 2, 3]


def test_a_stuck_runtime_in_a_process_of_its_own_is_replaced_while_others_are_served(start, counter):
    health = "[health]\nstuck_s = 1\n"
    run = start(health + model("digits") + model(counter, more='isolation = "process"\n'))
    refusals: list[str] = []

    def hang() -> None:
        with Client(run.url) as client:
            try:
                client.infer("counter", turns(FOREVER))
            except RequestError as error:
                refusals.append(str(error))

    hanging = threading.Thread(target=hang)
    hanging.start()
    answers = 0
    while hanging.is_alive():
        run.artifact()
        answers += 1
    hanging.join()
    assert answers > 50
    assert "counter.onnx was lost: no answer within 1 s" in refusals[0]
    assert run.client.infer("counter", turns(1))[0]["y"].tolist() == [0, 1, 2, 3]
    assert run.process.poll() is None


def test_an_artifact_whose_runtime_keeps_dying_gives_way_to_the_next_candidate(start):
    run = start("[health]\nfailures = 2\n" + model("digits", "int8", 'isolation = "process"\n'))
    for _ in range(2):
        assert run.artifact() == "int8"
        (worker,) = children(run.process.pid)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RequestError, match="was lost"):
            run.artifact()
        assert wait_for(lambda worker=worker: children(run.process.pid) not in ([], [worker]))
    assert wait_for(lambda: run.artifact() == "standard"), run.err
    assert "failed too often of late" in run.err


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_daemon_that_is_aborted_in_an_inference_knows_it_at_the_next_start(start, counter):
    run = start(model(counter))
    asking = threading.Thread(target=_ask, args=(run,))
    asking.start()
    time.sleep(0.5)
    run.process.send_signal(signal.SIGABRT)
    assert run.wait() == -signal.SIGABRT
    asking.join()
    assert "the daemon before ended in the middle of an inference" in start(model(counter)).err


def _ask(run: Run) -> None:
    with contextlib.suppress(Exception):
        run.client.infer("counter", turns(FOREVER))


def test_a_fault_that_no_session_is_known_to_raise_ends_the_daemon_with_5(start):
    """Injected: a session that raises what none of ours raises."""
    script = (
        "import sys, edgekit.runtimes.onnx as o\n"
        "from edgekit.cli.main import main\n"
        "run = o.OnnxSession.run\n"
        "def faulty(self, inputs):\n"
        "    if inputs['image'].max() > 100: raise ZeroDivisionError('injected')\n"
        "    return run(self, inputs)\n"
        "o.OnnxSession.run = faulty\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    run = start(model("digits"), command=("-c", script))
    assert run.artifact() == "standard"
    with pytest.raises(RequestError, match="the inference thread ended by a fault") as caught:
        run.client.infer("digits", {"image": np.full((1, 8, 8, 1), 200, np.float32)})
    assert caught.value.status == 500
    assert run.wait() == 5
    assert "ZeroDivisionError: injected" in run.err
    assert run.err.rstrip().endswith("a model's thread ended by a fault, its trace is above")


# Health and memory


def test_an_idle_daemon_asks_itself_and_stays_live(start):
    run = start("[health]\nprobe_s = 1\n" + model("digits"))
    time.sleep(3.6)  # without a question of its own it would not be live after 3
    assert run.gauge("edgekit_live") == 1
    assert run.client._ask("GET", "/v2/health/live")[0] == 200
    text = run.client._ask("GET", "/metrics")[1].decode()
    assert 'outcome="ok"} 0' in text, "its own questions are not requests"


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group of our own with 500 MiB."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(root) / f"edgekit-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(500 * 2**20))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        yield folder
        assert wait_for(lambda folder=folder: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
        return
    pytest.skip("needs root and a memory controller that may be written")


def test_in_a_real_control_group_it_gives_up_step_by_step_and_lives(group, start):
    run = start(
        "[cache]\nmb = 10\n[memory]\nlow = [0.5, 0.3, 0.15]\npressure_percent = 100\n"
        + model("digits", "standard", '[model.tolerant]\nartifact = "int8"\n')
    )
    (group / "cgroup.procs").write_text(str(run.process.pid))
    run.client.infer("digits", IMAGE)

    def hold(mib: int) -> subprocess.Popen[bytes]:
        code = f"import sys; x = b'1' * ({mib} << 20); sys.stdin.read()"
        ballast = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        (group / "cgroup.procs").write_text(str(ballast.pid))
        return ballast

    first = hold(220)
    try:
        assert wait_for(lambda: run.gauge("edgekit_memory_level") == 1), run.err
        assert run.client.infer("digits", IMAGE, priority="tolerant")[1]["artifact"] == "standard"
        second = hold(200)
        try:
            assert wait_for(lambda: run.gauge("edgekit_memory_level") >= 2), run.err
            assert wait_for(lambda: "models run their smallest artifact" in run.err)
        finally:
            second.communicate()
    finally:
        first.communicate()
    assert run.process.poll() is None
    assert run.client.infer("digits", IMAGE, no_cache=True)[0]["logits"].shape == (1, 10)
