"""Image steps: what is decoded, where a pixel of the source lies afterwards, and what a tensor holds."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import InputError
from edgekit.pipeline.image import bucket_axes, decode_image, layout, normalize, resize
from edgekit.steps import DecodeImage, Layout, Normalize, Resize

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def two_by_three() -> np.ndarray:
    """Two rows of three pixels: red, green, blue; then black, grey, white."""
    return np.array([[RED, GREEN, BLUE], [(0, 0, 0), (128, 128, 128), (255, 255, 255)]], np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_files_decode_to_their_pixels(two_by_three: np.ndarray, kind: str) -> None:
    assert np.array_equal(decode_image(encoded(two_by_three, kind), DecodeImage()), two_by_three)


def test_bgr_swaps_red_and_blue_and_gray_keeps_one_channel(two_by_three: np.ndarray) -> None:
    raw = encoded(two_by_three)
    assert tuple(decode_image(raw, DecodeImage(color="bgr"))[0, 0]) == BLUE
    gray = decode_image(raw, DecodeImage(color="gray"))
    assert gray.shape == (2, 3, 1)
    assert gray[1, :, 0].tolist() == [0, 128, 255]
    assert gray[0, :, 0].tolist() == [76, 150, 29]  # ITU-R 601 luma


def test_jpeg_is_close_to_its_pixels() -> None:
    flat = np.full((32, 32, 3), (200, 100, 50), np.uint8)
    assert np.abs(decode_image(encoded(flat, "JPEG", quality=95), DecodeImage()).astype(int) - flat).max() <= 3


def test_a_photograph_held_sideways_is_turned_upright(two_by_three: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter to the right
    out = io.BytesIO()
    Image.fromarray(two_by_three).save(out, "PNG", exif=exif)
    upright = decode_image(out.getvalue(), DecodeImage())
    assert upright.shape == (3, 2, 3)
    assert tuple(upright[0, 1]) == RED


def test_transparent_parts_are_white() -> None:
    pixels = np.zeros((1, 2, 4), np.uint8)
    pixels[0, 1] = (*RED, 255)
    assert decode_image(encoded(pixels), DecodeImage())[0].tolist() == [[255, 255, 255], list(RED)]


@pytest.mark.parametrize("raw", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"%PDF-1.4"])
def test_what_is_no_image_is_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match="input image: "):
        decode_image(raw, DecodeImage())


@given(cut=st.integers(8, 400), seed=st.integers(0, 20))
def test_a_damaged_image_is_refused_or_decoded_but_never_a_crash(cut: int, seed: int) -> None:
    noise = np.random.default_rng(seed)
    raw = bytearray(encoded(noise.integers(0, 255, (10, 10, 3), dtype=np.uint8)))
    for at in noise.integers(8, len(raw), 3):
        raw[at] ^= 0xFF
    with suppress(InputError):
        assert decode_image(bytes(raw[:cut]), DecodeImage()).shape[2] == 3


def test_letterbox_keeps_the_aspect_and_says_where_the_image_lies() -> None:
    step = Resize(height=100, width=100, fit="letterbox", pad=7)
    canvas, at = resize(np.full((50, 200, 3), 99, np.uint8), step, width=100, height=100)
    assert canvas.shape == (100, 100, 3)
    assert canvas.dtype == np.uint8
    assert (at.left, at.top) == (0, 37)
    assert (at.scale_x, at.scale_y) == (0.5, 0.5)
    assert (canvas[37:62] == 99).all()
    assert (canvas[:37] == 7).all()
    assert (canvas[62:] == 7).all()


def test_left_fit_starts_at_the_edge_and_pads_with_fractions_in_float() -> None:
    step = Resize(height=48, width=320, fit="left", pad=127.5)
    canvas, at = resize(np.full((24, 50, 3), 10, np.uint8), step, width=320, height=48)
    assert canvas.dtype == np.float32
    assert (at.left, at.top) == (0, 0)
    assert (canvas[:, :100] == 10).all()
    assert (canvas[:, 100:] == 127.5).all()


def test_a_line_that_is_too_long_is_squeezed_and_not_cut() -> None:
    step = Resize(height=48, width=320, fit="left", pad=0)
    picture = np.zeros((48, 960, 3), np.uint8)
    picture[:, -30:] = 255
    canvas, at = resize(picture, step, width=320, height=48)
    assert at.scale_x == pytest.approx(1 / 3)
    assert canvas[24, 315].min() > 200


def test_without_enlarge_a_small_image_is_only_padded() -> None:
    step = Resize(height=100, width=100, fit="letterbox", enlarge=False)
    canvas, at = resize(np.full((10, 20, 3), 99, np.uint8), step, width=100, height=100)
    assert (at.scale_x, at.left, at.top) == (1.0, 40, 45)
    assert int((canvas == 99).sum()) == 10 * 20 * 3


def test_stretch_fills_the_target() -> None:
    canvas, at = resize(np.full((10, 20, 3), 99, np.uint8), Resize(height=40, width=30), width=30, height=40)
    assert canvas.shape == (40, 30, 3)
    assert (at.scale_x, at.scale_y) == (1.5, 4.0)


def test_thin_strokes_survive_shrinking() -> None:
    page = np.full((400, 400, 1), 255, np.uint8)
    page[:, 201] = 0  # one pixel, which point sampling at a quarter would step over
    small, _ = resize(page, Resize(height=100, width=100), width=100, height=100)
    assert small[50, 45:56].min() < 230


@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from(["letterbox", "left"]), st.booleans())
def test_the_placement_always_lies_inside_the_target(width: int, height: int, fit: str, enlarge: bool) -> None:
    step = Resize(height=64, width=96, fit=fit, enlarge=enlarge)
    canvas, at = resize(np.ones((height, width, 1), np.uint8), step, width=96, height=64)
    assert canvas.shape == (64, 96, 1)
    assert 0 <= at.left <= at.left + round(width * at.scale_x) <= 96
    assert 0 <= at.top <= at.top + round(height * at.scale_y) <= 64
    assert int(canvas.sum()) == round(width * at.scale_x) * round(height * at.scale_y)


@pytest.mark.parametrize(
    ("size", "side"), [((300, 200), 320), ((320, 320), 320), ((321, 10), 640), ((600, 640), 640), ((4000, 3000), 960)]
)
def test_a_bucket_is_the_smallest_that_holds_the_image(size: tuple[int, int], side: int) -> None:
    step = Resize(height="side", width="side", fit="letterbox", bucket=True)
    axes = bucket_axes(step, {"side": (640, 320, 960)}, {}, width=size[0], height=size[1])
    assert axes == {"side": side}


def test_a_bucket_for_a_line_counts_its_width_at_the_models_height() -> None:
    step = Resize(height=48, width="width", fit="left", bucket=True)
    allowed = {"width": (320, 640, 960)}
    assert bucket_axes(step, allowed, {}, width=300, height=96) == {"width": 320}
    assert bucket_axes(step, allowed, {}, width=300, height=24) == {"width": 640}
    assert bucket_axes(step, allowed, {"width": 320}, width=300, height=24) == {"width": 320}


def test_normalize_is_per_channel_and_float32() -> None:
    step = Normalize(scale=1 / 255, mean=(0.5, 0.0, 1.0), std=(0.5, 2.0, 1.0))
    out = normalize(np.array([[[255, 255, 0]]], np.uint8), step)
    assert out.dtype == np.float32
    assert out[0, 0] == pytest.approx([1.0, 0.5, -1.0], abs=1e-6)


def test_layout_puts_channels_where_the_model_wants_them(two_by_three: np.ndarray) -> None:
    first = layout(two_by_three, Layout(order="nchw"))
    assert first.shape == (1, 3, 2, 3)
    assert first.flags.c_contiguous
    assert first[0, 0, 0, 0] == 255
    assert layout(two_by_three, Layout(order="nhwc")).shape == (1, 2, 3, 3)
