"""The fold: presence, epochs, gaps, late windows, merged latency, and garbage that changes nothing else."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.fleet import HISTORY_WINDOWS, KEPT_EVENTS, Device, Fleet, Presence, fold, merged_latency
from edgekit.telemetry.histogram import HistogramBuilder, quantile, relative_error
from edgekit.telemetry.messages import (
    Birth,
    Event,
    Histogram,
    LaneMetrics,
    Metrics,
    Received,
    Reply,
    State,
    Status,
    encode,
    mark_historical,
    topic,
)
from edgekit.telemetry.sequence import KEPT_EPOCHS, LISTED, NO_WINDOWS, arrive

NOON = 1_800_000_000.0
WINDOW_S = 10.0


def latency(values: list[float]) -> Histogram:
    builder = HistogramBuilder(max_scale=5)
    builder.record_many(values)
    histogram = builder.histogram()
    assert histogram is not None
    return histogram


def received(
    leaf: str, payload: msgspec.Struct | bytes, *, at: float = NOON, device: str = "cam-1", retained: bool = False
) -> Received:
    data = payload if isinstance(payload, bytes) else encode(payload)
    return Received(topic=topic("hall", device, leaf), payload=data, retained=retained, received_s=at)


def window(seq: int, *, epoch: int = 1, values: list[float] | None = None, at: float = NOON, **more: object) -> Metrics:
    lanes = (LaneMetrics(model="digits", requests=len(values), infer_ms=latency(values)),) if values else ()
    fields = {"t_unix_ms": int(at * 1000), "t_mono_ms": 5, "window_ms": int(WINDOW_S * 1000), **more}
    return Metrics(epoch=epoch, seq=seq, lanes=lanes, **fields)  # type: ignore[arg-type]


def birth(epoch: int = 1, at: float = NOON, **where: str) -> Received:
    return received("birth", Birth(epoch=epoch, t_unix_ms=0, board="Pi 5"), at=at, **where)  # type: ignore[arg-type]


def status(state: State, epoch: int, *, at: float = NOON, reason: str = "", retained: bool = False) -> Received:
    return received("status", Status(state=state, epoch=epoch, reason=reason), at=at, retained=retained)


def born(epoch: int = 1) -> Fleet:
    return fold(Fleet(), [status(State.ONLINE, epoch), birth(epoch)], now_s=NOON)


def the(fleet: Fleet, device: str = "cam-1") -> Device:
    return fleet.devices["hall", device]


def run_windows(fleet: Fleet, gaps_s: list[float]) -> tuple[list[Presence], float]:
    """Presence just after each window, each so many seconds after the one before, and when the last came."""
    seen, at = [], NOON
    for seq, gap_s in enumerate(gaps_s):
        at += gap_s
        fleet = fold(fleet, [received("metrics", window(seq), at=at)], now_s=at)
        seen.append(the(fleet).presence)
    return seen, at


def test_a_device_is_born_and_reports() -> None:
    fleet = fold(born(), [received("metrics", window(0, values=[1.0, 2.0, 3.0]))], now_s=NOON)
    device = the(fleet)
    assert (device.presence, device.windows, device.gaps, device.needs_rebirth) == (Presence.ONLINE, 1, 0, False)
    assert device.birth is not None
    assert device.birth.board == "Pi 5"
    assert (device.history[0].sample_count, device.history[0].qps) == (3, 0.3)
    assert device.history[0].p50_ms == pytest.approx(2.0, rel=0.011)


@pytest.mark.parametrize(
    ("silent_s", "presence"),
    [(12.0, Presence.ONLINE), (20.0, Presence.LATE), (40.0, Presence.STALE), (86_400.0, Presence.STALE)],
)
def test_silence_makes_a_device_late_then_stale_but_never_offline(silent_s: float, presence: Presence) -> None:
    assert the(fold(born(), [], now_s=NOON + silent_s)).presence is presence


def test_presence_is_measured_in_the_devices_own_windows() -> None:
    hourly = received("metrics", window(0, window_ms=3_600_000))
    assert the(fold(born(), [hourly], now_s=NOON + 600)).presence is Presence.ONLINE


def test_a_late_device_is_back_after_two_windows_on_time_not_one() -> None:
    presences, _ = run_windows(born(), [10, 25, 10, 10, 10])
    assert presences == [Presence.ONLINE, Presence.LATE, Presence.LATE, Presence.ONLINE, Presence.ONLINE]


def test_a_device_on_the_edge_of_lateness_does_not_flap() -> None:
    presences, _ = run_windows(born(), [17.0] * 20)
    assert set(presences[1:]) == {Presence.LATE}


def test_a_rebirth_brings_a_late_device_back_at_once() -> None:
    late = fold(born(), [received("metrics", window(0), at=NOON + 30)], now_s=NOON + 30)
    assert the(late).presence is Presence.LATE
    again = fold(late, [status(State.ONLINE, 2, at=NOON + 31)], now_s=NOON + 31)
    assert the(again).presence is Presence.ONLINE


def test_its_own_death_and_its_wills_both_count() -> None:
    fleet = fold(born(), [status(State.OFFLINE, 1, reason="stopped by SIGTERM")], now_s=NOON)
    assert (the(fleet).presence, the(fleet).reason) == (Presence.OFFLINE, "stopped by SIGTERM")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_old_will_never_overrides_a_newer_birth(order: tuple[int, int]) -> None:
    messages = [status(State.ONLINE, 8), status(State.OFFLINE, 7, reason="connection lost")]
    fleet = fold(born(7), [messages[i] for i in order], now_s=NOON)
    assert (the(fleet).presence, the(fleet).epoch, the(fleet).reason) == (Presence.ONLINE, 8, "")


def test_a_window_of_the_dead_epoch_does_not_resurrect_but_one_of_a_new_epoch_does() -> None:
    dead = fold(born(3), [status(State.OFFLINE, 3)], now_s=NOON)
    assert the(fold(dead, [received("metrics", window(0, epoch=3))], now_s=NOON)).presence is Presence.OFFLINE
    assert the(fold(dead, [received("metrics", window(0, epoch=4))], now_s=NOON)).presence is Presence.ONLINE


def test_what_the_broker_retained_is_not_a_sign_of_life() -> None:
    fleet = fold(Fleet(), [status(State.ONLINE, 5, retained=True)], now_s=NOON)
    assert (the(fleet).presence, the(fleet).last_seen_s) == (Presence.ONLINE, 0.0)
    assert the(fold(fleet, [], now_s=NOON + 60)).presence is Presence.STALE


def test_windows_without_a_birth_ask_for_one_until_it_comes() -> None:
    fleet = fold(Fleet(), [received("metrics", window(4))], now_s=NOON)
    assert the(fleet).needs_rebirth
    fleet = fold(fleet, [birth()], now_s=NOON)
    assert not the(fleet).needs_rebirth
    fleet = fold(fleet, [received("metrics", window(0, epoch=2))], now_s=NOON)
    assert the(fleet).needs_rebirth


def test_missing_windows_are_counted_and_a_late_one_fills_its_gap() -> None:
    fleet = fold(born(), [received("metrics", window(seq)) for seq in (0, 1, 4, 5)], now_s=NOON)
    assert (the(fleet).gaps, the(fleet).windows) == (2, 4)
    fleet = fold(fleet, [received("metrics", mark_historical(encode(window(2))))], now_s=NOON)
    assert (the(fleet).gaps, the(fleet).historical, the(fleet).last_metrics) == (1, 1, window(5))


def test_a_reader_that_comes_late_sees_no_gap() -> None:
    assert the(fold(born(), [received("metrics", window(500))], now_s=NOON)).gaps == 0


def test_a_window_sent_twice_counts_once() -> None:
    twice = [received("metrics", window(0, values=[5.0] * 10))] * 2
    device = the(fold(born(), twice, now_s=NOON))
    assert (device.windows, device.duplicates, len(device.history)) == (1, 1, 1)
    assert device.latency is not None
    assert device.latency.count == 10


def test_late_windows_take_their_place_in_time_only_if_their_clock_was_synced() -> None:
    fleet = fold(born(), [received("metrics", window(3), at=NOON + 100)], now_s=NOON + 100)
    lost_clock = historical_bytes(window(0, at=0.0))
    kept_clock = historical_bytes(window(1, at=NOON + 50, clock_synced=True))
    fleet = fold(fleet, [received("metrics", p, at=NOON + 101) for p in (lost_clock, kept_clock)], now_s=NOON + 101)
    assert [p.at_s for p in the(fleet).history] == [NOON + 50, NOON + 100]
    assert the(fleet).historical == 2


def historical_bytes(late: Metrics) -> bytes:
    return mark_historical(encode(late))


def test_history_is_bounded_and_latency_covers_at_least_half_of_it() -> None:
    count = HISTORY_WINDOWS * 2 + 30
    fleet = fold(born(), [received("metrics", window(i, values=[float(i + 1)])) for i in range(count)], now_s=NOON)
    device = the(fleet)
    assert len(device.history) == HISTORY_WINDOWS
    assert device.latency is not None
    assert HISTORY_WINDOWS // 2 <= device.latency.count <= HISTORY_WINDOWS
    assert device.latency.max == float(count)


def test_a_fleet_percentile_is_that_of_all_samples_together() -> None:
    rng = np.random.default_rng(5)
    samples = {f"cam-{i}": rng.gamma(2.0, 2.0 + i, 400).tolist() for i in range(12)}
    messages = [received("metrics", window(0, values=values), device=name) for name, values in samples.items()]
    merged = merged_latency(fold(Fleet(), messages, now_s=NOON).devices.values())
    assert merged is not None
    assert merged.count == 4_800
    everything = np.sort(np.concatenate(list(samples.values())))
    for q in (0.5, 0.9, 0.99):
        exact = everything[int(np.ceil(q * everything.size)) - 1]
        assert quantile(merged, q) == pytest.approx(exact, rel=relative_error(merged))
    assert merged_latency([]) is None


def test_events_and_replies_are_kept_newest_last_and_bounded() -> None:
    events = [received("event", Event(epoch=1, t_unix_ms=i, kind="k", text=str(i))) for i in range(KEPT_EVENTS + 5)]
    reply = received("reply", Reply(id="a7", ok=True, text="pong"))
    fleet = fold(born(), [*events, reply], now_s=NOON)
    assert len(fleet.events) == KEPT_EVENTS
    assert (fleet.events[-1].event.kind, fleet.events[-1].event.detail) == ("reply", {"id": "a7", "ok": True})
    assert fleet.events[-2].event.text == str(KEPT_EVENTS + 4)


def test_what_only_the_birth_says_is_put_back_into_the_windows() -> None:
    introduced = received("birth", Birth(epoch=1, t_unix_ms=0, board="Pi 5", memory_total_bytes=8 << 30))
    fleet = fold(born(), [introduced, received("metrics", window(0))], now_s=NOON)
    last = the(fleet).last_metrics
    assert last is not None
    assert last.system.memory_total_bytes == 8 << 30


def test_a_cleared_status_forgets_the_device() -> None:
    assert fold(born(), [received("status", b"")], now_s=NOON).devices == {}


def test_keys_of_newer_devices_are_ignored_and_a_foreign_schema_is_refused() -> None:
    newer = encode(window(0))[:-1] + b',"colour":"blue"}'
    foreign = encode(window(1)).replace(b'{"epoch"', b'{"v":2,"epoch"')
    assert b'"v":2' in foreign
    fleet = fold(born(), [received("metrics", newer), received("metrics", foreign)], now_s=NOON)
    assert (the(fleet).windows, fleet.malformed) == (1, 1)


GARBAGE = [
    b"",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"epoch":' + b"9" * 5_000 + b',"seq":0,"t_unix_ms":0,"t_mono_ms":0,"window_ms":10000}',
    b'{"epoch":1e400,"seq":0}',
    b'{"epoch":-1,"seq":0,"t_unix_ms":0,"t_mono_ms":0,"window_ms":10000}',
    b'{"epoch":1,"seq":"0","t_unix_ms":0,"t_mono_ms":0,"window_ms":10000}',
    b'{"epoch":1,"seq":0,"t_unix_ms":0,"t_mono_ms":0,"window_ms":0}',
    b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
    b" " * 300_000,
]


@pytest.mark.parametrize("leaf", ["status", "birth", "metrics", "event", "reply"])
def test_garbage_of_one_device_changes_no_other_and_is_counted(leaf: str) -> None:
    before = born()
    bad = [received(leaf, data, device="evil") for data in GARBAGE if data or leaf != "status"]
    after = fold(before, bad, now_s=NOON)
    assert after.devices == before.devices
    assert after.malformed == len(bad)


@pytest.mark.parametrize(
    "name",
    [
        "edgekit/v1/hall/cam-1",
        "edgekit/v1/hall/CAM/status",
        "edgekit/v2/hall/cam-1/status",
        "edgekit/v1/hall/" + "x" * 64 + "/status",
        "edgekit/v1/ha ll/cam-1/status",
        "edgekit/v1/hall/cam-1\n/status",
        "",
    ],
)
def test_topics_that_are_not_ours_change_nothing(name: str) -> None:
    message = Received(topic=name, payload=encode(Status(state=State.OFFLINE, epoch=9)), received_s=NOON)
    after = fold(born(), [message], now_s=NOON)
    assert after == replace(born(), malformed=1)


BROKEN_LATENCY = [
    {"counts": (1, 1), "count": 3},
    {"min": 9.0, "max": 1.0},
    {"scale": 20, "offset": -(2**31)},
    {"scale": -10, "offset": 2**31},
]


@pytest.mark.parametrize("change", BROKEN_LATENCY)
def test_a_histogram_that_contradicts_itself_is_refused_whole(change: dict[str, object]) -> None:
    lane = LaneMetrics(model="m", requests=2, infer_ms=msgspec.structs.replace(latency([1.0, 1.01]), **change))
    broken = msgspec.structs.replace(window(0), lanes=(lane,))
    fleet = fold(born(), [received("metrics", broken)], now_s=NOON)
    assert (the(fleet).windows, fleet.malformed) == (0, 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
wire_keys = st.sampled_from([*Metrics.__struct_fields__, *Status.__struct_fields__, *Birth.__struct_fields__, "text"])
payloads = st.one_of(
    st.binary(max_size=80),
    st.dictionaries(wire_keys, json_values | st.integers(0, 5), max_size=10).map(
        lambda table: msgspec.json.encode(
            {k: str(v) if isinstance(v, int) and abs(v) > 2**63 else v for k, v in table.items()}
        )
    ),
    st.builds(lambda data, cut: data[:cut], st.just(encode(window(0, values=[1.0, 2.0]))), st.integers(0, 200)),
)
leaves = st.sampled_from(["status", "birth", "metrics", "event", "reply", "ack", "command", "x"])


@given(st.lists(st.tuples(leaves, payloads), max_size=12), st.floats(0, 4e9), st.booleans())
@settings(max_examples=250, deadline=None)
def test_any_payloads_on_any_topic_leave_other_devices_alone(
    messages: list[tuple[str, bytes]], now_s: float, retained: bool
) -> None:
    before = fold(born(), [], now_s=now_s)
    noise = [received(leaf, data, device="evil", retained=retained) for leaf, data in messages]
    after = fold(before, noise, now_s=now_s)
    assert the(after) == the(before)
    fold(after, noise, now_s=now_s + 100)


def test_a_hundred_thousand_mutated_payloads_never_stop_the_fold() -> None:
    rng = random.Random(11)
    whole = [
        ("metrics", encode(window(0, values=[1.0, 2.5, 900.0]))),
        ("status", encode(Status(state=State.ONLINE, epoch=3, reason="x"))),
        ("birth", encode(Birth(epoch=2, t_unix_ms=1, board="b", facts={"a": [1, 2]}))),
        ("event", encode(Event(epoch=1, t_unix_ms=1, kind="k", text="t"))),
    ]

    def mutated() -> Received:
        leaf, data = rng.choice(whole)
        noisy = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        return received(
            leaf, bytes(noisy[: rng.randint(0, len(noisy))] if rng.random() < 0.2 else noisy), device="evil"
        )

    before = born()
    after = fold(before, (mutated() for _ in range(100_000)), now_s=NOON)
    assert the(after) == the(before)
    assert after.malformed > 50_000


@given(st.permutations(list(range(12))), st.sets(st.integers(0, 11), max_size=6))
@settings(max_examples=60, deadline=None)
def test_gaps_are_what_is_missing_whatever_the_order(order: list[int], lost: set[int]) -> None:
    track = arrive(NO_WINDOWS, 1, 0)[0]  # an earlier epoch opens the track, so that epoch 2 is expected from 0
    arrived = [seq for seq in order if seq not in lost]
    for seq in arrived:
        track, _ = arrive(track, 2, seq)
    last = max(arrived)
    assert track.gaps == len([seq for seq in lost if seq < last])


def test_the_track_is_bounded_however_wild_the_numbers() -> None:
    track = NO_WINDOWS
    for epoch in range(50):
        track, _ = arrive(track, epoch, 2**53)
    assert len(track.epochs) == KEPT_EPOCHS
    assert all(len(e.missing) <= LISTED for e in track.epochs)
    assert track.gaps == 49 * 2**53


def test_ten_thousand_devices_fold_in_a_fraction_of_their_window() -> None:
    values = np.random.default_rng(2).gamma(2.0, 3.0, 100).tolist()
    data = encode(window(0, values=values))
    messages = [received("metrics", data, device=f"d{i}") for i in range(10_000)]
    start = time.perf_counter()
    fleet = fold(Fleet(), messages, now_s=NOON)
    took_s = time.perf_counter() - start
    assert len(fleet.devices) == 10_000
    assert took_s < WINDOW_S / 2
    start = time.perf_counter()
    fold(fleet, messages[:1], now_s=NOON)
    assert time.perf_counter() - start < 0.1
