"""Shared memory as tritonclient speaks it: tensors by name, for their owner alone, and no way to hurt the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from edgekit.errors import RequestError
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve.engine import Engine
from edgekit.serve.http import HttpServer
from edgekit.serve.lane import Lane
from edgekit.serve.parameters import Place, place_in
from edgekit.serve.routes import Routes
from edgekit.serve.shared import SharedMemory, user_of
from edgekit.serve.signature import signature_of

onnx = pytest.importorskip("onnx", reason="the model of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")
uvloop = pytest.importorskip("uvloop", reason="the daemon's loop")
triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
shm = pytest.importorskip("tritonclient.utils.shared_memory", reason="tritonclient[http] is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory objects are looked for in /dev/shm")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with y = x + x and shared memory."""
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "m", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("model") / "double.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    model = Model(name="double", version="1", task="tensors", source=Source(file="x", sha256="0", size_bytes=0))
    session = open_session(path, SessionSettings())
    signature = signature_of(model, session.inputs, session.outputs, overrides={})
    lane = Lane(
        model="double", name="realtime", artifact="standard", session=session, signature=signature, recorder=None
    )
    lane.start()
    engine = Engine()
    engine.add("double", "1").lane = lane
    loop, stop, is_up = uvloop.new_event_loop(), asyncio.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    async def main() -> None:
        shared = SharedMemory()
        routes = Routes(engine, shared)
        server = routes.server = HttpServer(routes, token=None, max_request_bytes=100_000, max_connections=8)
        await server.start(listener)
        is_up.set()
        await stop.wait()
        await server.drain(2.0)
        shared.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    port = listener.getsockname()[1]
    thread.start()
    assert is_up.wait(10)
    yield f"127.0.0.1:{port}"
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()
    assert engine.close()


@pytest.fixture
def client(address: str) -> Iterator[object]:
    with triton.InferenceServerClient(address) as client:
        yield client
        client.unregister_system_shared_memory()


@pytest.fixture
def region() -> Iterator[object]:
    """24 bytes for x, 24 for y."""
    handle = shm.create_shared_memory_region("tensors", f"edgekit-test-{os.getpid()}", 48, create_only=True)
    shm.set_shared_memory_region(handle, [X])
    yield handle
    shm.destroy_shared_memory_region(handle)


def key() -> str:
    return f"edgekit-test-{os.getpid()}"


def test_tritonclient_sends_and_receives_without_sending_or_receiving(client, region):
    assert "system_shared_memory" in client.get_server_metadata()["extensions"]
    client.register_system_shared_memory("tensors", key(), 48)
    status = client.get_system_shared_memory_status()
    assert status == [{"name": "tensors", "key": key(), "offset": 0, "byte_size": 48}]
    x, y = triton.InferInput("x", [2, 3], "FP32"), triton.InferRequestedOutput("y")
    x.set_shared_memory("tensors", 24)
    y.set_shared_memory("tensors", 24, offset=24)
    result = client.infer("double", [x], outputs=[y])
    said = result.get_output("y")["parameters"]
    assert said == {"shared_memory_region": "tensors", "shared_memory_offset": 24, "shared_memory_byte_size": 24}
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [2, 3], offset=24), X + X)
    client.unregister_system_shared_memory("tensors")
    assert client.get_system_shared_memory_status() == []
    with pytest.raises(Exception, match="unknown shared memory region 'tensors'"):
        client.infer("double", [x], outputs=[y])


def test_places_and_sizes_are_checked(client, region):
    for offset, size, words in (
        (0, 49, "reach beyond its 48 bytes"),
        (-8, 8, "reach beyond"),
        (40, 9, "reach beyond"),
        (0, 0, "reach beyond"),
    ):
        with pytest.raises(Exception, match=words):
            client.register_system_shared_memory("tensors", key(), size, offset)
    for wrong in ("../etc/passwd", "/../passwd", "", "..", "absent"):
        with pytest.raises(Exception, match=r"not the key|cannot be opened"):
            client.register_system_shared_memory("tensors", wrong, 8)
    client.register_system_shared_memory("tensors", key(), 24, 24)
    with pytest.raises(Exception, match="is registered already"):
        client.register_system_shared_memory("tensors", key(), 24)
    x = triton.InferInput("x", [2, 3], "FP32")
    for size, offset, words in (
        (24, 8, "reach beyond its 24 bytes"),
        (12, 0, r"shared_memory_byte_size is 12, \[2, 3\] FP32 has 24"),
        (24, -24, "is not valid"),
    ):
        x.set_shared_memory("tensors", size, offset)
        with pytest.raises(Exception, match=words):
            client.infer("double", [x])


def test_an_owner_who_shortens_the_region_gets_an_error_and_the_daemon_goes_on(client, region):
    client.register_system_shared_memory("tensors", key(), 48)
    x, y = triton.InferInput("x", [2, 3], "FP32"), triton.InferRequestedOutput("y")
    x.set_shared_memory("tensors", 24)
    os.truncate(f"/dev/shm/{key()}", 8)
    with pytest.raises(Exception, match="has become shorter"):
        client.infer("double", [x])
    x.set_data_from_numpy(X)
    y.set_shared_memory("tensors", 24, offset=24)
    with pytest.raises(Exception, match="do not fit"):
        client.infer("double", [x], outputs=[y])
    assert client.is_server_live()
    os.truncate(f"/dev/shm/{key()}", 48)


def test_a_region_of_another_user_is_not_theirs_to_name(tmp_path):
    (tmp_path / "mine").write_bytes(bytes(48))
    shared = SharedMemory(tmp_path)
    body = json.dumps({"key": "mine", "byte_size": 48}).encode()
    for stranger in (os.getuid() + 1, None):
        with pytest.raises(RequestError, match="belongs to another user") as caught:
            shared.register("r", body, stranger)
        assert caught.value.status == 403
    shared.register("r", body, os.getuid())
    place = Place(region="r", offset=0, size_bytes=4)
    for stranger in (os.getuid() + 1, None):
        for act in (
            lambda user=stranger: shared.read(place, user),
            lambda user=stranger: shared.write(place, memoryview(b"1234"), user),
            lambda user=stranger: shared.unregister("r", user),
            lambda user=stranger: shared.status("r", user),
        ):
            with pytest.raises(RequestError, match="belongs to another user"):
                act()
        assert shared.status(None, stranger) == []
        shared.unregister(None, stranger)
    assert bytes(shared.read(place, os.getuid())) == bytes(4)
    (tmp_path / "pipe").mkdir()
    (tmp_path / "link").symlink_to("mine")
    for bad in ("pipe", "link"):
        with pytest.raises(RequestError, match="cannot be opened"):
            shared.register("s", json.dumps({"key": bad, "byte_size": 8}).encode(), os.getuid())
    shared.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_the_user_at_the_other_end_is_known(family, tmp_path):
    addresses = {
        socket.AF_INET: ("127.0.0.1", 0),
        socket.AF_INET6: ("::1", 0),
        socket.AF_UNIX: str(tmp_path / "s"),
    }
    with socket.socket(family) as listener:
        try:
            listener.bind(addresses[family])
        except OSError as e:
            pytest.skip(f"no such addresses here: {e}")
        listener.listen()
        with socket.socket(family) as client:
            client.connect(listener.getsockname())
            server, _ = listener.accept()
            with server:
                assert user_of(server) == os.getuid()


@pytest.mark.parametrize("offset", ["0", 1.5, True, -1])
def test_a_place_that_is_none_is_refused(offset):
    with pytest.raises(RequestError, match="is not valid"):
        place_in({"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": offset})
