"""Text of a known width, whatever comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from edgekit_tui import draw
from edgekit_tui.draw import ASCII, UNICODE


@given(text=st.text(max_size=600), width=st.integers(0, 80), right=st.booleans())
def test_fit_gives_exactly_the_asked_cells_for_any_text(text: str, width: int, right: bool) -> None:
    assert cell_len(draw.fit(text, width, UNICODE, right=right)) == width
    ascii_text = draw.fit(text, width, ASCII, right=right)
    assert len(ascii_text) == width
    assert ascii_text.isascii()


def test_fit_marks_a_cut_and_leaves_short_text_alone() -> None:
    assert draw.fit("camera-at-the-gate", 8, UNICODE) == "camera-…"
    assert draw.fit("cam", 6, UNICODE) == "cam   "
    assert draw.fit("12.5", 6, UNICODE, right=True) == "  12.5"
    assert draw.fit("日本語の名前", 7, UNICODE) == "日本語…"


def test_clean_drops_what_would_move_the_cells_around_it() -> None:
    assert draw.clean("a\tb\x1b[31mc\u202ed\n") == "a b [31mcd "
    assert draw.clean("café", ascii_only=True) == "caf?"


@given(text=st.text(max_size=300), width=st.integers(1, 40))
def test_wrap_keeps_every_line_within_the_width(text: str, width: int) -> None:
    wide = max((cell_len(char) for char in draw.clean(text)), default=1)
    assert all(cell_len(line) <= max(width, wide) for line in draw.wrap(text, width, UNICODE))


def test_wrap_breaks_at_blanks_and_loses_no_word() -> None:
    text = "p99 64.8 ms is over the limit of 40 ms"
    lines = draw.wrap(text, 16, UNICODE)
    assert lines == ["p99 64.8 ms is", "over the limit", "of 40 ms"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0423, "0.042"),
        (0.0, "0.00"),
        (8.416, "8.42"),
        (41.23, "41.2"),
        (182.4, "182"),
        (12_400.0, "12.4s"),
    ],
)
def test_ms_shows_three_figures_and_seconds_when_long(value: float | None, text: str) -> None:
    assert draw.ms(value, UNICODE) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0"), (8.25, "8.2"), (142.3, "142"), (48_210, "48.2k"), (1.5e6, "1.5M")]
)
def test_number_stays_within_five_characters(value: float | None, text: str) -> None:
    assert draw.number(value, UNICODE) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "now"), (0.4, "now"), (3, "3s"), (99, "99s"), (150, "2m"), (7300, "2h"), (400_000, "4d")]
)
def test_age_is_short_and_a_clock_ahead_of_ours_reads_as_now(seconds: float, text: str) -> None:
    assert draw.age(seconds) == text


def test_bytes_turn_from_mib_to_gib() -> None:
    assert draw.bytes_(672 * 2**20, UNICODE) == "672M"
    assert draw.bytes_(int(7.4 * 2**30), UNICODE) == "7.4G"


def test_spark_scales_from_zero_and_shows_holes() -> None:
    assert draw.spark([0, 5, None, 10], 4, UNICODE) == "▁▄ ▇"
    assert draw.spark([1, 2], 5, UNICODE) == "   ▄▇"
    assert draw.spark([5.0, 5.0], 2, UNICODE, top=10.0) == "▄▄"
    assert draw.spark([], 3, UNICODE) == "   "


def test_bar_is_as_wide_as_asked_even_beyond_full() -> None:
    assert draw.bar(0.5, 4, ASCII, "load") == (("##", "load"), ("--", "track"))
    assert draw.bar(1.7, 4, ASCII, "bad") == (("####", "bad"), ("", "track"))


def test_every_state_has_its_own_symbol_in_both_sets() -> None:
    for glyphs in (UNICODE, ASCII):
        symbols = [draw.state_glyph(state, glyphs) for state in (*draw.SEVERITY, "loading")]
        assert len(set(symbols)) == len(symbols)
    assert all(text.isascii() for text in ASCII.states.values())
