"""Who is worst and why, the versions in the field, models side by side, and the shape of latency."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import Histogram
from edgekit_tui import models
from edgekit_tui.distribution import axis_of, distribution, rebin
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
