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


def test_fit_leaves_alone_what_fits_to_the_cell() -> None:
    assert draw.fit("camera", 6, UNICODE) == draw.fit("camera", 6, UNICODE, right=True) == "camera"
    assert draw.fit("x", 0, UNICODE) == ""


def test_clean_drops_what_would_move_the_cells_around_it() -> None:
    assert draw.clean("a\tb\x1b[31mc\u202ed\n") == "a b [31mcd "
    assert draw.clean("café", ascii_only=True) == "caf?"


@given(text=st.text(max_size=300), width=st.integers(1, 40))
def test_wrap_keeps_every_line_within_the_width(text: str, width: int) -> None:
    wide = max((cell_len(char) for char in draw.clean(text)), default=1)
    assert all(cell_len(line) <= max(width, wide) for line in draw.wrap(text, width, UNICODE))


@given(text=st.text(alphabet="ab ​日\t", max_size=120), width=st.integers(2, 30))
def test_wrap_loses_nothing_but_blanks(text: str, width: int) -> None:
    lines = draw.wrap(text, width, UNICODE)
    assert "".join("".join(lines).split()) == "".join(draw.clean(text).split())
    assert lines == [""] or all(line.strip() for line in lines)


def test_wrap_cuts_a_word_that_is_too_long_and_goes_on_behind_it() -> None:
    assert draw.wrap("an abcdefghij so", 4, UNICODE) == ["an", "abcd", "efgh", "ij", "so"]
    assert draw.wrap("abcd", 4, UNICODE) == ["abcd"]
    assert draw.wrap("日本", 1, UNICODE) == ["?", "?"]
    assert draw.wrap("café", 9, ASCII) == ["caf?"]
    assert draw.wrap("  ", 9, UNICODE) == [""]


def test_wrap_breaks_at_blanks_and_loses_no_word() -> None:
    text = "p99 64.8 ms is over the limit of 40 ms"
    lines = draw.wrap(text, 16, UNICODE)
    assert lines == ["p99 64.8 ms is", "over the limit", "of 40 ms"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0423, "0.042"), (0.0, "0.00"), (0.1, "0.10"), (8.416, "8.42"), (9.994, "9.99"), (9.996, "10.0"),
        (10.0, "10.0"), (41.23, "41.2"), (99.94, "99.9"), (99.96, "100"), (182.4, "182"), (9_999.0, "9999"),
        (10_000.0, "10s"), (12_400.0, "12.4s"), (99_960.0, "100s"), (999_400.0, "999s"), (999_500.0, "1000s"),
    ],
)  # fmt: skip
def test_ms_shows_three_figures_and_seconds_when_long(value: float | None, text: str) -> None:
    assert draw.ms(value, UNICODE) == text


@given(st.floats(0.1, 1e7))
def test_ms_is_short_and_true_to_half_a_percent(value: float) -> None:
    text = draw.ms(value, UNICODE)
    assert len(text) <= 6
    assert float(text.removesuffix("s")) * (1000 if text.endswith("s") else 1) == pytest.approx(
        value, rel=0.0051, abs=0.0051
    )


def test_a_p99_has_a_tilde_while_its_samples_are_too_few() -> None:
    assert draw.p99_text(12.0, draw.SUPPORTED_P99, UNICODE) == "12.0"
    assert draw.p99_text(12.0, draw.SUPPORTED_P99 - 1, UNICODE) == "~12.0"
    assert draw.p99_text(None, 0, UNICODE) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0, "0"), (8.25, "8.2"), (8.0, "8"), (99.94, "99.9"), (99.96, "100"), (100.4, "100"),
        (142.3, "142"), (9_999, "9999"), (10_000, "10.0k"), (48_210, "48.2k"), (99_960, "100k"), (999_000, "999k"),
        (1e6, "1.0M"), (1.5e6, "1.5M"), (2.5e9, "2.5G"),
    ],
)  # fmt: skip
def test_a_rate_or_count_in_few_characters(value: float | None, text: str) -> None:
    assert draw.number(value, UNICODE) == text


