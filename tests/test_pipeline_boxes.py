"""Boxes out of a probability map, checked against brute force and against shapes with known corners."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.pipeline.boxes import db_boxes, regions_of, smallest_rectangle
from edgekit.pipeline.image import Placement
from edgekit.pipeline.metrics import iou
from edgekit.steps import DbBoxes

PLAIN = Placement(width=200, height=100)


def flood(mask: np.ndarray) -> list[set[tuple[int, int]]]:
    """8-connected regions by flood fill: slow and obvious."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    regions = []
    while left:
        queue, region = [left.pop()], set()
        while queue:
            y, x = queue.pop()
            region.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            queue += near
        regions.append(region)
    return regions


def pixels(runs: np.ndarray) -> set[tuple[int, int]]:
    return {(row, x) for row, start, end in runs.tolist() for x in range(start, end)}


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12), st.floats(0.05, 0.9))
def test_regions_are_those_of_a_flood_fill(seed: int, height: int, width: int, density: float) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < density
    found = sorted(sorted(pixels(runs)) for runs in regions_of(mask))
    assert found == sorted(sorted(region) for region in flood(mask))


def test_regions_at_the_ends_of_rows_do_not_run_into_the_next() -> None:
    mask = np.zeros((2, 4), bool)
    mask[0, 3] = mask[1, 0] = True
    assert len(regions_of(mask)) == 2
    assert regions_of(np.zeros((3, 3), bool)) == []


@given(st.floats(-40, 40), st.floats(20, 60), st.floats(4, 15))
def test_the_smallest_rectangle_of_a_turned_one_is_itself(degrees: float, width: float, height: float) -> None:
    turn = math.radians(degrees)
    right, down = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    corners = np.array([right * width * sx / 2 + down * height * sy / 2 + 100 for sx, sy in signs])
    assert np.abs(smallest_rectangle(corners) - corners).max() < 1e-6


@pytest.mark.parametrize("points", [[[3.0, 4.0]], [[1.0, 1.0], [5.0, 1.0]]])
def test_a_point_and_a_line_have_a_rectangle_too(points: list[list[float]]) -> None:
    assert smallest_rectangle(np.array(points)).shape == (4, 2)


def page(*rectangles: tuple[int, int, int, int], score: float = 0.9) -> np.ndarray:
    """A map with text where the rectangles are: left, top, right, bottom."""
    probability = np.zeros((100, 200), np.float32)
    for left, top, right, bottom in rectangles:
        probability[top:bottom, left:right] = score
    return probability


def around(polygon: tuple[tuple[float, float], ...]) -> tuple[float, float, float, float]:
    xs, ys = zip(*polygon, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def test_a_box_is_the_region_grown_by_area_times_ratio_over_perimeter() -> None:
    (box,) = db_boxes(page((50, 40, 150, 60)), DbBoxes(unclip_ratio=1.5), PLAIN)
    distance = 100 * 20 * 1.5 / 240
    assert around(box.polygon) == pytest.approx((50 - distance, 40 - distance, 150 + distance, 60 + distance), abs=0.2)
    assert box.polygon[0] == pytest.approx((50 - distance, 40 - distance), abs=0.2), "clockwise from the top left"
    assert box.score == pytest.approx(0.9, abs=0.05)


def test_boxes_come_back_in_the_source_images_pixels() -> None:
    at = Placement(width=380, height=120, scale_x=0.5, scale_y=0.5, left=5, top=20)
    (box,) = db_boxes(page((55, 40, 155, 60)), DbBoxes(unclip_ratio=0.0, min_side=1), at)
    assert around(box.polygon) == pytest.approx((100, 40, 300, 80), abs=0.5)


def test_a_slanted_line_gives_a_slanted_box() -> None:
    y, x = np.mgrid[:100, :200]
    slanted = ((np.abs(y - 30 - x * 0.2) < 6) & (x > 20) & (x < 180)).astype(np.float32)
    (box,) = db_boxes(slanted, DbBoxes(), PLAIN)
    (ax, ay), (bx, by) = box.polygon[:2]
    assert math.degrees(math.atan2(by - ay, bx - ax)) == pytest.approx(math.degrees(math.atan(0.2)), abs=1.5)


def test_reading_order_is_line_by_line() -> None:
    boxes = db_boxes(page((120, 12, 180, 28), (10, 10, 80, 26), (20, 60, 150, 80)), DbBoxes(unclip_ratio=0.5), PLAIN)
    assert [round(around(box.polygon)[0], -1) for box in boxes] == [10, 120, 20]


@pytest.mark.parametrize(
    ("probability", "step"),
    [
        (page(), DbBoxes()),
        (page((50, 40, 150, 60), score=0.25), DbBoxes()),
        (page((50, 40, 150, 60), score=0.45), DbBoxes()),  # seen, but not trusted
        (page((50, 40, 52, 41)), DbBoxes()),  # a speck
    ],
)
def test_weak_and_tiny_regions_are_not_boxes(probability: np.ndarray, step: DbBoxes) -> None:
    assert db_boxes(probability, step, PLAIN) == ()


def test_text_at_the_border_stays_inside_the_image() -> None:
    (box,) = db_boxes(page((0, 0, 200, 100)), DbBoxes(), PLAIN)
    assert iou(around(box.polygon), (0, 0, 200, 100)) == 1.0


def test_only_the_largest_regions_are_kept_when_there_are_too_many() -> None:
    boxes = db_boxes(page((10, 10, 60, 30), (80, 10, 190, 30), (10, 60, 30, 75)), DbBoxes(max_boxes=2), PLAIN)
    assert sorted(round(around(box.polygon)[0] / 50) for box in boxes) == [0, 1]
