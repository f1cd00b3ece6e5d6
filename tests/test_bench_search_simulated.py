"""What the search decides, on a machine of numbers: the right winner for little time, on a noisy machine too."""

from __future__ import annotations

import pytest

from edgekit.bench.contender import Plan
from edgekit.bench.record import Measurement
from edgekit.bench.search import search
from edgekit.limits import Limits
from edgekit.selection import select, standings
from tests.simulated import MODEL, Machine, Worker, field_of, key_of, made_up, names, regret, sweep_s, world

LIMITS = Limits(accuracy_floor=0)
PLAN = Plan(seconds=5.0, seed=1)
"""Loads one after the other, so that the dice fall the same each time; the machine charges half of it, as for two."""
TIMES = {"slow 1t": 40.0, "slow 2t": 30.0, "near 1t": 10.6, "best 1t": 10.0, "best 2t": 11.5}


class Searched:
    """A search that was run in a world of its own."""

    def __init__(
        self, monkeypatch, true_ms: dict[str, float], machine: Machine, plan: Plan = PLAN, judge=None, limits=LIMITS
    ) -> None:
        self.limits = limits
        self.workers: list[Worker] = world(monkeypatch, machine, true_ms)
        self.told: list[tuple[str, float]] = []
        began = machine.now_s
        found = field_of(true_ms)
        self.rows: list[Measurement] = search(
            MODEL,
            found,
            plan,
            budget_s=float(len(found)),
            judge=judge or (lambda rows, _final: standings(rows, limits)),
            progress=lambda text, share: self.told.append((text, share)),
        )
        self.spent_s = machine.now_s - began
        self.by_name = dict(zip(names(self.rows), self.rows, strict=True))

    @property
    def chosen(self) -> str:
        selection = select(self.rows, self.limits)
        return key_of(selection.artifact, selection.settings)


@pytest.mark.parametrize("seed", [0, 3, 7])
@pytest.mark.parametrize(
    "disturbed",
    [{}, {"jitter": 0.1, "drift": 0.1}, {"jitter": 0.15, "drift": 0.2, "burst_share": 0.2}],
    ids=["quiet", "drifting", "bursts"],
)
def test_the_choice_is_within_3_percent_of_the_best_for_a_quarter_of_the_sweeps_time(monkeypatch, seed, disturbed):
    true_ms = made_up(seed, artifacts=5)
    machine = Machine(seed=seed, **disturbed)
    done = Searched(monkeypatch, true_ms, machine)
    assert regret(true_ms, done.chosen) <= 0.03
    assert done.spent_s <= 0.25 * sweep_s(machine, true_ms, PLAN.seconds)


def test_the_same_seed_on_the_same_machine_decides_the_same(monkeypatch):
    first, second = (Searched(monkeypatch, TIMES, Machine(seed=4)) for _ in range(2))
    assert [row.latency for row in first.rows] == [row.latency for row in second.rows]


def test_rows_come_in_the_order_of_the_candidates_and_only_the_last_are_not_rough(monkeypatch):
    done = Searched(monkeypatch, TIMES, Machine())
    assert names(done.rows) == list(TIMES)
    assert [name for name, row in done.by_name.items() if row.latency and not row.rough] == ["best 1t"]
    assert done.chosen == "best 1t"


def test_one_that_was_put_out_is_placed_by_the_rounds_that_it_shared_with_the_leader(monkeypatch):
    """Its own few samples are of another minute; the ratio is not."""
    done = Searched(monkeypatch, {"slow 1t": 20.0, "near 1t": 11.5, "best 1t": 10.0}, Machine(seed=5, drift=0.3))
    leader = done.by_name["best 1t"].latency
    assert leader is not None
    assert leader.paired_ms is None
    for name, times in (("slow 1t", 2.0), ("near 1t", 1.15)):
        figures = done.by_name[name].latency
        assert figures is not None
        assert figures.typical_ms == figures.paired_ms == pytest.approx(times * leader.typical_ms, rel=0.15)
        behind = figures.paired_ms / leader.typical_ms
        assert done.by_name[name].throughput_qps == pytest.approx(done.by_name["best 1t"].throughput_qps / behind)


def test_a_hopeless_one_is_never_raced_and_its_threads_are_not_started(monkeypatch):
    machine = Machine()
    done = Searched(monkeypatch, TIMES, machine)
    assert "slow 2t" not in machine.starts
    assert (
        done.by_name["slow 2t"].failure == "not started: with one thread it is 4.0x slower than best · onnxruntime 1t"
    )
    slow = done.by_name["slow 1t"].latency
    assert slow is not None
    assert slow.round_p50_ms == ()


def test_threads_that_may_still_win_are_started(monkeypatch):
    machine = Machine()
    done = Searched(monkeypatch, {"a 1t": 10.0, "b 1t": 15.0, "b 2t": 8.0}, machine)
    assert machine.starts == ["a 1t", "b 1t", "b 2t"]
    assert done.chosen == "b 2t"


