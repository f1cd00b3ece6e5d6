"""A short inference runs on the thread that brings it, where nobody else waits; and nothing else changes by that."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.errors import RequestError
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve import lane as lanes
from edgekit.serve.engine import Engine
from edgekit.serve.job import Answer, Job, LaneClosed, Outcome, at_once
from edgekit.serve.lane import Lane
from edgekit.serve.precedence import Precedence
from edgekit.serve.signature import signature_of
from tests.waiting import until

pytest.importorskip("onnx", reason="the tiny model of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

X = {"x": np.ones(2, np.float32)}
HERE = threading.get_ident()


class Noted:
    """A lane whose session notes the threads that it runs on, and can be told to wait or to fail."""

    def __init__(self, path: Path, *, is_anywhere: bool = True, precedence: Precedence | None = None) -> None:
        model = Model(name="m", version="1", task="tensors", source=Source(file="x", sha256="0", size_bytes=0))
        session = open_session(path, SessionSettings())
        self.lane = Lane(
            model="m",
            name="realtime",
            artifact="standard",
            session=session,
            signature=signature_of(model, session.inputs, session.outputs, overrides={}),
            recorder=None,
            is_anywhere=is_anywhere,
            precedence=precedence,
        )
        self.lane.warm_up()
        self.threads: list[int] = []
        self.before: Callable[[], object] = lambda: None
        run = session.run

        def noting(inputs: Any) -> Any:
            self.threads.append(threading.get_ident())
            self.before()
            return run(inputs)

        session.run = noting  # type: ignore[attr-defined]
        self.lane.start()

    def ask(self, **more: Any) -> Outcome:
        """Submit one job from this thread and wait for what comes of it."""
        outcomes: list[Outcome] = []
        done = threading.Event()
        self.lane.submit(Job(inputs=X, done=lambda one: (outcomes.append(one), done.set()), **more))
        assert done.wait(10)
        return outcomes[0]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negative", [x], [y])
    file = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    return file


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., Noted]]:
    made: list[Noted] = []

    def begin(**more: Any) -> Noted:
        made.append(Noted(path, **more))
        return made[-1]

    yield begin
    for noted in made:
        noted.before = lambda: None
        assert noted.lane.close(10)


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """On a busy machine the shortest inference may take 20 ms now and then, and giving way last long."""
    monkeypatch.setattr(lanes, "SHORT_MS", 1000.0)
    monkeypatch.setattr(Precedence.give_way, "__defaults__", (5.0,))


def test_who_may_be_held_up_answers_a_free_lane_itself(make):
    noted = make()
    outcome = noted.ask(later=at_once)
    assert isinstance(outcome, Answer)
    assert outcome.outputs["y"].tolist() == [-1, -1]
    assert noted.threads == [HERE]
    assert noted.lane.counts.requests == 1
    assert not noted.lane.pace.is_busy


def test_who_may_not_be_held_up_is_answered_by_the_lanes_thread(make):
    noted = make()
    noted.ask()
    assert noted.threads != [HERE]


def test_a_session_of_one_thread_runs_on_no_other(make):
    noted = make(is_anywhere=False)
    noted.ask(later=at_once)
    assert noted.threads != [HERE]


def test_what_takes_long_is_for_the_lanes_thread(make, monkeypatch):
    noted = make()
    monkeypatch.setattr(lanes, "SHORT_MS", noted.lane.pace.mean_ms(X["x"].nbytes) / 2)
    noted.ask(later=at_once)
    assert noted.threads != [HERE]


def test_what_can_wait_is_left_to_who_asked(make):
    noted = make()
    left: list[Callable[[], None]] = []
    noted.ask(later=left.append)
    assert noted.lane.counts.requests == 0
    left[0]()
    assert noted.lane.counts.requests == 1


def test_behind_another_it_waits_its_turn_and_two_never_run_at_once(make):
    noted = make()
    begun, go_on = threading.Event(), threading.Event()
    noted.before = lambda: (begun.set(), go_on.wait(10))
    answered: list[Outcome] = []
    noted.lane.submit(Job(inputs=X, done=answered.append))
    assert begun.wait(10)
    noted.lane.submit(Job(inputs=X, done=answered.append, later=at_once))
    assert len(noted.threads) == 1
    go_on.set()
    assert until(lambda: len(answered) == 2)
    assert HERE not in noted.threads


def test_closing_waits_for_what_runs_elsewhere(make):
    noted = make()
    begun, go_on = threading.Event(), threading.Event()
    noted.before = lambda: (begun.set(), go_on.wait(10))
    asking = threading.Thread(target=noted.ask, kwargs={"later": at_once})
    asking.start()
    assert begun.wait(10)
    assert not noted.lane.close(0.1), "its session is in use"
    with pytest.raises(LaneClosed):
        noted.ask(later=at_once)
    go_on.set()
    asking.join()
    assert noted.lane.close(10)


def test_a_fault_ends_the_lane_here_as_on_its_own_thread(make, caplog):
    noted = make()
    deaths: list[str] = []
    noted.lane.on_death = lambda: deaths.append("died")

    def fail() -> None:
        raise ZeroDivisionError("injected")

    noted.before = fail
    outcome = noted.ask(later=at_once)
    assert isinstance(outcome, RequestError)
    assert outcome.status == 500
    assert deaths == ["died"]
    assert "ZeroDivisionError: injected" in caplog.text
    with pytest.raises(LaneClosed):
        noted.ask(later=at_once)


def test_an_embedding_program_answers_itself(make):
    noted = make()
    engine = Engine()
    engine.add("m", "1").lane = noted.lane
    assert engine.infer("m", X).outputs["y"].tolist() == [-1, -1]
    assert noted.threads == [HERE]


def test_who_asks_within_an_inference_is_refused_since_it_would_wait_for_itself(make):
    """A signal handler, say, that asks while its thread is in an inference."""
    noted = make()
    refused: list[str] = []

    def again() -> None:
        noted.before = lambda: None
        with pytest.raises(RequestError, match="within its own inference") as caught:
            noted.lane.submit(Job(inputs=X, done=lambda _: None, later=at_once))
        refused.append(str(caught.value))

    noted.before = again
    assert isinstance(noted.ask(later=at_once), Answer)
    assert len(refused) == 1
    assert isinstance(noted.ask(later=at_once), Answer)


def test_a_tolerant_request_is_left_to_the_lanes_thread(make):
    noted = make()
    noted.ask(later=at_once, is_tolerant=True)
    assert noted.threads != [HERE]


def test_tolerant_work_that_gives_way_holds_up_nobody(path):
    """It waits before its turn, not in it: else real-time requests would queue behind who waits for them."""
    precedence = Precedence()
    noted = Noted(path, precedence=precedence)
    precedence.enter()  # somebody's real-time request, in another lane
    answered = threading.Event()
    noted.lane.submit(Job(inputs=X, done=lambda _: answered.set(), is_tolerant=True))
    assert until(lambda: noted.lane._line.is_empty)
    assert isinstance(noted.ask(later=at_once), Answer)
    assert noted.threads == [HERE]
    precedence.leave()
    assert answered.wait(10)
    assert noted.lane.close(10)


# Over HTTP


BODY = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}).encode()
REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


def ask(client: socket.socket) -> bytes:
    client.sendall(REQUEST)
    return client.recv(65536)


@pytest.fixture
def served(make, monkeypatch) -> Iterator[tuple[Noted, Callable[[], socket.socket], int]]:
    """A lane behind the daemon's HTTP; how to connect to it; the thread of its loop."""
    pytest.importorskip("uvloop", reason="the daemon's loop")
    from edgekit.serve import routes
    from tests.test_serve_http import start

    monkeypatch.setattr(routes, "ALONE_S", 0.05)
    noted, engine = make(), Engine()
    engine.add("m", "1").lane = noted.lane
    before = {thread.ident for thread in threading.enumerate()}
    for serving in start(engine):
        (loop_thread,) = [t.ident for t in threading.enumerate() if t.ident not in before]
        yield noted, serving.connect, loop_thread


