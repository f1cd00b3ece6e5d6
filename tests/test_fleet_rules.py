"""The fold of a fleet against a plain model of what it promises: epochs, presence, windows, nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.fleet import (
    HISTORY_WINDOWS,
    KEPT_EVENTS,
    LATE_WINDOWS,
    SLACK_S,
    STALE_WINDOWS,
    Fleet,
    Presence,
    fold,
    merged_latency,
    window_latency,
)
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    Histogram,
    LaneMetrics,
    Metrics,
    Readings,
    Received,
    Reply,
    State,
    Status,
    encode,
    topic,
)

KEY = ("hall", "cam-1")
NOON = 1_800_000_000.0


def said(leaf: str, payload: Any, *, at_s: float = NOON, device: str = "cam-1", retained: bool = False) -> Received:
    return Received(topic=topic("hall", device, leaf), payload=encode(payload), received_s=at_s, retained=retained)


def window(seq: int = 0, *, epoch: int = 1, window_ms: int = 10_000, **more: Any) -> Metrics:
    return Metrics(epoch=epoch, seq=seq, t_unix_ms=0, t_mono_ms=0, window_ms=window_ms, **more)


def latency(*values_ms: float) -> Histogram:
    builder = HistogramBuilder(max_scale=6)
    builder.record_many(list(values_ms))
    found = builder.histogram()
    assert found is not None
    return found


def presence(fleet: Fleet, now_s: float) -> Presence:
    return fold(fleet, [], now_s=now_s).devices[KEY].presence


# Birth and death


STATUSES = st.lists(st.tuples(st.sampled_from(State), st.integers(1, 5)), max_size=10)


@settings(max_examples=40)
@given(STATUSES)
def test_the_word_of_the_newest_epoch_counts_and_within_one_the_last(statuses: list[tuple[State, int]]) -> None:
    fleet = Fleet()
    wanted, epoch = State.ONLINE, 0
    for state, number in statuses:
        fleet = fold(fleet, [said("status", Status(state=state, epoch=number, reason="x"))], now_s=NOON)
        if number >= epoch:
            wanted, epoch = state, number
        device = fleet.devices[KEY]
        assert (device.said, device.epoch) == (wanted, epoch)
        assert device.reason == ("x" if wanted is State.OFFLINE else "")
        assert (device.presence is Presence.OFFLINE) == (wanted is State.OFFLINE)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_the_birth_that_is_kept_is_never_of_an_older_epoch(epochs: list[int]) -> None:
    fleet = Fleet()
    for i, epoch in enumerate(epochs):
        birth = Birth(epoch=epoch, t_unix_ms=i, board=f"board {i}")
        status = Status(state=State.ONLINE, epoch=epoch)
        fleet = fold(fleet, [said("status", status), said("birth", birth)], now_s=NOON)
        kept = fleet.devices[KEY].birth
        assert kept is not None
        assert kept.epoch == max(epochs[: i + 1])


# Silence


@pytest.mark.parametrize("window_ms", [1000, 10_000, 60_000])
@pytest.mark.parametrize(
    ("windows", "slack", "found"),
    [
        (0.0, 0.0, Presence.ONLINE),
        (LATE_WINDOWS, 0.99, Presence.ONLINE),
        (LATE_WINDOWS, 1.01, Presence.LATE),
        (STALE_WINDOWS, 0.99, Presence.LATE),
        (STALE_WINDOWS, 1.01, Presence.STALE),
        (1000.0, 0.0, Presence.STALE),
    ],
)
def test_presence_follows_from_the_silence_in_the_devices_own_windows(
    window_ms: int, windows: float, slack: float, found: Presence
) -> None:
    fleet = fold(Fleet(), [said("status", Status(state=State.ONLINE, epoch=1))], now_s=NOON)
    fleet = fold(fleet, [said("metrics", window(window_ms=window_ms))], now_s=NOON)
    silent_s = windows * window_ms / 1000 + slack * SLACK_S
    assert presence(fleet, NOON + silent_s) is found


def test_an_offline_device_stays_so_however_long_it_is_silent() -> None:
    fleet = fold(Fleet(), [said("status", Status(state=State.OFFLINE, epoch=1))], now_s=NOON)
    assert presence(fleet, NOON + 1e6) is Presence.OFFLINE


def test_what_was_retained_is_waited_for_from_then_on_and_not_from_1970() -> None:
    status = said("status", Status(state=State.ONLINE, epoch=1), retained=True)
    fleet = fold(Fleet(), [status], now_s=NOON)
    assert fleet.devices[KEY].last_seen_s == 0.0
    assert presence(fleet, NOON + 5) is Presence.ONLINE
    assert presence(fleet, NOON + 100) is Presence.STALE


# Windows


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), min_size=1, max_size=25))
def test_every_window_counts_once_however_often_and_in_whatever_order_it_comes(rows: list[tuple[int, int]]) -> None:
    fleet = Fleet()
    for epoch, seq in rows:
        fleet = fold(fleet, [said("metrics", window(seq, epoch=epoch))], now_s=NOON)
    device = fleet.devices[KEY]
    assert device.windows + device.duplicates == len(rows)
    assert device.windows == len(set(rows))
    assert device.epoch <= max(epoch for epoch, _ in rows)


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(0.1, 500), min_size=1, max_size=5), min_size=1, max_size=10))
def test_the_latency_of_a_device_holds_every_sample_of_its_windows(windows: list[list[float]]) -> None:
    messages = []
    for seq, values in enumerate(windows):
        lane = LaneMetrics(model="m", requests=len(values), infer_ms=latency(*values))
        messages.append(said("metrics", window(seq, lanes=(lane,))))
    device = fold(Fleet(), messages, now_s=NOON).devices[KEY]
    flat = [value for values in windows for value in values]
    assert device.latency is not None
    assert device.latency.count == len(flat)
    assert (device.latency.min, device.latency.max) == (min(flat), max(flat))
    assert [point.sample_count for point in device.history] == [len(values) for values in windows]
    assert device.latency == merged_latency([device])


@pytest.mark.parametrize(("requests", "window_ms", "qps"), [(20, 10_000, 2.0), (5, 1000, 5.0), (0, 10_000, 0.0)])
def test_a_point_has_its_rate_readings_and_samples(requests: int, window_ms: int, qps: float) -> None:
    lane = LaneMetrics(model="m", requests=requests, errors=1)
    readings = Readings(memory_available_bytes=77, temperature_c=40.5)
    message = said("metrics", window(window_ms=window_ms, lanes=(lane,), system=readings))
    (point,) = fold(Fleet(), [message], now_s=NOON).devices[KEY].history
    assert (point.qps, point.requests, point.errors) == (qps, requests, 1)
    assert (point.p50_ms, point.p99_ms, point.sample_count) == (None, None, 0)
    assert (point.memory_available_bytes, point.temperature_c, point.at_s) == (77, 40.5, NOON)


def test_the_latency_of_a_window_is_that_of_all_its_lanes() -> None:
    lanes = (
        LaneMetrics(model="a", infer_ms=latency(1.0)),
        LaneMetrics(model="b", infer_ms=latency(9.0)),
        LaneMetrics(model="c"),
    )
    found = window_latency(window(lanes=lanes))
    assert found is not None
    assert (found.count, found.min, found.max) == (2, 1.0, 9.0)
    assert window_latency(window()) is None


def test_the_history_is_bounded_and_its_points_are_in_order() -> None:
    fleet = Fleet()
    for seq in range(HISTORY_WINDOWS + 30):
        fleet = fold(fleet, [said("metrics", window(seq), at_s=NOON + seq)], now_s=NOON + seq)
    times = [point.at_s for point in fleet.devices[KEY].history]
    assert len(times) == HISTORY_WINDOWS
    assert times == sorted(times)
    assert times[-1] == NOON + HISTORY_WINDOWS + 29


def test_without_history_a_device_has_neither_points_nor_latency_but_is_counted() -> None:
    lane = LaneMetrics(model="m", requests=1, infer_ms=latency(1.0))
    fleet = fold(Fleet(), [said("metrics", window(lanes=(lane,)))], now_s=NOON, keep_history=False)
    device = fleet.devices[KEY]
    assert (device.windows, device.history, device.latency) == (1, (), None)
    assert device.last_metrics is not None


# Events and what is not ours


def test_replies_stand_among_the_events_with_their_outcome() -> None:
    reply = Reply(id="7", ok=False, text="busy", detail={"left_s": 3})
    (event,) = fold(Fleet(), [said("reply", reply)], now_s=NOON).events
    assert (event.event.kind, event.event.text) == ("reply", "busy")
    assert event.event.detail == {"id": "7", "ok": False, "left_s": 3}


def test_events_are_bounded_and_the_newest_stay() -> None:
    events = [said("event", Event(epoch=1, t_unix_ms=i, kind="k", text=str(i))) for i in range(KEPT_EVENTS + 5)]
    kept = fold(Fleet(), events, now_s=NOON).events
    assert [event.event.text for event in (kept[0], kept[-1])] == ["5", str(KEPT_EVENTS + 4)]


@pytest.mark.parametrize(
    ("message", "malformed"),
    [
        (Received(topic="edgekit/v1/hall/cam-1/metrics", payload=b"["), 1),
        (Received(topic="edgekit/v1/hall/cam 1/status", payload=b"{}"), 1),
        (Received(topic="edgekit/v2/hall/cam-1/status", payload=b"{}"), 1),
        (Received(topic="edgekit/v1/hall/cam-1", payload=b"{}"), 1),
        (Received(topic="edgekit/v1/hall/cam-1/command", payload=b"{}"), 0),
        (Received(topic="edgekit/v1/hall/_all/rebirth", payload=b"{}"), 0),
        (Received(topic="edgekit/v1/_all/_all/rebirth", payload=b"{}"), 0),
        (Received(topic="edgekit/v1/hall/cam-1/ack", payload=b"rubbish"), 0),
    ],
)
def test_what_is_no_device_speaking_makes_no_device(message: Received, malformed: int) -> None:
    fleet = fold(Fleet(), [message], now_s=NOON)
    assert (fleet.devices, fleet.malformed) == ({}, malformed)


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=20))
def test_folding_in_pieces_is_folding_at_once(devices: list[str]) -> None:
    seqs: dict[str, int] = {}
    messages = []
    for device in devices:
        seq = seqs.get(device, 0)
        seqs[device] = seq + 1
        lane = LaneMetrics(model="m", requests=1, infer_ms=latency(1.0 + seq))
        messages.append(said("metrics", window(seq, lanes=(lane,)), device=device))
    whole, piece = fold(Fleet(), messages, now_s=NOON), Fleet()
    for message in messages:
        piece = fold(piece, [message], now_s=NOON)
    assert whole == piece
