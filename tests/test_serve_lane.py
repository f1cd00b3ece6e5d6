"""Lanes: who goes first, who is refused before any work, and how a lane is swapped under load."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import RequestError
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.engine import Engine
from edgekit.serve.job import Answer, Job
from edgekit.serve.lane import REALTIME, TOLERANT, Lane
from edgekit.serve.pace import Pace, Refused
from edgekit.serve.precedence import NICE, Precedence, run_lowered
from edgekit.serve.signature import signature_of

onnx = pytest.importorskip("onnx", reason="the tiny models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

SIDE = 400


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some milliseconds of matrix products."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", [f"t{i}" if i else "x", "x"], [f"t{i + 1}"]) for i in range(5)]
    nodes.append(helper.make_node("MatMul", ["t5", "x"], ["y"]))
    graph = helper.make_graph(nodes, "products", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("model") / "products.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def make_lane(model_path: Path) -> Iterator[Callable[..., Lane]]:
    made: list[Lane] = []
    model = Model(name="m", version="1", task="tensors", source=Source(file="x", sha256="0", size_bytes=0))

    def make(name: str = REALTIME, artifact: str = "standard", precedence: Precedence | None = None) -> Lane:
        session = open_session(model_path, SessionSettings())
        lane = Lane(
            model="m",
            name=name,
            artifact=artifact,
            session=session,
            signature=signature_of(model, session.inputs, session.outputs, overrides={}),
            recorder=None,
            precedence=precedence,
            is_lowered=name == TOLERANT,
        )
        lane.warm_up()
        lane.start()
        made.append(lane)
        return lane

    yield make
    for lane in made:
        assert lane.close(10.0)


@pytest.fixture
def engine(make_lane) -> Engine:
    engine = Engine()
    engine.add("m", "1").lane = make_lane()
    return engine


def x() -> dict[str, np.ndarray]:
    return {"x": np.full((SIDE, SIDE), 1e-3, np.float32)}


class Held:
    """A job that keeps its lane's thread until it is let go."""

    def __init__(self, lane: Lane) -> None:
        self._begun, self._gate = threading.Event(), threading.Event()
        lane.submit(Job(inputs=x(), done=self._hold))
        assert self._begun.wait(5)

    def _hold(self, _outcome: object) -> None:
        self._begun.set()
        assert self._gate.wait(10)

    def let_go(self) -> None:
        self._gate.set()


def test_tolerant_work_waits_for_real_time_work_in_a_lane_that_has_both(engine):
    model = engine.find("m")
    order: list[str] = []
    held = Held(model.ready_lane())
    for name in (TOLERANT, TOLERANT, REALTIME, None):
        model.submit(Job(inputs=x(), done=lambda _, name=name: order.append(str(name))), name)
    held.let_go()
    engine.infer("m", x(), priority=TOLERANT)
    assert order == [REALTIME, "None", TOLERANT, TOLERANT]


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once_with_the_numbers(engine):
    model = engine.find("m")
    lane = model.ready_lane()
    one_ms = lane.pace.fastest_ms(SIDE * SIDE * 4)
    assert one_ms > 0
    held = Held(lane)
    for _ in range(20):
        lane.submit(Job(inputs=x(), done=lambda _: None))
    with pytest.raises(Refused, match=r"ms of work are ahead of it and it takes .* at best; deadline_ms is") as caught:
        engine.infer("m", x(), deadline_ms=3 * one_ms)
    assert caught.value.status == 503
    assert caught.value.retry_after_s >= 1
    assert lane.counts.rejected == 1
    held.let_go()
    assert engine.infer("m", x(), deadline_ms=100_000).infer_ms > 0
    assert engine.infer("m", x(), deadline_ms=50 * one_ms).infer_ms > 0, "what was ahead is accounted off"


def test_a_deadline_below_the_best_time_is_hopeless_even_when_nothing_waits(engine):
    with pytest.raises(Refused, match=r"^0.0 ms of work are ahead of it"):
        engine.infer("m", x(), deadline_ms=0.001)


def test_slow_inferences_do_not_shut_out_those_that_could_make_it():
    pace = Pace()
    pace.learn(100, 10.0)
    for _ in range(50):
        pace.learn(100, 900.0)  # a machine that was busy with something else
    assert pace.mean_ms(100) > 500
    pace.leave(pace.admit(100, 20.0))
    for _ in range(3000):
        pace.learn(100, 900.0)  # it stays so
    with pytest.raises(Refused):
        pace.admit(100, 20.0)


