"""Accuracy belongs to one artifact in one runtime on one CPU: measured there, kept, honest when it cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgekit.artifact import Accuracy
from edgekit.bench.candidates import Candidate, candidates, to_record
from edgekit.bench.record import Measurement
from edgekit.bench.stats import latency
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import all_artifacts
from edgekit.manifest import Data
from edgekit.verify import Verifier

pytest.importorskip("onnxruntime")


def _candidates(model, home: Home, runtime: str = "onnxruntime") -> dict[str, Candidate]:
    found = candidates(model, all_artifacts(model, home), cores=1, runtimes=[runtime])
    return {candidate.artifact.record.name: candidate for candidate in found}


def _measured(candidate: Candidate, **changes) -> Measurement:
    record = candidate.artifact.record
    values = {
        "model": record.model,
        "artifact": record.name,
        "artifact_sha256": record.sha256,
        "precision": record.precision,
        "size_bytes": record.size_bytes,
        "settings": to_record(candidate.settings),
        "latency": latency([[1.0] * 10]),
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def test_the_standard_keeps_all_of_itself(home):
    model = load_model("digits")
    standard = _candidates(model, home)["standard"]
    judged = Verifier(model, home).judge(_measured(standard), standard)
    assert judged.accuracy_ratio == 1.0
    assert judged.accuracy_value is not None
    assert judged.accuracy_value > 0.9
    assert judged.fit


def test_the_result_is_kept_and_read_again(home, monkeypatch):
    model = load_model("digits")
    int8 = _candidates(model, home)["int8"]
    first = Verifier(model, home).judge(_measured(int8), int8)
    (file,) = (home.measurements("digits") / "accuracy").glob("*.json")
    stored = msgspec.json.decode(file.read_bytes(), type=Accuracy)
    assert stored.ratio == first.accuracy_ratio
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(stored, value=0.123)))
    assert Verifier(model, home).judge(_measured(int8), int8).accuracy_value == 0.123


def test_a_damaged_result_is_measured_again(home):
    model = load_model("digits")
    int8 = _candidates(model, home)["int8"]
    first = Verifier(model, home).judge(_measured(int8), int8)
    (file,) = (home.measurements("digits") / "accuracy").glob("*.json")
    file.write_text("{")
    assert Verifier(model, home).judge(_measured(int8), int8) == first


def test_each_runtime_has_a_result_of_its_own(home):
    pytest.importorskip("openvino")
    model = load_model("digits")
    for runtime in ("onnxruntime", "openvino"):
        candidate = _candidates(model, home, runtime)["int8"]
        judged = Verifier(model, home).judge(_measured(candidate), candidate)
        assert f"in {runtime} on this CPU" in (judged.accuracy_note or "")
    assert len(list((home.measurements("digits") / "accuracy").glob("*.json"))) == 2


def test_a_floor_that_is_not_kept_makes_it_unfit(home):
    model = msgspec.structs.replace(load_model("digits"), accuracy_floor=1.5)
    int8 = _candidates(model, home)["int8"]
    judged = Verifier(model, home).judge(_measured(int8), int8)
    assert not judged.fit
    assert "the floor is 150 %" in (judged.why_unfit or "")


def test_without_evaluation_data_what_build_measured_stands_and_is_called_so(home):
    model = msgspec.structs.replace(load_model("digits"), data=Data())
    int8 = _candidates(model, home)["int8"]
    judged = Verifier(model, home).judge(_measured(int8), int8)
    assert judged.accuracy_ratio is None
    assert judged.accuracy_note == "not measured: the model declares no evaluation data"
    accuracy = Accuracy(metric="top1", value=0.98, standard_value=1.0, sample_count=9, runtime="litert", isa="arm")
    record = msgspec.structs.replace(int8.artifact.record, accuracy=accuracy)
    built = Candidate(artifact=msgspec.structs.replace(int8.artifact, record=record), settings=int8.settings)
    judged = Verifier(model, home).judge(_measured(built, accuracy_ratio=0.98), built)
    assert judged.accuracy_ratio == 0.98
    assert (judged.accuracy_note or "").startswith("as measured in litert on arm")


def test_a_candidate_that_failed_is_not_judged(home):
    model = load_model("digits")
    int8 = _candidates(model, home)["int8"]
    failed = _measured(int8, failure="dies", latency=None)
    assert Verifier(model, home).judge(failed, int8) is failed


def test_where_nothing_reads_the_standard_another_float_file_is_the_yardstick(home, monkeypatch):
    pytest.importorskip("ai_edge_litert")
    import edgekit.verify as module

    monkeypatch.setattr(module, "installed_runtimes", lambda: ("litert",))
    model = load_model("digits")
    found = candidates(model, all_artifacts(model, home), cores=1, runtimes=["litert"])
    int8 = next(c for c in found if c.artifact.record.precision == "int8")
    judged = Verifier(model, home).judge(_measured(int8), int8)
    assert judged.accuracy_ratio is not None
    assert judged.accuracy_ratio > 0.97


def test_where_no_float_file_can_be_run_that_is_said(home, monkeypatch):
    import edgekit.verify as module

    monkeypatch.setattr(module, "installed_runtimes", lambda: ())
    model = load_model("digits")
    int8 = _candidates(model, home)["int8"]
    judged = Verifier(model, home).judge(_measured(int8), int8)
    assert judged.accuracy_ratio is None
    assert "no installed runtime reads the standard to compare with" in (judged.accuracy_note or "")


def test_verifying_needs_none_of_the_build_extra():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['onnx'] = None; from edgekit.build import accuracy; print(accuracy.measure.__name__)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert child.stdout.strip() == "measure", child.stderr


def test_what_was_checked_is_recalled_and_the_rest_is_taken_for_faultless(home):
    model = load_model("digits")
    int8 = _candidates(model, home)["int8"]
    row = _measured(int8, fit=False, why_unfit="as built")
    verifier = Verifier(model, home)
    assert verifier.recall(row, int8).accuracy_ratio == 1.0
    assert verifier.recall(row, int8).fit
    judged = verifier.judge(row, int8)
    assert Verifier(model, home).recall(row, int8) == judged
