"""The collector's ledger, rollups and history, each against the plainest model; and its verb without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.collect.ledger import Page
from edgekit.collect.rollup import NOTHING, Place, Rollup, at_level, merge, merge_all, with_window
from edgekit.collect.store import Store, Window
from edgekit.errors import ConfigError
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram, LaneMetrics

Capture = pytest.CaptureFixture[str]


def latency(*values_ms: float) -> Histogram:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many(list(values_ms))
    found = builder.histogram()
    assert found is not None
    return found


# The ledger


@given(st.lists(st.integers(0, 12), max_size=40))
def test_a_window_enters_once_and_next_is_the_first_that_is_missing(seqs: list[int]) -> None:
    page, seen = Page(), set()
    for seq in seqs:
        assert page.enter(seq) == (seq not in seen)
        seen.add(seq)
        assert page.next == next(i for i in range(20) if i not in seen)
        assert page.ahead == {seq for seq in seen if seq > page.next}
    assert page.lost == set()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=30))
def test_what_the_device_gave_up_is_lost_until_it_comes_after_all(rows: list[tuple[int, int]]) -> None:
    page, seen = Page(), set()
    for seq, oldest in rows:
        oldest = min(oldest, seq)
        assert page.enter(seq, oldest) == (seq not in seen)
        seen.add(seq)
        assert page.next >= oldest
        assert not page.lost & seen
        assert all(i in seen or i in page.lost for i in range(page.next)), "below next all is in, or known not to come"


@given(st.permutations(range(8)))
def test_the_order_of_arrival_does_not_matter_in_the_end(order: list[int]) -> None:
    page = Page()
    assert all(page.enter(seq) for seq in order)
    assert (page.next, page.ahead, page.lost) == (8, set(), set())
    assert not any(page.enter(seq) for seq in order)


# Rollups


ROLLUPS = st.builds(
    lambda numbers, values: Rollup(
        windows=numbers[0],
        requests=numbers[1],
        errors=numbers[2],
        rejected=numbers[3],
        cache_hits=numbers[4],
        infer_ms=latency(*values) if values else None,
    ),
    st.tuples(*[st.integers(0, 9)] * 5),
    st.lists(st.floats(0.1, 1000), max_size=4),
)


def figures(rollup: Rollup) -> tuple[Any, ...]:
    """All that merging must keep; `sum` only up to rounding."""
    infer = rollup.infer_ms
    told = (infer.count, infer.min, infer.max, round(infer.sum, 6)) if infer else None
    return (rollup.windows, rollup.requests, rollup.errors, rollup.rejected, rollup.cache_hits, told)


@settings(max_examples=60)
@given(ROLLUPS, ROLLUPS, ROLLUPS)
def test_merging_knows_no_order_and_nothing_is_neutral(a: Rollup, b: Rollup, c: Rollup) -> None:
    assert figures(merge(a, b)) == figures(merge(b, a))
    assert figures(merge(merge(a, b), c)) == figures(merge(a, merge(b, c)))
    assert figures(merge(a, NOTHING)) == figures(a)
    assert figures(merge_all([a, b, c])) == figures(merge(merge(a, b), c))
    assert merge_all([]) == NOTHING


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 3), st.sampled_from("ab")), max_size=20))
def test_a_longer_span_holds_what_its_shorter_ones_held(rows: list[tuple[int, int, str]]) -> None:
    places: dict[Place, Rollup] = {}
    for start_s, device, model in rows:
        place = Place(start_s - start_s % 300, device, model, "realtime", "int8")
        places[place] = merge(places.get(place, NOTHING), Rollup(windows=1, requests=2))
    hours = at_level(places, 3600)
    assert all(place.start_s % 3600 == 0 for place in hours)
    assert merge_all(hours.values()) == merge_all(places.values())
    for hour, rollup in hours.items():
        inside = [r for p, r in places.items() if p[1:] == hour[1:] and 0 <= p.start_s - hour.start_s < 3600]
        assert rollup == merge_all(inside)


def test_a_window_adds_its_counts_and_shadow_agreement() -> None:
    lane = LaneMetrics(
        model="m", requests=5, errors=1, rejected=2, cache_hits=3, shadow_agreed=4, shadow_total=6, infer_ms=latency(1)
    )
    twice = with_window(with_window(NOTHING, lane), lane)
    assert (twice.windows, twice.requests, twice.errors, twice.rejected, twice.cache_hits) == (2, 10, 2, 4, 6)
    assert (twice.shadow_agreed, twice.shadow_total) == (8, 12)
    assert twice.infer_ms is not None
    assert twice.infer_ms.count == 2
    assert twice.queue_ms is None


# The history


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "history.db")) as opened:
        yield opened


def window(number: int, device: int = 1, *, received_ms: int = 0) -> Window:
    return Window(number, device, 1, number, received_ms, received_ms, b"{}")


def test_devices_keep_their_numbers_over_a_restart(store: Store) -> None:
    numbers = [store.device("hall", name) for name in ("a", "b", "a")]
    assert numbers[0] == numbers[2] != numbers[1]
    store.commit([], [], {}, now_ms=0)
    store.close()
    with closing(Store(store.path)) as again:
        assert [again.device("hall", "a"), again.device("hall", "b")] == numbers[:2]
        assert again.names[numbers[1]] == ("hall", "b")


def test_a_page_comes_back_as_it_was(store: Store) -> None:
    page = Page(next=5, ahead={8, 9}, lost={1, 3})
    store.commit([], [], {(1, 7): page}, now_ms=0)
    assert store.page(1, 7) == page
    assert store.page(1, 8) == Page()


def test_a_commit_is_all_or_nothing(store: Store) -> None:
    import sqlite3

    store.commit([window(1)], [], {}, now_ms=0)
    with pytest.raises(sqlite3.Error):
        store.commit([window(2), window(1)], [], {(1, 1): Page(next=3)}, now_ms=0)
    assert [w.number for w in store.windows()] == [1]
    assert store.page(1, 1) == Page()
    store.commit([window(2)], [], {}, now_ms=0)
    assert [w.number for w in store.windows(after=1)] == [2]


def test_windows_of_one_device_are_told_from_all(store: Store) -> None:
    store.commit([window(1, 1), window(2, 2), window(3, 1)], [], {}, now_ms=0)
    assert [w.number for w in store.windows(device=1)] == [1, 3]
    assert [w.number for w in store.windows(after=1, device=1)] == [3]


def test_rollups_poured_twice_add_up_at_every_level(store: Store) -> None:
    place = Place(3600, 1, "m", "realtime", "int8")
    store.pour({place: Rollup(windows=1, requests=2)}, rolled=1)
    store.pour({place._replace(start_s=3900): Rollup(windows=1, requests=3)}, rolled=2)
    store.pour({place: Rollup(windows=1, requests=5)}, rolled=3)
    assert [r.requests for _, r in store.rollups(300)] == [7, 3]
    ((hour, total),) = store.rollups(3600)
    assert (hour.start_s, total.requests, total.windows) == (3600, 10, 3)
    assert store.rolled == 3
    assert [p.start_s for p, _ in store.rollups(300, from_s=3700)] == [3900]
    assert [p.start_s for p, _ in store.rollups(300, to_s=3900)] == [3600]


def test_what_is_old_goes_but_no_window_that_no_rollup_holds(store: Store) -> None:
    store.commit([window(n, received_ms=n * 100) for n in (1, 2, 3)], [(1, 50, b"{}")], {(1, 1): Page()}, now_ms=10)
    store.pour({Place(0, 1, "m", "", ""): Rollup(windows=2)}, rolled=2)
    store.forget_before(windows_ms=1000, rollups_s={300: 1.0, 3600: 0.0}, pages_ms=5)
    assert [w.number for w in store.windows()] == [3], "not poured yet"
    assert list(store.rollups(300)) == []
    assert len(list(store.rollups(3600))) == 1
    assert store.page(1, 1) == Page()


def test_a_device_that_was_forgotten_leaves_the_others(store: Store) -> None:
    first, second = store.device("hall", "a"), store.device("hall", "b")
    store.commit([window(1, first), window(2, second)], [], {}, now_ms=0)
    assert store.forget("hall", "a")
    assert not store.forget("hall", "a")
    assert [w.number for w in store.windows()] == [2]
    assert store.devices == {("hall", "b"): second}


def test_a_history_of_another_format_is_refused(store: Store) -> None:
    store._db.execute("PRAGMA user_version = 9")
    store.close()
    with pytest.raises(ConfigError, match="its format is 9, this edgekit reads 1"):
        Store(store.path)
