"""Measurements are reused while they still speak of the same artifact, runtime, settings and machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from edgekit import measured
from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import store
from edgekit.bench.candidates import Candidate, to_record
from edgekit.bench.conditions import conditions, judge, lasting, since, this_device, waiting
from edgekit.bench.record import Conditions, Measurement
from edgekit.bench.stats import latency
from edgekit.cli.main import main
from edgekit.errors import ConfigError
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


def _found(folder: Path, candidate: Candidate, *, device=DEVICE, under=None) -> list[Measurement]:
    return [stored.measurement for stored in store.load(folder, [candidate], device, under or {}).values()]


def _raw(folder: Path, statement: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(folder / store.FILE)) as db, db:
        return db.execute(statement).fetchall()


def test_what_was_saved_is_found_again_unchanged(tmp_path):
    candidate = _candidate(threads=2, axes={"x[0]": 1})
    measurement = _measurement(candidate)
    assert store.save(tmp_path, [measurement]) == 1
    assert store.load(tmp_path, [candidate], DEVICE, {}) == {candidate.name: (measurement, 0)}


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
    assert _found(tmp_path, other) == []


def test_another_machine_has_no_measurement(tmp_path):
    store.save(tmp_path, [_measurement(_candidate())])
    assert _found(tmp_path, _candidate(), device=DEVICE | {"cpu": "b"}) == []


def test_another_version_of_the_runtime_has_no_measurement(tmp_path):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate, settings=to_record(candidate.settings, "0.0.1"))])
    assert _found(tmp_path, candidate) == []


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Conditions(power_mode="7W"), Conditions(power_mode="MAXN")),
        (Conditions(governor="powersave"), Conditions(governor="performance")),
        (Conditions(quota_cores=0.5), Conditions(quota_cores=2.0)),
        (Conditions(), Conditions(power_mode="MAXN")),
    ],
)
def test_what_was_measured_under_other_lasting_conditions_is_kept_beside(tmp_path, then, now):
    candidate = _candidate()
    slow, fast = (
        _measurement(candidate, conditions=c, latency=latency([[ms] * 10])) for c, ms in ((then, 2), (now, 1))
    )
    store.save(tmp_path, [slow])
    assert _found(tmp_path, candidate, under=lasting(now)) == []
    store.save(tmp_path, [fast])
    assert _found(tmp_path, candidate, under=lasting(now)) == [fast]
    assert _found(tmp_path, candidate, under=lasting(then)) == [slow]


def test_load_and_heat_of_the_moment_make_no_other_key():
    assert lasting(Conditions(load_1min=9.0, temperature_c=80.0, throttled=True, cpu_hz=1)) == {}


@pytest.mark.parametrize(("at", "kept"), [(3, 3), (1, 2)])
def test_of_two_measurements_the_later_one_stays(tmp_path, at, kept):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=2)])
    assert store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=at)]) == int(kept == at)
    assert [m.taken_at_unix_ms for m in store.load_all(tmp_path)] == [kept]


def test_doubtful_measurements_in_a_row_are_counted_until_a_good_one(tmp_path):
    candidate, bad = _candidate(), Conditions(judged_bad=("load 9.0 on 2 cores before it began",))
    counts = []
    for at, conditions_ in enumerate((bad, bad, Conditions(), bad)):
        store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=at, conditions=conditions_)])
        (stored,) = store.load(tmp_path, [candidate], DEVICE, {}).values()
        counts.append(stored.doubtful_count)
    assert counts == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("count", "age_ms", "again"),
    [(0, 10**9, False), (1, 61_000, True), (2, 61_000, True), (3, 10**9, False), (1, 59_000, False), (1, -5_000, True)],
)
def test_a_doubtful_measurement_is_worth_repeating_a_minute_later_and_not_for_ever(count, age_ms, again):
    old = store.Stored(_measurement(_candidate(), taken_at_unix_ms=10**12), count)
    assert measured.is_worth_repeating(old, 10**12 + age_ms) is again


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"", b"SQLite format 3\0" + bytes(4000)])
def test_a_damaged_file_is_set_aside_with_a_line_and_breaks_nothing(tmp_path, caplog, content):
    candidate = _candidate()
    (tmp_path / store.FILE).write_bytes(content)
    assert _found(tmp_path, candidate) == []
    store.save(tmp_path, [_measurement(candidate)])
    assert _found(tmp_path, candidate) == [_measurement(candidate)]
    aside = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
    assert [path.read_bytes() for path in aside] == ([content] if content else [])
    assert caplog.text.count("set aside as") == len(aside)


def test_a_page_that_rotted_is_found_before_it_is_believed(tmp_path, caplog):
    measurements = [_measurement(_candidate(sha256=f"{i:064}")) for i in range(60)]
    store.save(tmp_path, measurements)
    data = bytearray((tmp_path / store.FILE).read_bytes())
    data[5000:9000] = os.urandom(4000)
    (tmp_path / store.FILE).write_bytes(data)
    assert store.load_all(tmp_path) == []
    assert "is damaged" in caplog.text


def test_a_file_of_another_format_is_not_touched(tmp_path):
    other = tmp_path / "measurements-2.sqlite3"
    other.write_bytes(b"of a later release")
    store.save(tmp_path, [_measurement(_candidate())])
    assert other.read_bytes() == b"of a later release"
    assert _raw(tmp_path, "PRAGMA user_version") == [(store.VERSION,)]


def test_a_row_that_another_release_wrote_is_measured_again(tmp_path):
    candidate = _candidate()
    store.save(tmp_path, [_measurement(candidate), _measurement(_candidate(threads=2))])
    _raw(tmp_path, "UPDATE measurement SET measurement = '{}' WHERE settings LIKE '%\"threads\":1%'")
    assert _found(tmp_path, candidate) == []
    assert [m.settings.threads for m in store.load_all(tmp_path)] == [2]


def test_the_file_is_readable_with_any_tool_and_durable(tmp_path):
    store.save(tmp_path, [_measurement(_candidate())])
    assert _raw(tmp_path, "PRAGMA journal_mode") == [("wal",)]
    (row,) = _raw(tmp_path, "SELECT json_extract(measurement, '$.latency.p50_ms'), conditions, device FROM measurement")
    assert row == (1.0, "{}", '{"cores":"2","cpu":"a"}')


def test_where_nothing_was_measured_reading_makes_no_file(tmp_path):
    assert store.load_all(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_the_files_of_earlier_releases_are_taken_over_once_and_unreadable_ones_dropped_with_a_line(tmp_path, caplog):
    candidate, old = _candidate(), _measurement(_candidate(), taken_at_unix_ms=5)
    (tmp_path / "aaaa.json").write_bytes(msgspec.json.encode(old))
    (tmp_path / "bbbb.json").write_bytes(msgspec.json.encode(old)[:40])
    (tmp_path / "accuracy").mkdir()
    (tmp_path / "accuracy/cccc.json").write_text("{}")
    assert store.load_all(tmp_path) == [old]
    assert caplog.text.count("an old measurement is dropped") == 1
    assert not list(tmp_path.glob("*.json"))
    assert (tmp_path / "accuracy/cccc.json").exists()
    store.save(tmp_path, [_measurement(candidate, taken_at_unix_ms=9)])
    (tmp_path / "aaaa.json").write_bytes(msgspec.json.encode(old))  # as after a power cut before it was removed
    assert [m.taken_at_unix_ms for m in store.load_all(tmp_path)] == [9]


def test_a_disk_that_does_not_let_us_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept or read"):
        store.save(tmp_path / "file" / "m", [])
    (tmp_path / store.FILE).mkdir()
    with pytest.raises(ConfigError, match="cannot be kept or read"):
        store.load(tmp_path, [], DEVICE, {})


def test_a_failure_in_the_middle_keeps_none_of_it(tmp_path):
    store.save(tmp_path, [_measurement(_candidate())])
    wrong = msgspec.structs.replace(_measurement(_candidate(threads=2)), taken_at_unix_ms=2**70)
    with pytest.raises(OverflowError):
        store.save(tmp_path, [_measurement(_candidate(threads=4)), wrong])
    assert [m.settings.threads for m in store.load_all(tmp_path)] == [1]


WRITER = """
import sys
from pathlib import Path
import msgspec
from edgekit.bench import store
from edgekit.bench.record import Measurement
rows = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Measurement])
for row in rows:
    store.save(Path(sys.argv[1]), [row])
