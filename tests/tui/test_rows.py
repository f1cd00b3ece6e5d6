"""Rows, totals and traces made from the real fold."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.fleet import HISTORY_WINDOWS, Fleet, Presence, fold
from edgekit.telemetry.desired import Step
from edgekit.telemetry.histogram import HistogramBuilder, quantile, relative_error
from edgekit.telemetry.messages import LaneMetrics, Metrics, Received, State, decode, encode, topic
from edgekit_tui.feed import one_window_each
from edgekit_tui.rows import LIVE, Book, book_of
from edgekit_tui.totals import Summary
from edgekit_tui.traces import Trace, follow
from tests.tui import simulated
from tests.tui.changed import replace
from tests.tui.simulated import FLEET, NOW_S, lived_view

VIEW = lived_view()
BY_NAME = {(row.device, row.model): row for row in VIEW.rows}


def test_a_device_with_two_models_has_two_rows_with_their_own_latency() -> None:
    detector, recognizer = BY_NAME["gate-north", "ocr-detector"], BY_NAME["gate-north", "ocr-recognizer"]
    assert detector.p50_ms == pytest.approx(10.8, rel=0.1)
    assert recognizer.p50_ms == pytest.approx(2.7, rel=0.1)
    assert len(detector.history) == len(recognizer.history) == 60
    merged = VIEW.fleet.devices["berlin", "gate-north"].latency
    assert merged is not None
    assert detector.sample_count + recognizer.sample_count == merged.count


def test_states_tell_throttled_and_silent_and_dead_apart() -> None:
    assert BY_NAME["line-2-cam", "ocr-detector"].state == "throttled"
    assert BY_NAME["dock-3", "digits"].state == "stale"
    dead = BY_NAME["bench-coral", "digits"]
    assert (dead.state, dead.reason) == ("offline", "connection lost")
    assert dead.qps is None, "what a dead device did last is not its throughput now"


def test_a_board_without_a_sensor_has_no_reading() -> None:
    assert BY_NAME["mail-scan", "file-type"].temperature_c is None
    assert BY_NAME["lobby-mic", "voice-activity"].temperature_c is not None


def test_totals_count_devices_not_rows_and_leave_the_dead_out_of_the_present() -> None:
    totals = VIEW.totals
    assert totals.devices == len(FLEET) == sum(totals.states.values())
    assert totals.states == {"online": 9, "throttled": 1, "stale": 1, "offline": 1}
    assert totals.qps == pytest.approx(sum(row.qps or 0.0 for row in VIEW.rows))
    assert totals.last_seen_s == pytest.approx(NOW_S, abs=2)


def test_the_fleet_p99_is_that_of_all_samples_together() -> None:
    live = [d for d in VIEW.fleet.devices.values() if d.presence.value in ("online", "late")]
    assert VIEW.totals.sample_count == sum(d.latency.count for d in live if d.latency)
    each = [quantile(d.latency, 0.99) for d in live if d.latency]
    assert VIEW.totals.p99_ms is not None
    assert min(each) < VIEW.totals.p99_ms < max(each)
    assert VIEW.totals.p99_ms != pytest.approx(sum(each) / len(each), rel=0.05), "that would be an average"


def test_the_trend_is_that_of_the_last_windows_of_live_devices() -> None:
    lanes = [lane for d in VIEW.fleet.devices.values() if d.presence in LIVE and d.last_metrics
             for lane in d.last_metrics.lanes]  # fmt: skip
    window = Summary().window(VIEW.fleet)
    assert window is not None
    assert window.count == sum(lane.infer_ms.count for lane in lanes if lane.infer_ms)
    key = ("porto", "dock-1")
    device = VIEW.fleet.devices[key]
    assert device.last_metrics is not None
    idle = replace(device, last_metrics=replace(device.last_metrics, lanes=(LaneMetrics(model="m", requests=0),)))
    assert Summary().window(replace(VIEW.fleet, devices={key: idle})) is None
    assert Summary().window(replace(VIEW.fleet, devices={key: replace(device, presence=Presence.STALE)})) is None
    assert Summary().window(replace(VIEW.fleet, devices={key: replace(device, last_metrics=None)})) is None


def test_a_fleet_that_told_nothing_has_no_figures() -> None:
    totals = Summary().totals(Fleet(), ())
    assert (totals.p50_ms, totals.sample_count, totals.last_seen_s, totals.qps) == (None, 0, None, 0.0)


def test_accuracies_of_a_cell_are_told_once_each_and_lost_ones_not() -> None:
    row = BY_NAME["dock-1", "ocr-detector"]
    rows = [replace(row, device=f"d{i}", accuracy_ratio=ratio) for i, ratio in enumerate((0.98, None, 0.97, 0.98))]
    (cell,) = Summary().totals(VIEW.fleet, rows).cells
    assert cell.accuracies == (0.97, 0.98)
    (cell,) = Summary().totals(VIEW.fleet, [replace(row, qps=None), replace(row, qps=2.5)]).cells
    assert cell.qps == 2.5


def test_rows_of_an_unchanged_device_are_the_same_objects() -> None:
    book = book_of(VIEW.fleet, {})
    rng = np.random.default_rng(1)
    message = simulated.window("porto", "dock-1", 60, NOW_S, rng=rng)
    after = fold(VIEW.fleet, [message], now_s=NOW_S)
    newer = book_of(after, book)
    assert newer["porto", "dock-1"] is not book["porto", "dock-1"]
    assert all(newer[key] is book[key] for key in book if key != ("porto", "dock-1"))


def test_a_new_report_reaches_the_rows_of_its_device_and_of_no_other() -> None:
    key = ("berlin", "gate-north")
    book = book_of(VIEW.fleet, {}, ships=VIEW.releases)
    assert {row.release for row in book[key].rows} == {"2026.12"}
    report = replace(VIEW.releases[key].reported, step=Step.FAILED, running="2026.11", reason="no space left")
    ships = {**VIEW.releases, key: replace(VIEW.releases[key], reported=report)}
    newer = book_of(VIEW.fleet, book, ships=ships)
    told = {(row.release, row.update, row.update_reason) for row in newer[key].rows}
    assert told == {("2026.11", "failed", "no space left")}
    assert all(newer[other] is book[other] for other in book if other != key)
    assert [row.history for row in newer[key].rows] == [row.history for row in book[key].rows], "no window counts twice"
    assert {row.release for row in book_of(VIEW.fleet, newer)[key].rows} == {""}, "what was taken back is gone"


def test_the_report_stays_when_a_window_comes() -> None:
    book = book_of(VIEW.fleet, {}, ships=VIEW.releases)
    message = simulated.window("porto", "dock-1", 60, NOW_S, rng=np.random.default_rng(1))
    newer = book_of(fold(VIEW.fleet, [message], now_s=NOW_S), book, ships=VIEW.releases)
    (row,) = newer["porto", "dock-1"].rows
    assert (row.release, row.update) == ("2026.11", "nothing asked")


def test_rows_tell_the_release_and_the_update() -> None:
    told = {name: (row.release, row.update, row.update_fetched_ratio) for (name, _), row in BY_NAME.items()}
    assert told["gate-north"] == ("2026.12", "committed", None)
    assert told["gate-south"] == ("2026.11", "fetching", 0.42)
    assert told["line-2-cam"] == ("2026.11", "rolled back", None)
    assert told["lobby-mic"] == ("", "no answer yet", None)
    assert told["mail-scan"] == ("", "", None), "it has no updater"
    assert BY_NAME["line-2-cam", "ocr-detector"].update_reason == "p99 1.9 times that of 2026.11, limit 1.2"


def test_a_device_known_by_its_status_alone_still_has_a_row() -> None:
    fleet = fold(Fleet(), [simulated.status("lab", "new", State.ONLINE, NOW_S)], now_s=NOW_S)
    (row,) = book_of(fleet, {})["lab", "new"].rows
    assert (row.device, row.model, row.p99_ms, row.state) == ("new", "", None, "online")
    assert Summary().totals(fleet, [row]).devices == 1


def test_a_trace_merges_exactly_and_holds_each_window_once() -> None:
    rng, samples, trace = np.random.default_rng(3), [], None
    for seq in range(40):
        values = rng.lognormal(2, 0.4, 50)
        samples.append(values)
        trace = follow(trace, "m", window(seq, values), at_s=float(seq))
        trace = follow(trace, "m", window(seq, values), at_s=float(seq))
    assert trace is not None
    assert len(trace.points) == 40
    latency = trace.latency
    assert latency is not None
    assert latency.count == 2000
    exact = np.quantile(np.concatenate(samples), 0.99, method="inverted_cdf")
    assert quantile(latency, 0.99) == pytest.approx(exact, rel=relative_error(latency))


def test_a_trace_forgets_what_is_older_than_the_kept_windows() -> None:
    trace: Trace | None = None
    for seq in range(HISTORY_WINDOWS * 2):
        slow = seq < HISTORY_WINDOWS // 2
        trace = follow(trace, "m", window(seq, np.full(5, 100.0 if slow else 1.0)), at_s=float(seq))
    assert trace is not None
    assert len(trace.points) == HISTORY_WINDOWS
    assert trace.latency is not None
    assert trace.latency.max == 1.0


def test_a_trace_holds_the_same_windows_as_its_device() -> None:
    fleet, trace, key = Fleet(), None, ("lab", "one")
    for seq in range(2 * HISTORY_WINDOWS + 5):
        metrics = window(seq, np.full(1 + seq % 3, 2.0))
        said = Received(topic=topic(*key, "metrics"), payload=encode(metrics), received_s=NOW_S + seq)
        fleet = fold(fleet, [said], now_s=NOW_S + seq)
        trace = follow(trace, "m", metrics, at_s=float(seq))
        assert trace.latency == fleet.devices[key].latency, seq


def test_a_device_that_serves_one_model_less_goes_on_with_the_other() -> None:
    key = ("berlin", "gate-north")
    birth = VIEW.fleet.devices[key].birth
    assert birth is not None
    alone = Received(topic=topic(*key, "birth"), payload=encode(replace(birth, models=birth.models[:1])),
                     received_s=NOW_S)  # fmt: skip
    book = book_of(VIEW.fleet, {})
    rng, fleet = np.random.default_rng(2), VIEW.fleet
    for seq in (60, 61):
        message = simulated.window(*key, seq, NOW_S + seq, rng=rng)
        metrics = decode("metrics", message.payload)
        fewer = replace(metrics, lanes=metrics.lanes[:1], epoch=4)  # type: ignore[attr-defined]
        said = Received(topic=message.topic, payload=encode(fewer), received_s=NOW_S + seq)
        fleet = fold(fleet, [alone, said], now_s=NOW_S + seq)
        book = book_of(fleet, book)
    (row,) = book[key].rows
    device = fleet.devices[key]
    assert row.model == "ocr-detector"
    assert row.history[-1] == device.history[-1], "the newest window is there"
    assert row.latency is not None
    assert device.latency is not None
    assert row.latency.count < device.latency.count, "and none of the model that is gone"


def test_what_a_row_makes_of_its_readings() -> None:
    row = BY_NAME["line-2-cam", "ocr-detector"]
    readings = VIEW.fleet.devices["berlin", "line-2-cam"].last_metrics
    assert readings is not None
    total, free = readings.system.memory_total_bytes, readings.system.memory_available_bytes
    assert total is not None
    assert free is not None
    assert row.memory_used_bytes == total - free
    assert row.memory_ratio == pytest.approx((total - free) / total)
    assert replace(row, memory_used_bytes=None).memory_ratio is None
    assert replace(row, memory_total_bytes=0).memory_ratio is None
    assert row.is_over
    assert not replace(row, p99_ms=96.0, limit_ms=96.0).is_over, "at the limit is within it"
    assert not replace(row, p99_ms=None).is_over
    p99s = sorted(point.p99_ms for point in row.history if point.p99_ms is not None)
    assert row.trend_ratio == pytest.approx((row.history[-1].p99_ms or 0.0) / p99s[len(p99s) // 2])


def test_a_row_without_readings_has_none() -> None:
    device = VIEW.fleet.devices["berlin", "line-2-cam"]
    assert device.last_metrics is not None
    for system in ({"memory_available_bytes": None}, {"memory_total_bytes": None}):
        bare = replace(
            device, last_metrics=replace(device.last_metrics, system=replace(device.last_metrics.system, **system))
        )
        (row,) = book_of(replace(VIEW.fleet, devices={device.key: bare}), {})[device.key].rows
        assert row.memory_used_bytes is None
    never = replace(device, last_metrics=None, latency=None, history=())
    (row,) = book_of(replace(VIEW.fleet, devices={device.key: never}), {})[device.key].rows
    assert (row.sample_count, row.dropped, row.qps, row.trend_ratio, row.p50_ms) == (0, 0, None, None, None)


def test_a_window_without_the_model_leaves_a_hole() -> None:
    trace = follow(None, "absent", window(0, np.ones(3)), at_s=0.0)
    assert trace.latency is None
    assert trace.points[0].p99_ms is None
    assert trace.points[0].qps == 0.0


def test_a_backlog_passes_every_window_through() -> None:
    rng = np.random.default_rng(5)
    backlog = [simulated.window("berlin", "gate-north", seq, NOW_S, rng=rng) for seq in range(5)]
    other = simulated.window("porto", "dock-1", 0, NOW_S, rng=rng)
    parts = one_window_each([backlog[0], other, *backlog[1:]])
    assert [len(part) for part in parts] == [2, 1, 1, 1, 1]
    fleet, book = Fleet(), dict[tuple[str, str], object]()
    for part in parts:
        fleet = fold(fleet, part, now_s=NOW_S)
        book = book_of(fleet, book)  # type: ignore[arg-type, assignment]
    known: Book = book  # type: ignore[assignment]
    assert [len(row.history) for row in known["berlin", "gate-north"].rows] == [5, 5]


def window(seq: int, values: np.ndarray) -> Metrics:
    builder = HistogramBuilder()
    builder.record_many(values)
    lane = LaneMetrics(model="m", requests=len(values), infer_ms=builder.histogram())
    return Metrics(epoch=1, seq=seq, t_unix_ms=0, t_mono_ms=0, window_ms=10_000, lanes=(lane,))
