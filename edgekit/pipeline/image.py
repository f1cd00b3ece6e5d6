"""Image steps: files -> pixels -> the tensor a vision model takes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit.errors import InputError, RuntimeUnavailable
from edgekit.steps import DecodeImage, Layout, Normalize, Resize

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the source image lies in the resized one: x' = x * scale_x + left, y' = y * scale_y + top."""

    width: int
    height: int
    "Of the source image, in pixels."
    scale_x: float = 1.0
    scale_y: float = 1.0
    left: int = 0
    top: int = 0


def load_pillow() -> None:
    """Import Pillow now, so that its absence is said early and its import is not timed as preprocessing.

    Raises RuntimeUnavailable.
    """
    try:
        import PIL.Image
        import PIL.ImageOps  # noqa: F401
    except ImportError as e:
        raise RuntimeUnavailable("Pillow", f"needed for images: {e}", 'pip install "pillow>=10.1"') from e


def decode_image(raw: bytes, step: DecodeImage) -> Array:
    """An image file -> (height, width, 3 or 1) uint8. Transparent parts become white.

    Raises InputError (not an image, damaged), RuntimeUnavailable (Pillow is not installed).
    """
    load_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw)) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
                layer = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
            pixels = np.asarray(upright.convert("L" if step.color == "gray" else "RGB"))
    except UnidentifiedImageError as e:
        raise InputError("image", "not one that Pillow can read (JPEG, PNG, BMP, WebP, TIFF, GIF)") from e
    except Image.DecompressionBombError as e:
        raise InputError("image", f"too large: {e}") from e
    except (OSError, ValueError, SyntaxError) as e:  # Pillow reports damaged files with each of these
        raise InputError("image", f"damaged: {e}") from e
    if step.color == "gray":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if step.color == "bgr" else pixels


def bucket_axes(
    step: Resize, axes: Mapping[str, Sequence[int]], bound: Mapping[str, int], *, width: int, height: int
) -> dict[str, int]:
    """`bound`, and for each free axis of the step the smallest allowed size that holds the image unshrunk.

    For `fit = "left"` the height is fixed, so it is the scaled width that must fit.
    """
    chosen = dict(bound)
    if step.fit == "left" and isinstance(step.height, int):
        width = round(width * step.height / height)
    for axis, need in ((step.width, width), (step.height, height)):
        if not isinstance(axis, str) or axis in bound:
            continue
        allowed = sorted(axes[axis])
        best = next((size for size in allowed if size >= need), allowed[-1])
        chosen[axis] = max(best, chosen.get(axis, 0))
    return chosen


def resize(image: Array, step: Resize, *, width: int, height: int) -> tuple[Array, Placement]:
    """(h, w, c) uint8 -> (height, width, c): uint8 when the padding is a whole number, else float32."""
    source_height, source_width = image.shape[:2]
    if step.fit == "stretch":
        scaled = _scale(image, width, height)
        scale_x, scale_y = width / source_width, height / source_height
        return scaled, Placement(width=source_width, height=source_height, scale_x=scale_x, scale_y=scale_y)
    ratio = min(width / source_width, height / source_height)
    if not step.enlarge:
        ratio = min(ratio, 1.0)
    inner_width = min(width, max(1, round(source_width * ratio)))
    inner_height = min(height, max(1, round(source_height * ratio)))
    left = 0 if step.fit == "left" else (width - inner_width) // 2
    top = (height - inner_height) // 2
    dtype = np.uint8 if float(step.pad).is_integer() else np.float32
    canvas = np.full((height, width, image.shape[2]), step.pad, dtype=dtype)
    canvas[top : top + inner_height, left : left + inner_width] = _scale(image, inner_width, inner_height)
    return canvas, Placement(
        width=source_width,
        height=source_height,
        scale_x=inner_width / source_width,
        scale_y=inner_height / source_height,
        left=left,
        top=top,
    )


def _scale(image: Array, width: int, height: int) -> Array:
    """Bilinear, with the support widened when shrinking, so that thin strokes do not vanish."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    channels = image.shape[2]
    picture = Image.fromarray(image if channels == 3 else image[:, :, 0])
    scaled = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return scaled if channels == 3 else scaled[:, :, None]


def normalize(pixels: Array, step: Normalize) -> Array:
    """(x * scale - mean) / std, float32, per channel of the last axis."""
    mean = np.asarray(step.mean, np.float32)
    std = np.asarray(step.std, np.float32)
    factor, offset = np.float32(step.scale) / std, -mean / std
    scaled: Array = pixels.astype(np.float32) * factor + offset
    return scaled


def layout(pixels: Array, step: Layout) -> Array:
    """(h, w, c) -> (1, c, h, w) or (1, h, w, c), contiguous."""
    ordered = pixels.transpose(2, 0, 1) if step.order == "nchw" else pixels
    batch: Array = np.ascontiguousarray(ordered[None])
    return batch
