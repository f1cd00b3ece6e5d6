"""Lines in a frame of cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_tui.draw import ASCII, UNICODE, width_of
from edgekit_tui.plot import Series, legend, nice_above, nice_below, plot

RISING = Series(name="p99", ink="p99", points=tuple((float(t), float(t)) for t in range(0, 101, 10)))


@given(
    values=st.lists(st.one_of(st.none(), st.floats(0, 1e6)), max_size=130),
    width=st.integers(1, 120),
    height=st.integers(1, 30),
    limit=st.one_of(st.none(), st.floats(0.1, 1e6)),
)
def test_a_plot_never_leaves_its_frame(
    values: list[float | None], width: int, height: int, limit: float | None
) -> None:
    series = Series(name="p50", ink="p50", points=tuple((float(i), value) for i, value in enumerate(values)))
    for glyphs in (UNICODE, ASCII):
        lines = plot([series], width, height, glyphs=glyphs, limit=limit)
        if any(value is not None for value in values):
            assert len(lines) <= height
            assert all(width_of(line) <= width for line in lines)
        else:
            assert "no measurements yet" in lines[0][0][0]


def test_a_rising_line_runs_from_the_lower_left_to_the_upper_right() -> None:
    lines = plot([RISING], 40, 12, glyphs=ASCII)
    rows = ["".join(text for text, _ in line) for line in lines]
    marked = [(y, row.index("*")) for y, row in enumerate(rows) if "*" in row]
    assert [x for _, x in marked] == sorted((x for _, x in marked), reverse=True)
    assert marked[0][0] <= 4
    assert marked[-1][0] == 9
    assert [row.split("|")[0].strip() for row in rows if row.split("|")[0].strip().isdecimal()] == ["150", "75", "0"]


def test_the_limit_is_drawn_where_it_belongs_and_only_when_it_fits() -> None:
    with_limit = plot([RISING], 40, 12, glyphs=UNICODE, limit=75.0)
    rows = [y for y, line in enumerate(with_limit) if any(ink == "limit" for _, ink in line)]
    assert len(rows) == 1
    assert 3 <= rows[0] <= 6
    far = plot([RISING], 40, 12, glyphs=UNICODE, limit=5000.0)
    assert not any(ink == "limit" for line in far for _, ink in line)


def test_a_missing_window_breaks_the_line() -> None:
    holed = Series(name="p", ink="p50", points=((0.0, 5.0), (50.0, None), (90.0, 5.0)))
    whole = Series(name="p", ink="p50", points=((0.0, 5.0), (90.0, 5.0)))

    def dots(series: Series) -> int:
        return sum(text.count("*") for line in plot([series], 40, 10, glyphs=ASCII) for text, _ in line)

    assert dots(holed) == 2
    assert dots(whole) > 20


def test_the_first_points_stand_at_the_right_edge() -> None:
    young = Series(name="p", ink="p50", points=((1000.0, 5.0), (1002.0, 5.0)))
    (row,) = [text for line in plot([young], 60, 10, glyphs=ASCII) if "*" in (text := "".join(t for t, _ in line))]
    assert row.index("*") > 50


def test_the_axis_tells_how_long_the_plot_reaches_back() -> None:
    minutes = Series(name="p", ink="p50", points=((0.0, 1.0), (595.0, 1.0)))
    ages = "".join(text for text, _ in plot([minutes], 60, 10, glyphs=UNICODE)[-1])
    assert ages.split() == ["-10m", "-5m", "last"]


@pytest.mark.parametrize(("value", "nice"), [(0, 1), (0.3, 0.3), (7, 8), (9, 10), (41, 50), (120, 150), (1300, 1500)])
def test_the_scale_ends_on_a_round_number(value: float, nice: float) -> None:
    assert nice_above(value) == pytest.approx(nice)


def test_the_legend_gives_the_last_known_value() -> None:
    gone = Series(name="p99", ink="p99", points=((0.0, 7.5), (1.0, None)))
    assert "".join(text for text, _ in legend([gone], UNICODE)).split() == ["━━", "p99", "7.50"]


def drawn(*points: tuple[float, float | None], width: int = 24, height: int = 7, **options: object) -> list[str]:
    series = Series(name="p", ink="p50", points=points)
    lines = plot([series], width, height, glyphs=options.pop("glyphs", UNICODE), **options)  # type: ignore[arg-type]
    return ["".join(text for text, _ in line) for line in lines]


def test_a_line_is_drawn_dot_by_dot() -> None:
    assert drawn((0.0, 0.0), (60.0, 95.0), (80.0, 20.0), (100.0, 95.0)) == [
        "100 ┤         ⢀⡠⢢      ⡰",
        "    │       ⡠⠔⠁  ⢣    ⡰⠁",
        " 50 ┤     ⡠⠔⠁     ⠣⡀ ⡴⠁ ",
        "    │  ⢀⠤⠊         ⠱⡜   ",
        "  0 ┤⡠⠒⠁                ",
        "    └┴────────┴────────┴",
        "     -1.7m  -50s    last",
    ]


@pytest.mark.parametrize("decades", [(1.0, 10.0, 100.0), (0.1, 1.0, 10.0)])
def test_on_a_logarithmic_scale_each_decade_is_as_high(decades: tuple[float, ...]) -> None:
    rows = drawn(*((50.0 * n, value) for n, value in enumerate(decades)), width=60, height=26, glyphs=ASCII,
                 log_scale=True)  # fmt: skip
    at = {x: y for y, row in enumerate(rows) for x, char in enumerate(row) if char == "*"}
    low, middle, high = at[min(at)], at[sorted(at)[len(at) // 2]], at[max(at)]
    assert abs((low - middle) - (middle - high)) <= 1
    linear = drawn(*((50.0 * n, value) for n, value in enumerate(decades)), width=60, height=26, glyphs=ASCII)
    flat = {x: y for y, row in enumerate(linear) for x, char in enumerate(row) if char == "*"}
    assert flat[min(flat)] - flat[sorted(flat)[len(flat) // 2]] <= 3, "the linear one shows the lower decade flat"


def test_what_is_not_above_zero_lies_at_the_foot_of_a_logarithmic_scale() -> None:
    rows = drawn((0.0, 0.0), (50.0, 10.0), (100.0, 0.0), log_scale=True, glyphs=ASCII)
    assert rows[4].count("*") >= 2
    assert drawn((0.0, 0.0), (50.0, 0.0), log_scale=True) == drawn((0.0, 0.0), (50.0, 0.0))


def test_a_limit_is_shown_up_to_four_times_the_highest_value() -> None:
    for limit, is_shown in ((40.0, True), (40.1, False)):
        assert any("╌" in row for row in drawn((0.0, 10.0), (9.0, 10.0), limit=limit)) is is_shown


@pytest.mark.parametrize(("width", "height", "is_drawn"), [(16, 4, True), (15, 4, False), (16, 3, False)])
def test_a_plot_needs_sixteen_cells_by_four(width: int, height: int, is_drawn: bool) -> None:
    assert (len(drawn((0.0, 1.0), (9.0, 2.0), width=width, height=height)) == height) is is_drawn


@pytest.mark.parametrize(
    ("span_s", "ages"),
    [(90, ["-90s", "-45s"]), (99.4, ["-99s", "-50s"]), (100, ["-1.7m", "-50s"]), (118, ["-2m", "-59s"]),
     (210, ["-3.5m", "-1.8m"]), (600, ["-10m", "-5m"]),
     (5_999, ["-100m", "-50m"]), (6_000, ["-1.7h", "-50m"]), (36_000, ["-10h", "-5h"])],
)  # fmt: skip
def test_ages_are_rounded_and_in_units_that_fit(span_s: float, ages: list[str]) -> None:
    assert drawn((0.0, 1.0), (float(span_s), 1.0), width=60)[-1].split() == [*ages, "last"]


@pytest.mark.parametrize(("value", "nice"), [(1, 1), (1.2, 1.5), (2, 2), (3.5, 4), (4, 4), (4.5, 5), (8, 8), (8.1, 10)])
def test_a_round_number_is_itself_and_else_the_next(value: float, nice: float) -> None:
    for power in (0.001, 1, 1000):
        assert nice_above(value * power) == pytest.approx(nice * power)
    assert nice_above(float("inf")) == 1


@pytest.mark.parametrize(
    ("value", "nice"), [(1, 1), (1.9, 1), (2, 2), (4.9, 2), (5, 5), (9.9, 5), (0.3, 0.2), (70, 50)]
)
def test_the_foot_of_a_logarithmic_scale_is_round(value: float, nice: float) -> None:
    assert nice_below(value) == pytest.approx(nice)
