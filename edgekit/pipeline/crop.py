"""Boxes cut out of their image, turned upright: what a recogniser reads after a detector."""

from __future__ import annotations

import io
import math

from edgekit.pipeline.answers import Boxes
from edgekit.pipeline.image import decode_image
from edgekit.steps import DecodeImage

_UPRIGHT_RATIO = 1.5
"""A box that is taller than this times its width holds a line that runs upwards. Source: PaddleOCR."""


def crop_boxes(raw: bytes, answer: Boxes) -> list[bytes]:
    """An image file and what was found in it -> one BMP file a box, in the same order."""
    from PIL import Image

    image = Image.fromarray(decode_image(raw, DecodeImage()))
    cut = []
    for box in answer.boxes:
        top_left, top_right, bottom_right, bottom_left = box.polygon
        width = max(1, round(math.dist(top_left, top_right)))
        height = max(1, round(math.dist(top_left, bottom_left)))
        corners = (*top_left, *bottom_left, *bottom_right, *top_right)
        line = image.transform((width, height), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)
        if height > _UPRIGHT_RATIO * width:
            line = line.transpose(Image.Transpose.ROTATE_90)
        out = io.BytesIO()
        line.save(out, "BMP")
        cut.append(out.getvalue())
    return cut
