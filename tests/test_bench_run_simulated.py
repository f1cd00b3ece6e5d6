"""What bench decides, on a machine of numbers: turns, further turns, samples, and the same answer each time."""

from __future__ import annotations

from collections import Counter

import pytest

from edgekit.bench.contender import Contender, Plan
from edgekit.bench.record import Measurement
from edgekit.bench.run import ROUNDS, bench, cold_starts, most_at_once, undecided
from edgekit.bench.stats import speed_up
from edgekit.limits import Limits
from edgekit.selection import select
from tests.simulated import MODEL, Machine, Worker, field_of, names, world

LIMITS = Limits(accuracy_floor=0)
PAIR = {"standard 1t": 10.5, "flash 1t": 10.0}


def _bench(monkeypatch, true_ms: dict[str, float], machine: Machine, plan: Plan) -> dict[str, Measurement]:
    world(monkeypatch, machine, true_ms)
    rows = bench(MODEL, field_of(true_ms), plan)
    return dict(zip(names(rows), rows, strict=True))


def test_ten_runs_decide_5_percent_the_same_way_with_and_without_a_neighbour(monkeypatch):
    decided: Counter[str] = Counter()
    for run in range(10):
        burst_share = 0.2 if run % 2 else 0.0
        machine = Machine(seed=run, jitter=0.03, drift=0.1, burst_share=burst_share)
        rows = _bench(monkeypatch, PAIR, machine, Plan(seconds=1.0, seed=run))
        decided[select(list(rows.values()), LIMITS).artifact] += 1
    assert max(decided.values()) >= 9, decided


def test_a_slow_minute_hits_both_and_hides_nothing(monkeypatch):
    """The medians alone drift by more than the difference; the rounds do not."""
    rows = _bench(monkeypatch, PAIR, Machine(seed=3, drift=0.4), Plan(seconds=3.0, seed=3))
    standard, flash = rows["standard 1t"], rows["flash 1t"]
    assert standard.latency is not None
    spread = max(standard.latency.round_p50_ms) / min(standard.latency.round_p50_ms)
    times, least, most = speed_up(standard, flash)
    assert spread > 1.05
    assert least < 1.05 < most
    assert times == pytest.approx(1.05, abs=0.02)


@pytest.mark.parametrize(("true_ms", "count"), [(1.0, ROUNDS[1]), (50.0, ROUNDS[1]), (400.0, 12), (4000.0, 12)])
def test_short_queries_have_many_rounds_and_long_ones_few(monkeypatch, true_ms, count):
    rows = _bench(monkeypatch, {"a 1t": true_ms}, Machine(), Plan(seconds=10.0, gain=None))
    figures = rows["a 1t"].latency
    assert figures is not None
    assert len(figures.round_p50_ms) == count


def test_all_take_part_in_every_round(monkeypatch):
    true_ms = {"a 1t": 1.0, "b 1t": 5.0, "c 1t": 25.0}
    rows = _bench(monkeypatch, true_ms, Machine(), Plan(seconds=3.0, gain=None, seed=1))
    counts = {len(row.latency.round_p50_ms) for row in rows.values() if row.latency}
    assert len(counts) == 1
    assert len({row.run_id for row in rows.values()}) == 1


def test_measuring_takes_about_the_time_that_was_asked_for(monkeypatch):
    machine = Machine()
    began_s = machine.now_s
    _bench(monkeypatch, {"a 1t": 5.0, "b 1t": 9.0}, machine, Plan(seconds=5.0, gain=None))
    assert 2 * 5.0 < machine.now_s - began_s < 1.5 * 2 * 5.0  # starts, warm-ups and pauses included


def test_samples_beyond_the_rounds_are_taken_until_there_are_enough(monkeypatch):
    rows = _bench(monkeypatch, {"a 1t": 50.0}, Machine(), Plan(seconds=2.0, gain=None, min_samples=662))
    figures = rows["a 1t"].latency
    assert figures is not None
    assert figures.sample_count >= 662
    assert figures.p99_ms is not None


