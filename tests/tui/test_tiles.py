"""The lines of health, and a model's groups: words, thresholds, widths. All pure, so all in tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_tui import models, tiles
from edgekit_tui.draw import ASCII, SUPPORTED_P99, UNICODE, Glyphs, Line, Lines, width_of
from edgekit_tui.health import DROPS, FAILING, FULL, HOT, OFFLINE, OTHER, SLOW, STALE, Blame, weight
from edgekit_tui.help_screen import KEYS, help_lines
from edgekit_tui.totals import Cell, cells_of
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, lived_view

VIEW = lived_view()
WELL = next(row for row in VIEW.rows if row.device == "mail-scan")
LINK = VIEW.link


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def words(lines: Lines) -> str:
    return "\n".join(plain(line) for line in lines)


def inks(line: Line) -> set[str]:
    return {ink for text, ink in line if text.strip()}


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ({"online": 3}, "● 3 online"),
        ({"online": 3, "offline": 1}, "● 3 online  ✖ 1 offline"),
        ({"offline": 1, "late": 2, "throttled": 4}, "▲ 4 throttled  ◐ 2 late  ✖ 1 offline"),
        ({"loading": 2, "online": 1}, "● 1 online  ◌ 2 loading"),
        ({"stale": 0, "online": 0}, ""),
        ({}, ""),
    ],
)
def test_states_stand_from_best_to_worst_and_none_is_told_by_colour_alone(states: dict[str, int], says: str) -> None:
    totals = replace(VIEW.totals, states=states, devices=sum(states.values()))
    assert plain(tiles.states(totals, UNICODE, words=True)) == says
    assert plain(tiles.states(totals, ASCII, words=True)).isascii()


@given(
    st.dictionaries(st.sampled_from(["online", "late", "stale", "offline", "throttled", "x"]), st.integers(1, 10**6)),
    st.integers(0, 200),
)
def test_the_bar_of_states_fills_its_width_or_is_left_out(states: dict[str, int], width: int) -> None:
    totals = replace(VIEW.totals, states=states, devices=sum(states.values()))
    for glyphs in (UNICODE, ASCII):
        bar = tiles.proportions(totals, width, glyphs)
        assert width_of(bar) == (width if states and width >= len(states) else 0)
        assert all(text for text, _ in bar), "every state that is there has a cell"


def test_the_bar_of_states_is_shared_by_their_numbers() -> None:
    totals = replace(VIEW.totals, devices=10, states={"online": 5, "late": 3, "offline": 2})
    assert [(len(text), ink) for text, ink in tiles.proportions(totals, 20, UNICODE)] == [
        (10, "good"), (6, "warn"), (4, "bad"),
    ]  # fmt: skip
    rare = {"online": 1, "late": 1, "stale": 1, "offline": 1, "throttled": 4, "x": 4}
    totals = replace(VIEW.totals, devices=12, states=rare)
    assert [len(text) for text, _ in tiles.proportions(totals, 6, UNICODE)] == [1] * 6


def test_the_brokers_address_stands_there_where_it_fits() -> None:
    line = tiles.link_line(LINK, UNICODE, NOW_S)
    for width, is_there in ((200, True), (width_of(line) + len(LINK.endpoint) + 1, True),
                            (width_of(line) + len(LINK.endpoint), False)):  # fmt: skip
        (first, _) = tiles.broker_tile(VIEW, width, UNICODE, NOW_S)
        assert (LINK.endpoint in plain(first)) is is_there
        assert width_of(first) <= width


@pytest.mark.parametrize(
    ("connected", "before", "since", "says", "ink"),
    [
        (True, True, 5.0, "● connected", "good"),
        (False, False, 0.0, "◌ connecting…", "warn"),
        (False, False, 7.0, "◌ connecting… 7s", "warn"),
        (False, True, 42.0, "✖ reconnecting… 42s", "bad"),
        (False, True, 7200.0, "✖ reconnecting… 2h", "bad"),
    ],
)
def test_the_connection_in_a_few_words(connected: bool, before: bool, since: float, says: str, ink: str) -> None:
    link = replace(LINK, connected=connected, was_connected=before, since_s=NOW_S - since)
    line = tiles.link_line(link, UNICODE, NOW_S)
    assert plain(line) == says
    assert inks(line) == {ink}


@pytest.mark.parametrize(
    ("connected", "age", "says"),
    [
        (True, 0.2, "data now"), (True, 9.0, "data 9s old"), (True, 400.0, "data 6m old"),
        (False, 9.0, "data 9s old"), (True, None, "no data yet"), (False, None, "no data yet"),
    ],
)  # fmt: skip
def test_old_data_is_called_old(connected: bool, age: float | None, says: str) -> None:
    totals = replace(VIEW.totals, last_seen_s=None if age is None else NOW_S - age)
    view = replace(VIEW, totals=totals, link=replace(LINK, connected=connected))
    line = tiles.data_age(view, NOW_S)
    assert plain(line) == says
    assert ("bad" in inks(line)) == (not connected and age is not None), "a broken link, not silent devices"


@pytest.mark.parametrize(("samples", "mark"), [(0, True), (SUPPORTED_P99 - 1, True), (SUPPORTED_P99, False)])
def test_a_p99_is_marked_until_its_samples_carry_it(samples: int, mark: bool) -> None:
    totals = replace(VIEW.totals, sample_count=samples, p99_ms=12.0)
    span = tiles.p99_span(totals, UNICODE)
    assert plain(span) == ("~12.0" if mark else "12.0")
    assert inks(span) == {"faint" if mark else "p99"}


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [10, 24, 40, 60, 80, 120, 250])
def test_the_small_screens_lines_keep_to_their_width_where_they_can(width: int, glyphs: Glyphs) -> None:
    lines = tiles.compact(VIEW, width, glyphs, NOW_S)
    assert len(lines) == 2
    assert width < 80 or all(width_of(line) <= width for line in lines)
    assert "12 dev" in plain(lines[0])
    assert "req/s" in plain(lines[1])


@pytest.mark.parametrize(
    ("view", "filtered", "says"),
    [
        (None, "", "connecting to broker"),
        (replace(VIEW, rows=(), link=replace(LINK, connected=False, state="refused")), "", "refused"),
        (replace(VIEW, rows=()), "", "no devices yet"),
        (VIEW, "board:none", "no row matches board:none"),
    ],
)
def test_an_empty_table_says_why_and_what_to_do(view: object, filtered: str, says: str) -> None:
    text = words(tiles.nothing_yet(view, UNICODE, filtered=filtered))  # type: ignore[arg-type]
    assert says in text
    assert any(hint in text for hint in ("edgekit broker", "edgekit run", "escape shows all again"))


@given(st.integers(0, 120), st.integers(0, 60))
def test_lines_in_the_middle_lie_within_the_area(width: int, height: int) -> None:
    lines = tiles.centred(((("words", "text"),),), width, height)
    assert len(lines) <= max(1, height)
    assert width_of(lines[-1]) <= max(5, width)


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({}, 0.0), ({"state": "offline"}, OFFLINE), ({"state": "stale"}, STALE), ({"throttled": True}, HOT),
        ({"p99_ms": 10.0, "limit_ms": 5.0}, SLOW + 2.0), ({"p99_ms": 1e9, "limit_ms": 1e-3}, SLOW + 30.0),
        ({"p99_ms": 10.0, "limit_ms": 0.0}, SLOW + 30.0), ({"p99_ms": 5.0, "limit_ms": 5.0}, 0.0),
        ({"p99_ms": None, "limit_ms": 5.0}, 0.0), ({"failed_ratio": 0.05}, FAILING), ({"failed_ratio": 0.049}, 0.0),
        ({"dropped": 1}, DROPS), ({"memory_used_bytes": 92, "memory_total_bytes": 100}, FULL),
        ({"memory_used_bytes": 91, "memory_total_bytes": 100}, 0.0), ({"state": "loading"}, OTHER),
        ({"state": "loading", "dropped": 3, "throttled": True, "failed_ratio": 1.0}, FAILING),
    ],
)  # fmt: skip
def test_the_worst_of_a_row_is_what_it_weighs(change: dict[str, object], bad: float) -> None:
    assert weight(replace(WELL, **change)) == bad  # type: ignore[arg-type]


def test_the_worst_of_many_are_listed_and_no_more() -> None:
    rows = [replace(WELL, device=f"d{n:04}", p99_ms=10.0 + n, limit_ms=5.0) for n in range(100)]
    found = Blame().offenders(rows, NOW_S, UNICODE, most=3)
    assert [one.row.device for one in found] == ["d0099", "d0098", "d0097"]
    blame = Blame()
    assert blame.offenders(rows, NOW_S, UNICODE) == blame.offenders(rows, NOW_S, UNICODE)
    assert blame.offenders([], NOW_S, UNICODE) == []


def test_a_device_that_has_just_died_is_not_offline_for_now() -> None:
    (one,) = Blame().offenders([replace(WELL, state="offline", last_seen_s=NOW_S - 0.3)], NOW_S, UNICODE)
    assert one.why.startswith("offline for 1s")
    (never,) = Blame().offenders([replace(WELL, state="offline", last_seen_s=0.0)], NOW_S, UNICODE)
    assert never.why == "offline"


def cell(**fields: object) -> Cell:
    known = {"model": "m", "board": "b", "artifact": "a", "precision": "int8", "rows": 1, "latency": None,
             "qps": 1.0, "over": 0}  # fmt: skip
    return Cell(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "kind"),
    [("float32", "standard"), ("FP32", "standard"), ("float", "standard"), ("full", "standard"), ("int8", "flash"),
     ("fp16", "flash"), ("mixed", "flash"), ("", "")],
)  # fmt: skip
def test_full_precision_is_the_standard_and_anything_else_is_flash(precision: str, kind: str) -> None:
    assert models.kind_of(cell(precision=precision)) == kind


def test_groups_add_up_by_name_and_leave_out_what_has_none() -> None:
    cells = [cell(board="b", rows=2, qps=3.0, over=1), cell(board="a"), cell(board="", rows=9), cell(board="b", rows=5)]
    found = models.groups(cells, lambda one: one.board)
    assert [(one.name, one.devices, one.qps, one.over) for one in found] == [("a", 1, 1.0, 0), ("b", 7, 4.0, 1)]
    assert [(one.p50_ms, one.p99_ms, one.samples) for one in found] == [(None, None, 0)] * 2


def test_groups_of_cells_are_the_groups_of_their_rows() -> None:
    whole = models.groups(VIEW.totals.cells, lambda one: one.model)
    again = models.groups(cells_of(VIEW.rows), lambda one: one.model)
    assert [(one.name, one.devices, one.samples, one.p99_ms) for one in whole] == [
        (one.name, one.devices, one.samples, one.p99_ms) for one in again
    ]
    assert sum(one.devices for one in whole) == len(VIEW.rows)


@pytest.mark.parametrize("width", [18, 30, 60, 100, 200])
def test_a_table_of_groups_drops_columns_and_keeps_names(width: int) -> None:
    found = models.groups(VIEW.totals.cells, lambda one: one.model)
    lines = models.plain("model", found, width, UNICODE)
    assert len(lines) == len(found) + 1
    assert all(width_of(line) <= width for line in lines)
    assert ("over" in plain(lines[0])) == (width >= 61)
    assert all(one.name[:8] in plain(line) for one, line in zip(found, lines[1:], strict=True))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [40, 60, 74, 120])
def test_help_fits_and_names_everything(width: int, glyphs: Glyphs) -> None:
    lines = help_lines(KEYS, width, glyphs)
    assert all(width_of(line) <= max(width, 74) for line in lines)
    text = words(lines)
    assert glyphs.unicode or text.isascii()
    for said in ("keys", "sort by", "filter", "states", "662"):
        assert said in text
