"""Where a picture lies after it was resized, which bucket it takes, and how answers find back to its own pixels."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.manifest import TensorSpec
from edgekit.pipeline.answers import Box
from edgekit.pipeline.boxes import _reading_order, _to_source, db_boxes, regions_of, smallest_rectangle
from edgekit.pipeline.content import Content, byte_features, content_type
from edgekit.pipeline.image import Placement, bucket_axes, layout, normalize, resize
from edgekit.pipeline.made_files import _MAKERS, made_file
from edgekit.pipeline.pipeline import _as_dtype, read_lines
from edgekit.steps import ByteFeatures, ContentType, DbBoxes, Layout, Normalize, Resize

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")

PIXELS = st.integers(1, 60)


@settings(max_examples=60)
@given(PIXELS, PIXELS, PIXELS, PIXELS, st.sampled_from(["stretch", "letterbox", "left"]), st.booleans())
def test_corners_of_the_picture_come_back_to_its_corners(
    width: int, height: int, wide: int, high: int, fit: str, enlarge: bool
) -> None:
    step = Resize(height=high, width=wide, fit=fit, enlarge=enlarge)  # type: ignore[arg-type]
    found, at = resize(np.zeros((height, width, 3), np.uint8), step, width=wide, height=high)
    assert found.shape == (high, wide, 3)
    right, bottom = at.left + width * at.scale_x, at.top + height * at.scale_y
    corners = np.array([[at.left, at.top], [right, at.top], [right, bottom], [at.left, bottom]], float)
    assert _to_source(corners, at) == ((0.0, 0.0), (width, 0.0), (width, height), (0.0, height))
    assert 0 <= at.left <= right <= wide + 1e-9
    assert 0 <= at.top <= bottom <= high + 1e-9


@settings(max_examples=60)
@given(PIXELS, PIXELS, PIXELS, PIXELS, st.sampled_from(["letterbox", "left"]))
def test_the_picture_is_where_its_placement_says_and_the_rest_is_padding(
    width: int, height: int, wide: int, high: int, fit: str
) -> None:
    step = Resize(height=high, width=wide, fit=fit, pad=7)  # type: ignore[arg-type]
    found, at = resize(np.full((height, width, 1), 200, np.uint8), step, width=wide, height=high)
    inner = (round(width * at.scale_x), round(height * at.scale_y))
    assert int((found == 200).sum()) == inner[0] * inner[1]
    assert int((found == 7).sum()) == wide * high - inner[0] * inner[1]
    assert (found[at.top : at.top + inner[1], at.left : at.left + inner[0]] == 200).all()
    assert fit != "left" or at.left == 0


SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True)


@given(SIZES, SIZES, st.integers(1, 120), st.integers(1, 120))
def test_a_bucket_is_the_least_size_that_holds_else_the_largest(
    widths: list[int], heights: list[int], width: int, height: int
) -> None:
    step = Resize(height="h", width="w", bucket=True)
    chosen = bucket_axes(step, {"w": widths, "h": heights}, {}, width=width, height=height)
    for name, sizes, need in (("w", widths, width), ("h", heights, height)):
        holding = [size for size in sizes if size >= need]
        assert chosen[name] == (min(holding) if holding else max(sizes))


@given(SIZES, st.integers(1, 120), st.integers(1, 120))
def test_one_axis_for_both_sides_holds_the_longer_one(sizes: list[int], width: int, height: int) -> None:
    chosen = bucket_axes(Resize(height="s", width="s"), {"s": sizes}, {}, width=width, height=height)
    holding = [size for size in sizes if size >= max(width, height)]
    assert chosen == {"s": min(holding) if holding else max(sizes)}


def test_a_size_that_the_caller_bound_is_left_alone() -> None:
    step = Resize(height="h", width="w")
    bound = bucket_axes(step, {"w": [10, 20], "h": [10, 20]}, {"w": 10}, width=15, height=15)
    assert bound == {"w": 10, "h": 20}


@given(
    st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3),
    st.lists(st.floats(0.25, 4, width=32), min_size=3, max_size=3),
    st.sampled_from([1.0, 1 / 255]),
)
def test_normalizing_is_per_channel(mean: list[float], std: list[float], scale: float) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    found = normalize(pixels, Normalize(scale=scale, mean=tuple(mean), std=tuple(std)))
    wanted = (pixels.astype(np.float64) * scale - np.array(mean)) / np.array(std)
    assert found.dtype == np.float32
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("order", "shape"), [("nchw", (1, 3, 4, 5)), ("nhwc", (1, 4, 5, 3))])
def test_a_batch_of_one_in_either_order_holds_the_same_pixels(order: str, shape: tuple[int, ...]) -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    found = layout(pixels, Layout(order=order))  # type: ignore[arg-type]
    assert found.shape == shape
    assert found.flags.c_contiguous
    back = found[0].transpose(1, 2, 0) if order == "nchw" else found[0]
    assert np.array_equal(back, pixels)


@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        ("uint8", [-1.0, 0.49, 0.5, 1.5, 254.6, 300.0], [0, 0, 0, 2, 255, 255]),
        ("int8", [-200.0, -0.6, 127.4, 128.0], [-128, -1, 127, 127]),
        ("float32", [0.5, 1.5], [0.5, 1.5]),
        ("int64", [2.5, 3.5], [2, 4]),
    ],
)
def test_a_whole_number_input_is_rounded_and_kept_in_range(dtype: str, values: list, wanted: list) -> None:
    found = _as_dtype(np.array(values, np.float32), TensorSpec(name="x", dtype=dtype, shape=(len(values),)))
    assert found.dtype.name == dtype
    assert found.tolist() == wanted


# Regions and boxes


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**30))
def test_regions_cover_the_mask_exactly_and_do_not_touch(height: int, width: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < 0.4
    regions = regions_of(mask)
    owner: dict[tuple[int, int], int] = {}
    for i, runs in enumerate(regions):
        for row, first, end in runs.tolist():
            for column in range(first, end):
                assert (row, column) not in owner
                owner[row, column] = i
    assert set(owner) == set(zip(*(axis.tolist() for axis in np.nonzero(mask)), strict=True))
    for (row, column), mine in owner.items():
        near = [(row + dy, column + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        assert {owner[place] for place in near if place in owner} == {mine}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=10))
def test_the_smallest_rectangle_holds_every_point_and_no_upright_one_is_smaller(points: list) -> None:
    from edgekit.pipeline.boxes import _outline

    runs = np.array([[y, x, x + 1] for x, y in points])
    corners = smallest_rectangle(_outline(runs))
    edges = np.roll(corners, -1, axis=0) - corners
    for x, y in points:
        cross = edges[:, 0] * (y - corners[:, 1]) - edges[:, 1] * (x - corners[:, 0])
        assert (cross >= -1e-6).all(), "inside, seen clockwise"
    xs, ys = zip(*points, strict=True)
    upright = (max(xs) - min(xs)) * (max(ys) - min(ys))
    area = np.hypot(*edges[0]) * np.hypot(*edges[1])
    assert area <= upright + 1e-6


def test_an_empty_map_has_no_boxes() -> None:
    assert db_boxes(np.zeros((20, 30), np.float32), DbBoxes(), Placement(width=30, height=20)) == ()


@given(st.permutations(range(6)))
def test_reading_order_does_not_depend_on_the_order_of_finding(order: list[int]) -> None:
    def at(x: float, y: float) -> Box:
        return Box(polygon=((x, y), (x + 8, y), (x + 8, y + 10), (x, y + 10)), score=1.0)

    page = [at(0, 0), at(20, 2), at(40, 1), at(0, 30), at(20, 29), at(40, 31)]
    assert _reading_order([page[i] for i in order]) == page


# Bytes of any file


STEP = ByteFeatures(begin=6, end=4, block=16, padding=256)


@given(st.binary(max_size=60))
def test_features_are_the_first_and_last_bytes_with_padding_between(raw: bytes) -> None:
    features, known = byte_features(raw, STEP)
    head, tail = raw[:16].lstrip()[:6], raw[-16:].rstrip()[-4:]
    row = features[0].tolist()
    assert row[: len(head)] == list(head)
    assert row[len(head) : 6] == [256] * (6 - len(head))
    assert row[6 : 10 - len(tail)] == [256] * (4 - len(tail))
    assert row[10 - len(tail) :] == list(tail)
    assert (known.size, known.stripped_size) == (len(raw), len(raw[:16].lstrip()))


TYPES = ContentType(labels="x", threshold=0.5, thresholds={"b": 0.9}, rename={"c": "see"}, min_bytes=8)


@pytest.mark.parametrize(
    ("scores", "content", "first"),
    [
        ([0.6, 0.2, 0.2], Content(100, 100, is_text=True), "a"),
        ([0.4, 0.3, 0.3], Content(100, 100, is_text=True), "txt"),
        ([0.4, 0.3, 0.3], Content(100, 100, is_text=False), "unknown"),
        ([0.1, 0.8, 0.1], Content(100, 100, is_text=True), "txt"),
        ([0.05, 0.92, 0.03], Content(100, 100, is_text=True), "b"),
        ([0.1, 0.1, 0.8], Content(100, 100, is_text=False), "see"),
        ([0.6, 0.2, 0.2], Content(7, 100, is_text=True), "txt"),
        ([0.6, 0.2, 0.2], Content(8, 100, is_text=True), "a"),
        ([0.6, 0.2, 0.2], Content(0, 0, is_text=True), "empty"),
        ([0.5, 0.3, 0.2], Content(100, 100, is_text=True), "a"),
    ],
)
def test_a_type_is_said_when_the_model_is_sure_enough_of_it(scores: list, content: Content, first: str) -> None:
    labels = content_type(np.array(scores, np.float32), TYPES, "abc", content)
    assert labels[0].name == first
    assert len({label.name for label in labels}) == len(labels)


MAGIC = {
    "png": b"\x89PNG", "jpeg": b"\xff\xd8", "gif": b"GIF8", "bmp": b"BM", "tiff": (b"II", b"MM"), "webp": b"RIFF",
    "wav": b"RIFF", "gzip": b"\x1f\x8b", "bzip": b"BZh", "xz": b"\xfd7zXZ", "zip": b"PK\x03\x04", "pdf": b"%PDF",
    "shell": b"#!/bin", "html": b"<!DOCTYPE", "xml": b"<?xml", "json": b"{", "yaml": b"---",
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(_MAKERS))
def test_every_made_file_is_of_its_kind_and_another_seed_makes_another(kind: str) -> None:
    at = tuple(_MAKERS).index(kind)
    raw, label = made_file(at, random.Random("1"))
    assert label == kind
    assert len(raw) > 100
    assert raw.startswith(MAGIC.get(kind, b""))
    assert raw == made_file(at, random.Random("1"))[0]
    assert raw != made_file(at, random.Random("2"))[0]
    if kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp"):
        assert Image.open(io.BytesIO(raw)).size[0] >= 30
    elif kind not in MAGIC:
        assert kind == "tar" or raw.decode("utf-8").isprintable() or "\n" in raw.decode("utf-8")


@pytest.mark.parametrize(
    ("text", "lines"),
    [("a\nb\n", ("a", "b")), ("a\nb", ("a", "b")), (" \na\n", (" ", "a")), ("a\n\n", ("a", "")), ("", ("",))],
)
def test_a_label_file_keeps_its_spaces_and_empty_lines(text: str, lines: tuple[str, ...], tmp_path) -> None:
    (tmp_path / "labels.txt").write_text(text)
    assert read_lines(tmp_path / "labels.txt") == lines
