"""Candidates in processes of their own: what each one does wrong is its own row, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.artifact import sha256_of
from edgekit.bench import protocol as say
from edgekit.bench.candidates import candidates, to_record, to_session
from edgekit.bench.contender import Contender
from edgekit.bench.process import CandidateFailed, Process
from edgekit.bench.run import Plan, bench, undecided
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import all_artifacts
from edgekit.runtimes.session import SessionSettings

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

QUICK_GAIN = Plan(gain=0.03)
QUICK = Plan(seconds=0.1, max_samples=24, gain=None, hang_timeout_s=20, idle_s=0.02, seed=1)


def _found(path_or_name, home: Path, **more):
    model = load_model(str(path_or_name))
    return model, candidates(model, all_artifacts(model, Home(home)), cores=1, runtimes=["onnxruntime"], **more)


@pytest.fixture
def digits(tmp_path):
    return _found("digits", tmp_path / "home")


def _save(path: Path, nodes, shape=(4,), initializers=()) -> Path:
    """A model from x to y, both float."""
    make = onnx.helper
    graph = make.make_graph(
        nodes,
        "graph",
        [make.make_tensor_value_info("x", 1, shape)],
        [make.make_tensor_value_info("y", 1, None)],
        initializer=list(initializers),
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    return path


def _tensor(name, values, dtype):
    return onnx.numpy_helper.from_array(np.array(values, dtype), name)


def _nan(path: Path) -> Path:
    nodes = [onnx.helper.make_node("Neg", ["x"], ["n"]), onnx.helper.make_node("Sqrt", ["n"], ["y"])]
    return _save(path, nodes)


def _greedy(path: Path, mib: int) -> Path:
    """Holds `mib` MiB for long enough to be seen."""
    make = onnx.helper
    nodes = [
        make.make_node("ConstantOfShape", ["shape"], ["big"], value=_tensor("v", [1], np.float32)),
        make.make_node("ReduceMean", ["big"], ["mean"], keepdims=0),
        make.make_node("Add", ["x", "mean"], ["y"]),
    ]
    return _save(path, nodes, initializers=[_tensor("shape", [mib * 2**18], np.int64)])


def _endless(path: Path) -> Path:
    make = onnx.helper
    body = make.make_graph(
        [make.make_node("Identity", ["go"], ["go_on"]), make.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            make.make_tensor_value_info("i", 7, ()),
            make.make_tensor_value_info("go", 9, ()),
            make.make_tensor_value_info("v", 1, None),
        ],
        [make.make_tensor_value_info("go_on", 9, ()), make.make_tensor_value_info("w", 1, None)],
    )
    nodes = [make.make_node("Loop", ["count", "yes", "x"], ["y"], body=body)]
    return _save(path, nodes, initializers=[_tensor("count", 2**62, np.int64), _tensor("yes", True, np.bool_)])


def _workers() -> list[int]:
    """Children of this process that are workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"edgekit.bench.worker" in line and parent == os.getpid():
            found.append(int(folder.name))
    return found


def test_a_row_for_every_candidate_with_all_its_figures(digits):
    model, found = digits
    rows = bench(model, found, QUICK)
    assert [row.artifact for row in rows] == [c.artifact.record.name for c in found]
    for row in rows:
        assert row.failure is None
        assert row.latency is not None
        assert 8 <= row.latency.sample_count <= 24 + 12
        assert row.latency.p90_ms is None
        assert row.start is not None
        assert min(row.start.import_ms, row.start.load_ms, row.start.first_ms) > 0
        assert row.after_idle_ms is not None
        assert row.throughput_qps is not None
        assert row.ops_by_provider["CPUExecutionProvider"] > 0
        assert row.settings.runtime_version[0].isdigit()
        assert row.device["architecture"]
    assert {row.accuracy_ratio for row in rows if row.artifact == "standard"} == {1.0}
    assert {row.accuracy_ratio for row in rows if row.precision == "int8"} == {None}


@linux
def test_peak_memory_is_the_workers_own(digits):
    model, found = digits
    (row,) = bench(model, found[:1], QUICK)
    assert row.peak_memory_bytes is not None
    assert 20 * 2**20 < row.peak_memory_bytes < 400 * 2**20


def test_progress_goes_from_nothing_to_all(digits):
    model, found = digits
    seen: list[float] = []
    bench(model, found[:1], QUICK, progress=lambda text, share: seen.append(share))
    assert seen[0] < 0.3
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_samples_are_measured_until_there_are_enough(digits):
    model, found = digits
    (row,) = bench(model, found[:1], Plan(seconds=0.05, min_samples=700, max_samples=700, idle_s=0.0))
    assert row.latency is not None
    assert row.latency.sample_count >= 662
    assert row.latency.p99_ms is not None