"""


def test_benches_that_write_at_the_same_time_lose_nothing(tmp_path):
    """Four processes begin with the same damaged file."""
    (tmp_path / store.FILE).write_bytes(b"nonsense" * 1000)
    jobs = []
    for process in range(4):
        rows = [_measurement(_candidate(sha256=f"{process}{i:063}")) for i in range(25)]
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE)
        jobs.append((child, msgspec.json.encode(rows)))
    for child, rows in jobs:
        child.stdin.write(rows)
        child.stdin.close()
    assert [child.wait(timeout=60) for child, _ in jobs] == [0] * 4
    assert len(store.load_all(tmp_path)) == 100


def test_a_bench_that_is_killed_while_writing_leaves_whole_measurements(tmp_path):
    rows = [_measurement(_candidate(sha256=f"{i:064}")) for i in range(2000)]
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE)
    child.stdin.write(msgspec.json.encode(rows))
    child.stdin.close()
    while not (tmp_path / f"{store.FILE}-wal").exists() and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    child.wait()
    kept = {m.artifact_sha256: m for m in store.load_all(tmp_path)}
    assert kept == {row.artifact_sha256: row for row in rows[: len(kept)]}


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
    assert store.save(mine, exported) == 1
    assert _found(mine, candidate)[0].taken_at_unix_ms == 20
    assert store.save(mine, exported) == 0
    assert store.save(mine, [_measurement(candidate, taken_at_unix_ms=10)]) == 0
    assert store.save(mine, [_measurement(candidate, taken_at_unix_ms=30)]) == 1
    other = _measurement(candidate, device={"cpu": "b", "cores": "4"})
    assert store.save(mine, [other]) == 1
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