def test_when_the_fast_may_not_win_the_spared_threads_have_their_turn(monkeypatch):
    """The fast one breaks a limit: what was not started because of it is started now."""
    allowed = lambda rows, _final: standings([row for row in rows if row.artifact != "fast"], LIMITS)  # noqa: E731
    done = Searched(monkeypatch, {"fast 1t": 1.0, "slow 1t": 10.0, "slow 2t": 6.0}, Machine(), judge=allowed)
    assert done.by_name["slow 2t"].failure is None
    assert not done.by_name["slow 2t"].rough
    assert done.by_name["fast 1t"].rough


def test_two_equals_are_told_apart_for_as_long_as_the_rematch_lasts_and_no_longer(monkeypatch):
    true_ms = {"a 1t": 10.0, "b 1t": 10.4, "c 1t": 30.0}
    done = Searched(monkeypatch, true_ms, Machine(seed=2, jitter=0.3))
    budget_s = len(true_ms)
    assert done.spent_s < 1.5 * 1.25 * budget_s + 4.0
    assert done.by_name["a 1t"].latency.round_p50_ms
    assert len(done.by_name["a 1t"].latency.round_p50_ms) >= 8


def test_a_clear_winner_ends_the_search_early(monkeypatch):
    true_ms = {f"a{i} 1t": 10.0 * (1 + i) for i in range(6)}
    done = Searched(monkeypatch, true_ms, Machine(), Plan(seconds=60.0, seed=1))
    assert done.chosen == "a0 1t"
    assert done.spent_s < 12


def test_what_cannot_be_loaded_has_its_reason_and_puts_nobody_out(monkeypatch):
    machine = Machine(fails={"best": "killed (SIGKILL): most likely the kernel ran out of memory"})
    done = Searched(monkeypatch, TIMES, machine)
    assert done.by_name["best 1t"].failure == machine.fails["best"]
    assert done.by_name["best 1t"].latency is None
    assert done.chosen == "near 1t"


def test_when_all_fail_there_are_only_reasons(monkeypatch):
    machine = Machine(fails=dict.fromkeys(("a", "b"), "illegal instruction"))
    done = Searched(monkeypatch, {"a 1t": 1.0, "b 1t": 2.0}, machine)
    assert [row.failure for row in done.rows] == ["illegal instruction"] * 2


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_workers_are_alive_than_the_plan_allows(monkeypatch, at_once):
    alive: list[int] = []
    times = {f"a{i} 1t": 10.0 + i for i in range(8)}
    close = Worker.close

    def closing(self: Worker) -> None:
        alive.append(sum(worker.is_open for worker in done_workers))
        close(self)

    done_workers: list[Worker] = []
    monkeypatch.setattr(Worker, "close", closing)
    init = Worker.__init__

    def opening(self: Worker, *arguments) -> None:
        init(self, *arguments)
        done_workers.append(self)

    monkeypatch.setattr(Worker, "__init__", opening)
    done = Searched(monkeypatch, times, Machine(), Plan(seconds=5.0, seed=1, at_once=at_once))
    assert max(alive) <= at_once + 1  # the newcomer must be seen before it is known who goes
    assert done.chosen == "a0 1t"
    assert not any(worker.is_open for worker in done.workers)


def test_progress_ends_at_one_and_never_goes_back_beyond_it(monkeypatch):
    done = Searched(monkeypatch, TIMES, Machine())
    assert done.told[-1] == ("done", 1.0)
    assert all(0 <= share <= 1 for _, share in done.told)
    assert any(text.startswith("starting best") for text, _ in done.told)


def test_the_cold_start_of_the_last_is_measured_again_where_they_were_loaded_side_by_side(monkeypatch):
    side_by_side, alone = Machine(), Machine()
    Searched(monkeypatch, TIMES, side_by_side, Plan(seconds=5.0, seed=1, starts_at_once=2))
    Searched(monkeypatch, TIMES, alone)
    assert side_by_side.starts.count("best 1t") == 2
    assert alone.starts.count("best 1t") == 1


def test_the_leader_is_measured_on_for_the_percentile_of_its_limit(monkeypatch):
    plan = Plan(seconds=5.0, seed=1, min_samples=662)
    done = Searched(monkeypatch, {"a 1t": 10.0, "b 1t": 20.0}, Machine(), plan)
    figures = done.by_name["a 1t"].latency
    assert figures is not None
    assert figures.sample_count >= 662
    assert figures.p99_ms is not None


# Batches: items a second decide

ITEMS = Limits(accuracy_floor=0, objective="throughput")


