"""One candidate while it is measured: what its figures are made of, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from edgekit.artifact import Accuracy
from edgekit.bench import contender
from edgekit.bench import protocol as say
from edgekit.bench.candidates import Candidate
from edgekit.bench.contender import (
    Contender,
    Plan,
    accuracy_fields,
    begin,
    finish,
    guarded,
    needs_more,
    row_of,
    take_slice,
)
from edgekit.bench.process import CandidateFailed
from edgekit.bench.record import Conditions
from edgekit.device.sensors import Reading
from edgekit.errors import InputError
from tests.simulated import MODEL, Machine, Worker, field_of, world

KEPT = Accuracy(metric="top1", value=0.784, standard_value=0.8, sample_count=9, runtime="x", isa="y")
NOTHING = Reading(**(dict.fromkeys(Reading.__dataclass_fields__) | {"problems": ()}))


def _with(reading: Reading, **changes: object) -> Reading:
    return replace(reading, **changes)


class Scripted:
    """A worker whose answers are given; keeps what it was asked."""

    def __init__(self, *replies: object) -> None:
        self._replies, self.asked, self.is_open = list(replies), [], True

    def ask(self, request: say.Request, _expected: type, *, timeout_s: float) -> object:
        self.asked.append((request, timeout_s))
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self.is_open = False


def _candidate(**record) -> Candidate:
    (found,) = field_of({"a 1t": 1.0})
    artifact = msgspec.structs.replace(found.artifact, record=msgspec.structs.replace(found.artifact.record, **record))
    return replace(found, artifact=artifact)


def _run(*replies: object, candidate: Candidate | None = None) -> Contender:
    return Contender(candidate=candidate or _candidate(), process=Scripted(*replies))


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Time that passes only when somebody sleeps."""
    passed = SimpleNamespace(now_s=100.0, slept=[])

    def sleep(seconds: float) -> None:
        passed.slept.append(seconds)
        passed.now_s += seconds

    fake = SimpleNamespace(monotonic=lambda: passed.now_s, sleep=sleep, time_ns=lambda: int(passed.now_s * 1e9))
    monkeypatch.setattr(contender, "time", fake)
    monkeypatch.setattr(contender.sensors, "read", lambda: NOTHING)
    return passed


# A slice


def test_the_first_query_of_a_slice_is_the_one_after_idle_and_no_sample(clock):
    run = _run(say.Times(times_ms=(9.0, 1.0, 2.0), waits_ms=(0.0, 0.5, 0.0)))
    take_slice(run, 1.0, 50, Plan())
    assert run.after_idle_ms == [9.0]
    assert run.samples_ms == [1.0, 2.0]
    assert run.own_ms == [(0.5, 2.0)]
    ((request, timeout_s),) = run.process.asked
    assert (request.seconds, request.max_samples) == (1.0, 51)
    assert timeout_s == 1.0 + Plan().hang_timeout_s


@pytest.mark.parametrize(
    ("since_s", "seconds", "idle_s", "pause_s"),
    [
        (0.0, 1.0, 0.25, 0.25),
        (0.1, 1.0, 0.25, 0.15),
        (5.0, 1.0, 0.25, 0.0),
        (0.0, 0.02, 0.25, 0.02),
        (0.0, 1.0, 0.0, 0.0),
    ],
)
def test_before_a_slice_there_is_a_pause_unless_there_was_one(clock, since_s, seconds, idle_s, pause_s):
    run = _run(say.Times(times_ms=(1.0, 1.0)))
    run.last_s = clock.now_s - since_s
    take_slice(run, seconds, 50, Plan(idle_s=idle_s))
    assert clock.slept == [pytest.approx(pause_s)]


def test_without_a_tell_of_waiting_all_time_is_its_own():
    run = Contender(candidate=_candidate())
    run.add_round((1.0, 2.0))
    assert run.own_ms == run.rounds_ms
    run.forget_rounds()
    assert run.samples_ms == []


def test_costs_are_means_over_all_slices(clock):
    run = _run(
        say.Times(times_ms=(1.0, 1.0), usage=(0.010, 20, 4)),
        say.Times(times_ms=(1.0, 1.0), usage=(0.030, 0, 0)),
    )
    for _ in range(2):
        take_slice(run, 1.0, 50, Plan())
    costs = run.costs()
    assert costs is not None
    assert (costs.cpu_ms, costs.page_faults, costs.context_switches) == (pytest.approx(10.0), 5.0, 1.0)
    assert costs.energy_mj is None


@pytest.mark.parametrize("replies", [(), (say.Times(times_ms=(1.0, 1.0)),)])
def test_a_system_that_tells_no_costs_has_none(clock, replies):
    run = _run(*replies)
    for _ in replies:
        take_slice(run, 1.0, 50, Plan())
    assert run.costs() is None


