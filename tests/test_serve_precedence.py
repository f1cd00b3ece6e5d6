"""Who waits for whom: tolerant inferences in a process of their own are paused while real-time work is under way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.runtimes.session import SessionSettings
from edgekit.serve.precedence import LOAN_EVERY_S, LOAN_S, Precedence
from edgekit.serve.remote import RemoteSession, WorkerLost
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: states are read from Linux's /proc")


def state(pid: int) -> str:
    """T: stopped. Source: proc(5), third field of stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_what_runs_is_paused_by_the_first_and_goes_on_after_the_last(child):
    precedence = Precedence()
    precedence.begin(child)
    precedence.enter()
    precedence.enter()
    assert until(lambda: state(child) == "T")
    precedence.leave()
    time.sleep(0.02)
    assert state(child) == "T", "one of the two is still under way"
    precedence.leave()
    assert until(lambda: state(child) != "T")


def test_what_begins_while_there_is_real_time_work_begins_paused_and_its_end_frees_it(child):
    precedence = Precedence()
    precedence.enter()
    precedence.begin(child)
    assert until(lambda: state(child) == "T")
    precedence.end(child)
    assert until(lambda: state(child) != "T")
    precedence.leave()
    precedence.enter()
    time.sleep(0.02)
    assert state(child) != "T", "a child that runs nothing is left alone"


def test_pauses_are_added_up_for_each_inference_anew(child):
    now = [100.0]
    precedence = Precedence(clock=lambda: now[0])
    precedence.begin(child)
    for pause_s in (2.0, 3.0):
        precedence.enter()
        now[0] += pause_s
        precedence.leave()
        now[0] += 10.0
    assert precedence.paused_s(child) == pytest.approx(5.0)
    precedence.enter()
    now[0] += 1.0
    assert precedence.paused_s(child) == pytest.approx(6.0), "and the one that lasts"
    precedence.end(child)
    assert precedence.paused_s(child) == 0.0
    precedence.begin(child)
    assert precedence.paused_s(child) == pytest.approx(0.0)
    precedence.end(child)


def test_a_loan_lets_it_run_beside_real_time_work_and_no_longer(child):
    precedence = Precedence()
    precedence.begin(child)
    precedence.enter()
    assert until(lambda: state(child) == "T")
    lender = threading.Thread(target=precedence.lend, args=(child, 0.2))
    lender.start()
    assert until(lambda: state(child) != "T")
    lender.join()
    assert until(lambda: state(child) == "T")


def test_a_loan_after_real_time_work_has_ended_does_not_pause(child):
    precedence = Precedence()
    precedence.begin(child)
    precedence.lend(child, 0.0)
    assert state(child) != "T"
    precedence.end(child)
    precedence.lend(child, 0.0)
    assert state(child) != "T"


def test_loans_stay_below_what_a_99th_percentile_sees():
    assert LOAN_S / LOAN_EVERY_S < 0.01


def test_a_child_that_died_meanwhile_is_no_fault():
    process = subprocess.Popen(["true"])
    process.wait()
    precedence = Precedence()
    precedence.begin(process.pid)
    precedence.enter()
    precedence.leave()
    precedence.end(process.pid)


# The session that is paused


@pytest.fixture(scope="module")
def loop_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x after `n` turns of a loop: as long as is asked for."""
    onnx = pytest.importorskip("onnx", reason="the model is made with onnx")
    pytest.importorskip("onnxruntime", reason="the sessions are onnxruntime's")
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


def open_paused(path: Path, precedence: Precedence, stuck_s: float) -> RemoteSession:
    return RemoteSession(path, SessionSettings(), stuck_s=stuck_s, is_lowered=True, precedence=precedence)


def test_an_inference_that_is_paused_longer_than_a_stuck_one_may_take_is_not_stuck(loop_model):
    precedence = Precedence()
    session = open_paused(loop_model, precedence, stuck_s=1.0)
    answers: list[np.ndarray] = []
    precedence.enter()
    try:
        asking = threading.Thread(target=lambda: answers.append(session.run(turns(20_000))["y"]))
        asking.start()
        assert until(lambda: state(session.pid) == "T")
        assert until(lambda: session.paused_s > 1.3), "longer than it may take"
        assert session.generation == 1
        precedence.leave()
        asking.join(20)
        assert answers[0].tolist() == [0, 1, 2, 3]
        assert (session.generation, session.paused_s) == (1, 0.0)
    finally:
        session.close()


def test_a_stuck_one_is_found_out_all_the_same_and_one_that_is_paused_is_closed(loop_model):
    precedence = Precedence()
    session = open_paused(loop_model, precedence, stuck_s=0.2)
    with pytest.raises(WorkerLost, match=r"no answer within 0.2 s"):
        session.run(turns(2**60))
    assert session.run(turns(3))["y"].tolist() == [0, 1, 2, 3]
    precedence.enter()
    pid = session.pid
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_under_endless_real_time_work_it_is_slow_but_not_dead(loop_model):
    precedence = Precedence()
    session = open_paused(loop_model, precedence, stuck_s=5.0)
    precedence.enter()
    try:
        assert session.run(turns(3))["y"].tolist() == [0, 1, 2, 3], "by the first loan"
    finally:
        session.close()
