"""The worker's side of the pipe: every request is answered, errors included, and nothing else gets onto it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.bench import protocol as say
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.worker import Worker, peak_memory_bytes, serve
from edgekit.runtimes.session import SessionSettings

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models/digits/digits.onnx"
OPEN = say.Open(path=str(DIGITS), settings=SessionSettings())


def _talk(*requests: say.Request) -> list[say.Reply]:
    """What `serve` answers to these requests, in this process."""
    out = io.BytesIO()
    serve(io.BytesIO(b"".join(msgspec.json.encode(request) + b"\n" for request in requests)), out)
    return [msgspec.json.decode(line, type=say.Reply) for line in out.getvalue().splitlines()]


@pytest.fixture
def inputs(tmp_path) -> str:
    (opened,) = _talk(OPEN)
    (spec,) = opened.inputs
    np.savez(tmp_path / "in.npz", **{spec.name: np.zeros(spec.shape, spec.dtype)})
    return str(tmp_path / "in.npz")


def test_opening_is_timed_in_its_parts_and_tells_what_the_model_takes():
    (opened,) = _talk(OPEN)
    assert isinstance(opened, say.Opened)
    assert opened.load_ms > 0
    assert opened.import_ms >= 0
    assert opened.inputs[0].dtype == "float32"
    assert opened.runtime_version[0].isdigit()


def test_the_whole_conversation(inputs):
    replies = _talk(
        OPEN, say.First(inputs=inputs), say.WarmUp(max_s=1), say.Measure(seconds=0.02, max_samples=30), say.Place()
    )
    opened, first, warm, measured, placed = replies
    assert isinstance(opened, say.Opened)
    assert len(first.times_ms) == 1
    assert len(warm.times_ms) >= 10
    assert 2 <= len(measured.times_ms) <= 30
    assert all(time > 0 for time in measured.times_ms)
    assert placed.ops_by_provider["CPUExecutionProvider"] > 0


def test_a_query_longer_than_its_time_still_gives_a_second_sample(inputs):
    replies = _talk(OPEN, say.First(inputs=inputs), say.Measure(seconds=0.0, max_samples=100))
    assert len(replies[-1].times_ms) == 2


def test_an_error_is_an_answer_and_the_worker_goes_on(tmp_path):
    bad = say.Open(path=str(tmp_path / "none.onnx"), settings=SessionSettings())
    failed, opened = _talk(bad, OPEN)
    assert failed == say.Failed(reason="no such file")
    assert isinstance(opened, say.Opened)


def test_an_unknown_runtime_is_an_answer_too():
    (failed,) = _talk(say.Open(path=str(DIGITS), settings=SessionSettings(runtime="tensorrt")))
    assert isinstance(failed, say.Failed)
    assert "unknown runtime" in failed.reason


def test_quantised_inputs_tell_their_scale():
    pytest.importorskip("ai_edge_litert")
    path = ROOT / "models/digits/digits-int8.tflite"
    (opened,) = _talk(say.Open(path=str(path), settings=SessionSettings(runtime="litert", providers=())))
    quantised = [spec.name for spec in opened.inputs if spec.dtype == "int8"]
    assert set(quantised) <= set(opened.scales)


def test_a_fresh_worker_has_imported_no_runtime_and_no_numpy():
    code = (
        "import sys, edgekit.bench.worker; "
        "print([m for m in ('numpy', 'onnxruntime', 'openvino', 'ai_edge_litert', 'rich') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_what_a_library_prints_does_not_end_up_among_the_replies(tmp_path):
    """A module that prints while it is imported stands for a chatty native library."""
    package = tmp_path / "ai_edge_litert"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nos.write(1, b'hello from C\\n')\nprint('hello')\n")
    (package / "interpreter.py").touch()
    request = say.Open(path=str(DIGITS), settings=SessionSettings(runtime="litert", providers=()))
    child = subprocess.run(
        [sys.executable, "-m", "edgekit.bench.worker", str(os.getpid())],
        input=msgspec.json.encode(request) + b"\n",
        capture_output=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    (line,) = child.stdout.splitlines()
    assert json.loads(line)["reason"] == "is not a LiteRT model"


def test_a_worker_ends_when_its_stdin_does():
    child = subprocess.run(
        [sys.executable, "-m", "edgekit.bench.worker", str(os.getpid())], input=b"", capture_output=True, timeout=60
    )
    assert child.returncode == 0
    assert child.stdout == b""


def test_peak_memory_is_read_as_the_kernel_writes_it(tmp_path):
    if sys.platform == "darwin":
        pytest.skip("macOS tells it another way")
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_memory_bytes(status) == 2048 * 1024
    status.write_text("Name:\tpython\n")
    assert peak_memory_bytes(status) is None
    assert peak_memory_bytes(tmp_path / "none") is None


def test_a_worker_that_never_started_says_what_python_said(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython is missing' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Process() as worker, pytest.raises(CandidateFailed, match="exit code 127: libpython is missing"):
        worker.ask(OPEN, say.Opened, timeout_s=20)


def test_nonsense_on_the_pipe_is_a_reason(monkeypatch, tmp_path):
    babbling = tmp_path / "python"
    babbling.write_text("#!/bin/sh\nread line\necho 'hello'\nread line\n")
    babbling.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(babbling))
    with Process() as worker, pytest.raises(CandidateFailed, match="answered nonsense"):
        worker.ask(OPEN, say.Opened, timeout_s=20)


def test_closing_twice_is_harmless():
    worker = Process()
    pid = worker.pid
    worker.close()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class _Disturbed:
    """A session and the kernel's word on it: one of its queries stands in line for 40 ms, which others use."""

    def __init__(self, disturbed: int) -> None:
        self.queries, self._disturbed, self._waited_ns = 0, disturbed, 0

    def run(self, _inputs) -> dict:
        if self.queries == self._disturbed:
            time.sleep(0.04)
            self._waited_ns += 40_000_000
        self.queries += 1
        return {}

    def read(self):
        return ((self.queries, self._waited_ns),)

    def __enter__(self) -> _Disturbed:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_wait_among_short_queries_is_told_too(monkeypatch):
    """Asking after each would disturb them, so the one that took long answers for what was waited since."""
    session, worker = _Disturbed(disturbed=5), Worker()
    worker._session = session
    monkeypatch.setattr("edgekit.bench.waits.Waits", lambda: session)
    told = worker.answer(say.Measure(seconds=0.0, max_samples=2))
    assert sum(told.waits_ms) == 0
    session.queries = 0
    told = worker.answer(say.Measure(seconds=0.02, max_samples=20))
    assert told.waits_ms[5] == pytest.approx(min(40.0, told.times_ms[5] - 0.5))
    assert sum(told.waits_ms) == told.waits_ms[5]
    assert len(told.waits_ms) == len(told.times_ms)
