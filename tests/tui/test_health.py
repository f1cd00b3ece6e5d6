"""Who is worst and why, and what is in the field."""

from __future__ import annotations

import pytest

from edgekit_tui import models
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, width_of
from edgekit_tui.health import Blame, offender_lines, versions
from tests.tui.changed import replace
from tests.tui.simulated import DEAD, NOW_S, SILENT, THROTTLED, lived_view

VIEW = lived_view()
HEALTHY = next(row for row in VIEW.rows if row.device == "mail-scan")


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