def test_one_client_alone_is_answered_without_a_change_of_threads(served):
    noted, connect, loop_thread = served
    with connect() as client:
        assert ask(client).startswith(b"HTTP/1.1 200")
        assert noted.threads[-1] != loop_thread, "who has just come may be one of many"
        threading.Event().wait(0.06)
        for _ in range(3):
            assert ask(client).startswith(b"HTTP/1.1 200")
        assert noted.threads[-3:] == [loop_thread] * 3
        assert until(lambda: noted.lane.counts.requests == 4), "the accounts are kept all the same"


def test_two_clients_share_the_lanes_thread(served):
    noted, connect, loop_thread = served
    with connect() as one, connect() as other:
        threading.Event().wait(0.06)
        for _ in range(10):
            assert ask(one).startswith(b"HTTP/1.1 200")
            assert ask(other).startswith(b"HTTP/1.1 200")
    assert loop_thread not in noted.threads


def test_an_answer_that_cannot_be_sent_is_a_500_and_no_fault_of_the_model(served, monkeypatch, caplog):
    from edgekit.serve import routes

    noted, connect, loop_thread = served
    with connect() as client:
        ask(client)
        threading.Event().wait(0.06)
        with monkeypatch.context() as patched:
            patched.setattr(routes, "encode_response", lambda *_, **__: 1 / 0)
            said = ask(client)
        assert said.startswith(b"HTTP/1.1 500")
        assert b"could not be sent" in said
        assert "ZeroDivisionError" in caplog.text
        assert ask(client).startswith(b"HTTP/1.1 200")
    assert noted.threads[-1] == loop_thread
