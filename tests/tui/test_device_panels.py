"""What each panel of a device says as its numbers change, and with what ink."""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.fleet import Device
from edgekit.telemetry.messages import LaneMetrics
from edgekit_tui import detail
from edgekit_tui.draw import ASCII, UNICODE, Line, Lines, width_of
from edgekit_tui.rows import Row
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, lived_view

VIEW = lived_view()
DEVICE = VIEW.fleet.devices["berlin", "line-2-cam"]
JETSON = VIEW.fleet.devices["berlin", "gate-north"]
ROW = next(row for row in VIEW.rows if row.device == "line-2-cam")
assert DEVICE.last_metrics is not None
assert DEVICE.birth is not None
WINDOW, BIRTH = DEVICE.last_metrics, DEVICE.birth
LANE, MODEL = WINDOW.lanes[0], BIRTH.models[0]


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def ink_of(lines: Lines, words: str) -> str:
    (ink,) = {ink for line in lines for text, ink in line if words in text}
    return ink


def heading(row: Row = ROW, width: int = 100, **changes: Any) -> Lines:
    return detail.heading(row, replace(DEVICE, **changes), width, UNICODE, NOW_S)


def system(**changes: Any) -> Lines:
    return detail.system(replace(DEVICE, last_metrics=replace(WINDOW, system=replace(WINDOW.system, **changes))), 100,
                         UNICODE)  # fmt: skip


def lanes(*of: LaneMetrics, width: int = 70, window_ms: int = 10_000) -> Lines:
    return detail.lanes(replace(DEVICE, last_metrics=replace(WINDOW, lanes=of, window_ms=window_ms)), width, UNICODE)


def selection(**changes: Any) -> Lines:
    birth = replace(BIRTH, models=(replace(MODEL, **changes),))
    return detail.selection(replace(DEVICE, birth=birth), 80, UNICODE)


@pytest.mark.parametrize(
    ("silent_s", "says"), [(0.0, "seen now"), (0.9, "seen now"), (1.0, "seen 1s ago"), (90, "seen 90s ago")]
)
def test_the_heading_tells_when_it_was_seen(silent_s: float, says: str) -> None:
    assert plain(heading(last_seen_s=NOW_S - silent_s)[0]).endswith(" " + says)


def test_the_heading_tells_windows_and_what_is_missing_of_them() -> None:
    assert plain(heading(windows=1, gaps=0, epoch=7)[1]).endswith("epoch 7  1 window, none missing")
    some = heading(windows=1200, gaps=3)
    assert plain(some[1]).endswith("1,200 windows, 3 missing")
    assert ink_of(some, "missing") == "warn"
    assert ink_of(heading(gaps=0), "missing") == "faint"


def test_the_heading_tells_what_is_not_known_and_why_it_is_gone() -> None:
    assert "board not told yet" in plain(heading(replace(ROW, board=""))[0])
    gone = plain(heading(reason="connection lost")[1])
    assert gone.startswith("connection lost  serves ocr-detector")
    assert plain(heading(birth=None)[1]).strip().startswith("epoch")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_heading_of_long_words_keeps_to_its_width(width: int) -> None:
    lines = heading(replace(ROW, board="b" * 300), width, reason="r" * 300)
    assert [width_of(line) for line in lines] == [width, width]
    assert plain(lines[0]).endswith("seen 2s ago")
    assert plain(lines[1]).endswith("none missing")


def test_lanes_are_told_apart_where_there_are_several_or_there_is_room() -> None:
    assert "lane" not in plain(lanes(LANE)[0])
    assert "lane" not in plain(lanes(LANE, width=83)[0])
    assert "lane" in plain(lanes(LANE, width=84)[0])
    assert "lane" in plain(lanes(LANE, replace(LANE, lane="tolerant"))[0])
    assert plain(lanes()[0]) == "no requests in the last window"


@pytest.mark.parametrize("width", [63, 70, 90, 120, 200])
def test_lanes_fill_no_more_than_their_width(width: int) -> None:
    several = lanes(replace(LANE, model="m" * 60), replace(LANE, lane="tolerant"), width=max(width, 73))
    assert all(len(plain(line).rstrip()) <= max(width, 73) for line in several)
    assert all(len(plain(line).rstrip()) <= width for line in lanes(replace(LANE, model="m" * 60), width=width))
    assert len({width_of(line) for line in several}) == 1, "all as wide as the titles"


def test_a_lane_tells_its_rate_and_what_went_wrong() -> None:
    (_, line) = lanes(replace(LANE, requests=125, errors=0, rejected=0, cache_hits=0))
    assert plain(line).split()[1:6] == ["12.5", "0", "0", "0", "–"]
    assert [ink for _, ink in line][2:6] == ["faint"] * 4
    (_, line) = lanes(replace(LANE, errors=2, rejected=3, cache_hits=4, batch_sizes={"1": 1, "3": 1, "other": 8}))
    assert plain(line).split()[2:6] == ["2", "3", "4", "0.4"]
    assert [ink for _, ink in line][2:6] == ["bad", "warn", "text", "text"]
    (_, line) = lanes(LANE, window_ms=0)
    assert plain(line).split()[1] == "–"


