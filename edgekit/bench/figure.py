"""One figure of Flash against standard, and what the reference articles have for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PUBLISHED: Mapping[str, float] = {
    "time per task": 14.4 / 6.8 - 1,
    "cold start": 28.7 / 12.3 - 1,
    "stability": 15 / 5 - 1,
    "quality": 57 / 60 - 1,
    "size": -0.60,
    "short inputs": 0.81,
    "long inputs": 0.15,
    "low latency": 0.84,
    "branch mispredictions": 0.37,
    "memory traffic": 0.40,
    "kernel launches": 0.22,
    "allocations": 1.3,
}
"""Flash against standard as the reference articles have it: 14.4 against 6.8 min a task, 28.7 against 12.3 s cold
start, ±15 against ±5 % latency, 57 against 60 points, 60 % smaller; short text, long document, low latency; and what
they name as causes, allocations being 2.3 times as many."""
PUBLISHED_SHARE: Mapping[str, float] = {"sparse decoding": 0.12}
"""Of Flash's time."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a comparison."""

    name: str
    unit: str
    standard: float | None
    "None: not measured; `note` says why."
    flash: float | None
    delta_ratio: float | None
    "Flash against standard: 0.2 is a fifth more."
    published_ratio: float | None = None
    "The same in the reference articles. None: they have no such figure."
    is_penalty: bool | None = None
    "Flash is surely worse here. None: it cannot be told from what was measured."
    note: str | None = None


def unmeasured(name: str, unit: str, why: str) -> Figure:
    """The line of what could not be measured, with the reason."""
    return Figure(
        name=name,
        unit=unit,
        standard=None,
        flash=None,
        delta_ratio=None,
        published_ratio=PUBLISHED.get(name),
        note=why,
    )


def percent(ratio: float) -> str:
    """+20%, −5%, and +0% for what rounds to nothing."""
    return f"{0.0 if abs(ratio) < 0.005 else ratio:+.0%}".replace("-", "−")
