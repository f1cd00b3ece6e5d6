"""The daemon's HTTP side with real sessions behind it: the protocol's paths, its errors, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgekit.manifest import Model, Source, TensorSpec
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.serve import http as http_module
from edgekit.serve.engine import Engine
from edgekit.serve.http import HttpServer
from edgekit.serve.lane import Lane
from edgekit.serve.routes import Routes
from edgekit.serve.signature import signature_of
from tests.waiting import until

onnx = pytest.importorskip("onnx", reason="the tiny models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")
uvloop = pytest.importorskip("uvloop", reason="the daemon's loop")

TOKEN = "swordfish"
MAX_BYTES = 200_000


def write_doubler(path: Path, *dims: int | str, dtype: str = "FLOAT") -> None:
    """y = x + x."""
    from onnx import TensorProto, helper

    kind = getattr(TensorProto, dtype)
    tensors = [helper.make_tensor_value_info(name, kind, dims) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def write_slow(path: Path) -> None:
    """About a tenth of a second of matrix products."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [600, 600]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", [f"t{i}" if i else "x", "x"], [f"t{i + 1}"]) for i in range(19)]
    nodes.append(helper.make_node("MatMul", ["t19", "x"], ["y"]))
    graph = helper.make_graph(nodes, "slow", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def add_model(engine: Engine, path: Path, model: Model, axes: dict[str, int] | None = None) -> None:
    served = engine.add(model.name, model.version)
    session = open_session(path, SessionSettings(axes=axes or {}))
    signature = signature_of(model, session.inputs, session.outputs, overrides={})
    lane = Lane(
        model=model.name, name="realtime", artifact="standard", session=session, signature=signature, recorder=None
    )
    lane.warm_up()
    lane.start()
    served.lane = lane


def bare(name: str, **more: object) -> Model:
    return Model(name=name, version="3", task="tensors", source=Source(file="x", sha256="0", size_bytes=0), **more)


@dataclass
class Serving:
    """A server in a thread of its own."""

    engine: Engine
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


def start(
    engine: Engine, new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop, **limits: object
) -> Iterator[Serving]:
    begun: list[Serving] = []
    is_up = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        routes = Routes(engine)
        settings = {"token": None, "max_request_bytes": MAX_BYTES, "max_connections": 8} | limits
        server = routes.server = HttpServer(routes, **settings)
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start(listener)
        begun.append(Serving(engine, server, asyncio.get_running_loop(), listener.getsockname()[1]))
        is_up.set()
        await stop.wait()
        await server.drain(2.0)

    loop = new_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert is_up.wait(10)
    try:
        yield begun[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("models")
    engine = Engine()
    write_doubler(folder / "double.onnx", 2, 3)
    add_model(engine, folder / "double.onnx", bare("double"))
    write_doubler(folder / "open.onnx", 1, "length", dtype="INT64")
    specs = {
        "inputs": (TensorSpec(name="x", dtype="int64", shape=(1, "samples")),),
        "axes": {"samples": (4, 8)},
    }
    add_model(engine, folder / "open.onnx", bare("open", **specs), axes={"length": OPEN})
    write_slow(folder / "slow.onnx")
    add_model(engine, folder / "slow.onnx", bare("slow"))
    yield engine
    assert engine.close()


@pytest.fixture
def serving(engine: Engine) -> Iterator[Serving]:
    yield from start(engine)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


def read_reply(client: socket.socket, *, has_body: bool = True) -> Reply:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while has_body and len(body) < int(headers.get("content-length", 0)):
        piece = client.recv(65536)
        assert piece, "closed within the body"
        body += piece
    return Reply(int(first.split()[1]), headers, body)


def request_bytes(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *lines, "", ""]).encode() + body


def ask(serving: Serving, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    with serving.connect() as client:
        client.sendall(request_bytes(method, path, body, **headers))
        return read_reply(client, has_body=method != "HEAD")


GOOD = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
GOOD_BODY = json.dumps({"inputs": [GOOD]}).encode()


def infer_works(serving: Serving) -> bool:
    reply = ask(serving, "POST", "/v2/models/double/infer", GOOD_BODY)
    return reply.status == 200 and json.loads(reply.body)["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]


# The protocol's paths


def test_server_and_model_describe_themselves(serving):
    server = json.loads(ask(serving, "GET", "/v2").body)
    assert server["name"] == "edgekit"
    assert "binary_tensor_data" in server["extensions"]
    model = json.loads(ask(serving, "GET", "/v2/models/open").body)
    assert model == {
        "name": "open",
        "versions": ["3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, -1]}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [1, -1]}],
    }
    assert json.loads(ask(serving, "GET", "/v2/models/open/versions/3").body) == model
    config = json.loads(ask(serving, "GET", "/v2/models/double/config").body)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, 3]}]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/double/ready", "/v2?x=1"])
def test_health_answers_get_and_head(serving, path):
    assert ask(serving, "GET", path).status == 200
    reply = ask(serving, "HEAD", path)
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 0


def test_a_model_that_loads_is_live_but_not_ready(engine):
    loading = Engine()
    loading.models = dict(engine.models)
    loading.add("late", "1")
    for serving in start(loading):
        assert ask(serving, "GET", "/v2/health/live").status == 200
        assert ask(serving, "GET", "/v2/health/ready").status == 400
        assert ask(serving, "GET", "/v2/models/late/ready").status == 400
        reply = ask(serving, "POST", "/v2/models/late/infer", GOOD_BODY)
        assert (reply.status, reply.error) == (503, "late is still loading")
        assert reply.headers["retry-after"] == "1"
        assert infer_works(serving)
        loading.models["late"].lane = engine.models["double"].lane
        assert ask(serving, "GET", "/v2/health/ready").status == 200


def test_an_answer_says_where_its_time_went(serving):
    reply = json.loads(ask(serving, "POST", "/v2/models/double/infer", GOOD_BODY).body)
    parameters = reply["parameters"]
    assert (parameters["artifact"], parameters["lane"], parameters["cached"]) == ("standard", "realtime", False)
    assert 0 <= parameters["queue_ms"] < 1000
    assert 0 < parameters["infer_ms"] < 1000


def test_every_declared_size_of_an_axis_is_served(serving):
    for n in (4, 8):
        x = {"name": "x", "shape": [1, n], "datatype": "INT64", "data": list(range(n))}
        reply = ask(serving, "POST", "/v2/models/open/versions/3/infer", json.dumps({"inputs": [x]}).encode())
        assert json.loads(reply.body)["outputs"][0]["data"] == [2 * i for i in range(n)]


def test_metrics_count_what_was_served_and_refused(engine):
    for serving in start(engine):
        before = scrape(serving)
        assert infer_works(serving)
        ask(serving, "POST", "/v2/models/double/infer", b"{}")
        after = scrape(serving)
        labels = 'model="double",lane="realtime",artifact="standard"'
        for outcome in ("ok", "error"):
            key = f'edgekit_requests_total{{{labels},outcome="{outcome}"}}'
            assert after[key] == before[key] + 1
        assert (
            after[f"edgekit_infer_seconds_count{{{labels}}}"] == before[f"edgekit_infer_seconds_count{{{labels}}}"] + 1
        )
        assert (
            after[f'edgekit_infer_seconds_bucket{{{labels},le="+Inf"}}']
            == after[f"edgekit_infer_seconds_count{{{labels}}}"]
        )
        assert after['edgekit_http_errors_total{status="400"}'] == 1
        assert after["edgekit_ready"] == 1


def scrape(serving: Serving) -> dict[str, float]:
    reply = ask(serving, "GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# Errors of the protocol: method, path, body, further headers -> status, words

INFER = "/v2/models/double/infer"


def shape_of(**changes: object) -> bytes:
    return json.dumps({"inputs": [GOOD | changes]}).encode()


REFUSALS = {
    "unknown path": ("GET", "/v3", b"", {}, 404, "no such path: /v3"),
    "path below a model": ("GET", "/v2/models/double/nothing", b"", {}, 404, "no such path"),
    "repository extension": ("POST", "/v2/repository/index", b"{}", {}, 404, "no such path"),
    "unknown model": ("POST", "/v2/models/q/infer", GOOD_BODY, {}, 404, "unknown model 'q'; served: double, open"),
    "unknown model, escaped": ("GET", "/v2/models/a%20b", b"", {}, 404, "unknown model 'a b'"),
    "unknown version": ("POST", "/v2/models/double/versions/9/infer", GOOD_BODY, {}, 404, "no version '9'; served: 3"),
    "unknown version's metadata": ("GET", "/v2/models/double/versions/9", b"", {}, 404, "no version '9'"),
    "infer by GET": ("GET", INFER, b"", {}, 405, "infer wants POST"),
    "DELETE": ("DELETE", INFER, b"", {}, 405, "DELETE is not understood"),
    "empty": ("POST", INFER, b"", {}, 400, "not an inference request"),
    "no JSON": ("POST", INFER, b"x=1", {}, 400, "not an inference request"),
    "wrong name": ("POST", INFER, shape_of(name="z"), {}, 400, "input z: no such input; the model has x"),
    "wrong dtype": ("POST", INFER, shape_of(datatype="INT32"), {}, 400, "datatype INT32, the model takes FP32"),
    "wrong shape": ("POST", INFER, shape_of(shape=[3, 2]), {}, 400, "shape [3, 2], the model takes [2, 3]"),
    "undeclared size": (
        "POST", "/v2/models/open/infer", shape_of(shape=[1, 6], datatype="INT64"), {}, 400, "samples (4 or 8)",
    ),
    "JSON length of letters": (
        "POST", INFER, GOOD_BODY, {"Inference_Header_Content_Length": "ten"}, 400, "is not a number of bytes",
    ),
    "JSON length below zero": (
        "POST", INFER, GOOD_BODY, {"Inference_Header_Content_Length": "-1"}, 400, "is not a number of bytes",
    ),
    "JSON length beyond the body": (
        "POST", INFER, GOOD_BODY, {"Inference_Header_Content_Length": "99999"}, 400, "the body has",
    ),
    "compressed": ("POST", INFER, GOOD_BODY, {"Content_Encoding": "gzip"}, 415, "compressed bodies"),
    "too large": ("POST", INFER, b"x" * (MAX_BYTES + 1), {}, 413, f"at most {MAX_BYTES} are accepted"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_faulty_request_gets_its_status_and_a_reason(serving, case):
    method, path, body, headers, status, words = REFUSALS[case]
    reply = ask(serving, method, path, body, **headers)
    assert reply.status == status
    assert words in reply.error
    assert reply.headers["content-type"] == "application/json"


RAW_REFUSALS = {
    "no HTTP": (b"hello world\r\n\r\n", 400),
    "a bad length": (b"POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "length and chunks": (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunks": (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    "a length beyond all bounds": (b"POST /v2 HTTP/1.1\r\nContent-Length: 99999999999999999\r\n\r\n", 413),
    "a head without end": (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 20_000, 431),
    "binary noise": (bytes(range(256)) + b"\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}


@pytest.mark.parametrize("case", RAW_REFUSALS)
def test_bytes_that_are_no_request_are_answered_and_the_connection_ended(serving, case):
    data, status = RAW_REFUSALS[case]
    with serving.connect() as client:
        client.sendall(data)
        reply = read_reply(client)
        assert reply.status == status
        assert reply.headers["connection"] == "close"
        assert reply.error
        assert client.recv(1) == b""


# Connections


def test_a_connection_is_kept_through_requests_and_refusals(serving):
    with serving.connect() as client:
        for _ in range(3):
            client.sendall(request_bytes("POST", INFER, GOOD_BODY))
            assert read_reply(client).status == 200
            client.sendall(request_bytes("POST", INFER, b"{}"))
            assert read_reply(client).status == 400
    assert infer_works(serving)


def test_http_1_0_and_connection_close_end_the_connection(serving):
    for head in (b"GET /v2 HTTP/1.0\r\n\r\n", b"GET /v2 HTTP/1.1\r\nConnection: close\r\n\r\n"):
        with serving.connect() as client:
            client.sendall(head)
            assert read_reply(client).status == 200
            assert client.recv(1) == b""


def test_requests_sent_ahead_are_answered_in_order(serving):
    paths = ["/v2", "/v2/models/double", "/nothing", "/v2/health/live"] * 100
    with serving.connect() as client:
        client.sendall(b"".join(request_bytes("GET", path) for path in paths))
        stream = client.makefile("rb")
        statuses = []
        for _ in paths:
            statuses.append(int(stream.readline().split()[1]))
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    length = int(line.split()[1])
            stream.read(length)
    assert statuses == [200, 200, 404, 200] * 100


def test_the_same_head_again_brings_another_body(serving):
    with serving.connect() as client:
        for value in (1, 2, 3):
            body = GOOD_BODY.replace(b"1", b"%d" % value)
            client.sendall(request_bytes("POST", INFER, body))
            reply = read_reply(client)
            assert json.loads(reply.body)["outputs"][0]["data"][0] == 2 * value
        client.sendall(request_bytes("POST", "/v2/models/nothing/infer", body))
        assert read_reply(client).status == 404


def test_a_head_that_comes_again_is_parsed_once_and_keeps_no_body(serving, monkeypatch):
    parsed = []
    parse = http_module.parse_head
    monkeypatch.setattr(http_module, "parse_head", lambda head: parsed.append(parse(head)) or parsed[-1])
    with serving.connect() as client:
        for path in (INFER, INFER, INFER, "/v2/models/nothing/infer", INFER):
            client.sendall(request_bytes("POST", path, GOOD_BODY))
            read_reply(client)
        assert len(parsed) == 3
        assert until(lambda: all(len(request.body) == 0 for request in parsed)), "its memory is for the next one"


def test_an_answer_does_not_wait_for_the_end_of_the_turn(serving, monkeypatch):
    left = []
    send = http_module.send_some
    monkeypatch.setattr(http_module, "send_some", lambda fd, parts: left.append(send(fd, parts)) or left[-1])
    assert infer_works(serving)
    assert left == [[]], "the kernel had all of it at once"


def test_a_body_may_arrive_byte_by_byte(serving):
    with serving.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_bytes("POST", INFER, GOOD_BODY):
            client.sendall(bytes([byte]))
        assert read_reply(client).status == 200


def test_a_body_larger_than_one_read_is_whole(engine):
    for serving in start(engine, max_request_bytes=4_000_000):
        x = np.random.default_rng(0).random((600, 600), np.float32)
        head = json.dumps(
            {
                "inputs": [
                    {"name": "x", "shape": [600, 600], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        reply = ask(
            serving, "POST", "/v2/models/slow/infer", head + x.tobytes(),
            Inference_Header_Content_Length=str(len(head)),
        )  # fmt: skip
        y = np.frombuffer(reply.body[int(reply.headers["inference-header-content-length"]) :], np.float32)
        assert np.array_equal(y.reshape(600, 600), engine.infer("slow", {"x": x}).outputs["y"])


def test_an_answer_that_the_kernel_takes_in_pieces_is_whole(engine):
    x = np.random.default_rng(1).random((600, 600), np.float32)
    tensor = {"name": "x", "shape": [600, 600], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    request = request_bytes(
        "POST", "/v2/models/slow/infer", head + x.tobytes(), Inference_Header_Content_Length=str(len(head))
    )
    for serving in start(engine, max_request_bytes=4_000_000):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", serving.port))
        with client:
            client.sendall(request)
            time.sleep(0.5)  # the inference takes 0.1 s; by now the answer fills every buffer
            reply = read_reply(client)
            y = np.frombuffer(reply.body[int(reply.headers["inference-header-content-length"]) :], np.float32)
            assert np.array_equal(y.reshape(600, 600), engine.infer("slow", {"x": x}).outputs["y"])
            client.sendall(request_bytes("GET", "/v2"))
            assert read_reply(client).status == 200


def test_a_client_that_asks_first_is_told_to_continue(serving):
    with serving.connect() as client:
        client.sendall(request_bytes("POST", INFER, GOOD_BODY, Expect="100-continue")[: -len(GOOD_BODY)])
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(GOOD_BODY)
        assert read_reply(client).status == 200


def test_a_client_that_asks_first_is_refused_before_it_sends(serving):
    with serving.connect() as client:
        client.sendall(b"POST /v2 HTTP/1.1\r\nContent-Length: 9999999\r\nExpect: 100-continue\r\n\r\n")
        assert read_reply(client).status == 413


def slow_request(**parameters: object) -> bytes:
    x = np.zeros((600, 600), np.float32)
    tensor = {"name": "x", "shape": [600, 600], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True} | parameters}).encode()
    return request_bytes(
        "POST", "/v2/models/slow/infer", head + x.tobytes(), Inference_Header_Content_Length=str(len(head))
    )


@pytest.fixture
def roomy(engine: Engine) -> Iterator[Serving]:
    yield from start(engine, max_request_bytes=4_000_000, max_connections=4)


def test_a_request_whose_turn_comes_too_late_is_refused_with_the_numbers(roomy):
    with roomy.connect() as first, roomy.connect() as second:
        first.sendall(slow_request())
        second.sendall(slow_request(deadline_ms=1))
        late = read_reply(second)
        assert late.status == 503
        assert "deadline_ms is 1" in late.error
        assert read_reply(first).status == 200


def test_the_query_of_a_client_that_left_is_not_run(roomy, engine, monkeypatch):
    lane = engine.models["slow"].lane
    counts, before, run, go_on = lane.counts, lane.counts.requests, lane.session.run, threading.Event()
    monkeypatch.setattr(lane.session, "run", lambda inputs: (go_on.wait(20), run(inputs))[1])
    with roomy.connect() as stays:
        stays.sendall(slow_request())
        assert until(lambda: busy_connections(roomy, 1))
        with roomy.connect() as leaves:
            leaves.sendall(slow_request())
            assert until(lambda: busy_connections(roomy, 2))
        assert until(lambda: busy_connections(roomy, 1))
        go_on.set()
        read_reply(stays)
        stays.sendall(slow_request())
        read_reply(stays)
    assert until(lambda: counts.requests == before + 2)


def busy_connections(serving: Serving, count: int) -> bool:
    return sum(not connection.is_idle for connection in list(serving.server.connections)) == count


def test_the_longest_idle_connection_makes_room_and_busy_ones_do_not(roomy):
    idle = [roomy.connect() for _ in range(4)]
    for client in idle:
        client.sendall(request_bytes("GET", "/v2"))
        assert read_reply(client).status == 200
        time.sleep(0.002)
    assert ask(roomy, "GET", "/v2").status == 200
    assert idle[0].recv(1) == b""
    for client in idle:
        client.close()
    assert until(lambda: not roomy.server.connections)
    busy = [roomy.connect() for _ in range(4)]
    for client in busy:
        client.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
    assert until(partial(busy_connections, roomy, 4))
    with roomy.connect() as extra:
        reply = read_reply(extra)
        assert (reply.status, reply.error) == (503, "all 4 connections are busy")
    for client in busy:
        client.close()
    assert until(lambda: not roomy.server.connections)
    assert infer_works(roomy)


def test_a_request_that_drips_is_ended_and_an_idle_connection_closed(engine, monkeypatch):
    for name in ("HEAD_S", "BODY_S", "IDLE_S"):
        monkeypatch.setattr(http_module, name, 0.3)
    for serving in start(engine):
        with serving.connect() as head, serving.connect() as body, serving.connect() as idle:
            head.sendall(b"GET /v2 HT")
            body.sendall(b"POST /v2 HTTP/1.1\r\nContent-Length: 50\r\n\r\nabc")
            for client in (head, body):
                assert read_reply(client).status == 408
                assert client.recv(1) == b""
            assert idle.recv(1) == b""
        assert infer_works(serving)


def malformed(chance: random.Random) -> bytes:
    """A request with a fault somewhere: in any byte, a header, a length, the JSON, a tensor or its binary data."""
    kind = chance.randrange(6)
    if kind == 0:
        data = bytearray(request_bytes("POST", INFER, GOOD_BODY))
        for _ in range(chance.randint(1, 12)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.3 else data)
    if kind == 1:
        name = chance.choice(("Content-Length", "Inference-Header-Content-Length", "Transfer-Encoding", "X" * 200))
        value = chance.choice(("-1", "1e3", "9" * 30, "", "0x10", "chunked", "\0", "é", str(2**63)))
        head = f"POST {INFER} HTTP/1.1\r\nHost: test\r\n{name}: {value}\r\n\r\n"
        return head.encode("utf-8", "replace") + GOOD_BODY
    if kind == 2:
        body = binary_request_body()
        length = str(chance.choice((0, 1, len(body) - 1, len(body) + 1, 2**31, 5)))
        return request_bytes("POST", INFER, body, Inference_Header_Content_Length=length)
    if kind == 3:
        text = bytearray(GOOD_BODY)
        at = chance.randrange(len(text))
        text[at : at + chance.randint(1, 9)] = bytes(chance.choices(b'[]{}",:0-e.ntf\\\xff', k=chance.randint(0, 6)))
        return request_bytes("POST", INFER, bytes(text))
    key = chance.choice(list(GOOD))
    junk = chance.choice((None, -1, 2**70, "x", [], {}, [[]], [1.5], [-3, 2], 1e999, True, [2, 3, 4], ["a"] * 6))
    if kind == 4:
        return request_bytes("POST", INFER, json.dumps({"inputs": [GOOD | {key: junk}]}).encode())
    more = {chance.choice(("parameters", "outputs", "inputs", "id")): junk}
    return request_bytes("POST", INFER, json.dumps({"inputs": [GOOD], **more}).encode())


def binary_request_body() -> bytes:
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}
    return json.dumps({"inputs": [tensor]}).encode() + bytes(24)


def test_a_thousand_malformed_requests_leave_the_daemon_serving(serving):
    chance = random.Random(7)
    statuses: Counter[bytes] = Counter()
    for _ in range(1000):
        with serving.connect() as client:
            client.sendall(malformed(chance))
            client.shutdown(socket.SHUT_WR)
            first = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := client.recv(65536):
                    first = first or piece
            statuses[first[9:12]] += 1
    assert infer_works(serving)
    assert until(lambda: not serving.server.connections)
    assert set(statuses) <= {b"", b"200", b"400", b"404", b"405", b"408", b"411", b"413", b"415"}, statuses
    assert statuses[b"400"] > 300


def test_a_token_guards_everything_but_health(engine):
    for serving in start(engine, token=TOKEN):
        assert ask(serving, "GET", "/v2/health/ready").status == 200
        for headers in ({}, {"Authorization": "Bearer sword"}, {"Authorization": TOKEN}):
            for method, path in (("GET", "/v2"), ("GET", "/metrics"), ("POST", INFER)):
                reply = ask(serving, method, path, GOOD_BODY if method == "POST" else b"", **headers)
                assert reply.status == 401
                assert TOKEN not in reply.error
        reply = ask(serving, "POST", INFER, GOOD_BODY, Authorization=f"Bearer {TOKEN}")
        assert reply.status == 200


def test_draining_finishes_what_is_under_way_and_takes_no_more(engine):
    for serving in start(engine, max_request_bytes=4_000_000):
        with serving.connect() as busy, serving.connect() as idle:
            idle.sendall(request_bytes("GET", "/v2"))
            read_reply(idle)
            busy.sendall(slow_request())
            assert until(partial(busy_connections, serving, 1))
            drained = asyncio.run_coroutine_threadsafe(serving.server.drain(5.0), serving.loop)
            reply = read_reply(busy)
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert drained.result(5) == 0
            assert idle.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                serving.connect()


def test_draining_has_an_end(engine):
    for serving in start(engine):
        with serving.connect() as client:
            client.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
            assert until(partial(busy_connections, serving, 1))
            drained = asyncio.run_coroutine_threadsafe(serving.server.drain(0.2), serving.loop)
            assert drained.result(5) == 1
            assert client.recv(1) == b""


def test_without_uvloop_asyncios_own_loop_serves_the_same(engine):
    for serving in start(engine, asyncio.new_event_loop, max_request_bytes=4_000_000):
        assert infer_works(serving)
        assert ask(serving, "GET", "/v2/models/double").status == 200
        with serving.connect() as client:
            client.sendall(slow_request())
            assert read_reply(client).status == 200
            client.sendall(b"hello\r\n\r\n")
            assert read_reply(client).status == 400
            assert client.recv(1) == b""
