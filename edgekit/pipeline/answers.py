"""What a model answers, task by task: frozen values that print as JSON."""

from __future__ import annotations

import msgspec


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A quadrilateral in the source image's pixels, clockwise from the top left."""

    polygon: tuple[tuple[float, float], ...]
    score: float


class Boxes(_Answer, frozen=True, tag="boxes"):
    """Where something was found, in reading order: top to bottom, left to right."""

    width: int
    height: int
    "Of the source image."
    boxes: tuple[Box, ...]


class Text(_Answer, frozen=True, tag="text"):
    """What was read; `score` is the mean probability of its characters (0 when there are none)."""

    text: str
    score: float


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """One class and its probability."""

    name: str
    score: float


class Labels(_Answer, frozen=True, tag="labels"):
    """The likeliest classes, best first."""

    labels: tuple[Label, ...]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of sound."""

    start_s: float
    end_s: float


class Segments(_Answer, frozen=True, tag="segments"):
    """Where there is speech in a sound."""

    duration_s: float
    segments: tuple[Segment, ...]


class TensorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An output tensor at a glance."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    "None: the tensor is empty or not numeric."
    argmax: int | None
    "Index of the largest value in the flattened tensor."


class Tensors(_Answer, frozen=True, tag="tensors"):
    """The outputs of a model that declares no postprocessing."""

    outputs: tuple[TensorSummary, ...]


Answer = Boxes | Text | Labels | Segments | Tensors
