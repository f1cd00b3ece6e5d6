"""Boxes cut out of an image: upright, the right size, in the boxes' order."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from edgekit.pipeline.answers import Box, Boxes
from edgekit.pipeline.crop import crop_boxes
from edgekit.pipeline.draw import draw_boxes

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")
ImageDraw = pytest.importorskip("PIL.ImageDraw", reason="elsewhere: images need Pillow")

Corner = tuple[float, float]


def png(image: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")  # type: ignore[attr-defined]
    return out.getvalue()


def found(*polygons: tuple[Corner, ...]) -> Boxes:
    return Boxes(width=200, height=200, boxes=tuple(Box(polygon=polygon, score=1.0) for polygon in polygons))


def pixels(raw: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")).astype(int)


def test_boxes_are_cut_in_their_order_with_their_size() -> None:
    image = Image.new("RGB", (200, 200), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 30, 79, 49), fill=(200, 0, 0))
    draw.rectangle((100, 100, 179, 119), fill=(0, 0, 200))
    boxes = found(
        ((100, 100), (180, 100), (180, 120), (100, 120)),
        ((20, 30), (80, 30), (80, 50), (20, 50)),
    )
    blue, red = (pixels(raw) for raw in crop_boxes(png(image), boxes))
    assert blue.shape == (20, 80, 3)
    assert red.shape == (20, 60, 3)
    assert np.abs(blue[2:-2, 2:-2] - (0, 0, 200)).max() <= 1
    assert np.abs(red[2:-2, 2:-2] - (200, 0, 0)).max() <= 1


def test_a_slanted_box_comes_out_level() -> None:
    image = Image.new("RGB", (200, 200), "white")
    turn = math.radians(20)
    right, down = (math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))

    def at(u: float, v: float) -> Corner:
        return (60 + u * right[0] + v * down[0], 50 + u * right[1] + v * down[1])

    ImageDraw.Draw(image).polygon([at(0, 0), at(100, 0), at(100, 10), at(0, 10)], fill="black")
    (level,) = crop_boxes(png(image), found((at(0, 0), at(100, 0), at(100, 20), at(0, 20))))
    made = pixels(level).mean(axis=2)
    assert made.shape == (20, 100)
    assert made[2:8, 3:-3].max() < 40, "the upper half is the bar"
    assert made[13:18, 3:-3].min() > 215, "the lower half is paper"


def test_a_line_that_runs_upwards_is_turned() -> None:
    image = Image.new("RGB", (200, 200), "white")
    ImageDraw.Draw(image).rectangle((50, 20, 69, 60), fill="black")  # the upper part of the box
    (line,) = crop_boxes(png(image), found(((50, 20), (70, 20), (70, 120), (50, 120))))
    made = pixels(line).mean(axis=2)
    assert made.shape == (20, 100)
    assert made[10, 10] < 50 < 200 < made[10, 90], "what was at the top is now at the left"


def test_a_box_without_extent_is_one_pixel_and_not_a_crash() -> None:
    (dot,) = crop_boxes(png(Image.new("RGB", (200, 200))), found(((5, 5), (5, 5), (5, 5), (5, 5))))
    assert pixels(dot).shape == (1, 1, 3)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".BMP", ".webp"])
def test_a_drawing_has_the_size_of_its_image_and_marks_the_border(suffix: str) -> None:
    blank = png(Image.new("RGB", (200, 200), "white"))
    drawn = pixels(draw_boxes(blank, found(((100, 100), (180, 100), (180, 120), (100, 120))), suffix))
    assert drawn.shape == (200, 200, 3)
    assert drawn[100, 140, 1] < 150
    assert drawn[110, 140].min() > 240, "nothing covers what is inside"
    assert pixels(draw_boxes(blank, found(), ".png")).min() == 255