@pytest.mark.parametrize(
    ("before", "after", "each_mj"),
    [
        ({"power_mw": 4000.0}, {"power_mw": 6000.0}, 50.0),
        ({"package_energy_uj": 0}, {"package_energy_uj": 5_000_000}, 50.0),
        ({"package_energy_uj": 5_000_000}, {"package_energy_uj": 0}, None),
    ],
    ids=["power", "energy counter", "counter wrapped"],
)
def test_energy_of_a_query_is_power_times_its_time(clock, monkeypatch, before, after, each_mj):
    """Ten milliseconds at five watts are fifty millijoules."""
    first = _with(NOTHING, taken_at_s=0.0, **before)
    readings = iter([first, first, _with(NOTHING, taken_at_s=1.0, **after)])
    monkeypatch.setattr(contender.sensors, "read", lambda: next(readings))
    run = _run(say.Times(times_ms=(10.0, 10.0), usage=(0.02, 0, 0)))
    take_slice(run, 1.0, 50, Plan())
    costs = run.costs()
    assert costs is not None
    assert costs.energy_mj == (None if each_mj is None else pytest.approx(each_mj))


# What ends a candidate


def test_a_failure_is_kept_and_its_memory_freed_for_the_others():
    run = _run(CandidateFailed("killed (SIGKILL)"))
    guarded(run, lambda: run.worker.ask(say.Place(), say.Placed, timeout_s=1))
    assert run.failure == "killed (SIGKILL)"
    assert not run.process.is_open


def test_who_has_failed_is_asked_nothing_more():
    run, asked = _run(), []
    run.failure = "earlier"
    guarded(run, lambda: asked.append(1))
    assert asked == []
    assert run.failure == "earlier"


def test_an_accelerator_that_ran_nothing_is_a_failure_unless_that_is_allowed():
    placed = say.Placed(peak_memory_bytes=1, ops_by_provider={"CPUExecutionProvider": 9}, partitions=1, unused=("X",))
    for allowed in (False, True):
        settings = replace(
            _candidate().settings, providers=(("X", {}), ("CPUExecutionProvider", {})), allow_fallback=allowed
        )
        run = _run(placed, candidate=replace(_candidate(), settings=settings))
        if allowed:
            finish(run, Plan())
            assert run.placed is placed
        else:
            with pytest.raises(CandidateFailed, match="X was asked for and ran none of the operators"):
                finish(run, Plan())


def test_inputs_that_cannot_be_made_are_the_candidates_reason(monkeypatch):
    def fails(*_: object) -> None:
        raise InputError("page.png", "is no image")

    monkeypatch.setattr(contender, "write_inputs", fails)
    opened = say.Opened(import_ms=1, load_ms=2, runtime_version="9", inputs=(), scales={})
    run = _run(opened)
    with pytest.raises(CandidateFailed, match=r"no inputs for it: .*is no image"):
        begin(MODEL, run, Path("x.npz"), Plan())
    assert run.runtime_version == "9"


@pytest.mark.parametrize(("seconds", "given", "limit_s"), [(5.0, None, 2.5), (0.5, None, 1.0), (5.0, 0.25, 0.25)])
def test_warming_up_is_limited(monkeypatch, clock, seconds, given, limit_s):
    monkeypatch.setattr(contender, "write_inputs", lambda *_: None)
    opened = say.Opened(
        import_ms=1, load_ms=2, runtime_version="9", inputs=(), scales={}, loaded_bytes=3, temporary_bytes=4
    )
    run = _run(opened, say.Times(times_ms=(7.0,)), say.Times(times_ms=(5.0, 4.0)))
    begin(MODEL, run, Path("x.npz"), Plan(seconds=seconds), warm_up_s=given)
    request, _ = run.process.asked[-1]
    assert request == say.WarmUp(max_s=limit_s)
    assert run.start is not None
    assert (run.start.total_ms, run.start.loaded_bytes, run.start.temporary_bytes) == (10.0, 3, 4)
    assert run.warm_ms == (5.0, 4.0)
    assert run.last_s == clock.now_s


# How many samples are enough


@pytest.mark.parametrize(
    ("samples", "plan", "more"),
    [
        ([1.0] * 7, Plan(), True),
        ([1.0] * 8, Plan(), False),
        ([1.0] * 100, Plan(min_samples=662), True),
        ([1.0] * 662, Plan(min_samples=662), False),
        ([1000.0] * 100, Plan(min_samples=662, max_seconds=60), False),
        ([1000.0] * 30, Plan(min_samples=662, max_seconds=60), True),
        ([30.0] * 100, Plan(min_samples=662, bound_ms=20), False),
        ([10.0] * 100, Plan(min_samples=662, bound_ms=20), True),
    ],
)
def test_measuring_goes_on_until_there_are_enough_or_more_would_not_help(samples, plan, more):
    run = Contender(candidate=_candidate())
    run.add_round(tuple(samples))
    assert needs_more(run, plan) is more


