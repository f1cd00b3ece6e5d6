"""What the collector takes in: whose clock is believed, what is counted as garbage, and rollups that stay bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgekit.collect import intake as intakes
from edgekit.collect.intake import OTHER, Intake
from edgekit.collect.rollup import LEVELS_S, Place, merge_all
from edgekit.collect.store import Store
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    Histogram,
    LaneMetrics,
    Metrics,
    Received,
    State,
    Status,
    encode,
    topic,
)

NOON_S = 1_800_000_000.0
NOON_MS = int(NOON_S * 1000)
DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "history.db")) as opened:
        yield opened


@pytest.fixture
def intake(store: Store) -> Intake:
    return Intake(store)


def latency(*values_ms: float) -> Histogram:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many(list(values_ms))
    found = builder.histogram()
    assert found is not None
    return found


WRONG = Histogram(scale=0, offset=0, counts=(1,), sum=1.0, count=9, min=1.0, max=1.0)


def said(payload: Any, leaf: str = "metrics", *, device: str = "cam-1", site: str = "hall", **more: Any) -> Received:
    raw = payload if isinstance(payload, bytes) else encode(payload)
    return Received(topic=topic(site, device, leaf), payload=raw, received_s=NOON_S, **more)


def window(seq: int = 0, *lanes: LaneMetrics, t_unix_ms: int = NOON_MS, epoch: int = 1, **more: Any) -> Metrics:
    lanes = lanes or (LaneMetrics(model="digits", requests=1, infer_ms=latency(1.0)),)
    return Metrics(epoch=epoch, seq=seq, t_unix_ms=t_unix_ms, t_mono_ms=0, window_ms=10_000, lanes=lanes, **more)


# Clocks


@pytest.mark.parametrize(
    ("t_unix_ms", "synced", "at_ms"),
    [
        (NOON_MS - 5000, True, NOON_MS - 5000),
        (NOON_MS - 5000, None, NOON_MS - 5000),
        (NOON_MS - 5000, False, NOON_MS),
        (0, True, NOON_MS),
        (NOON_MS - 399 * DAY_MS, True, NOON_MS - 399 * DAY_MS),
        (NOON_MS - 401 * DAY_MS, True, NOON_MS),
        (NOON_MS + 3_599_000, True, NOON_MS + 3_599_000),
        (NOON_MS + 3_601_000, True, NOON_MS),
    ],
)
def test_a_devices_clock_is_believed_when_it_is_synchronised_and_sane(
    t_unix_ms: int, synced: bool | None, at_ms: int, intake: Intake
) -> None:
    intake.take([said(window(t_unix_ms=t_unix_ms, clock_synced=synced))])
    (row,) = intake.taken().windows
    assert (row.at_ms, row.received_ms) == (at_ms, NOON_MS)


@pytest.mark.parametrize(("historical", "counted"), [(False, 1), (True, 0)])
def test_only_live_windows_tell_how_late_the_collector_is(historical: bool, counted: int, intake: Intake) -> None:
    intake.take([said(window(historical=historical, clock_synced=True, t_unix_ms=NOON_MS - 500))])
    batch = intake.taken()
    assert len(batch.live_at_ms) == counted
    intake.stored(batch, NOON_MS)
    delay = intake.delay_ms.histogram()
    assert (delay.max if delay else None) == (500.0 if counted else None)
    assert intake.counts.historical == historical


# Counting


def test_a_window_that_comes_again_is_counted_and_changes_nothing(intake: Intake) -> None:
    message = said(window())
    intake.take([message, message])
    intake.take([message])
    assert (intake.counts.windows, intake.counts.duplicates, intake.counts.messages) == (1, 2, 3)
    assert len(intake.taken().windows) == 1
    assert merge_all(intake.places.values()).requests == 1


@pytest.mark.parametrize(
    ("message", "malformed"),
    [
        (said(b"{"), 1),
        (said(b"[]"), 1),
        (said(b"x", "event"), 1),
        (said(b"x", "birth"), 1),
        (said(b"x", "birth", retained=True), 0),
        (said(b"x", "status"), 0),
        (said(window(), device="CAM"), 1),
        (said(window(), site="_all"), 0),
        (Received(topic="edgekit/v1/hall", payload=b"", received_s=NOON_S), 1),
        (
            said(
                window(
                    0,
                    LaneMetrics(
                        model="m", infer_ms=Histogram(scale=0, offset=0, counts=(1,), sum=1, count=9, min=1, max=1)
                    ),
                )
            ),
            1,
        ),
        (said(Status(state=State.ONLINE, epoch=1), "status"), 0),
        (said(Birth(epoch=1, t_unix_ms=0, board="b"), "birth"), 0),
    ],
)
def test_what_is_no_window_is_counted_or_passed_over(message: Received, malformed: int, intake: Intake) -> None:
    intake.take([message])
    assert (intake.counts.malformed, intake.counts.windows) == (malformed, 0)
    assert intake.taken().windows == []


def test_events_are_kept_as_they_came_and_retained_ones_are_not(intake: Intake) -> None:
    event = Event(epoch=1, t_unix_ms=5, kind="throttled", text="hot")
    intake.take([said(event, "event"), said(event, "event", retained=True)])
    ((device, at_ms, payload),) = intake.taken().events
    assert (device, at_ms, payload) == (1, NOON_MS, encode(event))


# Rollups


def test_windows_go_into_the_five_minutes_in_which_they_ended(intake: Intake) -> None:
    start = NOON_MS - NOON_MS % (LEVELS_S[0] * 1000)
    for seq, offset_s in enumerate((0, 299, 300)):
        intake.take([said(window(seq, t_unix_ms=start + offset_s * 1000, clock_synced=True))])
    assert {place.start_s: rollup.windows for place, rollup in intake.places.items()} == {
        start // 1000: 2,
        start // 1000 + 300: 1,
    }


def test_lanes_have_rollups_of_their_own(intake: Intake) -> None:
    lanes = [
        LaneMetrics(model=model, lane=lane, artifact=artifact, requests=1)
        for model in ("a", "b")
        for lane in ("realtime", "tolerant")
        for artifact in ("x", "y")
    ]
    intake.take([said(window(0, *lanes))])
    assert len(intake.places) == 8
    assert all(rollup.requests == 1 for rollup in intake.places.values())


def test_invented_lanes_cost_a_bounded_amount_and_no_request_is_lost(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "MOST_PLACES", 3)
    for seq in range(10):
        intake.take([said(window(seq, LaneMetrics(model=f"invented-{seq}", requests=1)))])
    assert len(intake.places) == 4
    assert merge_all(intake.places.values()).requests == 10
    others = [rollup for place, rollup in intake.places.items() if place.model == OTHER]
    assert [rollup.requests for rollup in others] == [7]


def test_what_was_poured_begins_anew(intake: Intake) -> None:
    intake.take([said(window())])
    poured = intake.poured()
    assert merge_all(poured.values()).windows == 1
    assert intake.places == {}


def test_after_a_restart_rollups_hold_what_was_stored_but_not_poured(store: Store) -> None:
    first = Intake(store)
    first.take([said(window(seq)) for seq in range(5)])
    batch = first.taken()
    store.commit(batch.windows, batch.events, batch.pages, now_ms=NOON_MS)
    store.close()
    with closing(Store(store.path)) as reopened:
        again = Intake(reopened)
        assert again.newest == first.newest == 5
        assert merge_all(again.places.values()) == merge_all(first.places.values())
        again.take([said(window(seq)) for seq in range(6)])
    assert (again.counts.windows, again.counts.duplicates) == (1, 5)


def test_a_forgotten_device_leaves_no_rollup_and_may_come_back_as_a_new_one(intake: Intake, store: Store) -> None:
    intake.take([said(window()), said(window(), device="cam-2")])
    batch = intake.taken()
    store.commit(batch.windows, batch.events, batch.pages, now_ms=NOON_MS)
    intake.forget("hall", "cam-1")
    assert {place.device for place in intake.places} == {2}
    intake.take([said(window())])
    assert intake.counts.duplicates == 0
    assert isinstance(next(iter(intake.places)), Place)


def test_too_many_devices_are_garbage(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "MAX_DEVICES", 2)
    intake.take([said(window(), device=f"cam-{i}") for i in range(4)])
    assert (intake.counts.windows, intake.counts.malformed) == (2, 2)
