"""Which columns stand at which width, and in what order rows come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_tui.columns import arrange, columns, gap_of, sort_rows, widest
from edgekit_tui.table import FleetTable
from tests.tui.simulated import lived_view

ROWS = lived_view().rows
BY_ID = {column.id: column for column in columns()}


@given(width=st.integers(1, 400))
def test_columns_never_exceed_the_width(width: int) -> None:
    layout = arrange(columns(), width, widest(columns(), ROWS))
    assert layout
    assert sum(cells for _, cells in layout) + gap_of(width) * (len(layout) - 1) <= max(width, 1)


def test_columns_give_way_by_priority_and_the_device_stays() -> None:
    previous: set[str] = set()
    for width in range(10, 300):
        now = {column.id for column, _ in arrange(columns(), width, widest(columns(), ROWS))}
        assert "device" in now
        if gap_of(width) == gap_of(width - 1):
            assert previous <= now, f"a column vanished at {width}, a wider screen"
        previous = now
    assert previous == set(BY_ID)


def test_eighty_columns_still_show_what_the_fleet_is_watched_for() -> None:
    shown = {column.id for column, _ in arrange(columns(), 75, widest(columns(), ROWS))}
    assert shown >= {"state", "device", "model", "p50", "p99", "trend", "qps", "seen"}


def test_every_column_has_its_own_key_and_shows_it_in_its_title() -> None:
    keys = [column.key for column in columns()]
    assert len(set(keys)) == len(keys)
    assert all(column.key in column.title for column in columns())
    taken = {key for binding in FleetTable.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    assert not taken & set(keys)


@pytest.mark.parametrize("column", columns(), ids=lambda column: column.id)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_keeps_every_row_and_puts_the_unknown_last(column: object, descending: bool) -> None:
    chosen = BY_ID[column.id]  # type: ignore[attr-defined]
    ordered = sort_rows(ROWS, chosen, descending=descending)
    assert sorted(row.key for row in ordered) == sorted(row.key for row in ROWS)
    values = [chosen.sort(row) for row in ordered]
    known = [value for value in values if value is not None]
    assert values[: len(known)] == known
    assert known == sorted(known, reverse=descending)  # type: ignore[type-var]


def test_the_worst_state_comes_first() -> None:
    ordered = sort_rows(ROWS, BY_ID["state"], descending=False)
    assert [row.state for row in ordered[:3]] == ["offline", "stale", "throttled"]