def test_one_that_cannot_keep_the_bound_is_not_measured_on(monkeypatch):
    machine = Machine()
    plan = Plan(seconds=2.0, gain=None, min_samples=662, bound_ms=20.0)
    rows = _bench(monkeypatch, {"a 1t": 50.0, "b 1t": 10.0}, machine, plan)
    a, b = rows["a 1t"].latency, rows["b 1t"].latency
    assert a is not None
    assert b is not None
    assert a.sample_count < 100
    assert b.sample_count >= 662


def test_a_failure_is_its_own_row_and_the_others_have_all_their_rounds(monkeypatch):
    machine = Machine(fails={"broken": "crashed (SIGSEGV) inside the runtime"})
    rows = _bench(monkeypatch, {"broken 1t": 1.0, "a 1t": 10.0}, machine, Plan(seconds=2.0, gain=None))
    assert rows["broken 1t"].failure == "crashed (SIGSEGV) inside the runtime"
    assert rows["broken 1t"].latency is None
    assert rows["a 1t"].latency is not None
    assert len(rows["a 1t"].latency.round_p50_ms) >= ROUNDS[0]


def test_every_further_cold_start_is_a_start_of_its_own(monkeypatch):
    machine = Machine()
    workers = world(monkeypatch, machine, {"a 1t": 1.0})
    (candidate,) = field_of({"a 1t": 1.0})
    starts = cold_starts(MODEL, candidate, 3)
    assert [start.import_ms for start in starts] == [200, 200, 200]
    assert machine.starts == ["a 1t"] * 3
    assert not any(worker.is_open for worker in workers)


def test_a_cold_start_that_fails_is_left_out(monkeypatch):
    world(monkeypatch, Machine(fails={"a": "killed"}), {"a 1t": 1.0})
    assert cold_starts(MODEL, field_of({"a 1t": 1.0})[0], 2) == []


@pytest.mark.parametrize(
    ("limit_mib", "at_once", "most"), [(None, 16, 16), (None, 3, 3), (4000, 16, 13), (100, 16, 1), (10**6, 16, 16)]
)
def test_as_many_workers_as_half_of_the_memory_holds(limit_mib, at_once, most):
    limit = None if limit_mib is None else limit_mib * 2**20
    found = field_of({f"a{i} 1t": 1.0 for i in range(20)})
    assert most_at_once(found, Plan(memory_limit_bytes=limit, at_once=at_once)) == most


def _contender(name: str, *rounds_ms: float, failure: str | None = None) -> Contender:
    (candidate,) = field_of({f"{name} 1t": 1.0})
    run = Contender(candidate=candidate, process=Worker(Machine(), {}))  # type: ignore[arg-type]
    for value in rounds_ms:
        run.add_round((value,) * 3)
    run.failure = failure
    return run


@pytest.mark.parametrize(
    ("other", "plan", "rivals"),
    [
        ([2.0] * 12, Plan(), ["best"]),  # surely slower
        ([1.001] * 12, Plan(), ["best"]),  # surely as good
        ([0.9, 1.2] * 6, Plan(), ["best", "other"]),  # neither
        ([0.9, 1.2] * 6, Plan(gain=None), []),  # nobody asks
    ],
)
def test_only_those_of_whom_nothing_is_proven_have_further_turns(other, plan, rivals):
    runs = [_contender("best", *[1.0] * 12), _contender("other", *other)]
    assert [run.candidate.artifact.record.name for run in undecided(runs, plan)] == rivals


def test_who_failed_or_missed_rounds_is_no_rival():
    runs = [
        _contender("a", *[1.0] * 12),
        _contender("b", *[0.9, 1.2] * 6, failure="killed"),
        _contender("c", *[1.0] * 3),
    ]
    assert [run.candidate.artifact.record.name for run in undecided(runs, Plan())] == ["a"]
