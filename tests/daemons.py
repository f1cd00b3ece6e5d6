"""A daemon in a process of its own, with a client; and a model that is stuck for as long as it is asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgekit.serve.client import Client

READY_S = 40.0
FOREVER = 2**60
IMAGE = {"image": np.zeros((1, 8, 8, 1), np.float32)}


class Run:
    """`edgekit run --config` as a child, with a client of it."""

    def __init__(self, folder: Path, config: str, *, command: tuple[str, ...] = ("-m", "edgekit.cli.main")) -> None:
        self.config = folder / "edgekit.toml"
        self.config.write_text(f'device = "unit"\n[http]\nport = 0\n{config}')
        self.err = ""
        self.process = subprocess.Popen(
            [sys.executable, *command, "run", "--config", str(self.config), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"EDGEKIT_HOME": str(folder / "home")},
        )
        self._reader = threading.Thread(target=self._read_err)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"exit {self.wait()}: {self.err}"
        self.ready = json.loads(line)
        self.url: str = self.ready["url"]
        self.client = Client(self.url)

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line

    def wait(self) -> int:
        code = self.process.wait(READY_S)
        self._reader.join()
        return code

    def artifact(self) -> str:
        return str(self.client.infer("digits", IMAGE)[1]["artifact"])

    def reload(self, config: str) -> None:
        self.config.write_text(f'device = "unit"\n[http]\nport = 0\n{config}')
        self.process.send_signal(signal.SIGHUP)

    def gauge(self, name: str) -> float:
        text = self.client._ask("GET", "/metrics")[1].decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def daemons(folder: Path) -> Iterator[Callable[..., Run]]:
    """Starts as many as are asked for, and ends them whatever happens."""
    runs: list[Run] = []

    def begin(config: str, **more: object) -> Run:
        runs.append(Run(folder, config, **more))  # type: ignore[arg-type]
        return runs[-1]

    try:
        yield begin
    finally:
        for run in runs:
            run.stop()


def save_counter(folder: Path) -> Path:
    """y = x after `n` turns of a loop: with a large n the runtime is stuck for good."""
    import onnx

    kind, made = onnx.TensorProto, onnx.helper.make_tensor_value_info
    inside = [made("i", kind.INT64, []), made("go", kind.BOOL, []), made("s", kind.FLOAT, [4])]
    out = [made("go2", kind.BOOL, []), made("s2", kind.FLOAT, [4])]
    steps = [onnx.helper.make_node("Identity", ["go"], ["go2"]), onnx.helper.make_node("Abs", ["s"], ["s2"])]
    body = onnx.helper.make_graph(steps, "turn", inside, out)
    loop = onnx.helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    x, y = made("x", kind.FLOAT, [4]), made("y", kind.FLOAT, [4])
    graph = onnx.helper.make_graph([loop], "counter", [made("n", kind.INT64, []), x], [y])
    path = folder / "counter.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def turns(n: int) -> dict[str, np.ndarray]:
    return {"n": np.array(n, np.int64), "x": np.arange(4, dtype=np.float32)}


def model(name: str | Path, artifact: str = "standard", more: str = "") -> str:
    return f'[[model]]\nname = "{name}"\nartifact = "{artifact}"\nthreads = 1\n{more}'
