"""The shape of latency: an axis, the samples in its cells, and how they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_tui.distribution import Axis, axis_of, distribution, rebin
from edgekit_tui.draw import ASCII, UNICODE, Glyphs, width_of
from edgekit_tui.rows import percentile
from tests.tui.simulated import histogram, lived_view

VIEW = lived_view()


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
