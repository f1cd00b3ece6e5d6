"""Steps over the bytes of any file: features for a file-type model, and what its scores say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit.pipeline.answers import Label
from edgekit.steps import ByteFeatures, ContentType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """What must be known of a file beside its features."""

    stripped_size: int
    "Bytes without leading white space, capped at the block size."
    size: int
    is_text: bool
    "The looked-at beginning is valid UTF-8 without control bytes that text never has."


def byte_features(raw: bytes, step: ByteFeatures) -> tuple[Array, Content]:
    """Any bytes -> ((1, begin + end) int32, what is known of the content)."""
    head, tail = raw[: step.block].lstrip(), raw[-step.block :].rstrip()
    features = np.full((1, step.begin + step.end), step.padding, np.int32)
    begin, end = head[: step.begin], tail[-step.end :]
    features[0, : len(begin)] = np.frombuffer(begin, np.uint8)
    if end:
        features[0, -len(end) :] = np.frombuffer(end, np.uint8)
    return features, Content(stripped_size=len(head), size=len(raw), is_text=_is_text(raw[: step.block]))


def _is_text(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as e:
        # A block may end in the middle of a character.
        if e.reason != "unexpected end of data" or e.start < len(head) - 4:
            return False
    return b"\0" not in head


def content_type(scores: Array, step: ContentType, names: Sequence[str], content: Content) -> tuple[Label, ...]:
    """(classes,) probabilities -> the type first, then the model's own best guesses."""
    if content.size == 0:
        return (Label(name="empty", score=1.0),)
    general = "txt" if content.is_text else "unknown"
    if content.stripped_size < step.min_bytes:
        return (Label(name=general, score=1.0),)
    best = np.argsort(scores)[::-1][:4]
    guesses = [Label(name=names[i], score=float(scores[i])) for i in best]
    sure = guesses[0].score >= step.thresholds.get(guesses[0].name, step.threshold)
    name = step.rename.get(guesses[0].name, guesses[0].name) if sure else general
    return (Label(name=name, score=guesses[0].score), *(g for g in guesses if g.name != name))
