"""Starts MLServer from an environment of its own, when there is one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
MLSERVER = HERE.parent.parent / ".venv-peers/bin/mlserver"
READY_S = 60.0


@contextmanager
def peer(program: Path, folder: Path, models: Mapping[str, Path]) -> Iterator[int | None]:
    """The port of an MLServer with these models, or None, and the reason on stderr, when there is none."""
    if not program.is_file():
        print(f"the peer is left out: there is no {program}", file=sys.stderr)
        yield None
        return
    ports = [_free_port() for _ in range(3)]
    names = ("http_port", "grpc_port", "metrics_port")
    settings = dict(zip(names, ports, strict=True)) | {"parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, path in models.items():
        (folder / name).mkdir(parents=True)
        entry = {"name": name, "implementation": "peer_runtime.OnnxModel", "parameters": {"uri": str(path)}}
        (folder / name / "model-settings.json").write_text(json.dumps(entry))
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [program, "start", folder],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(HERE)},
            cwd=folder,
        )
        try:
            yield ports[0] if _is_ready(server, ports[0], list(models)) else _explain(folder / "log")
        finally:
            server.terminate()
            server.wait(30)


def _is_ready(server: subprocess.Popen[bytes], port: int, models: list[str]) -> bool:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s and server.poll() is None:
        try:
            for name in models:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{name}/ready", timeout=5).close()
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def _explain(log: Path) -> None:
    print(f"the peer did not become ready; its last words: {log.read_text()[-800:]}", file=sys.stderr)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
