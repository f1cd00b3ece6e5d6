"""Who is worst and why, the versions in the field, models side by side, and the shape of latency."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram
from edgekit_tui import models
from edgekit_tui.distribution import Axis, axis_of, distribution, rebin
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, width_of
from edgekit_tui.health import Blame, offender_lines, versions
from edgekit_tui.rows import Row, percentile
from edgekit_tui.totals import cells_of
from tests.tui.changed import replace
from tests.tui.simulated import DEAD, NOW_S, SILENT, STANDARD, THROTTLED, lived_view

VIEW = lived_view()
HEALTHY = next(row for row in VIEW.rows if row.device == "mail-scan")


def histogram(values: object) -> Histogram:
    builder = HistogramBuilder()
    builder.record_many(np.asarray(values, dtype=np.float64))
    made = builder.histogram()
    assert made is not None
    return made


def kind_of(row: Row) -> str:
    return models.kind_of(cells_of([row])[0])


def test_the_dead_come_before_the_silent_and_those_before_the_slow() -> None:
    found = Blame().offenders(VIEW.rows, NOW_S, UNICODE)
    assert [one.row.device for one in found] == [DEAD, SILENT, THROTTLED]
    assert "connection lost" in found[0].why
    assert "limit 96.0, throttled" in found[2].why


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"failed_ratio": 0.2}, "20% of requests fail"), ({"throttled": True}, "throttled"),
        ({"dropped": 1234}, "1,234 messages dropped"), ({"state": "loading"}, "loading"),
        ({"memory_used_bytes": 99, "memory_total_bytes": 100}, "memory 99% used"),
        ({"update": "failed", "update_reason": "no space"}, "update failed: no space"),
        ({"update": "rolled back", "throttled": True}, "update rolled back"),
    ],
)  # fmt: skip
def test_each_fault_is_named(change: dict[str, object], says: str) -> None:
    assert Blame().offenders([HEALTHY], NOW_S, UNICODE) == []
    found = Blame().offenders([replace(HEALTHY, **change)], NOW_S, UNICODE)  # type: ignore[arg-type]
    assert [says in one.why for one in found] == [True]


def test_a_device_that_is_gone_counts_once_for_all_its_models() -> None:
    gone = [replace(row, state="offline") for row in VIEW.rows if row.device == "gate-north"]
    assert len(gone) == 2
    assert len(Blame().offenders(gone, NOW_S, UNICODE)) == 1


def test_a_failed_update_counts_once_for_all_models_and_one_under_way_or_cancelled_is_no_fault() -> None:
    def found(**changes: str) -> list[str]:
        both = [replace(row, **changes) for row in VIEW.rows if row.device == "gate-north"]
        return [one.why for one in Blame().offenders(both, NOW_S, UNICODE)]

    assert found(update="failed") == ["update failed"]
    for word in ("fetching", "waiting", "cancelled", "committed", "no answer yet", "nothing asked"):
        assert found(update=word) == []


def test_faults_stand_in_the_order_of_how_bad_they_are() -> None:
    slow = {"p99_ms": 9e9, "limit_ms": 1e-3}
    faults = [
        {"state": "offline"}, {"state": "stale"}, slow, {"p99_ms": 6.0, "limit_ms": 5.0}, {"failed_ratio": 0.05},
        {"update": "failed"}, {"throttled": True}, {"dropped": 1},
        {"memory_used_bytes": 92, "memory_total_bytes": 100}, {"state": "loading"},
    ]  # fmt: skip
    rows = [replace(HEALTHY, device=f"d{i}", **fault) for i, fault in enumerate(faults)]  # type: ignore[arg-type]
    found = Blame().offenders(list(reversed(rows)), NOW_S, UNICODE)
    assert [one.row.device for one in found] == [f"d{i}" for i in range(len(faults))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"state": "offline", "last_seen_s": NOW_S - 90, "reason": "power"}, "offline for 90s: power"),
        ({"state": "offline", "last_seen_s": NOW_S - 90, "reason": ""}, "offline for 90s"),
        ({"state": "stale", "last_seen_s": NOW_S - 90}, "silent for 90s"),
        ({"p99_ms": 6.0, "limit_ms": 5.0, "throttled": True}, "p99 6.00 ms, limit 5.00, throttled"),
        ({"p99_ms": 6.0, "limit_ms": 5.0}, "p99 6.00 ms, limit 5.00"),
        ({"failed_ratio": 0.123}, "12% of requests fail"),
        ({"throttled": True, "temperature_c": 81.6}, "throttled at 82 degrees"),
        ({"throttled": True, "temperature_c": None}, "throttled"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_figures(change: dict[str, object], says: str) -> None:
    (one,) = Blame().offenders([replace(HEALTHY, **change)], NOW_S, UNICODE)  # type: ignore[arg-type]
    assert one.why == says


def test_a_list_shows_the_worst_two_hundred() -> None:
    rows = [replace(HEALTHY, device=f"d{n}", throttled=True) for n in range(201)]
    assert len(Blame().offenders(rows, NOW_S, UNICODE)) == 200


def field(width: int, height: int, **counted: dict[str, int]) -> list[str]:
    totals = replace(VIEW.totals, **{"artifacts": {}, "boards": {}, "software": {}, **counted})
    return ["".join(text for text, _ in line).rstrip() for line in versions(totals, width, height, UNICODE)]


def test_what_is_in_the_field_is_counted_with_bars_as_long_as_the_most() -> None:
    lines = field(48, 0, artifacts={"a": 4, "b": 2, "c": 1})
    assert lines[0] == "artifacts"
    assert [line.split()[:2] for line in lines[1:4]] == [["a", "4"], ["b", "2"], ["c", "1"]]
    assert [line.count("━") for line in lines[1:4]] == [16, 8, 4]
    assert lines[4:] == ["boards", "software"]
    assert all("━" not in line for line in field(28, 0, artifacts={"a": 4}))
    assert [line.count("━") for line in field(30, 0, artifacts={"a": 9, "b": 1})[1:3]] == [2, 1]


def test_each_part_gets_its_share_of_the_lines_and_says_what_it_left_out() -> None:
    many = {f"x{n:02}": 1 for n in range(20)}
    lines = field(60, 12, artifacts=many, boards={"only": 3}, software=many)
    assert len(lines) == 12
    assert [line for line in lines if "not shown" in line or line == "boards"] == [
        "artifacts  16 more not shown", "boards", "software  16 more not shown",
    ]  # fmt: skip
    assert len(field(60, 0, artifacts=many, boards=many, software=many)) == 18, "fifteen where the height is free"
    assert len(field(60, 2, artifacts=many)) == 2


@pytest.mark.parametrize("width", [20, 60, 120])
@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
def test_lists_keep_to_their_width(width: int, glyphs: Glyphs) -> None:
    header, items = offender_lines(Blame().offenders(VIEW.rows, NOW_S, glyphs), width, glyphs)
    found = models.groups(VIEW.totals.cells, lambda cell: cell.model)
    table_header, table_items = models.table("model", found, width, glyphs)
    lines = [header, table_header, *(line for _, line in (*items, *table_items))]
    lines += versions(VIEW.totals, width, 12, glyphs)
    assert max(map(width_of, lines)) <= width


def test_versions_count_live_devices() -> None:
    text = "\n".join("".join(text for text, _ in line) for line in versions(VIEW.totals, 60, 40, UNICODE))
    assert "edgekit 0.1.0" in text
    assert "   10 " in next(line for line in text.splitlines() if "edgekit 0.1.0" in line), "two of twelve are gone"


def test_a_group_has_the_percentile_of_all_its_samples() -> None:
    a, b = histogram(np.full(900, 10.0)), histogram(np.full(100, 100.0))
    rows = [replace(HEALTHY, latency=a), replace(HEALTHY, device="b", latency=b)]
    one = models.group("both", cells_of(rows))
    assert one.samples == 1000
    assert one.p50_ms == pytest.approx(10, rel=0.05)
    assert one.p99_ms == pytest.approx(100, rel=0.05), "an average of percentiles would be 55"
    assert models.group("gone", cells_of([replace(rows[0], state="offline")])).p50_ms is None


def test_standard_and_flash_are_compared_on_the_same_board() -> None:
    rows = [row for row in VIEW.rows if row.model == "ocr-detector"]
    lines = ["".join(text for text, _ in line) for line in models.side_by_side(cells_of(rows), 110, UNICODE)]
    orin = next(line for line in lines if "Orin Nano" in line)
    assert "1.4x faster" in orin
    assert "no comparison" in next(line for line in lines if "Pi 5" in line)
    assert lines[-1].split() == ["geometric", "mean", "of", "1", "board", "that", "run", "both", "1.4x", "faster"]
    kinds = {row.device: kind_of(row) for row in rows}
    assert {device for device, kind in kinds.items() if kind == models.STANDARD} == set(STANDARD)
    slower = [replace(row, latency=histogram([90.0] * 700)) if kind_of(row) == "flash" else row for row in rows]
    assert any("slower" in line[-1][0] for line in models.side_by_side(cells_of(slower), 110, UNICODE))


def test_a_model_that_has_no_precision_is_neither() -> None:
    assert kind_of(replace(HEALTHY, precision="")) == ""


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(12, 200))
def test_no_sample_is_lost_or_invented_by_drawing(values: list[float], columns: int) -> None:
    made = histogram(values)
    assert sum(rebin(made, axis_of(made, columns))) == pytest.approx(len(values))


@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
@pytest.mark.parametrize("size", [(12, 3), (40, 8), (161, 30), (5, 1)])
def test_the_shape_fills_its_area_and_no_more(glyphs: Glyphs, size: tuple[int, int]) -> None:
    lines = distribution(VIEW.totals.latency, *size, glyphs)
    assert len(lines) <= size[1]
    assert max(map(width_of, lines)) <= size[0]
    text = "".join(text for line in lines for text, _ in line)
    assert text.isascii() or glyphs.unicode


def test_the_cells_of_the_percentiles_are_marked() -> None:
    made = VIEW.totals.latency
    assert made is not None
    lines = distribution(made, 60, 10, UNICODE)
    inks = {ink for line in lines for _, ink in line}
    assert {"p50", "p99", "spark"} <= inks
    axis = axis_of(made, 60)
    middle = axis.column(percentile(made, 0.5) or 0)
    assert sum(len(text) for text, _ in lines[-2][: [ink for _, ink in lines[-2]].index("p50")]) == middle


def test_nothing_measured_says_so() -> None:
    assert distribution(None, 40, 8, UNICODE)[0][0][0] == "no measurements yet"


def test_an_axis_leads_from_values_to_cells_and_back() -> None:
    axis = Axis(1.0, 100.0, 10)
    assert [axis.position(value) for value in (0.1, 1.0, 10.0, 100.0, 1e6)] == pytest.approx([0, 0, 5, 10, 10])
    assert [axis.column(value) for value in (1.0, 9.99, 10.01, 99.0, 100.0, 1e6)] == [0, 4, 5, 9, 9, 9]
    assert [axis.value(cell) for cell in (0, 5, 10)] == pytest.approx([1, 10, 100])


def test_an_axis_spans_the_samples_and_a_least_factor() -> None:
    wide = axis_of(histogram([1.0] * 10 + [2.0] * 1000 + [50.0]), 40)
    assert wide.low == pytest.approx(1 / 1.02, rel=0.02)
    assert wide.high == pytest.approx(50 * 1.02)
    narrow = axis_of(histogram([10.0] * 50), 40)
    assert narrow.high / narrow.low == pytest.approx(1.6 * 1.02**2, rel=0.01)
    outlier = axis_of(histogram([1e-9] * 3 + [5.0] * 997), 40)
    assert outlier.low == pytest.approx(5 / 1.02, rel=0.02), "under half a percent does not stretch the axis"
    spread = axis_of(histogram([1e-5] * 500 + [1e3] * 500), 40)
    assert spread.low == pytest.approx(0.01 / 1.02, rel=0.02), "five decades at most"


def test_samples_lie_in_the_cells_of_their_latency() -> None:
    values = np.random.default_rng(4).lognormal(2, 0.7, 20_000)
    made = histogram(values)
    axis = axis_of(made, 50)
    reached = np.cumsum(rebin(made, axis))
    for column in range(50):
        assert reached[column] == pytest.approx(np.sum(values <= axis.value(column + 1)), abs=len(values) * 0.01)
    zeros = histogram([0.0] * 7 + [5.0] * 3)
    assert rebin(zeros, axis_of(zeros, 20))[0] == pytest.approx(7)


def test_the_shape_is_drawn_cell_by_cell() -> None:
    made = histogram([1.0] * 400 + [2.0] * 100 + [4.0] * 25 + [8.0] * 2)
    unicode, ascii_ = (
        ["".join(text for text, _ in line) for line in distribution(made, 24, 5, glyphs)] for glyphs in (UNICODE, ASCII)
    )
    assert unicode == [
        "█              ╌        ",
        "█                       ",
        "█      ▆▁      ╌        ",
        "█      ██      █       ▃",
        "0.98                8.16",
    ]
    assert ascii_ == [
        "#              .        ",
        "#                       ",
        "#      #       .        ",
        "#      ##      #        ",
        "0.98                8.16",
    ]
    assert distribution(made, 11, 5, UNICODE) == ((("", "faint"),),)
    assert distribution(None, 12, 5, UNICODE) == ((("no measurements yet", "faint"),),)


def test_labels_below_the_shape_stand_apart() -> None:
    made = histogram([1.0] * 400 + [8.0] * 2)
    for width in range(12, 80):
        labels = "".join(text for text, _ in distribution(made, width, 5, UNICODE)[-1])
        assert len(labels) == width
        assert labels.endswith("8.16")
        assert all(len(label) == 4 for label in labels.split()), labels
