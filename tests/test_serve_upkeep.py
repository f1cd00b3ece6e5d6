"""A daemon whose runtime is stuck, and one with nothing to do: both are judged by the clock."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgekit.errors import RequestError
from edgekit.serve.client import Client
from tests.daemons import FOREVER, Run, daemons, model, save_counter, turns

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


@pytest.mark.parametrize("before_s", [0.0, 0.3], ids=["on its own thread", "on the loop's thread"])
def test_a_stuck_runtime_in_our_process_ends_the_daemon_and_is_counted_first(start, counter, tmp_path, before_s):
    """Whoever has been asking alone for a while is answered on the loop's thread, which is stuck then."""
    health = "[health]\nstuck_s = 1\nfailures = 1\n"
    run = start(health + model("digits") + model(counter, more='isolation = "thread"\n'))
    until_s = time.monotonic() + before_s
    while time.monotonic() < until_s:
        run.client.infer("counter", turns(1))
    with pytest.raises(Exception, match=r"Remote end closed|reset|aborted|timed out|not answer|refused"):
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


def test_an_idle_daemon_asks_itself_and_stays_live(start):
    run = start("[health]\nprobe_s = 1\n" + model("digits"))
    time.sleep(3.6)  # without a question of its own it would not be live after 3
    assert run.gauge("edgekit_live") == 1
    assert run.client._ask("GET", "/v2/health/live")[0] == 200
    text = run.client._ask("GET", "/metrics")[1].decode()
    assert 'outcome="ok"} 0' in text, "its own questions are not requests"