def test_the_system_tells_only_what_the_board_measures() -> None:
    bare = system(memory_total_bytes=None, temperature_c=None, cpu_percent=None, power_mw=None, rss_bytes=None)
    assert [plain(line) for line in bare] == ["outbox 1 waiting"]
    assert not any("memory" in plain(line) for line in system(memory_available_bytes=None))
    full = [plain(line) for line in system(memory_total_bytes=4 * 2**30, memory_available_bytes=2**30,
                                            temperature_c=71.26, throttled=False, cpu_percent=37.4, power_mw=9400.0,
                                            rss_bytes=180 * 2**20)]  # fmt: skip
    assert [line.split()[0] for line in full] == ["memory", "heat", "cpu", "power"]
    assert "3.0G of 4.0G" in full[0]
    assert " 71.3 °C  " in full[1]
    assert " 37 %" in full[2]
    assert full[3] == "power 9.4 W  daemon 180M  outbox 1 waiting"


def test_levels_are_drawn_as_full_as_they_are_and_warn() -> None:
    lines = system(memory_total_bytes=100, memory_available_bytes=50, temperature_c=82.0, cpu_percent=100.0)
    assert [[len(text) for text, _ in line[1:3]] for line in lines[:3]] == [[7, 7], [11, 3], [14, 0]]
    assert [line[1][1] for line in lines[:3]] == ["load", "bad", "bad"]


@pytest.mark.parametrize("width", [20, 44, 60, 90, 150])
def test_gauges_keep_to_their_width_and_show_their_past_where_there_is_room(width: int) -> None:
    device = JETSON
    for glyphs in (UNICODE, ASCII):
        lines = detail.system(device, width, glyphs)
        assert all(width_of(line) <= width for line in lines)
        past = plain(lines[0])[42:]
        assert bool(past.strip()) == (width > 43), past
        if width >= 60:
            assert past.rstrip()[-1] in glyphs.spark
            assert past.rstrip()[-1] not in (glyphs.spark[0], glyphs.spark[-1]), "half full is drawn half high"


@pytest.mark.parametrize(("depth", "ink"), [(9, "text"), (10, "warn")])
def test_an_outbox_that_fills_up_warns(depth: int, ink: str) -> None:
    window = replace(WINDOW, outbox=replace(WINDOW.outbox, depth=depth))
    assert ink_of(detail.system(replace(DEVICE, last_metrics=window), 100, UNICODE), "waiting") == ink


def test_a_selection_without_figures_leaves_their_lines_out() -> None:
    bare = selection(benched_p50_ms=None, benched_p99_ms=None, latency_limit_ms=None, accuracy_ratio=None, reasons=(),
                     rejections=())  # fmt: skip
    assert [plain(line).split()[0] for line in bare] == ["ocr-detector", "int8"]
    half = [plain(line) for line in selection(benched_p50_ms=None, benched_p99_ms=9.0)]
    assert "benched  p99 9.00 ms" in half
    assert ink_of(selection(state="loading"), "loading") == "warn"
    assert ink_of(selection(state="ready"), "ready") == "good"
    none = detail.selection(replace(DEVICE, birth=replace(BIRTH, models=())), 80, UNICODE)
    assert plain(none[0]) == "serves no model"


def test_as_many_rejections_as_fit_are_told_without_a_remark() -> None:
    eight = selection(rejections=tuple((f"c{n}", "slower") for n in range(detail.REJECTIONS)))
    assert not any("more" in plain(line) for line in eight)
    assert sum("slower" in plain(line) for line in eight) == detail.REJECTIONS


def facts(width: int = 60, **facts: object) -> list[str]:
    device = replace(DEVICE, birth=replace(BIRTH, versions={}, facts=facts))
    return [plain(line) for line in detail.facts(device, width, UNICODE)]


def test_facts_stand_in_columns_and_a_flood_of_them_is_cut() -> None:
    assert facts() == ["the device told no facts"]
    assert facts(a="1", bcd="2") == ["a    1", "bcd  2"]
    assert facts(**{"n" * 30: "x"}) == ["n" * 22 + "… x"]
    many = facts(**{f"k{n}": "v" for n in range(detail.FACT_LINES + 3)})
    assert len(many) == detail.FACT_LINES + 1
    assert many[-1] == "and 3 more"
    assert len(facts(**{f"k{n}": "v" for n in range(detail.FACT_LINES)})) == detail.FACT_LINES


def test_events_tell_that_there_are_none() -> None:
    assert plain(detail.events((), 80, 5, UNICODE, NOW_S, named=True)[0]) == "nothing has happened yet"
    (line,) = detail.events(VIEW.fleet.events[-1:], 100, 0, UNICODE, NOW_S, named=False)
    assert plain(line) == " 33s started    ready after 4.1 s, 2 models warmed up"


def test_the_plot_of_a_device_has_its_limit_and_its_figures_and_its_height() -> None:
    lines = detail.latency_plot(ROW, 80, 12, UNICODE)
    assert len(lines) == 12
    assert "╌╌ limit 96.0" in plain(lines[0])
    assert plain(lines[0]).endswith("all  p50 76.9  p99 141  n 2,889")
    assert "limit" not in plain(detail.latency_plot(replace(ROW, limit_ms=None), 80, 12, UNICODE)[0])


def test_a_device_never_heard_of_has_a_heading() -> None:
    lines = detail.heading(replace(ROW, board="", state="online"), Device(site="lab", device="new"), 80, UNICODE, NOW_S)
    assert plain(lines[1]).endswith("epoch 0  0 windows, none missing")
