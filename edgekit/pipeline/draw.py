"""An answer drawn over its input."""

from __future__ import annotations

import io

from edgekit.pipeline.answers import Boxes
from edgekit.pipeline.image import decode_image
from edgekit.steps import DecodeImage

_LINE = (220, 30, 60)
_NUMBER = (255, 255, 255)


def draw_boxes(raw: bytes, answer: Boxes, suffix: str) -> bytes:
    """The image file with every box outlined and numbered in reading order, in the format of `suffix` (".png")."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(decode_image(raw, DecodeImage()))
    draw = ImageDraw.Draw(image)
    width = max(1, round(min(image.size) / 300))
    font = ImageFont.load_default(max(10, round(min(image.size) / 45)))
    for i, box in enumerate(answer.boxes, 1):
        draw.polygon(box.polygon, outline=_LINE, width=width)
        left, top, right, bottom = draw.textbbox((0, 0), str(i), font=font)
        # Beside the box and not on it: a number over the text would hide what was found.
        x, y = box.polygon[0]
        x, y = max(0.0, x - right - 4), max(0.0, y)
        draw.rectangle((x, y, x + right + 3, y + bottom + 3), fill=_LINE)
        draw.text((x + 2 - left, y + 2 - top / 2), str(i), fill=_NUMBER, font=font)
    out = io.BytesIO()
    image.save(out, Image.registered_extensions()[suffix.lower()])
    return out.getvalue()
