"""Many histograms at once, values kept by identity, and who goes first: what a huge fleet stands on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from edgekit.fleet import merged_latency
from edgekit.telemetry.histogram import HistogramBuilder, merge_all, quantile
from edgekit.telemetry.messages import MAX_BUCKETS, Histogram, Received
from edgekit_tui.app import PUT_OFF_MOST, Console
from edgekit_tui.courtesy import CALM_SWITCH_S, HOLD_S, MOST_S, SWITCH_S, Courtesy
from edgekit_tui.kept import Kept
from edgekit_tui.news import Folded
from edgekit_tui.pool import Pool
from edgekit_tui.rows import LIVE, Row
from edgekit_tui.totals import Summary, cells_of
from tests.tui import simulated
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, drive, lived, lived_view, text_of

VIEW = lived_view()


def histogram(values: list[float], scale: int) -> Histogram:
    builder = HistogramBuilder(max_scale=scale)
    builder.record_many(values)
    made = builder.histogram()
    assert made is not None
    return made


SOME = st.builds(
    histogram,
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40),
    st.integers(0, 20),
)
"Zeros alone make one without buckets; wide ranges make coarse ones."


@given(st.lists(st.tuples(SOME, st.integers(0, 3)), max_size=12))
def test_pooled_is_what_merging_one_by_one_gives(parts: list[tuple[Histogram, int]]) -> None:
    got = Pool().merge([one for one, _ in parts], [group for _, group in parts], 4)
    for group in range(4):
        wanted = merge_all(one for one, of in parts if of == group)
        if wanted is None:
            assert got[group] is None
            continue
        pooled = got[group]
        assert pooled is not None
        assert pooled.sum == pytest.approx(wanted.sum)
        assert parts_of(pooled) == parts_of(wanted)
        assert len(pooled.counts) <= MAX_BUCKETS


def parts_of(one: Histogram) -> tuple[object, ...]:
    return one.scale, one.offset, one.counts, one.count, one.min, one.max, one.zero_count


def test_a_pool_used_again_takes_only_new_histograms_apart() -> None:
    pool, old, new = Pool(), histogram([1.0, 2.0], 5), histogram([3.0], 5)
    first = pool.merge([old], [0], 1)
    again = pool.merge([old, new], [0, 0], 1)
    assert first == [old]
    assert again == [merge_all([old, new])]
    assert pool.merge([], [], 2) == [None, None]


def test_counts_from_a_hostile_device_do_not_end_the_console() -> None:
    huge = Histogram(scale=0, offset=0, counts=(2**52,), sum=1.0, count=2**52, min=1.0, max=2.0, zero_count=0)
    (merged,) = Pool().merge([huge, huge], [0, 0], 1)
    assert merged is not None
    assert merged.count == 2**53
    far = Histogram(scale=20, offset=2**30, counts=(1,), sum=1.0, count=1, min=1.0, max=1.0, zero_count=0)
    near = replace_offset(far, -(2**30))
    assert Pool().merge([far, near], [0, 0], 1) == [merge_all([far, near])]


def replace_offset(one: Histogram, offset: int) -> Histogram:
    return Histogram(scale=one.scale, offset=offset, counts=one.counts, sum=one.sum, count=one.count, min=one.min,
                     max=one.max, zero_count=one.zero_count)  # fmt: skip


def test_kept_makes_each_value_once_and_forgets_what_is_gone() -> None:
    made: list[str] = []
    kept: Kept[Row, str] = Kept(lambda row: made.append(row.device) or row.device)  # type: ignore[func-returns-value]
    a, b = VIEW.rows[0], VIEW.rows[3]
    assert kept.of([a, b]) == [a.device, b.device]
    assert kept.of([b, a]) == [b.device, a.device]
    assert made == [a.device, b.device]
    assert kept.of([b]) == [b.device]
    assert kept.of([a]) == [a.device]
    assert made == [a.device, b.device, a.device], "a was gone for one round"
    changed = replace(a, device="other")
    assert kept.of([changed, changed]) == ["other", "other"]
    assert made[3:] == ["other"]


def test_cells_hold_every_live_sample_once() -> None:
    cells = cells_of(VIEW.rows)
    live = [device for device in VIEW.fleet.devices.values() if device.presence in LIVE]
    whole, pooled = merged_latency(live), merge_all(cell.latency for cell in cells if cell.latency)
    assert whole is not None
    assert pooled is not None
    assert pooled.count == whole.count
    assert quantile(pooled, 0.99) == pytest.approx(quantile(whole, 0.99))
    assert sum(cell.rows for cell in cells) == len(VIEW.rows)
    assert sum(cell.over for cell in cells) == sum(row.is_over for row in VIEW.rows)
    assert {cell.model for cell in cells} == {row.model for row in VIEW.rows}


def messages_until(now_s: float) -> list[Received]:
    return [message for batch in simulated.life(now_s, windows=2) for message in batch]


def test_totals_made_again_are_the_totals_made_anew() -> None:
    source, folder, _ = lived(windows=5)
    summary = Summary()
    for second in (20, 40, 60):
        source.messages = messages_until(NOW_S + second)
        view = folder.step(NOW_S + second)
        assert view is not None
        assert summary.totals(view.fleet, view.rows) == Summary().totals(view.fleet, view.rows)


def test_software_and_boards_count_live_devices() -> None:
    totals = VIEW.totals
    assert totals.software["edgekit 0.1.0"] == 10
    assert sum(totals.boards.values()) == 10
    assert sum(totals.artifacts.values()) == sum(1 for row in VIEW.rows if row.state not in ("offline", "stale"))


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now_s, self.slept = 100.0, 0.0
        self.switches: list[float] = []

    def read(self) -> float:
        return self.now_s

    def switch(self, seconds: float) -> None:
        self.switches.append(seconds)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept += seconds


def test_the_worker_stands_aside_after_a_key_and_not_otherwise() -> None:
    clock = Clock()
    courtesy = Courtesy(clock.read, clock.sleep, clock.switch)
    courtesy.begin()
    courtesy.give()
    assert clock.slept == 0
    courtesy.ask()
    assert courtesy.left_s == pytest.approx(HOLD_S)
    courtesy.give()
    assert clock.slept == pytest.approx(HOLD_S)
    assert courtesy.left_s == 0
    courtesy.give()
    assert clock.slept == pytest.approx(HOLD_S)


def test_the_screen_keeps_the_interpreter_while_the_worker_rests() -> None:
    clock = Clock()
    courtesy = Courtesy(clock.read, clock.sleep, clock.switch)
    courtesy.begin()
    courtesy.give()
    assert clock.switches == [SWITCH_S]
    courtesy.ask()
    courtesy.give()
    assert clock.switches == [SWITCH_S, CALM_SWITCH_S, SWITCH_S], "calm while it stands aside"
    courtesy.rest()
    assert clock.switches[-1] == CALM_SWITCH_S


def test_a_key_held_down_does_not_stop_the_worker_for_good() -> None:
    clock = Clock()
    courtesy = Courtesy(clock.read, clock.sleep, clock.switch)
    for _ in range(3):
        clock.slept = 0.0
        courtesy.begin()
        for _ in range(1000):
            courtesy.ask()
            courtesy.give()
        assert MOST_S <= clock.slept <= MOST_S + HOLD_S


def test_the_folder_gives_way_again_and_again() -> None:
    source, folder, _ = lived(windows=2)
    source.messages = messages_until(NOW_S + 60)
    asked: list[int] = []
    assert folder.step(NOW_S + 60, give_way=lambda: asked.append(1)) is not None
    assert len(asked) > len(messages_until(NOW_S + 60)), "before every message, and between the steps after them"


def test_a_new_view_waits_for_the_paint_of_a_key_but_not_for_ever() -> None:
    fewer = [replace(VIEW, rows=VIEW.rows[:n]) for n in (2, 3)]

    async def act(app: Console, pilot: Pilot[None]) -> None:
        app.courtesy = Courtesy(lambda: 50.0, switch=lambda _: None)  # time stands still: the key is never done
        await pilot.press("j")
        app.post_message(Folded(fewer[0]))
        await pilot.pause()
        assert app.view is fewer[0]
        assert "models on devices  14" in text_of(app)
        for n in range(PUT_OFF_MOST):
            app._draw_late()
            app.view = fewer[n % 2]
        await pilot.pause()
        assert "models on devices  14" not in text_of(app)

    drive(act)


def test_numbers_of_pooled_histograms_are_plain_integers() -> None:
    (merged,) = Pool().merge([histogram([1.0, 5.0], 3)] * 2, [0, 0], 1)
    assert merged is not None
    assert all(type(n) is int for n in (*merged.counts, merged.count, merged.scale, merged.offset, merged.zero_count))
    assert isinstance(merged.sum, float)
    assert not isinstance(merged.min, np.floating)