def grown(artifact: str, call_ms: float, item_ms: float, threads: int = 1, most: int = 32) -> dict[str, float]:
    """Query times of every batch size: so much for the call, and so much for each item."""
    sizes = [1 << i for i in range(most.bit_length())]
    return {f"{artifact} {threads}t" + (f" x{n}" if n > 1 else ""): call_ms + item_ms * n for n in sizes}


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_what_answers_the_most_items_is_found_whatever_a_query_takes(monkeypatch, seed):
    true_ms = grown("called", 9.0, 1.0) | grown("plain", 0.2, 1.9) | grown("slow", 1.0, 20.0)
    done = Searched(monkeypatch, true_ms, Machine(seed=seed, jitter=0.05, drift=0.1), limits=ITEMS)
    assert done.chosen == "called 1t x32"
    row = done.by_name["called 1t x32"]
    assert row.latency is not None
    assert row.items_per_s == pytest.approx(32 * 1000 / row.latency.mean_ms)


def test_larger_batches_are_started_for_as_long_as_they_gain(monkeypatch):
    machine = Machine()
    done = Searched(monkeypatch, grown("flat", 0.01, 2.0) | grown("steep", 3.0, 1.0, most=4), machine, limits=ITEMS)
    assert machine.starts == ["flat 1t", "steep 1t", "flat 1t x2", "steep 1t x2", "flat 1t x4", "steep 1t x4"]
    assert done.by_name["flat 1t x32"].failure.startswith("not started: in batches of 2 and 4 an item takes ")
    assert done.chosen == "steep 1t x4"


def test_smaller_batches_come_first_and_one_thread_before_more(monkeypatch):
    machine = Machine()
    Searched(monkeypatch, grown("a", 5.0, 1.0, 2, most=2) | grown("a", 6.0, 1.0, most=2), machine, limits=ITEMS)
    assert machine.starts == ["a 1t", "a 2t", "a 1t x2", "a 2t x2"]


def test_a_larger_batch_that_is_no_better_for_sure_gives_way_to_the_smaller(monkeypatch):
    for seed in range(3):
        done = Searched(monkeypatch, {"a 1t": 10.0, "a 1t x2": 10.2, "a 1t x4": 20.3}, Machine(seed=seed), limits=ITEMS)
        assert done.chosen == "a 1t x2"


def test_one_of_long_queries_is_not_put_out_before_it_has_the_samples_of_a_median(monkeypatch):
    """Its query takes six times as long, so that it has fewer of them; an item is a tenth better."""
    true_ms = {"a 1t": 10.0, "b 1t x6": 54.0}
    for seed in range(3):
        done = Searched(monkeypatch, true_ms, Machine(seed=seed), limits=ITEMS)
        assert done.chosen == "b 1t x6"
        assert not done.by_name["b 1t x6"].rough


def test_batches_that_break_the_bound_on_a_query_put_nobody_out(monkeypatch):
    """An item is three times faster in the larger batch, but nobody may wait for it."""
    bound = Limits(accuracy_floor=0, objective="throughput", latency_ms=12.0, latency_percentile="p50")
    plan = Plan(seconds=5.0, seed=1, bound_ms=12.0)
    done = Searched(monkeypatch, {"a 1t": 10.0, "b 1t x6": 20.0, "c 1t": 11.0}, Machine(), plan, limits=bound)
    assert done.chosen == "a 1t"
    assert not done.by_name["a 1t"].rough


def test_what_cannot_be_loaded_is_not_tried_in_larger_batches(monkeypatch):
    machine = Machine(fails={"b": "illegal instruction"})
    done = Searched(monkeypatch, grown("a", 1.0, 1.0, most=2) | grown("b", 1.0, 1.0), machine, limits=ITEMS)
    assert machine.starts == ["a 1t", "b 1t", "a 1t x2"]
    assert done.by_name["b 1t x32"].failure == "not started: one at a time it failed: illegal instruction"
    assert done.chosen == "a 1t x2"


def test_batches_grow_no_further_than_the_bound_on_a_query_and_the_memory_allow(monkeypatch):
    true_ms = grown("a", 9.0, 1.0)
    bound = Limits(accuracy_floor=0, objective="throughput", latency_ms=16.0, latency_percentile="p50")
    done = Searched(monkeypatch, true_ms, Machine(), Plan(seconds=5.0, seed=1, bound_ms=16.0), limits=bound)
    assert done.by_name["a 1t x16"].failure.endswith(" ms already, 16 ms allowed")
    assert done.chosen == "a 1t x4"
    tight = Plan(seconds=5.0, seed=1, memory_limit_bytes=10 * 2**20)
    done = Searched(monkeypatch, true_ms, Machine(item_bytes=2**20), tight, limits=ITEMS)
    assert done.by_name["a 1t x16"].failure == "not started: it would peak at 17 MiB, 10 MiB allowed"
    assert done.chosen == "a 1t x8"
