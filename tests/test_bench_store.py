"""Measurements are reused while they still speak of the same artifact, runtime, settings and machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import store
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import conditions, judge, since, this_device, waiting
from edgekit.bench.record import Conditions, Measurement
from edgekit.bench.stats import latency
from edgekit.cli.main import main
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


def _judged(**values) -> tuple[str, ...]:
    return judge(Conditions(**values), cores=2, architecture="aarch64", modes=("MAXN", "7W"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"load_1min": 1.5}, "load 1.5 on 2 cores"),
        ({"governor": "powersave"}, "'powersave' governor"),
        ({"throttled": True}, "throttled"),
        ({"under_voltage": True}, "under-voltage"),
        ({"power_mode": "7W"}, "power mode 7W holds the clocks below those of MAXN"),
        ({"quota_cores": 0.5}, "quota of 0.5 cores"),
    ],
)
def test_each_bad_condition_is_one_doubt(values, words):
    (doubt,) = _judged(**values)
    assert words in doubt


def test_good_conditions_leave_no_doubt():
    good = {"load_1min": 0.1, "governor": "performance", "throttled": False, "under_voltage": False}
    assert _judged(**good, power_mode="MAXN", quota_cores=2.0) == ()


def test_what_gets_worse_while_it_runs_is_told_and_our_own_load_is_not():
    before = Conditions(throttle_events_count=3, temperature_c=50.0)
    after = Conditions(
        throttle_events_count=5,
        temperature_c=81.0,
        judged_bad=("load 2.0 on 2 cores before it began", "the clocks are throttled"),
    )
    found = since(before, after)
    assert found.judged_bad == ("the clocks were throttled 2 times meanwhile", "the clocks are throttled")
    assert (found.temperature_c, found.temperature_after_c) == (50.0, 81.0)


def test_waiting_for_others_is_a_doubt_of_its_own():
    assert waiting(Conditions(), 0.05).judged_bad == ()
    assert waiting(Conditions(), 0.35).judged_bad == ("waiting for a CPU that others used was 35% of the time",)


def test_measurements_of_another_device_are_merged_and_the_later_one_stays(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    candidate = _candidate()
    store.save(theirs, [_measurement(candidate, taken_at_unix_ms=20)])
    exported = store.load_all(theirs)
    assert store.merge(mine, exported) == 1
    assert store.load(mine, [candidate], DEVICE)[candidate.name].taken_at_unix_ms == 20
    assert store.merge(mine, exported) == 0
    assert store.merge(mine, [_measurement(candidate, taken_at_unix_ms=10)]) == 0
    assert store.merge(mine, [_measurement(candidate, taken_at_unix_ms=30)]) == 1
    other = _measurement(candidate, device={"cpu": "b", "cores": "4"})
    assert store.merge(mine, [other]) == 1
    assert len(store.load_all(mine)) == 2


def test_export_and_merge_as_typed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    one = ["bench", "digits", "--artifact", "standard", "--runtime", "onnxruntime", "--threads", "1"]
    file = str(tmp_path / "digits.json")
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "a"))
    assert main([*one, "--seconds", "0.05"]) == 0
    assert main([*one, "--export", file]) == 0
    assert "1 written to" in capsys.readouterr().out
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "b"))
    assert main([*one, "--merge", file]) == 0
    assert "1 merged; 1 were taken on a machine like this one" in capsys.readouterr().out
    assert main(["select", *one[1:], "--no-measure"]) == 0
    assert "prior" not in capsys.readouterr().out
    assert main(["bench", "file-type", "--merge", file]) == 3
    assert "holds measurements of digits, not of file-type" in capsys.readouterr().err
    assert main([*one, "--merge", str(tmp_path / "none")]) == 2


QUICK = ("--runtime", "onnxruntime", "--seconds", "0.1", "--json")
CPU_GROUP = Path("/sys/fs/cgroup/cpu")


@pytest.mark.skipif(
    not (CPU_GROUP / "cpu.cfs_quota_us").exists() or not os.access(CPU_GROUP, os.W_OK),
    reason="elsewhere: needs root and control groups of version 1; quota files of both versions are tested from trees",
)
def test_under_a_real_quota_of_half_a_core_one_thread_is_measured_and_the_doubt_is_said(tmp_path):
    pytest.importorskip("onnxruntime")
    group = CPU_GROUP / f"edgekit-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("50000")
        run = subprocess.run(
            [sys.executable, "-m", "edgekit.cli.main", "bench", "digits", "--artifact", "standard", *QUICK],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "EDGEKIT_HOME": str(tmp_path)},
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
        )  # fmt: skip
    finally:
        group.rmdir()
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(run.stdout)
    assert row["settings"]["threads"] == 1
    assert row["conditions"]["quota_cores"] == 0.5
    assert any("quota of 0.5 cores" in doubt for doubt in row["conditions"]["judged_bad"])