@given(st.floats(0, 9.9e11))
def test_number_stays_within_five_characters_and_near_the_value(value: float) -> None:
    text = draw.number(value, UNICODE)
    assert len(text) <= 5
    scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    assert float(text.rstrip("kMG")) * scale == pytest.approx(value, rel=0.051, abs=0.051)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "now"), (0.99, "now"), (1, "1s"), (99.9, "99s"), (100, "1m"), (150, "2m"), (5_999, "99m"), (6_000, "1h"),
     (7_300, "2h"), (172_799, "47h"), (172_800, "2d"), (400_000, "4d")],
)  # fmt: skip
def test_age_is_short_and_a_clock_ahead_of_ours_reads_as_now(seconds: float, text: str) -> None:
    assert draw.age(seconds) == text


@given(st.floats(1, 8e8))
def test_an_age_is_never_told_older_than_it_is_and_never_by_a_unit_younger(seconds: float) -> None:
    text = draw.age(seconds)
    unit_s = {"s": 1, "m": 60, "h": 3600, "d": 86_400}[text[-1]]
    assert len(text) <= 5
    assert int(text[:-1]) * unit_s <= seconds < (int(text[:-1]) + 1) * unit_s


@pytest.mark.parametrize(
    ("mib", "text"),
    [(None, "–"), (0, "0M"), (672, "672M"), (999, "999M"), (1000, "1.0G"), (7.4 * 1024, "7.4G"), (99.96 * 1024, "100G"),
     (102_400, "100G"), (256 * 1024, "256G")],
)  # fmt: skip
def test_bytes_turn_from_mib_to_gib(mib: float | None, text: str) -> None:
    assert draw.bytes_(None if mib is None else int(mib * 2**20), UNICODE) == text


@pytest.mark.parametrize(("ratio", "ink"), [(0.74, "load"), (0.75, "warn"), (0.89, "warn"), (0.9, "bad"), (1.2, "bad")])
def test_a_level_warns_before_it_is_full(ratio: float, ink: str) -> None:
    assert draw.load_ink(ratio) == ink


@pytest.mark.parametrize(
    ("celsius", "ink"), [(None, "faint"), (69.9, "text"), (70, "warn"), (81.9, "warn"), (82, "bad")]
)
def test_heat_warns_before_boards_throttle(celsius: float | None, ink: str) -> None:
    assert draw.heat_ink(celsius) == ink


def test_spark_scales_from_zero_and_shows_holes() -> None:
    assert draw.spark([0, 5, None, 10], 4, UNICODE) == "▁▄ ▇"
    assert draw.spark([1, 2], 5, UNICODE) == "   ▄▇"
    assert draw.spark([5.0, 5.0], 2, UNICODE, top=10.0) == "▄▄"
    assert draw.spark([], 3, UNICODE) == "   "
    assert draw.spark([9, 1, 1], 2, UNICODE) == "▇▇", "only what is drawn counts"
    assert draw.spark([0.0, None], 2, UNICODE) == "▁ "
    assert draw.spark([20.0], 1, UNICODE, top=10.0) == "▇"
    assert draw.spark([1.0], 0, UNICODE) == ""


def test_bar_is_as_wide_as_asked_even_beyond_full() -> None:
    assert draw.bar(0.5, 4, ASCII, "load") == (("##", "load"), ("--", "track"))
    assert draw.bar(1.7, 4, ASCII, "bad") == (("####", "bad"), ("", "track"))
    assert draw.bar(-0.5, 4, ASCII, "load") == (("", "load"), ("----", "track"))


def test_every_state_has_its_own_symbol_in_both_sets() -> None:
    for glyphs in (UNICODE, ASCII):
        symbols = [draw.state_glyph(state, glyphs) for state in (*draw.SEVERITY, "loading")]
        assert len(set(symbols)) == len(symbols)
    assert all(text.isascii() for text in ASCII.states.values())