def test_who_has_failed_needs_no_more():
    run = Contender(candidate=_candidate())
    run.failure = "killed"
    assert not needs_more(run, Plan())


# The row


def _measured(count: int = 12, **changes: object) -> Contender:
    run = Contender(candidate=_candidate())
    for _ in range(count):
        run.add_round((2.0, 2.0, 2.0))
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def test_a_row_has_what_was_measured_and_where():
    run = _measured(runtime_version="1.2", after_idle_ms=[5.0, 3.0, 4.0])
    run.placed = say.Placed(peak_memory_bytes=77, ops_by_provider={"CPUExecutionProvider": 3}, partitions=1)
    row = row_of(MODEL, run, Conditions(load_1min=0.1), "run", in_turns=12)
    assert row.latency is not None
    assert (row.latency.p50_ms, row.latency.sample_count, len(row.latency.round_p50_ms)) == (2.0, 36, 12)
    assert (row.after_idle_ms, row.throughput_qps, row.peak_memory_bytes) == (4.0, 500.0, 77)
    assert (row.settings.runtime_version, row.run_id, row.rough) == ("1.2", "run", False)
    assert row.conditions == Conditions(load_1min=0.1)


def test_throughput_is_the_candidates_own_without_what_others_used():
    """A tenth of the queries stood in line: the percentiles keep that, a comparison must not."""
    run = Contender(candidate=_candidate())
    for _ in range(12):
        run.add_round((2.0,) * 9 + (12.0,), (0.0,) * 9 + (10.0,))
    row = row_of(MODEL, run, Conditions(), "", in_turns=12)
    assert row.latency is not None
    assert row.latency.mean_ms == 3.0
    assert row.throughput_qps == pytest.approx(500.0)
    assert (row.items_per_s, row.item_ms) == (pytest.approx(500.0), 2.0)
    four = msgspec.structs.replace(row, settings=msgspec.structs.replace(row.settings, batch=4))
    assert (four.items_per_s, four.item_ms) == (pytest.approx(2000.0), 0.5)


def test_a_failure_has_no_figures_but_its_start_stays():
    run = _measured(failure="hangs: no answer in 60 s")
    row = row_of(MODEL, run, Conditions(), "", in_turns=0, rough=True)
    assert (row.latency, row.throughput_qps, row.failure) == (None, None, "hangs: no answer in 60 s")
    assert not row.rough  # it is no candidate for measuring on


def test_few_samples_make_no_latency():
    run = _measured(count=2)
    assert row_of(MODEL, run, Conditions(), "", in_turns=2).latency is None


def test_waiting_for_others_is_a_doubt_of_this_row_alone():
    run = Contender(candidate=_candidate())
    for _ in range(12):
        run.add_round((4.0, 4.0), (2.0, 2.0))
    row = row_of(MODEL, run, Conditions(), "", in_turns=12)
    assert row.latency is not None
    assert (row.latency.p50_ms, row.latency.typical_ms, row.latency.waited_ratio) == (4.0, 2.0, 0.5)
    assert row.conditions.judged_bad == ("waiting for a CPU that others used was 50% of the time",)


def test_the_peak_of_one_that_was_ended_is_what_was_seen_of_it():
    assert row_of(MODEL, _measured(peak_bytes=55), Conditions(), "", in_turns=12).peak_memory_bytes == 55


@pytest.mark.parametrize(
    ("record", "ratio"),
    [
        ({"name": "standard", "precision": "float16"}, 1.0),
        ({"name": "litert", "precision": "float32"}, 1.0),
        ({"name": "pruned", "precision": "float32", "made_from_sha256": "0"}, None),
        ({"name": "int8", "precision": "int8"}, None),
        ({"name": "int8", "precision": "int8", "accuracy": KEPT}, 0.98),
    ],
)
def test_the_standard_is_the_yardstick_and_what_was_made_from_it_is_not(record, ratio):
    assert accuracy_fields(_candidate(**record).artifact.record)["accuracy_ratio"] == (
        ratio if ratio is None else pytest.approx(ratio)
    )


def test_a_whole_life_on_a_machine_of_numbers(monkeypatch):
    machine = Machine(jitter=0.0)
    workers = world(monkeypatch, machine, {"a 1t": 4.0})
    (candidate,) = field_of({"a 1t": 4.0})
    run = Contender(candidate=candidate, process=Worker(machine, {"a 1t": 4.0}))
    begin(MODEL, run, Path("x.npz"), Plan())
    began_s = machine.now_s
    for _ in range(12):
        take_slice(run, 0.4, 1000, Plan(idle_s=0.0))
    finish(run, Plan())
    row = row_of(MODEL, run, Conditions(), "", in_turns=12)
    assert row.latency is not None
    assert row.latency.p50_ms == pytest.approx(4.0)
    assert machine.now_s - began_s == pytest.approx(12 * 0.4, rel=0.05)
    assert workers == []
