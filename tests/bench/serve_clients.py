"""What `bench_serve.py` asks with: raw sockets, requests made beforehand, and the models that it makes itself."""

from __future__ import annotations

import json
import math
import mmap
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class RawClient:
    """Answers are counted and not decoded."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(8 << 20)

    def ask(self, request: bytes) -> float:
        """The time from the first byte sent to the last received, in ms."""
        began = time.perf_counter()
        self.socket.sendall(request)
        self.take()
        took = (time.perf_counter() - began) * 1e3
        assert self._buffer[9:12] == b"200", bytes(self._buffer[:500])
        return took

    def take(self) -> None:
        """One whole answer."""
        view, held, needed = memoryview(self._buffer), 0, None
        while needed is None or held < needed:
            held += self.socket.recv_into(view[held:])
            if needed is None and (end := self._buffer.find(b"\r\n\r\n", 0, held)) >= 0:
                head = bytes(self._buffer[:end]).lower()
                needed = end + 4 + int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])


def http_request(path: str, body: bytes, extra: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def binary_request(model: str, x: np.ndarray, **parameters: object) -> bytes:
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}}).encode()
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return http_request(f"/v2/models/{model}/infer", head + x.tobytes(), extra)


def json_request(model: str, x: np.ndarray) -> bytes:
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
    return http_request(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())


ECHO = """
import asyncio, uvloop

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nokay")

async def serve():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

uvloop.run(serve())
"""

LEAST = """
import mmap, os, socket, sys
from pathlib import Path
import numpy as np
from edgekit.runtimes.session import SessionSettings, open_session

count, region = int(sys.argv[2]), os.open(sys.argv[3], os.O_RDWR)
settings = SessionSettings(threads=1, axes={"x[0]": 1, "x[1]": count})
session = open_session(Path(sys.argv[1]), settings)
# on a page of its own: some AMD cores copy five times slower to 16 bytes behind the source's place in a page
x = np.frombuffer(mmap.mmap(-1, 4 * count), np.float32).reshape(1, count)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while client.recv(65536):
    os.preadv(region, [x], 0)
    os.pwrite(region, session.run({"x": x})["y"], x.nbytes)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nokay")
"""


@contextmanager
def echoing() -> Iterator[RawClient]:
    """A client of a program that does nothing but answer, on the daemon's kind of loop: what two wake-ups cost here."""
    with _answering(ECHO) as client:
        yield client


@contextmanager
def least(model: Path, count: int, region: Path) -> Iterator[RawClient]:
    """A client of what no server in Python can do without: it waits on one socket, copies, infers and answers."""
    with _answering(LEAST, str(model), str(count), str(region)) as client:
        yield client


@contextmanager
def _answering(script: str, *words: str) -> Iterator[RawClient]:
    program = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    try:
        yield RawClient(int(program.stdout.readline()))
    finally:
        program.kill()
        program.wait()


class SharedInput:
    """A tensor in shared memory, registered with the daemon; the output, four bytes, goes there too."""

    def __init__(self, client: RawClient, model: str, x: np.ndarray) -> None:
        self.path = Path(f"/dev/shm/edgekit-bench-{os.getpid()}")
        size = x.nbytes + 64
        with self.path.open("wb+") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._map[: x.nbytes] = x.data.cast("B")
        registration = json.dumps({"key": self.path.name, "byte_size": size}).encode()
        client.ask(http_request("/v2/systemsharedmemory/region/bench/register", registration))
        where = {"shared_memory_region": "bench"}
        inputs = {"name": "x", "shape": x.shape, "datatype": "FP32"}
        inputs["parameters"] = where | {"shared_memory_byte_size": x.nbytes}
        output = {"name": "y", "parameters": where | {"shared_memory_byte_size": 64, "shared_memory_offset": x.nbytes}}
        body = json.dumps({"inputs": [inputs], "outputs": [output]}).encode()
        self._request = http_request(f"/v2/models/{model}/infer", body)

    def ask(self, client: RawClient) -> float:
        """The tensor lies there already, as a camera's frame would; filling the region is not part of it."""
        return client.ask(self._request)

    def close(self, client: RawClient) -> None:
        client.ask(http_request("/v2/systemsharedmemory/region/bench/unregister", b""))
        self._map.close()
        self.path.unlink()


def many_clients(port: int, request: bytes, count: int, seconds: float) -> list[float]:
    """`count` clients that each ask again as soon as they are answered; the latencies in ms, of all together."""
    selector = selectors.DefaultSelector()
    clients = [RawClient(port) for _ in range(count)]
    sent_s = {}
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        sent_s[client] = time.perf_counter()
        client.socket.sendall(request)
    taken: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for key, _ in selector.select(1):
            client = key.data
            client.take()
            now_s = time.perf_counter()
            taken.append((now_s - sent_s[client]) * 1e3)
            sent_s[client] = now_s
            client.socket.sendall(request)
    for client in clients:
        client.take()
        client.socket.close()
    return taken


def percentile(values: Sequence[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]


def write_tiny(path: Path, count: int) -> None:
    """The maximum of `count` floats: the cheapest inference that reads its whole input."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, count])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)
    _save(path, helper.make_graph([node], "tiny", [x], [y]))


def write_perceptron(path: Path, width: int, layers: int) -> None:
    """Matrices that one item reads from memory as a whole, and eight items no more than once."""
    rng = np.random.default_rng(0)
    weights, nodes = [], []
    for i in range(layers):
        matrix = (rng.standard_normal((width, width)) / math.sqrt(width)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        out = "y" if i == layers - 1 else f"h{i}"
        nodes.append(helper.make_node("MatMul", [f"h{i - 1}" if i else "x", f"w{i}"], [out]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "xy")
    _save(path, helper.make_graph(nodes, "perceptron", [x], [y], weights))


def _save(path: Path, graph: onnx.GraphProto) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
