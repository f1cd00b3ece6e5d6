"""The filter's language on the rows of the simulated fleet."""

from __future__ import annotations

import pytest

from edgekit.errors import UsageError
from edgekit_tui.query import parse_query
from tests.tui.changed import replace
from tests.tui.simulated import NOW_S, lived_view

ROWS = lived_view().rows


def kept(text: str) -> set[str]:
    query = parse_query(text)
    return {row.device for row in ROWS if query.matches(row, NOW_S)}


def test_the_empty_filter_keeps_everything() -> None:
    assert kept("  ") == {row.device for row in ROWS}


def test_a_bare_word_is_searched_in_every_text_field_whatever_its_case() -> None:
    assert kept("ORIN") == {"gate-north", "gate-south", "dock-1"}
    assert kept("voice") == {"lobby-mic", "bench-pi5"}


def test_a_field_term_looks_at_that_field_alone() -> None:
    assert kept("device:gate") == {"gate-north", "gate-south"}
    assert kept("board:gate") == set()
    assert kept('board:"orin nano"') == {"gate-north", "gate-south"}


def test_devices_are_found_by_their_release_and_by_what_becomes_of_an_update() -> None:
    assert kept("release:2026.12") == {"gate-north"}
    assert kept("release=2026.11 !update:fetching") == {"line-1-cam", "line-2-cam", "dock-1"}
    assert kept('update:"rolled back|failed"') == {"line-2-cam"}
    assert kept("release:. !update:committed") == {"gate-south", "line-1-cam", "line-2-cam", "dock-1"}


def test_equals_on_text_means_the_whole_text() -> None:
    assert kept("device=dock-1") == {"dock-1"}
    assert kept("device=dock") == set()


def test_a_regular_expression_works_and_terms_are_joined_by_and() -> None:
    assert kept("device:^line-[12] !state:throttled") == {"line-1-cam"}


def test_negation_keeps_the_rest() -> None:
    assert kept("!state:online") == {"line-2-cam", "dock-3", "bench-coral"}
    assert kept("!!state:online") == kept("state:online")


def test_numbers_compare_and_a_missing_number_never_matches() -> None:
    assert kept("p99>100") == {"line-2-cam"}
    assert kept("temp>=80") == {"line-2-cam"}
    assert "mail-scan" not in kept("temp>0") | kept("temp<=0"), "its board has no temperature sensor"
    assert "mail-scan" in kept("!temp>0")


@pytest.mark.parametrize(
    ("op", "holds"), [(">", (False, True)), (">=", (True, True)), ("=", (True, False)), ("<=", (True, False)),
                      ("<", (False, False))],
)  # fmt: skip
def test_a_bound_is_met_or_not_by_the_value_itself(op: str, holds: tuple[bool, bool]) -> None:
    query = parse_query(f"p99{op}50")
    assert tuple(query.matches(replace(ROWS[0], p99_ms=value), NOW_S) for value in (50.0, 50.1)) == holds


@pytest.mark.parametrize(
    ("term", "seconds"), [("age=90", 90), ("age=90s", 90), ("age=2m", 120), ("age=2h", 7200), ("age=2d", 172_800)]
)
def test_an_age_has_units(term: str, seconds: float) -> None:
    assert parse_query(term).matches(replace(ROWS[0], last_seen_s=NOW_S - seconds), NOW_S)
    assert not parse_query(term).matches(replace(ROWS[0], last_seen_s=NOW_S - seconds - 1), NOW_S)


def test_ratios_are_asked_in_percent_and_latencies_in_ms_or_s() -> None:
    row = replace(ROWS[0], failed_ratio=0.02, memory_used_bytes=3, memory_total_bytes=4, p50_ms=2000.0)
    for term in ("fail=2", "fail=2%", "mem=75", "p50=2s", "p50=2000ms", "p50=2000"):
        assert parse_query(term).matches(row, NOW_S), term
    silent = replace(ROWS[0], failed_ratio=None, memory_total_bytes=None, p50_ms=None)
    for term in ("fail>=0", "mem>=0", "p50>=0"):
        assert not parse_query(term).matches(silent, NOW_S), term
    assert parse_query("temp=61.5c").matches(replace(ROWS[0], temperature_c=61.5), NOW_S)


def test_units_and_aliases_are_understood() -> None:
    assert kept("age>1m") == {"dock-3"}
    assert kept("p99>0.1s") == kept("p99>100ms") == {"line-2-cam"}
    assert kept("memory>65%") == kept("mem>65") != set()
    assert kept("req>35") == {"mail-scan"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bord:orin", "did you mean 'board'"),
        ("p99:50", "p99 is a number; write p99>50"),
        ("board>5", "board is text; write board:5"),
        ("p99>fast", "'fast' after p99> is not a number"),
        ("(", "is not a regular expression"),
        ('board:"orin', "a quote is not closed"),
    ],
)
def test_a_wrong_term_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_query(text)
    assert says in str(caught.value)