def test_samples_are_spread_over_the_rounds_so_that_candidates_can_be_paired(digits):
    model, found = digits
    rows = bench(model, found, Plan(seconds=5, min_samples=64, max_samples=64, idle_s=0.0, gain=None))
    assert len({row.run_id for row in rows}) == 1
    for row in rows:
        assert row.latency is not None
        assert len(row.latency.round_p50_ms) == 16
        assert 64 <= row.latency.sample_count <= 16 * 5


def test_fewer_samples_than_a_median_needs_are_never_the_end(digits):
    model, found = digits
    (row,) = bench(model, found[:1], Plan(seconds=0.01, min_samples=1, max_samples=1, idle_s=0.0))
    assert row.latency is not None
    assert row.latency.sample_count >= 8


def test_a_hopeless_candidate_is_not_measured_on(digits):
    model, found = digits
    (row,) = bench(model, found[:1], Plan(seconds=0.02, min_samples=10**6, bound_ms=1e-6, idle_s=0.0))
    assert row.latency is not None
    assert row.latency.sample_count < 10**5


def test_nan_is_a_reason_and_the_bench_goes_on(tmp_path, digits):
    model, bad = _found(_nan(tmp_path / "nan.onnx"), tmp_path)
    (row,) = bench(model, bad, QUICK)
    assert row.failure is not None
    assert "output 'y' is NaN" in row.failure
    assert row.latency is None


@linux
def test_a_candidate_that_holds_too_much_is_ended_with_the_numbers(tmp_path):
    model, bad = _found(_greedy(tmp_path / "greedy.onnx", 800), tmp_path)
    (row,) = bench(model, bad, Plan(seconds=0.1, memory_limit_bytes=300 * 2**20))
    assert row.failure is not None
    assert "exceeds the memory limit" in row.failure
    assert "300 MiB allowed" in row.failure


def test_a_candidate_that_hangs_is_ended(tmp_path):
    model, bad = _found(_endless(tmp_path / "endless.onnx"), tmp_path)
    before = time.monotonic()
    (row,) = bench(model, bad, Plan(seconds=0.1, start_timeout_s=2))
    assert row.failure == "hangs: no answer in 2 s"
    assert time.monotonic() - before < 15


@linux
@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "killed (SIGKILL)"), (signal.SIGILL, "illegal instruction (SIGILL)")]
)
def test_a_worker_that_is_killed_is_one_row_and_the_others_finish(digits, number, words):
    model, found = digits
    killed: list[int] = []

    def kill_one(text: str, share: float) -> None:
        if text.startswith("measuring") and not killed:
            killed.append(_workers()[0])
            os.kill(killed[0], number)

    rows = bench(model, found, QUICK, progress=kill_one)
    failures = [row.failure for row in rows if row.failure]
    assert len(failures) == 1
    assert words in failures[0]
    assert sum(row.latency is not None for row in rows) == len(found) - 1


@linux
def test_nothing_is_left_running(digits):
    model, found = digits
    bench(model, found, QUICK)
    assert _workers() == []


@linux
def test_a_worker_dies_with_its_parent(tmp_path):
    code = (
        "import sys, time; from edgekit.bench.process import Process\n"
        "worker = Process(); print(worker.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.5)  # the worker must have asked the kernel by then
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"worker {pid} outlived its parent")


def test_a_file_that_cannot_be_opened_is_a_reason(tmp_path):
    with Process() as worker, pytest.raises(CandidateFailed, match="no such file"):
        worker.ask(say.Open(path=str(tmp_path / "none.onnx"), settings=SessionSettings()), say.Opened, timeout_s=30)


def test_an_axis_without_a_size_is_a_reason_that_names_the_flag(tmp_path):
    path = _save(tmp_path / "dynamic.onnx", [onnx.helper.make_node("Neg", ["x"], ["y"])], shape=("batch", 4))
    model, found = _found(path, tmp_path)
    (row,) = bench(model, found, QUICK)
    assert row.failure is not None
    assert "--axis 'batch=VALUE'" in row.failure
    model, found = _found(path, tmp_path, axes={"batch": 2})
    (row,) = bench(model, found, QUICK)
    assert row.failure is None


