"""A fleet on loopback for rollouts: provisioned devices with real guards, daemons and updaters, and what they need."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.config import Home
from edgekit.errors import EdgekitError
from edgekit.own import OWN
from edgekit.provision import keys, local, slots
from edgekit.provision.pack import Order, pack, this_machine
from edgekit.provision.release import Library, Stored
from edgekit.provision.repository import Repository
from edgekit.provision.settings import Settings
from edgekit.serve.client import Client
from edgekit.telemetry.broker import Broker, start_broker

SITE, WIDTH = "hall", 256


class Fleet:
    """Use as a context: everything it started ends with it."""

    def __init__(self, folder: Path, *, devices: int, layers: int = 24, window_s: float = 1.0) -> None:
        self.folder, self.layers, self.window_s = folder, layers, window_s
        self.names = [f"d{i + 1}" for i in range(devices)]
        self.ports = [_free_port() for _ in self.names]
        self.library, self.repository = Library(folder / "library"), Repository(folder / "repo")
        self.children: list[subprocess.Popen[bytes]] = []
        self._stops: list[Callable[[], object]] = []
        self._sequence = 0

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stop in reversed(self._stops):
            stop()
        for child in self.children:
            child.terminate()
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
            if child.poll() is None:
                child.kill()
                child.wait()

    def _start(self) -> None:
        self.broker: Broker = start_broker(self.folder / "broker")
        self._stops.append(self.broker.stop)
        keys.create(self.folder / "keys")
        self.repository.create(self.folder / "keys")
        handler = type("Here", (_Quiet,), {"folder": str(self.repository.folder)})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._stops += [server.server_close, server.shutdown]
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        first = self.publish("1.0")
        for name in self.names:
            self.root(name).mkdir(parents=True)
        with ThreadPoolExecutor(len(self.names)) as workers:
            list(workers.map(lambda i: self._provision(i, first), range(len(self.names))))
        for name in self.names:
            self._child(name, "guard.log", [str(self.root(name) / slots.GUARD), str(self.root(name))])
            words = ["-m", "edgekit.cli.main", "update", "--follow", "--root", str(self.root(name))]
            self._child(name, "updater.log", words)
        for port in self.ports:
            with Client(f"http://127.0.0.1:{port}") as client:
                client.wait_until_ready(60)
        self._load()

    def root(self, name: str) -> Path:
        return self.folder / "devices" / name

    def publish(self, name: str, *, slower: float = 1.0) -> Stored:
        """A release of one model with `layers * slower` layers, offered to the group `default`."""
        source = self.folder / name
        source.mkdir(parents=True)
        _write_net(source / "net.onnx", round(self.layers * slower))
        (source / "edgekit.toml").write_text(
            f'# release {name}\nsite = "{SITE}"\n[http]\nport = 8080\n[mqtt]\nhost = "127.0.0.1"\n'
            f"port = {self.broker.port}\nwindow_s = {self.window_s}\n"
            '[[model]]\nname = "net.onnx"\nartifact = "standard"\nthreads = 1\nisolation = "thread"\n'
        )
        self._sequence += 10
        order = Order(
            name=name,
            sequence=self._sequence,
            config=source / "edgekit.toml",
            target=this_machine(),
            soak_s=0.2,
            ready_s=90.0,
        )
        stored = pack(order, self.library, Home(self.folder / "home"), lambda _text, _share: None)
        self.repository.publish(self.library, stored, self.folder / "keys")
        return stored

    def _provision(self, i: int, first: Stored) -> None:
        """As `edgekit provision local:DIR` does, with the device's own name and port."""
        own = f'device = "{self.names[i]}"\n[http]\nport = {self.ports[i]}\n'
        wish = local.Wish(
            root=self.root(self.names[i]),
            stored=first,
            library=self.library,
            service="none",
            trust_root=self.repository.root_bytes(),
            settings=Settings(repository=self.url),
            own={OWN: own.encode()},
        )
        outcome = local.carry_out(wish, lambda _text, _share: None)
        assert outcome is not None
        assert outcome.is_committed, outcome

    def _child(self, name: str, log: str, words: list[str]) -> None:
        with (self.root(name) / log).open("wb") as file:
            self.children.append(subprocess.Popen([sys.executable, *words], stdout=file, stderr=file))

    def _load(self) -> None:
        """One request at a time over all devices in turn: what disturbs one disturbs all."""
        stopped = threading.Event()
        worker = threading.Thread(target=_ask, args=(self.ports, stopped), daemon=True)
        worker.start()
        self._stops += [worker.join, stopped.set]

    def rollout(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """`edgekit rollout …` as a process of its own, its state in `folder/state`."""
        step = [*words, "--state", str(self.folder / "state")]
        if words[0] != "status":
            step += ["--port", str(self.broker.port)]
        return subprocess.Popen(
            [sys.executable, "-m", "edgekit.cli.main", "rollout", *step],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(self.folder / "home")},
            **how,
        )

    def state(self, release: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state" / f"{release}.json").read_text())
        return found

    def running(self) -> dict[str, str | None]:
        return {name: slots.status(self.root(name)).running_release for name in self.names}

    def logs(self) -> Iterator[str]:
        for path in sorted(self.folder.glob("devices/*/*.log")):
            yield f"--- {path}\n{path.read_text(errors='replace')[-2000:]}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    folder = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=self.folder)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _ask(ports: list[int], stopped: threading.Event) -> None:
    clients = [Client(f"http://127.0.0.1:{port}", timeout_s=5.0) for port in ports]
    feed = {"x": np.random.default_rng(1).standard_normal((16, WIDTH), np.float32)}
    while not stopped.is_set():
        for client in clients:
            with contextlib.suppress(EdgekitError):  # its daemon is being replaced
                client.infer("net", feed)
    for client in clients:
        client.close()


def _write_net(path: Path, layers: int) -> None:
    """`layers` times a matrix product and a bound on it: the time of an inference is in proportion to `layers`."""
    import onnx

    make = onnx.helper
    weights = np.random.default_rng(7).standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
    nodes, last = [], "x"
    for i in range(layers):
        nodes += [make.make_node("MatMul", [last, "w"], [f"m{i}"]), make.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        last = f"t{i}"
    nodes.append(make.make_node("Identity", [last], ["y"]))
    shape = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [16, WIDTH]) for name in ("x", "y")]
    graph = make.make_graph(nodes, "net", [shape[0]], [shape[1]], [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
