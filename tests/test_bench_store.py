"""Measurements are reused while they still speak of the same artifact, runtime, settings and machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import store
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import conditions, this_device
from edgekit.bench.record import Measurement
from edgekit.bench.stats import latency
from edgekit.runtimes.session import SessionSettings

DEVICE = {"cpu": "a", "cores": "2"}


def _candidate(sha256: str = "1" * 64, **settings) -> Candidate:
    record = ArtifactRecord(
        model="m", name="standard", file="m.onnx", format="onnx", precision="float32", sha256=sha256, size_bytes=1
    )
    return Candidate(artifact=Artifact(record=record, path=Path("m.onnx")), settings=SessionSettings(**settings))


def _measurement(candidate: Candidate, **changes) -> Measurement:
    record = candidate.artifact.record
    values = {
        "model": "m",
        "artifact": record.name,
        "artifact_sha256": record.sha256,
        "precision": record.precision,
        "size_bytes": 1,
        "settings": to_record(candidate.settings),
        "latency": latency([[1.0] * 10]),
        "device": DEVICE,
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


def test_what_was_saved_is_found_again_unchanged(tmp_path):
    candidate = _candidate(threads=2, axes={"x[0]": 1})
    measurement = _measurement(candidate)
    store.save(tmp_path, [measurement])
    assert store.load(tmp_path, [candidate], DEVICE) == {candidate.name: measurement}


@pytest.mark.parametrize(
    "other",
    [
        _candidate(sha256="2" * 64),
        _candidate(threads=4),
        _candidate(spinning=True),
        _candidate(axes={"x[0]": 2}),
        _candidate(session_options={"enable_cpu_mem_arena": "0"}),
        _candidate(runtime="openvino"),
    ],
)
def test_another_artifact_or_setting_has_no_measurement(tmp_path, other):
    store.save(tmp_path, [_measurement(_candidate())])
    assert store.load(tmp_path, [other], DEVICE) == {}


def test_another_machine_has_no_measurement(tmp_path):
    store.save(tmp_path, [_measurement(_candidate())])
    assert store.load(tmp_path, [_candidate()], DEVICE | {"cpu": "b"}) == {}


def test_another_version_of_the_runtime_has_no_measurement(tmp_path):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate, settings=to_record(candidate.settings, "0.0.1"))])
    assert store.load(tmp_path, [candidate], DEVICE) == {}


def test_a_later_measurement_replaces_the_earlier(tmp_path):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=1)])
    store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=2)])
    assert [m.taken_at_unix_ms for m in store.load_all(tmp_path)] == [2]


def test_a_damaged_file_is_measured_again_and_breaks_nothing(tmp_path):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate)])
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text()[:40])
    assert store.load(tmp_path, [candidate], DEVICE) == {}
    assert store.load_all(tmp_path) == []


def test_conditions_say_why_figures_are_doubtful(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("3.10 1.00 0.50 2/100 99\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nprocessor\t: 1\n")
    governor = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    found = conditions(tmp_path)
    assert found.load_1min == 3.1
    assert found.governor == "powersave"
    assert any("load 3.1 on 2 cores" in doubt for doubt in found.judged_bad)
    assert any("powersave" in doubt for doubt in found.judged_bad)


def test_a_machine_that_tells_nothing_gives_none_not_zero(tmp_path):
    found = conditions(tmp_path)
    assert (found.load_1min, found.governor, found.temperature_c, found.quota_cores) == (None, None, None, None)
    assert found.judged_bad == ()


def test_this_machine_is_named_the_same_way_each_time():
    assert this_device() == this_device()
    assert this_device()["cores"].isdigit()
