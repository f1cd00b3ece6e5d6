"""What earlier measurements still tell: who need not be started, and what is worth measuring again."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from edgekit import measured
from edgekit.artifact import Artifact, ArtifactRecord
from edgekit.bench import store
from edgekit.bench.candidates import CPU_PROVIDERS, Candidate, to_record
from edgekit.bench.conditions import conditions, this_device
from edgekit.bench.contender import Plan
from edgekit.bench.record import Conditions, Measurement
from edgekit.bench.stats import latency
from edgekit.config import Home
from edgekit.limits import Limits
from edgekit.manifest import Model, Source
from edgekit.runtimes.session import SessionSettings

MODEL = Model(name="m", version="1", task="none", source=Source(file="m.onnx", sha256="0" * 64, size_bytes=1))
LIMITS = Limits(accuracy_floor=0)


def _candidate(name: str, threads: int = 1, **settings) -> Candidate:
    record = ArtifactRecord(
        model="m", name=name, file="m.onnx", format="onnx", precision="float32", sha256=name * 64, size_bytes=1
    )
    way = SessionSettings(providers=CPU_PROVIDERS, threads=threads, **settings)
    return Candidate(artifact=Artifact(record=record, path=Path("m.onnx")), settings=way)


def _row(candidate: Candidate, p50_ms: float, *, samples: int = 10, **changes) -> Measurement:
    values = {
        "model": "m",
        "artifact": candidate.artifact.record.name,
        "artifact_sha256": candidate.artifact.record.sha256,
        "precision": "float32",
        "size_bytes": 1,
        "settings": to_record(candidate.settings),
        "latency": latency([[p50_ms] * samples]),
        "accuracy_ratio": 1.0,
        "device": this_device(),
        "conditions": msgspec.structs.replace(conditions(), judged_bad=()),
        "taken_at_unix_ms": time.time_ns() // 10**6,
    }
    return Measurement(**(values | changes))


def _spared(times_ms: dict[str, float], limits: Limits = LIMITS, threads: int = 2, **changes) -> list[str]:
    """Which of a and b with more threads are spared, when both were measured with one."""
    singles = {name: _candidate(name) for name in times_ms}
    rows = {singles[name].name: _row(singles[name], ms, **changes.get(name, {})) for name, ms in times_ms.items()}
    more = [_candidate(name, threads) for name in times_ms]
    return [name.partition(" ")[0] for name in measured.spared([*singles.values(), *more], rows, limits)]


@pytest.mark.parametrize(
    ("slow_ms", "threads", "spared"),
    [(2.3, 2, []), (2.5, 2, ["b"]), (2.5, 4, []), (4.9, 4, ["b"])],
)
def test_more_threads_are_spared_where_they_cannot_save_a_candidate(slow_ms, threads, spared):
    assert _spared({"a": 1.0, "b": slow_ms}, threads=threads) == spared


def test_the_reason_names_the_numbers():
    one, more, best = _candidate("b"), _candidate("b", 2), _candidate("a")
    rows = {best.name: _row(best, 1.0), one.name: _row(one, 5.0)}
    (why,) = measured.spared([best, one, more], rows, LIMITS).values()
    assert why == "not started: with one thread it is 5.0x slower than a · onnxruntime 1t"
    row = measured.unstarted(MODEL, more, why)
    assert (row.failure, row.latency, row.candidate) == (why, None, more.name)


@pytest.mark.parametrize(
    "changes",
    [{"fit": False}, {"accuracy_ratio": 0.5}, {"peak_memory_bytes": 2**40}, {"failure": "killed", "latency": None}],
)
def test_only_one_that_keeps_the_limits_spares_others(changes):
    limits = Limits(accuracy_floor=0.9, memory_bytes=2**30)
    both = {"a": {"peak_memory_bytes": 1} | changes, "b": {"peak_memory_bytes": 1}}
    assert _spared({"a": 1.0, "b": 9.0}, limits, **both) == []


def test_without_samples_for_the_percentile_that_is_asked_for_it_still_spares_others():
    assert _spared({"a": 1.0, "b": 9.0}, Limits(accuracy_floor=0, latency_ms=20)) == ["b"]


def test_what_is_measured_or_has_no_measured_sibling_is_never_spared():
    a, b2 = _candidate("a"), _candidate("b", 2)
    assert measured.spared([a, b2], {a.name: _row(a, 1.0)}, LIMITS) == {}
    b = _candidate("b")
    rows = {c.name: _row(c, ms) for c, ms in ((a, 1.0), (b, 9.0), (b2, 9.0))}
    assert measured.spared([a, b, b2], rows, LIMITS) == {}
    assert measured.spared([a, b2], {}, LIMITS) == {}


def test_spinning_threads_are_compared_with_the_single_one_too():
    a, b, spin = _candidate("a"), _candidate("b"), _candidate("b", 2, spinning=True)
    rows = {a.name: _row(a, 1.0), b.name: _row(b, 9.0)}
    assert list(measured.spared([a, b, spin], rows, LIMITS)) == [spin.name]


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def _valid(home: Home, *rows: Measurement, plan: Plan | None = None, found=None) -> list[float]:
    """What is reused of what was stored, by its median."""
    store.save(home.measurements("m"), rows)
    reused = measured.valid(MODEL, found or [_candidate("a")], home, plan or Plan())
    return [row.latency.p50_ms for row in reused.values()]


@pytest.mark.parametrize(
    ("samples", "plan", "reused"),
    [
        (100, Plan(), [1.0]),
        (100, Plan(min_samples=662), []),
        (100, Plan(min_samples=662, bound_ms=0.5), [1.0]),
        (100, Plan(min_samples=662, bound_ms=2.0), []),
    ],
)
def test_a_measurement_is_reused_when_it_has_the_samples_or_more_would_not_help(home, samples, plan, reused):
    assert _valid(home, _row(_candidate("a"), 1.0, samples=samples), plan=plan) == reused


def test_what_a_search_stopped_early_is_known_with_few_samples_too(home):
    assert _valid(home, _row(_candidate("a"), 1.0, rough=True), plan=Plan(min_samples=662)) == [1.0]


def test_a_doubtful_measurement_is_repeated_once_the_machine_is_calm(home, monkeypatch):
    now_ms, bad = (
        time.time_ns() // 10**6,
        msgspec.structs.replace(conditions(), judged_bad=("the clocks are throttled",)),
    )
    calm = msgspec.structs.replace(bad, judged_bad=())
    old = _row(_candidate("a"), 1.0, conditions=bad, taken_at_unix_ms=now_ms - 120_000)
    monkeypatch.setattr(measured, "conditions", lambda: calm)
    assert _valid(home, old) == []
    monkeypatch.setattr(measured, "conditions", lambda: bad)
    assert _valid(home) == [1.0]
    for age_ms in (100_000, 80_000):  # it was tried again, and again
        again = msgspec.structs.replace(old, taken_at_unix_ms=now_ms - age_ms)
        store.save(home.measurements("m"), [again])
    monkeypatch.setattr(measured, "conditions", lambda: calm)
    assert _valid(home) == [1.0]


def test_another_power_mode_is_another_measurement(home, monkeypatch):
    for mode, p50_ms in (("7W", 3.0), ("MAXN", 1.0)):
        found = Conditions(power_mode=mode)
        store.save(home.measurements("m"), [_row(_candidate("a"), p50_ms, conditions=found)])
    monkeypatch.setattr(measured, "conditions", lambda: Conditions(power_mode="7W"))
    assert _valid(home) == [3.0]


def test_accuracy_is_what_the_artifact_says_today_and_failures_are_not_kept(home):
    a = _candidate("a")
    measured.keep(MODEL, home, [_row(a, 1.0, accuracy_ratio=0.1), _row(_candidate("b"), 1.0, failure="killed")])
    assert [m.artifact for m in store.load_all(home.measurements("m"))] == ["a"]
    (row,) = measured.known(MODEL, [a], home).values()
    assert row.accuracy_ratio == 1.0  # the standard's own
