"""A session in a process of its own: the same answers, and a runtime that hangs or aborts takes nothing along."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import ArtifactError, InputError
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.remote import RemoteSession, WorkerLost

onnx = pytest.importorskip("onnx", reason="the models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

FOREVER = 2**60


def write_counter(path: Path) -> Path:
    """y = x after `n` turns of a loop: with a large n the runtime is stuck for good."""
    kind = onnx.TensorProto
    turn, go, state = (
        onnx.helper.make_tensor_value_info("i", kind.INT64, []),
        onnx.helper.make_tensor_value_info("go", kind.BOOL, []),
        onnx.helper.make_tensor_value_info("s", kind.FLOAT, [4]),
    )
    out = [
        onnx.helper.make_tensor_value_info("go2", kind.BOOL, []),
        onnx.helper.make_tensor_value_info("s2", kind.FLOAT, [4]),
    ]
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["go2"]), onnx.helper.make_node("Abs", ["s"], ["s2"])],
        "turn", [turn, go, state], out,
    )  # fmt: skip
    n = onnx.helper.make_tensor_value_info("n", kind.INT64, [])
    x, y = (onnx.helper.make_tensor_value_info(name, kind.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], "m", [n, x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def inputs(n: int = 3) -> dict[str, np.ndarray]:
    return {"n": np.array(n, np.int64), "x": np.arange(4, dtype=np.float32)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counter(tmp_path_factory.mktemp("model") / "counter.onnx")


@pytest.fixture
def session(path: Path) -> Iterator[RemoteSession]:
    session = RemoteSession(path, SessionSettings(), stuck_s=1.0)
    yield session
    session.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_the_same_session_as_in_process(session, path):
    bare = open_session(path, SessionSettings())
    assert (session.inputs, session.outputs) == (bare.inputs, bare.outputs)
    assert (session.runtime, session.runtime_version) == (bare.runtime, bare.runtime_version)
    assert session.active_providers == bare.active_providers
    first = session.run(inputs())["y"]
    second = session.run(inputs() | {"x": np.full(4, 7, np.float32)})["y"]
    assert first.tolist() == [0, 1, 2, 3], "an answer is not written over by the next"
    assert second.tolist() == [7, 7, 7, 7]
    with pytest.raises(InputError, match=r"input x: has shape \[2\]"):
        session.run(inputs() | {"x": np.zeros(2, np.float32)})
    assert session.generation == 1


def test_a_stuck_one_is_killed_and_the_next_inference_has_a_new_process(session):
    first = session.pid
    began_s = time.monotonic()
    with pytest.raises(WorkerLost, match=r"counter.onnx was lost: no answer within 1 s"):
        session.run(inputs(FOREVER))
    assert time.monotonic() - began_s < 5
    assert not is_alive(first)
    assert session.run(inputs())["y"].tolist() == [0, 1, 2, 3]
    assert (session.generation, session.pid != first) == (2, True)


def test_one_that_aborts_is_replaced_and_its_signal_is_told(session):
    os.kill(session.pid, signal.SIGABRT)
    with pytest.raises(WorkerLost, match=r"SIGABRT|Broken pipe|reset"):
        session.run(inputs())
    assert session.run(inputs())["y"].tolist() == [0, 1, 2, 3]


def test_no_descriptor_and_no_process_is_left_behind(path):
    before = set(os.listdir("/proc/self/fd"))
    session = RemoteSession(path, SessionSettings(), stuck_s=0.2)
    for _ in range(2):
        with pytest.raises(WorkerLost):
            session.run(inputs(FOREVER))
        session.run(inputs())
    pid = session.pid
    session.close()
    session.close()
    assert not is_alive(pid)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_what_cannot_be_opened_is_said_as_in_process(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x08\x12\x05junk")
    with pytest.raises(ArtifactError) as remote:
        RemoteSession(broken, SessionSettings(), stuck_s=1.0)
    with pytest.raises(ArtifactError) as local:
        open_session(broken, SessionSettings())
    assert str(remote.value) == str(local.value)


def test_tensors_larger_than_any_before_find_room(tmp_path):
    kind = onnx.TensorProto.FLOAT
    tensors = [onnx.helper.make_tensor_value_info(name, kind, ["n"]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "m", tensors[:1], tensors[1:])
    path = tmp_path / "abs.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    session = RemoteSession(path, SessionSettings(axes={"n": -1}), stuck_s=10)
    for count in (0, 1, 1000, 3, 1_000_000, 5):
        assert session.run({"x": np.full(count, -2, np.float32)})["y"].sum() == 2 * count
    session.close()
