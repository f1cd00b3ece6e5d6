"""Which columns stand at which width, and in what order rows come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.ships import Ship
from edgekit_tui.columns import Pen, arrange, columns, columns_for, gap_of, natural, sort_rows, widest
from edgekit_tui.draw import ASCII, UNICODE, Glyphs
from edgekit_tui.table import FleetTable
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, lived_view

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
    states = ("online", "loading", "throttled", "late", "stale", "offline")
    ordered = sort_rows([replace(ROWS[0], state=state) for state in states], BY_ID["state"], descending=False)
    assert [row.state for row in ordered] == list(reversed(states))


def test_the_release_is_left_out_where_no_device_reports_one_and_at_eighty_columns() -> None:
    ships = lived_view().releases
    assert columns_for(ships) == columns_for({**ships, ("lab", "new"): Ship()}) != columns_for({})
    unheard = {key: replace(ship, reported=None) for key, ship in ships.items()}
    for told in ({}, unheard):
        assert {c.id for c in columns()} - {c.id for c in columns_for(told)} == {"release"}
    assert "release" not in {c.id for c, _ in arrange(columns_for(ships), 75, widest(columns(), ROWS))}
    assert "release" in {c.id for c, _ in arrange(columns_for(ships), 115, widest(columns(), ROWS))}


@pytest.mark.parametrize(
    ("device", "width", "glyphs", "text", "ink"),
    [
        ("gate-north", 30, UNICODE, "  2026.12", "text"),
        ("gate-south", 30, UNICODE, "◌ 2026.11 fetching 42%", "p50"),
        ("gate-south", 22, ASCII, "o 2026.11 fetching 42%", "p50"),
        ("gate-south", 21, UNICODE, "◌ 2026.11 42%", "p50"),
        ("gate-south", 12, UNICODE, "◌ 2026.11", "p50"),
        ("line-1-cam", 30, UNICODE, "◌ 2026.11 waiting", "warn"),
        ("line-2-cam", 30, UNICODE, "✗ 2026.11 rolled back", "bad"),
        ("line-2-cam", 9, ASCII, "x 2026.11", "bad"),
        ("lobby-mic", 30, UNICODE, "◌ no answer yet", "warn"),
        ("lobby-mic", 9, UNICODE, "◌ no answer yet", "warn"),
        ("dock-1", 30, UNICODE, "  2026.11", "text"),
        ("mail-scan", 30, UNICODE, "  –", "faint"),
    ],
)
def test_a_release_is_marked_by_what_becomes_of_its_update(
    device: str, width: int, glyphs: Glyphs, text: str, ink: str
) -> None:
    row = next(row for row in ROWS if row.device == device)
    assert BY_ID["release"].draw(row, width, Pen(glyphs=glyphs, now_s=NOW_S)) == ((text, ink),)


def test_releases_sort_by_their_numbers() -> None:
    rows = [replace(ROWS[0], release=name) for name in ("2.10", "2.9", "", "v2", "2.9.1", "V10")]
    ordered = sort_rows(rows, BY_ID["release"], descending=False)
    assert [row.release for row in ordered] == ["2.9", "2.9.1", "2.10", "v2", "V10", ""]
    assert natural("") == ""


def test_texts_stand_in_full_before_plots_grow() -> None:
    wanted = widest(columns(), ROWS)
    least = sum(c.least for c in columns()) + 2 * (len(columns()) - 1)
    texts = [c for c in columns() if c.text is not None]
    missing = sum(min(c.most, wanted[c.id]) - c.least for c in texts if wanted[c.id] > c.least)
    widths = {c.id: cells for c, cells in arrange(columns(), least + missing, wanted)}
    assert all(widths[c.id] >= wanted[c.id] for c in texts)
    assert widths["trend"] == BY_ID["trend"].least
    wider = {c.id: cells for c, cells in arrange(columns(), least + missing + 3, wanted)}
    assert wider["trend"] + wider["memory"] == BY_ID["trend"].least + BY_ID["memory"].least + 3
