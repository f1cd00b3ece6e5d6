"""Answers kept for inputs that come again: exactly those, not for long, and never more than allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.cache import ENTRY_BYTES, ResultCache, digest
from edgekit.serve.engine import Engine
from edgekit.serve.lane import Lane
from edgekit.serve.signature import signature_of
from edgekit.telemetry.recorder import Recorder

onnx = pytest.importorskip("onnx", reason="the tiny model of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")

KIB = 1024


def outputs(size_bytes: int, fill: int = 0) -> dict[str, np.ndarray]:
    return {"y": np.full(size_bytes, fill, np.uint8)}


def test_only_the_same_bytes_of_the_same_shape_type_and_name_are_the_same_inputs():
    x = np.arange(6, dtype=np.float32)
    changed = x.copy()
    changed[3] = np.nextafter(changed[3], np.float32(9))
    different = [
        {"x": x},
        {"y": x},
        {"x": x.reshape(2, 3)},
        {"x": x.reshape(3, 2)},
        {"x": x.view(np.int32)},
        {"x": changed},
        {"x": x, "y": x},
        {"x": x[:0]},
        {"x": np.float32(1).reshape(())},
    ]
    assert len({digest(inputs) for inputs in different}) == len(different)
    assert digest({"x": x, "y": changed}) == digest({"y": changed.copy(), "x": np.arange(6, dtype=np.float32)})
    assert digest({"x": x.reshape(2, 3).T}) == digest({"x": np.ascontiguousarray(x.reshape(2, 3).T)})


def test_the_bytes_never_exceed_the_limit_and_the_least_used_go_first():
    cache = ResultCache(max_bytes=16 * KIB, ttl_s=60)
    each = KIB - ENTRY_BYTES
    for i in range(16):
        cache.put("a", bytes([i]), outputs(each, i))
    assert (len(cache), cache.size_bytes) == (16, 16 * KIB)
    assert cache.get("a", b"\0") is not None
    cache.put("a", b"new", outputs(each))
    assert cache.size_bytes == 16 * KIB
    assert cache.get("a", b"\1") is None, "the oldest that nobody asked for"
    assert cache.get("a", b"\0") is not None
    cache.put("a", b"new", outputs(10))
    assert cache.size_bytes == 15 * KIB + ENTRY_BYTES + 10
    assert cache.clear() == 15 * KIB + ENTRY_BYTES + 10
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_an_answer_that_would_drive_all_others_out_is_not_kept():
    cache = ResultCache(max_bytes=8 * KIB, ttl_s=60)
    cache.put("a", b"1", outputs(KIB))
    assert len(cache) == 0


def test_an_answer_grows_old():
    now = [0.0]
    cache = ResultCache(max_bytes=KIB * KIB, ttl_s=10, clock=lambda: now[0])
    cache.put("a", b"1", outputs(10))
    now[0] = 9.0
    assert cache.get("a", b"1") is not None
    now[0] = 10.5
    assert cache.get("a", b"1") is None, "being asked for does not make it younger"
    assert cache.size_bytes == 0


def test_a_part_of_a_batch_does_not_keep_the_whole_batch_alive():
    cache = ResultCache(max_bytes=KIB * KIB, ttl_s=10)
    batch = np.arange(1000, dtype=np.float32).reshape(10, 100)
    cache.put("a", b"1", {"y": batch[:1]})
    found = cache.get("a", b"1")
    assert found is not None
    assert found["y"].base is None
    np.testing.assert_array_equal(found["y"], batch[:1])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def engine(tmp_path: Path, recorder: Recorder) -> Iterator[Engine]:
    """y = x + x in two lanes, the tolerant one of another artifact."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    model = Model(name="m", version="1", task="tensors", source=Source(file="x", sha256="0", size_bytes=0))
    engine = Engine()
    engine.cache = ResultCache(max_bytes=KIB * KIB, ttl_s=60)
    served = engine.add("m", "1")
    for name, artifact in (("realtime", "standard"), ("tolerant", "flash")):
        session = open_session(tmp_path / "m.onnx", SessionSettings())
        signature = signature_of(model, session.inputs, session.outputs, overrides={})
        lane = Lane(
            model="m", name=name, artifact=artifact, session=session, signature=signature, recorder=recorder,
            cache=engine.cache,
        )  # fmt: skip
        lane.start()
        served.swap(name, lane)
    yield engine
    assert engine.close()


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(4, value, np.float32)}


def settled(engine: Engine) -> None:
    """An answer is kept after it is on its way; the next one of the lane comes after that."""
    for priority in ("realtime", "tolerant"):
        engine.infer("m", x(-1), priority=priority, no_cache=True)


def test_what_comes_again_is_answered_at_once_and_says_so(engine, recorder):
    first = engine.infer("m", x(1))
    settled(engine)
    recorder.take()
    again = engine.infer("m", x(1))
    assert (first.cached, again.cached, again.artifact, again.lane) == (False, True, "standard", "realtime")
    assert again.outputs["y"].tolist() == [2, 2, 2, 2]
    assert engine.infer("m", x(2)).cached is False
    settled(engine)
    hits = {lane.lane: (lane.cache_hits, lane.requests) for lane in recorder.take()}
    assert hits["realtime"] == (1, 3)
    assert engine.find("m").ready_lane().counts.cache_hits == 1


def test_no_cache_neither_asks_nor_keeps(engine):
    for _ in range(3):
        assert engine.infer("m", x(3), no_cache=True).cached is False
    settled(engine)
    assert engine.infer("m", x(3)).cached is False
    settled(engine)
    assert engine.infer("m", x(3)).cached is True
    assert engine.infer("m", x(3), no_cache=True).cached is False


def test_a_tolerant_request_takes_the_better_answer_and_a_real_time_one_never_the_lesser(engine):
    assert engine.infer("m", x(1), priority="tolerant").artifact == "flash"
    settled(engine)
    assert engine.infer("m", x(1), priority="tolerant").cached
    assert not engine.infer("m", x(1), priority="realtime").cached
    settled(engine)
    assert engine.infer("m", x(1), priority="realtime").cached
    assert engine.infer("m", x(2), priority="realtime").artifact == "standard"
    settled(engine)
    answer = engine.infer("m", x(2), priority="tolerant")
    assert (answer.cached, answer.artifact, answer.lane) == (True, "standard", "realtime")
