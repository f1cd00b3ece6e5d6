"""Models held warm in process: the queue, the answers, and what happens when a thread dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import ArtifactError, InputError, RequestError
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.engine import Engine
from edgekit.serve.job import Job
from edgekit.serve.lane import Lane
from edgekit.serve.signature import signature_of
from edgekit.telemetry.recorder import Recorder

onnx = pytest.importorskip("onnx", reason="the tiny model of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = table[x]: an index outside of the table fails while it runs."""
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [10, 20, 30])
    graph = helper.make_graph([helper.make_node("Gather", ["table", "x"], ["y"])], "look-up", [x], [y], [table])
    path = tmp_path_factory.mktemp("model") / "lookup.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def lane(model_path: Path, recorder: Recorder) -> Iterator[Lane]:
    session = open_session(model_path, SessionSettings())
    source = Source(file="x", sha256="0", size_bytes=0)
    model = Model(name="lookup", version="1", task="tensors", source=source)
    signature = signature_of(model, session.inputs, session.outputs, overrides={})
    lane = Lane(
        model="lookup", name="realtime", artifact="standard", session=session, signature=signature, recorder=recorder
    )
    lane.warm_up()
    lane.start()
    yield lane
    lane.close(5.0)


@pytest.fixture
def engine(lane: Lane) -> Engine:
    engine = Engine()
    engine.add("lookup", "1").lane = lane
    return engine


def indices(*values: int) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.int64)}


def test_numpy_in_numpy_out(engine):
    answer = engine.infer("lookup", indices(2, 0))
    assert answer.outputs["y"].tolist() == [30, 10]
    assert (answer.artifact, answer.lane, answer.cached) == ("standard", "realtime", False)
    assert answer.infer_ms > 0


def test_inputs_are_checked_before_they_are_queued(engine, lane):
    with pytest.raises(InputError, match=r"has shape \[3\]"):
        engine.infer("lookup", indices(0, 1, 2))
    assert lane.counts.requests == 0
    with pytest.raises(RequestError, match="unknown model 'q'; served: lookup") as caught:
        engine.infer("q", indices(0, 1))
    assert caught.value.status == 404


def test_an_inference_that_fails_fails_alone(engine, lane, recorder):
    with pytest.raises(ArtifactError, match="inference failed"):
        engine.infer("lookup", indices(0, 7))
    assert engine.infer("lookup", indices(1, 1)).outputs["y"].tolist() == [20, 20]
    (window,) = recorder.take()
    assert (window.requests, window.errors, window.infer_ms.count) == (2, 1, 1)
    assert lane.counts.errors == 1


def test_many_threads_each_get_their_own_answer(engine):
    wrong: list[int] = []

    def ask(value: int) -> None:
        for _ in range(200):
            if engine.infer("lookup", indices(value, value)).outputs["y"].tolist() != [10 * value + 10] * 2:
                wrong.append(value)

    threads = [threading.Thread(target=ask, args=(i % 3,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cancelled_job_is_not_run_and_a_late_one_is_refused(lane):
    outcomes: list[object] = []
    begun, gate = threading.Event(), threading.Event()

    def hold(outcome: object) -> None:
        begun.set()
        gate.wait(5)

    lane.submit(Job(inputs=indices(0, 0), done=hold))  # holds the lane's thread
    assert begun.wait(5)
    cancelled = Job(inputs=indices(0, 0), done=outcomes.append)
    late = Job(inputs=indices(0, 0), done=outcomes.append, deadline_ms=5)
    lane.submit(cancelled)
    lane.submit(late)
    cancelled.cancel()
    time.sleep(0.02)
    gate.set()
    assert lane.close(5.0)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], RequestError)
    assert outcomes[0].status == 503
    assert "deadline_ms is 5" in str(outcomes[0])
    assert lane.counts.rejected == 1


def test_what_is_queued_is_answered_before_the_lane_closes_and_nothing_after(lane):
    outcomes: list[object] = []
    for _ in range(50):
        lane.submit(Job(inputs=indices(0, 0), done=outcomes.append))
    assert lane.close(5.0)
    assert len(outcomes) == 50
    with pytest.raises(RequestError, match="not served any more"):
        lane.submit(Job(inputs=indices(0, 0), done=outcomes.append))
    assert lane.close(1.0), "closing twice is harmless"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_no_client_waiting(engine, lane):
    deaths: list[bool] = []
    lane.on_death = lambda: deaths.append(True)
    lane.session.close()  # behind its back: what then comes from the session is none of our errors
    outcomes: list[object] = []
    for _ in range(3):
        lane.submit(Job(inputs=indices(0, 0), done=outcomes.append))
    lane._thread.join(5)
    assert [getattr(outcome, "status", None) for outcome in outcomes] == [500, 500, 500]
    assert deaths == [True]
    with pytest.raises(RequestError, match="not served any more"):
        engine.infer("lookup", indices(0, 0))


def test_an_engine_is_ready_when_its_last_model_is(lane):
    engine = Engine()
    assert not engine.is_ready
    first, second = engine.add("a", "1"), engine.add("b", "1")
    first.lane = lane
    assert not engine.is_ready
    with pytest.raises(RequestError, match="b is still loading"):
        engine.infer("b", indices(0, 0))
    second.lane = lane
    assert engine.is_ready
    assert engine.close()
