"""Input files made up on the spot, with what is in them: calibration and evaluation data that needs no download.

Every generator is a function of (count, seed) and yields the same bytes each time on the same Pillow release.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekit.pipeline.image import load_pillow
from edgekit.pipeline.made_files import made_file
from edgekit.pipeline.made_speech import made_speech

if TYPE_CHECKING:
    from PIL import Image

Span = tuple[float, float]
Rectangle = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file's bytes and the truth about it, as the metric of the task compares it."""

    raw: bytes
    label: str | tuple[Rectangle, ...] | tuple[Span, ...]


Generator = Callable[[int, int], Iterator[MadeFile]]

_VOCABULARY = (
    "the of and to in is for on with from order invoice total date amount paid unit price item code name city street "
    "number phone report device sensor value limit alarm start stop open close pump valve motor speed level tank water "
    "north south east west room floor door window light power energy meter reading month week today quality check "
    "Berlin Paris London Madrid Tokyo Boston Oslo Vienna January March April June August October Monday Friday Ltd GmbH"
)
WORDS = _VOCABULARY.split()


def pages(count: int, seed: int) -> Iterator[MadeFile]:
    """PNG pages with three to seven lines of text; the label is one rectangle of ink a line."""
    for i in range(count):
        rng = random.Random(f"pages {seed} {i}")
        width, height = rng.randrange(320, 481, 20), rng.randrange(300, 481, 20)
        image, ink = _paper(rng, width, height)
        lines: list[Rectangle] = []
        top = rng.randint(8, 24)
        while True:
            size = rng.randint(17, 30)
            if top + size * 1.5 > height - 8:
                break
            words = _sentence(rng, max_chars=int((width - 50) / (size * 0.62)))
            lines.append(_write(image, (rng.randint(10, 40), top), words, size, ink))
            top += int(size * rng.uniform(1.7, 2.8))
        yield MadeFile(_png(_spoil(rng, image)), tuple(lines))


def text_lines(count: int, seed: int) -> Iterator[MadeFile]:
    """PNG images of one line of text; the label is the text."""
    for i in range(count):
        rng = random.Random(f"lines {seed} {i}")
        image, words = _line(rng)
        yield MadeFile(_png(image), words)


def turned_lines(count: int, seed: int) -> Iterator[MadeFile]:
    """Lines of text, every second one upside down; the label is "0" or "180"."""
    for i in range(count):
        image, _ = _line(random.Random(f"turned {seed} {i}"))
        yield MadeFile(_png(image.rotate(180 * (i % 2))), str(180 * (i % 2)))


def files(count: int, seed: int) -> Iterator[MadeFile]:
    """Files of two dozen kinds, in turn; the label is the kind, in Magika's words."""
    for i in range(count):
        yield MadeFile(*made_file(i, random.Random(f"files {seed} {i}")))


def speech(count: int, seed: int) -> Iterator[MadeFile]:
    """WAV files of synthetic speech between pauses, with noise; the label is its spans in seconds."""
    for i in range(count):
        yield MadeFile(*made_speech(seed * 1000 + i))


GENERATORS: Mapping[str, Generator] = {
    "pages": pages,
    "text_lines": text_lines,
    "turned_lines": turned_lines,
    "files": files,
    "speech": speech,
}


def _sentence(rng: random.Random, *, max_chars: int) -> str:
    """Words, numbers and punctuation, as they stand on forms and signs."""
    parts: list[str] = []
    while True:
        kind = rng.random()
        if kind < 0.7:
            word = rng.choice(WORDS)
            word = word.upper() if kind < 0.08 else word.capitalize() if kind < 0.2 else word
        elif kind < 0.85:
            word = str(rng.randrange(10 ** rng.randint(1, 5)))
        elif kind < 0.93:
            word = f"{rng.randrange(10_000) / 100:.2f}"
        else:
            word = f"{rng.randint(1, 28):02}/{rng.randint(1, 12):02}/20{rng.randint(10, 30)}"
        word += rng.choice(("", "", "", "", ",", ".", ":"))
        if sum(map(len, parts)) + len(parts) + len(word) > max_chars:
            return " ".join(parts) or word[:max_chars]
        parts.append(word)


def _line(rng: random.Random) -> tuple[Image.Image, str]:
    size = rng.randint(22, 40)
    words = _sentence(rng, max_chars=rng.randint(6, 20))
    left, top, right, bottom = _font(size).getbbox(words)
    margin = rng.randint(3, 8)
    image, ink = _paper(rng, int(right - left) + 2 * margin, int(bottom - top) + 2 * margin)
    _write(image, (margin - int(left), margin - int(top)), words, size, ink)
    return _spoil(rng, image), words


def _paper(rng: random.Random, width: int, height: int) -> tuple[Image.Image, tuple[int, int, int]]:
    """A tinted sheet, and an ink that stands out from it; every fifth one is light on dark."""
    light = tuple(rng.randint(200, 255) for _ in range(3))
    dark = tuple(rng.randint(0, 70) for _ in range(3))
    paper, ink = (dark, light) if rng.random() < 0.2 else (light, dark)
    load_pillow()
    from PIL import Image

    return Image.new("RGB", (width, height), paper), (ink[0], ink[1], ink[2])


def _write(image: Image.Image, at: tuple[int, int], words: str, size: int, ink: tuple[int, int, int]) -> Rectangle:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(image)
    draw.text(at, words, fill=ink, font=_font(size))
    left, top, right, bottom = draw.textbbox(at, words, font=_font(size))
    margin = size / 10  # annotators of text data sets leave some, and a box to read from needs it
    return (left - margin, top - margin, right + margin, bottom + margin)


def _spoil(rng: random.Random, image: Image.Image) -> Image.Image:
    """A camera's share: a little blur and noise, uneven light."""
    import numpy as np
    from PIL import Image, ImageFilter

    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9)))
    noise = np.random.default_rng(rng.randrange(2**32))
    pixels = np.asarray(image, np.float32)
    light = np.linspace(1 - rng.uniform(0, 0.15), 1, pixels.shape[1], dtype=np.float32)[None, :, None]
    pixels = pixels * light + noise.normal(0, rng.uniform(0, 8), pixels.shape).astype(np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _font(size: int) -> Any:
    """Pillow's own font, so that every machine draws the same."""
    from PIL import ImageFont

    return ImageFont.load_default(size)