def test_candidates_are_artifacts_times_runtimes_times_threads(tmp_path):
    model = load_model("digits")
    artifacts = all_artifacts(model, Home(tmp_path))
    found = candidates(model, artifacts, cores=4, runtimes=["onnxruntime", "litert"])
    onnx_files = sum(a.record.format == "onnx" for a in artifacts)
    tflite_files = sum(a.record.format == "tflite" for a in artifacts)
    assert len(found) == 2 * (onnx_files + tflite_files)
    assert {c.settings.threads for c in found} == {1, 4}
    assert len({c.name for c in found}) == len(found)
    assert all(c.settings.providers == () for c in found if c.settings.runtime == "litert")


def test_an_accelerator_is_tried_once_with_the_cpu_behind_it(tmp_path):
    model = load_model("digits")
    artifacts = [a for a in all_artifacts(model, Home(tmp_path)) if a.record.name == "standard"]
    hooks = {"onnxruntime": ["CUDAExecutionProvider"], "openvino": ["GPU"]}
    found = candidates(model, artifacts, cores=4, runtimes=["onnxruntime", "openvino"], hooks=hooks)
    labels = [to_record(c.settings, "1").label for c in found]
    assert labels == [
        "onnxruntime 1t",
        "onnxruntime 4t",
        "onnxruntime CUDA 1t",
        "openvino 1t",
        "openvino 4t",
        "openvino GPU 1t",
    ]
    assert [name for name, _ in found[2].settings.providers] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_a_file_compiled_for_a_delegate_is_opened_with_it_only(tmp_path):
    model = load_model("digits")
    artifact = next(a for a in all_artifacts(model, Home(tmp_path)) if a.record.name == "litert-int8")
    record = msgspec.structs.replace(artifact.record, requires=("libedgetpu.so.1",))
    compiled = msgspec.structs.replace(artifact, record=record)
    (only,) = candidates(model, [compiled], cores=4, runtimes=["onnxruntime", "litert"])
    assert only.settings.delegate == "libedgetpu.so.1"


def test_threads_follow_the_quota_not_the_host(tmp_path):
    model = load_model("digits")
    found = candidates(model, all_artifacts(model, Home(tmp_path)), cores=1, runtimes=["onnxruntime"])
    assert {c.settings.threads for c in found} == {1}


def test_settings_survive_the_way_to_a_record_and_back():
    settings = SessionSettings(threads=2, axes={"x[0]": 1}, session_options={"enable_cpu_mem_arena": "0"})
    assert to_session(to_record(settings)) == settings


def test_the_protocol_carries_the_hash_of_the_real_file(digits):
    model, found = digits
    (row,) = bench(model, found[:1], QUICK)
    assert row.artifact_sha256 == sha256_of(found[0].artifact.path)
    assert row.model == model.name


def test_only_those_whose_lead_is_not_decided_take_further_turns(digits):
    """One that is 3 % slower give or take 4 %, one that surely is not, and one that is far behind."""
    _, found = digits

    def contender(times_ms) -> Contender:
        run = Contender(candidate=found[0])
        for time_ms in times_ms:
            run.add_round((time_ms,))
        return run

    wobble = [1 + 0.04 * (-1) ** i * ((i % 5) / 4) for i in range(24)]
    best = contender([10.0] * 24)
    close, equal, far = (contender([10 * f * w for w in wobble]) for f in (1.03, 1.0, 2.0))
    even = contender([10.01] * 24)
    assert undecided([far, best, close, even], QUICK_GAIN) == [best, close]
    assert undecided([best, far], QUICK_GAIN) == [best]
    assert undecided([best, equal, close], Plan(gain=None)) == []


def test_the_wide_space_has_spinning_threads_and_bf16_only_where_the_cpu_computes_it(tmp_path):
    model = load_model("digits")
    artifacts = [a for a in all_artifacts(model, Home(tmp_path)) if a.record.name == "standard"]

    def labels(features):
        runtimes = ["onnxruntime", "openvino"]
        found = candidates(model, artifacts, cores=2, runtimes=runtimes, wide_for=features)
        return {to_record(c.settings, "1").label for c in found}

    plain = {"onnxruntime 1t", "onnxruntime 2t", "openvino 1t", "openvino 2t"}
    assert labels(None) == plain
    assert labels(()) == plain | {"onnxruntime 2t spinning"}
    bf16 = {f"openvino {n}t INFERENCE_PRECISION_HINT=bf16" for n in (1, 2)}
    assert labels(("amx_bf16",)) == plain | {"onnxruntime 2t spinning"} | bf16
