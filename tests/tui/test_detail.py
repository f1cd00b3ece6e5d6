"""The panels of a device and of the fleet's health: what they tell, and that they keep to their width."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from edgekit.fleet import Device
from edgekit.telemetry.messages import LaneMetrics, OutboxState
from edgekit_tui import detail, tiles
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, Lines, width_of
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, lived_view

VIEW = lived_view()
DEVICE = VIEW.fleet.devices["berlin", "line-2-cam"]
ROW = next(row for row in VIEW.rows if row.device == "line-2-cam")
BARE = Device(site="lab", device="new")


def text_of(lines: Lines) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


PANELS: tuple[Callable[[Device, int, Glyphs], Lines], ...] = (
    detail.lanes, detail.system, detail.selection, detail.facts,
    lambda device, width, glyphs: detail.heading(ROW, device, width, glyphs, NOW_S),
    lambda device, width, glyphs: detail.events(VIEW.fleet.events, width, 0, glyphs, NOW_S, named=True),
    lambda device, width, glyphs: tiles.compact(VIEW, width, glyphs, NOW_S),
    lambda device, width, glyphs: tiles.fleet_tile(VIEW, width, glyphs),
    lambda device, width, glyphs: tiles.broker_tile(VIEW, width, glyphs, NOW_S),
)  # fmt: skip


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("device", [DEVICE, BARE], ids=["lived", "bare"])
def test_every_panel_draws_any_device_and_keeps_to_ascii_when_asked(
    panel: Callable[[Device, int, Glyphs], Lines], device: Device
) -> None:
    for width in (1, 7, 20, 40, 78, 200):
        assert panel(device, width, UNICODE)
        assert text_of(panel(device, width, ASCII)).isascii()


@pytest.mark.parametrize("panel", PANELS[2:6])
def test_text_panels_keep_to_their_width(panel: Callable[[Device, int, Glyphs], Lines]) -> None:
    for width in (24, 40, 78, 200):
        assert all(width_of(line) <= width for line in panel(DEVICE, width, UNICODE))


def test_a_bare_device_says_what_is_missing_instead_of_showing_zeros() -> None:
    assert "no window received yet" in text_of(detail.lanes(BARE, 60, UNICODE))
    assert "no window received yet" in text_of(detail.system(BARE, 60, UNICODE))
    assert "no birth certificate" in text_of(detail.selection(BARE, 60, UNICODE))
    assert "no birth certificate" in text_of(detail.facts(BARE, 60, UNICODE))


def test_the_selection_gives_reasons_and_rejections() -> None:
    text = text_of(detail.selection(DEVICE, 100, UNICODE))
    assert "· fastest measured p50 here: 57.60 ms" in text
    assert "✗ ocr-int8-dynamic: p99 345.6 ms is over the limit of 96 ms" in text
    assert "ocr-detector  ✓ ocr-int8-static" in text
    assert "accuracy 99.4 % of the standard" in text
    assert "limit    96.0 ms" in text


def test_a_long_list_of_rejections_is_cut_and_says_where_the_rest_is() -> None:
    assert DEVICE.birth is not None
    many = tuple((f"candidate-{i}", "slower") for i in range(20))
    models = (msgspec.structs.replace(DEVICE.birth.models[0], rejections=many),)
    device = msgspec.structs.replace(DEVICE, birth=msgspec.structs.replace(DEVICE.birth, models=models))
    text = text_of(detail.selection(device, 100, UNICODE))
    assert "candidate-7: slower" in text
    assert "candidate-8" not in text
    assert "and 12 more; edgekit select --explain tells all" in text


def test_lanes_show_errors_rejections_hits_and_both_latencies() -> None:
    assert DEVICE.last_metrics is not None
    lane = DEVICE.last_metrics.lanes[0]
    lanes = (
        msgspec.structs.replace(lane, errors=3, rejected=12, cache_hits=40, batch_sizes={"1": 10, "4": 10}),
        LaneMetrics(model="ocr-detector", lane="tolerant", requests=5),
    )
    device = msgspec.structs.replace(DEVICE, last_metrics=msgspec.structs.replace(DEVICE.last_metrics, lanes=lanes))
    head, first, second = text_of(detail.lanes(device, 90, UNICODE)).splitlines()
    assert head.split() == ["model", "lane", "req/s", "err", "rej", "hits", "batch", "queue", "ms", "infer", "ms"]
    assert first.split()[:2] == ["ocr-detector", "realtime"]
    assert first.split()[3:7] == ["3", "12", "40", "2.5"]
    assert second.split() == ["ocr-detector", "tolerant", "0.5", "0", "0", "0", "–", "–/–", "–/–"]


def test_dropped_windows_are_told_with_their_reasons() -> None:
    assert DEVICE.last_metrics is not None
    outbox = OutboxState(depth=40, dropped={"full": 7, "corrupt": 1})
    device = msgspec.structs.replace(DEVICE, last_metrics=msgspec.structs.replace(DEVICE.last_metrics, outbox=outbox))
    text = text_of(detail.system(device, 100, UNICODE))
    assert "40 waiting, 8 dropped (full 7, corrupt 1)" in text
    assert "87.0 °C throttled" in text


def test_facts_of_any_shape_become_lines_with_units() -> None:
    facts = {
        "memory_total_bytes": 4 * 2**30, "cpu": {"cores": 4, "isa": ["neon", "i8mm"]}, "gpu": None,
        "accelerators": [{"kind": "tpu"}, {"kind": "npu"}], "virtual": False, "empty": [],
    }  # fmt: skip
    assert dict(detail.flatten(facts)) == {
        "memory total": "4.0G", "cpu cores": "4", "cpu isa": "neon, i8mm",
        "accelerators 0 kind": "tpu", "accelerators 1 kind": "npu", "virtual": "no",
    }  # fmt: skip


def test_events_come_newest_first_with_their_device() -> None:
    lines = text_of(detail.events(VIEW.fleet.events, 100, 2, UNICODE, NOW_S, named=True)).splitlines()
    assert len(lines) == 2
    assert "gate-north" in lines[0]
    assert "dock-2" in lines[1]


def test_the_state_bar_gives_even_one_device_in_a_thousand_a_cell() -> None:
    totals = replace(VIEW.totals, devices=1000, states={"online": 999, "offline": 1})
    bar = tiles.proportions(totals, 30, UNICODE)
    assert [(len(text), ink) for text, ink in bar] == [(29, "good"), (1, "bad")]


def test_health_tells_what_was_lost_in_words_or_where_it_is_narrow_as_a_number() -> None:
    view = replace(VIEW, totals=replace(VIEW.totals, gaps=12, malformed=3), link=replace(VIEW.link, overrun=5))
    wide, narrow = (text_of(tiles.broker_tile(view, width, UNICODE, NOW_S)) for width in (80, 26))
    assert "12 windows missing, 5 not taken in time, 3 unreadable" in wide
    assert narrow.endswith("20 lost")
    assert "lost" not in text_of(tiles.broker_tile(VIEW, 26, UNICODE, NOW_S))


def test_a_p99_on_too_few_samples_is_marked() -> None:
    few = replace(VIEW, totals=replace(VIEW.totals, sample_count=100, p99_ms=12.0))
    assert "~12.0" in text_of(tiles.latency_tile(few, 60, UNICODE))
    assert "~" not in text_of(tiles.latency_tile(VIEW, 60, UNICODE))
