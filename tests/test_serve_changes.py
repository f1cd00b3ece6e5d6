"""A running daemon, in a process of its own: changed while it works, and hurt in ways that happen."""

from __future__ import annotations

import contextlib
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
from tests.daemons import FOREVER, IMAGE, Run, daemons, model, save_counter, turns
from tests.waiting import until

onnx = pytest.importorskip("onnx", reason="the models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")
pytest.importorskip("uvloop", reason="the daemon's loop")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    with daemons(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_counter(tmp_path_factory.mktemp("model"))


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
    assert until(lambda: "reloaded: serving digits" in run.err), run.err
    time.sleep(0.1)
    run.reload(model("digits", "int8") + model(counter))
    assert until(lambda: "reloaded: serving digits, counter" in run.err), run.err
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
        assert until(lambda words=words: words in run.err), run.err
        assert until(lambda: run.artifact() == "int8")
    assert run.err.count("not reloaded, the configuration of before goes on") == 3
    assert run.client.is_ready()


# Hurt


def test_an_artifact_whose_runtime_keeps_dying_gives_way_to_the_next_candidate(start):
    run = start("[health]\nfailures = 2\n" + model("digits", "int8", 'isolation = "process"\n'))
    for _ in range(2):
        assert run.artifact() == "int8"
        (worker,) = children(run.process.pid)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RequestError, match="was lost"):
            run.artifact()
        assert until(lambda worker=worker: children(run.process.pid) not in ([], [worker]))
    assert until(lambda: run.artifact() == "standard"), run.err
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


# Memory


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
        assert until(lambda folder=folder: not (folder / "cgroup.procs").read_text())
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
        assert until(lambda: run.gauge("edgekit_memory_level") == 1), run.err
        assert run.client.infer("digits", IMAGE, priority="tolerant")[1]["artifact"] == "standard"
        second = hold(200)
        try:
            assert until(lambda: run.gauge("edgekit_memory_level") >= 2), run.err
            assert until(lambda: "models run their smallest artifact" in run.err)
        finally:
            second.communicate()
    finally:
        first.communicate()
    assert run.process.poll() is None
    assert run.client.infer("digits", IMAGE, no_cache=True)[0]["logits"].shape == (1, 10)