def test_what_is_ahead_is_given_back_whatever_became_of_it():
    pace = Pace()
    pace.learn(100, 10.0)
    costs = [pace.admit(100, None) for _ in range(5)]
    assert pace.expected_ms(100) == pytest.approx(60.0)
    with pytest.raises(
        Refused, match=r"50.0 ms of work are ahead of it and it takes 10.0 ms at best; deadline_ms is 59"
    ):
        pace.admit(100, 59.0)
    for cost in costs:
        pace.leave(cost)
    assert pace.expected_ms(100) == pytest.approx(10.0)
    assert pace.mean_ms(7) == 10.0, "a size never seen is expected to be like the slowest known"


def test_requests_go_to_the_lane_of_their_priority_or_the_one_their_deadline_leaves_room_for(engine, make_lane):
    model = engine.find("m")
    model.tolerant = make_lane(TOLERANT, "flash")
    model.tolerant.pace = Pace()
    model.tolerant.pace.learn(SIDE * SIDE * 4, 10_000.0)

    def lane(**asked: object) -> tuple[str, str]:
        answer: Answer = engine.infer("m", x(), **asked)
        return answer.lane, answer.artifact

    assert lane() == (REALTIME, "standard")
    assert lane(priority=REALTIME, deadline_ms=1e6) == (REALTIME, "standard")
    assert lane(priority=TOLERANT) == (TOLERANT, "flash")
    assert lane(deadline_ms=1e6) == (TOLERANT, "flash")
    model.tolerant.pace = Pace()
    model.tolerant.pace.learn(SIDE * SIDE * 4, 10_000.0)
    assert lane(deadline_ms=12_000.0) == (REALTIME, "standard"), "no room for the tolerant one's ten seconds and some"


def test_where_a_thread_may_not_be_lowered_that_is_said(monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    with caplog.at_level("WARNING"):
        assert run_lowered(lambda: 1) == 1
    assert "same priority as real-time work: Operation not permitted" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_a_tolerant_lane_and_the_threads_of_its_session_run_at_the_lowest_priority(make_lane, model_path):
    def nices() -> dict[int, int]:
        found = {}
        for tid in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # a thread of another test that ended just now
                found[tid] = os.getpriority(os.PRIO_PROCESS, tid)
        return found

    before = nices()
    session = run_lowered(lambda: open_session(model_path, SessionSettings(threads=2)))
    pool = {tid: nice for tid, nice in nices().items() if tid not in before}
    assert set(pool.values()) == {NICE}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) != NICE
    session.close()
    lane = make_lane(TOLERANT)
    assert os.getpriority(os.PRIO_PROCESS, lane._thread.native_id) == NICE
    assert os.getpriority(os.PRIO_PROCESS, make_lane()._thread.native_id) != NICE


def test_a_tolerant_inference_waits_for_a_moment_without_real_time_work_but_not_for_ever():
    precedence = Precedence()
    precedence.enter()
    precedence.enter()
    began_s = time.perf_counter()
    precedence.give_way(0.05)
    assert time.perf_counter() - began_s > 0.04
    precedence.leave()
    threading.Timer(0.05, precedence.leave).start()
    began_s = time.perf_counter()
    precedence.give_way(10.0)
    assert 0.02 < time.perf_counter() - began_s < 5


def test_real_time_work_is_accounted_off_even_when_it_is_cancelled_or_refused(engine, make_lane):
    precedence = Precedence()
    lane = make_lane(precedence=precedence)
    held = Held(lane)
    cancelled = Job(inputs=x(), done=lambda _: None)
    lane.submit(cancelled)
    cancelled.cancel()
    with pytest.raises(Refused):
        lane.submit(Job(inputs=x(), done=lambda _: None, deadline_ms=1e-6))
    assert not precedence.is_free
    held.let_go()
    assert lane.close(10)
    assert precedence.is_free


def test_a_lane_is_swapped_under_load_without_a_failed_request(engine, make_lane):
    model = engine.find("m")
    failures: list[Exception] = []
    artifacts: set[str] = set()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                artifacts.add(engine.infer("m", x()).artifact)
            except RequestError as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(4):
        old = model.swap(REALTIME, make_lane(artifact=f"a{i}"))
        assert old is not None
        assert old.close(10.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(artifacts) >= 2
