"""The daemon as its users meet it: `edgekit run` in a process of its own, tritonclient, signals, systemd, a broker."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from edgekit.catalog import load_model
from edgekit.config import MqttConfig
from edgekit.runtimes.session import SessionSettings, open_session
from edgekit.telemetry.broker import find_mosquitto, start_broker
from edgekit.telemetry.messages import Birth, Metrics, Received, Status, decode
from edgekit.telemetry.watch import Watcher
from tests.waiting import until

onnx = pytest.importorskip("onnx", reason="the tiny models of these tests are made with onnx")
pytest.importorskip("onnxruntime", reason="the sessions of these tests are onnxruntime's")
pytest.importorskip("uvloop", reason="the daemon's loop")

READY_S = 40.0


class Run:
    """`edgekit run` as a child; `stop` is called by the fixture whatever happens."""

    def __init__(self, home: Path, *words: str | Path, **environ: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgekit.cli.main", "run", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(home)} | environ,
        )
        self.err = ""
        self._reader = threading.Thread(target=self._read_err)
        self._reader.start()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line

    def first_line(self) -> str:
        """What it says when it is ready. An exit instead ends the test with its last words."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"exit {self.wait()}: {self.err}"
        return line.strip()

    def wait(self) -> int:
        code = self.process.wait(READY_S)
        self._reader.join()
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*words: str | Path, **environ: str) -> Run:
        runs.append(Run(tmp_path / "home", *words, **environ))
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """One daemon with the digits model for all who only ask it."""
    run = Run(tmp_path_factory.mktemp("home"), "digits", "--artifact", "standard", "--port", "0", "--json")
    try:
        yield json.loads(run.first_line())
        run.process.terminate()
        assert run.wait() == 0
    finally:
        run.stop()


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About half a second of matrix products an inference."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [900, 900]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", [f"t{i}" if i else "x", "x"], [f"t{i + 1}"]) for i in range(29)]
    nodes.append(helper.make_node("MatMul", ["t29", "x"], ["y"]))
    graph = helper.make_graph(nodes, "slow", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def write_doubler(path: Path, *dims: int | str) -> None:
    """y = x + x."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


SLOW_INPUT = np.zeros((900, 900), np.float32)


def post_slow(url: str) -> dict:
    """The slow model's answer, outputs left out."""
    tensor = {
        "name": "x",
        "shape": [900, 900],
        "datatype": "FP32",
        "parameters": {"binary_data_size": SLOW_INPUT.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    request = urllib.request.Request(f"{url}/v2/models/slow/infer", head + SLOW_INPUT.tobytes(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read()[: int(reply.headers["Inference-Header-Content-Length"])])


def status_of(url: str) -> int | None:
    """None: nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as e:
        with e:
            return e.code
    except OSError:
        return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# tritonclient, unchanged


@pytest.fixture
def triton(serving):
    module = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    with module.InferenceServerClient(serving["url"].removeprefix("http://")) as client:
        client.module = module
        yield client


def test_tritonclient_reads_health_and_metadata(triton, serving):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("digits")
    assert not triton.is_model_ready("absent")
    assert triton.get_server_metadata()["name"] == "edgekit"
    metadata = triton.get_model_metadata("digits")
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"][0]["datatype"] == "FP32"
    assert triton.get_model_metadata("digits", metadata["versions"][0]) == metadata
    assert triton.get_model_config("digits")["input"][0]["dims"] == metadata["inputs"][0]["shape"]
    assert serving["models"][0]["artifact"] == "standard"


@pytest.mark.parametrize("as_binary", [True, False])
@pytest.mark.parametrize("with_outputs", [True, False])
def test_tritonclient_gets_the_bare_sessions_answer(triton, as_binary, with_outputs):
    model = load_model("digits")
    session = open_session(model.folder / model.source.file, SessionSettings())
    spec = session.inputs[0]
    x = np.random.default_rng(1).random(spec.shape, np.float32)
    tensor = triton.module.InferInput(spec.name, list(spec.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=as_binary)
    wanted = [triton.module.InferRequestedOutput(o.name, binary_data=not as_binary) for o in session.outputs]
    result = triton.infer("digits", [tensor], outputs=wanted if with_outputs else None, request_id="7")
    assert result.get_response()["id"] == "7"
    assert result.get_response()["parameters"]["lane"] == "realtime"
    for name, value in session.run({spec.name: x}).items():
        np.testing.assert_array_equal(result.as_numpy(name), value)


def test_tritonclient_is_told_what_is_wrong(triton):
    def infer(name: str, shape: list[int], model: str = "digits", dtype: str = "FP32") -> None:
        tensor = triton.module.InferInput(name, shape, dtype)
        tensor.set_data_from_numpy(np.zeros(shape, np.float32 if dtype == "FP32" else np.int32))
        triton.infer(model, [tensor])

    spec = triton.get_model_metadata("digits")["inputs"][0]
    error = triton.module.InferenceServerException if hasattr(triton.module, "InferenceServerException") else Exception
    for arguments, words in (
        ((spec["name"], [1, 2]), "the model takes"),
        (("other", spec["shape"]), "no such input"),
        ((spec["name"], spec["shape"], "digits", "INT32"), "has datatype INT32"),
        ((spec["name"], spec["shape"], "absent"), "unknown model 'absent'"),
    ):
        with pytest.raises(error, match=words):
            infer(*arguments)
    assert triton.is_server_ready()


# Start, ready, stop


def test_the_first_line_is_where_it_listens(daemon):
    run = daemon("digits", "--artifact", "int8", "--port", "0")
    line = run.first_line()
    assert line.startswith("listening on http://127.0.0.1:")
    assert status_of(line.removeprefix("listening on ") + "/v2/health/ready") == 200
    assert "digits: int8 with onnxruntime CPU" in run.err
    assert "pinned by the configuration" in run.err


def test_it_listens_at_once_and_is_ready_only_after_warm_up(daemon, slow_model):
    port = free_port()
    run = daemon(slow_model, "--artifact", "standard", "--port", str(port))
    url = f"http://127.0.0.1:{port}/v2/health"
    assert until(lambda: status_of(f"{url}/live") == 200)
    assert status_of(f"{url}/ready") == 400
    assert status_of(f"http://127.0.0.1:{port}/v2/models/slow/ready") in (400, 404)
    assert "warm:" not in run.err
    run.first_line()
    assert status_of(f"{url}/ready") == 200
    assert until(lambda: "warm: [900, 900]" in run.err)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_drains_the_request_under_way_and_exits_0(daemon, slow_model, name):
    run = daemon(slow_model, "--artifact", "standard", "--port", "0")
    url = run.first_line().removeprefix("listening on ")
    answers: list[dict] = []
    asking = threading.Thread(target=lambda: answers.append(post_slow(url)))
    asking.start()
    time.sleep(0.2)
    run.process.send_signal(signal.Signals[name])
    asking.join()
    assert answers[0]["outputs"][0]["shape"] == [900, 900]
    assert run.wait() == 0
    assert f"{name}: drained" in run.err
    assert status_of(url) is None


def test_a_second_signal_ends_it_at_once(daemon, slow_model):
    run = daemon(slow_model, "--artifact", "standard", "--port", "0")
    url = run.first_line().removeprefix("listening on ")
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: 100\r\n\r\n")  # never finished
        time.sleep(0.1)
        run.process.terminate()
        assert until(lambda: status_of(url) is None)
        assert run.process.poll() is None
        run.process.terminate()
        assert run.wait() == 130
        assert "SIGTERM again: ending at once" in run.err
        assert "drained" not in run.err, "the open request would be waited for ten seconds"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_while_it_loads_ends_it_in_order(daemon, slow_model, name):
    port = free_port()
    run = daemon(slow_model, "--artifact", "standard", "--port", str(port))
    assert until(lambda: status_of(f"http://127.0.0.1:{port}/v2/health/live") == 200)
    run.process.send_signal(signal.Signals[name])
    assert run.wait() == 0
    assert f"{name}: drained" in run.err


def test_a_signal_while_it_loads_another_model_does_not_wait_for_that(daemon, slow_model, tmp_path):
    config = tmp_path / "edgekit.toml"
    config.write_text('[http]\nport = 0\n[[model]]\nname = "digits"\nartifact = "standard"\n')
    run = daemon("--config", config)
    run.first_line()
    config.write_text(config.read_text() + f'[[model]]\nname = "{slow_model}"\nartifact = "standard"\n')
    run.process.send_signal(signal.SIGHUP)
    assert until(lambda: "slow: sha256 holds" in run.err)
    run.process.terminate()
    assert run.wait() == 0
    assert "SIGTERM: drained" in run.err
    assert "warm: [900, 900]" not in run.err


def test_without_a_selection_it_measures_and_remembers(daemon, tmp_path):
    model = tmp_path / "double.onnx"
    write_doubler(model, 1, "length")
    config = tmp_path / "edgekit.toml"
    config.write_text(f'[[model]]\nname = "{model}"\nthreads = 1\naxes = {{length = 8}}\n')
    words = ("--config", config, "--port", "0", "--json")
    run = daemon(*words)
    chosen = json.loads(run.first_line())["models"][0]
    assert "measuring" in run.err
    assert chosen["reasons"]
    assert chosen["benched_p50_ms"] > 0
    run.process.terminate()
    assert run.wait() == 0
    assert (run.home / "selections" / "double.json").is_file()
    again = daemon(*words)
    assert json.loads(again.first_line())["models"][0]["artifact"] == chosen["artifact"]
    assert "measuring" not in again.err


# Refusals: words on the command line -> exit code, words of the one line


def test_what_cannot_be_served_is_said_in_one_line(daemon, tmp_path):
    text = tmp_path / "text.onnx"
    text.write_text("I am not a model")
    dynamic = tmp_path / "dynamic.onnx"
    write_doubler(dynamic, 1, "length")
    config = tmp_path / "edgekit.toml"
    config.write_text("[htp]\nport = 1\n")
    empty = tmp_path / "token"
    empty.write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = (
            (("digit",), 3, "did you mean digits?"),
            ((tmp_path / "absent.onnx",), 5, "no such file"),
            ((text,), 5, "is a text file, not an ONNX model"),
            ((dynamic,), 5, "give it with --axis 'length=VALUE'"),
            (("digits", "--artifact", "q"), 3, "there is no 'q' here, only standard"),
            (("digits", "digits"), 3, "'digits' is listed twice"),
            ((), 2, "one of the two"),
            (("digits", "--config", config), 2, "one of the two"),
            (("--config", config), 3, "htp: unknown key; did you mean 'http'?"),
            (("digits", "--axis", "n"), 2, "expected NAME=SIZE"),
            (("digits", "--port", port), 3, f"{port} on 127.0.0.1 is taken"),
            (("digits", "--port", "70000"), 3, "70000 is not a port"),
            (("digits", "--host", "0.0.0.0"), 3, "http.token_file"),
            (("digits", "--token-file", empty), 3, "is empty"),
            (("digits", "--site", "No Way"), 3, "site"),
        )
        runs = []
        for words, code, message in cases:
            port_words = () if "--port" in words or not words or "--config" in words else ("--port", "0")
            runs.append((daemon(*words, *port_words), words, code, message))
            if len(runs) % 2 == 0:
                runs[-2][0].wait()  # two at a time
        for run, words, code, message in runs:
            assert run.wait() == code, (words, run.err)
            last = run.err.strip().splitlines()[-1]
            assert last.startswith("edgekit run: "), words
            assert message in last, words
            assert "Traceback" not in run.err


def test_a_config_serves_several_models_on_a_unix_socket_with_a_token(daemon, tmp_path, slow_model):
    token = tmp_path / "token"
    token.write_text("swordfish\n")
    path = tmp_path / "edgekit.sock"
    config = tmp_path / "edgekit.toml"
    config.write_text(
        f'site = "lab"\ndevice = "bench-1"\n[http]\nunix_socket = "{path}"\ntoken_file = "{token}"\n'
        f'[[model]]\nname = "digits"\nartifact = "int8"\n[[model]]\nname = "{slow_model}"\nartifact = "standard"\n'
    )
    run = daemon("--config", config, "--json", "--site", "hall")
    ready = json.loads(run.first_line())
    assert (ready["url"], ready["site"], ready["device"]) == (f"unix:{path}", "hall", "bench-1")
    assert [model["model"] for model in ready["models"]] == ["digits", "slow"]
    for headers, status in ((b"", b"401"), (b"Authorization: Bearer swordfish\r\n", b"200")):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /v2/models/slow HTTP/1.1\r\n" + headers + b"\r\n")
            assert client.recv(100).split()[1] == status
    run.process.terminate()
    assert run.wait() == 0
    assert not path.exists()
    assert "swordfish" not in run.err


# systemd


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told_of_start_life_and_stop(daemon, tmp_path, slow_model, is_abstract):
    if is_abstract and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    address = f"@edgekit-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + address[1:] if is_abstract else address)
        channel.settimeout(READY_S)
        run = daemon(slow_model, "--artifact", "standard", "--port", "0", NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
        messages = []
        while not messages or not messages[-1].startswith("READY=1"):
            messages.append(channel.recv(4096).decode())
        assert any(m.startswith("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=") for m in messages)
        assert "serving slow on http://127.0.0.1:" in messages[-1]
        run.first_line()
        stamps = []
        while len(stamps) < 5:
            if channel.recv(4096) == b"WATCHDOG=1":
                stamps.append(time.monotonic())
        assert max(b - a for a, b in itertools.pairwise(stamps)) < 0.2
        run.process.terminate()
        while not (message := channel.recv(4096)).startswith(b"STOPPING=1"):
            assert message == b"WATCHDOG=1"
        assert run.wait() == 0


# The broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on the PATH")
    with start_broker(tmp_path_factory.mktemp("broker"), port=0) as started:
        yield started


@pytest.fixture
def watcher(broker) -> Iterator[Watcher]:
    watching = Watcher(MqttConfig(host="127.0.0.1", port=broker.port))
    watching.start()
    assert until(lambda: watching.connected)
    yield watching
    watching.stop()


class Heard:
    """What one device said, by leaf."""

    def __init__(self, watcher: Watcher, device: str) -> None:
        self._watcher, self._device = watcher, device
        self._messages: list[Received] = []

    def all(self, leaf: str) -> list:
        self._messages += self._watcher.drain()
        mine = [m for m in self._messages if m.topic == f"edgekit/v1/lab/{self._device}/{leaf}"]
        return [decode(leaf, m.payload) for m in mine]

    def until(self, leaf: str, holds: Callable[..., bool]) -> object:
        assert until(lambda: any(holds(message) for message in self.all(leaf))), self.all(leaf)
        return next(message for message in self.all(leaf) if holds(message))


@pytest.mark.broker
def test_the_fleet_hears_of_birth_work_and_an_orderly_death(daemon, broker, watcher, slow_model):
    run = daemon(
        slow_model, "--artifact", "standard", "--port", "0", "--device", "orderly", "--site", "lab",
        "--mqtt-host", "127.0.0.1", "--mqtt-port", str(broker.port), "--window", "0.3",
    )  # fmt: skip
    heard = Heard(watcher, "orderly")
    url = run.first_line().removeprefix("listening on ")
    post_slow(url)
    birth = heard.until("birth", lambda b: b.models and b.models[0].state == "ready")
    assert isinstance(birth, Birth)
    assert (birth.models[0].model, birth.models[0].artifact) == ("slow", "standard")
    assert birth.models[0].reasons == ("pinned by the configuration",)
    assert birth.versions["edgekit"]
    assert birth.facts["cpu"]
    window = heard.until("metrics", lambda m: bool(m.lanes))
    assert isinstance(window, Metrics)
    lane = window.lanes[0]
    assert (lane.model, lane.artifact, lane.requests, lane.infer_ms.count) == ("slow", "standard", 1, 1)
    assert window.system.rss_bytes > 1_000_000
    assert 0 <= window.system.cpu_percent <= 100
    run.process.terminate()
    assert run.wait() == 0
    death = heard.until("status", lambda s: s.state == "offline")
    assert isinstance(death, Status)
    assert death.reason == "SIGTERM"
    assert [event.kind for event in heard.all("event")] == ["started", "stopping"]


@pytest.mark.broker
def test_a_command_reloads_what_the_file_says_where_that_is_allowed(daemon, broker, watcher, tmp_path):
    import paho.mqtt.publish as mqtt

    config = tmp_path / "edgekit.toml"
    text = (
        f'site = "lab"\ndevice = "reloaded"\n[http]\nport = 0\n[mqtt]\nhost = "127.0.0.1"\nport = {broker.port}\n'
        'allowed_commands = ["reload"]\n[[model]]\nname = "digits"\nartifact = "ARTIFACT"\n'
    )
    config.write_text(text.replace("ARTIFACT", "int8"))
    run = daemon("--config", config)
    heard = Heard(watcher, "reloaded")
    run.first_line()
    heard.until("birth", lambda b: b.models and b.models[0].state == "ready")

    def command(key: str) -> object:
        payload = json.dumps({"id": key, "verb": "reload"})
        topic = "edgekit/v1/lab/reloaded/command"
        mqtt.single(topic, payload, qos=1, hostname="127.0.0.1", port=broker.port)
        return heard.until("reply", lambda r: r.id == key)

    config.write_text(text.replace("ARTIFACT", "standard"))
    reply = command("1")
    assert (reply.ok, reply.text) == (True, "serving digits")
    heard.until("birth", lambda b: b.models and b.models[0].artifact == "standard")
    config.write_text(text.replace("ARTIFACT", "absent"))
    reply = command("2")
    assert not reply.ok
    assert "there is no 'absent' here" in reply.text
    assert [event.kind for event in heard.all("event")] == ["started", "reloaded", "reload-refused"]


def test_what_is_loaded_when_it_becomes_ready_is_no_more_work_for_the_collector():
    from edgekit.serve.daemon import Daemon

    before = gc.get_freeze_count()
    loaded = [[] for _ in range(1000)]
    Daemon._become_ready(MagicMock(_started_s=0.0, _voice=MagicMock(models={})), "http://127.0.0.1:1")
    try:
        assert gc.get_freeze_count() >= before + len(loaded)
    finally:
        gc.unfreeze()
        gc.freeze()  # as the session began (conftest)


@pytest.mark.broker
def test_the_broker_speaks_for_a_daemon_that_was_killed(daemon, broker, watcher):
    run = daemon(
        "digits", "--artifact", "standard", "--port", "0", "--device", "killed", "--site", "lab",
        "--mqtt-host", "127.0.0.1", "--mqtt-port", str(broker.port),
    )  # fmt: skip
    heard = Heard(watcher, "killed")
    run.first_line()
    heard.until("birth", lambda b: b.models and b.models[0].state == "ready")
    run.process.kill()
    death = heard.until("status", lambda s: s.state == "offline")
    assert death.reason == "connection lost"
