"""One compared figure, its interval and its bound, and how it is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from edgekit.provision.evidence import Lane


class Answer(str, Enum):
    """Of one figure, one lane, or a whole wave."""

    WITHIN = "within"
    WORSE = "worse"
    OPEN = "open"
    "More samples may decide it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one lane with its interval (99 %) and its bound."""

    lane: Lane
    name: str
    answer: Answer
    value: float | None
    "None: not enough samples to say anything."
    low: float | None
    high: float | None
    bound: float
    samples: tuple[int, int]
    "Updated, others."
    stretches: int | None = None
    "Of time, in which both sides have samples; None: not counted."

    @property
    def brief(self) -> str:
        """For a line that is drawn again and again."""
        if self.value is None or self.low is None or self.high is None:
            return f"{self.name}: {self.samples[0]} samples against {self.samples[1]}" + self._seen
        if self.name in ("p50", "p99"):
            return f"{self.name} {self.value:.2f}x ({self.low:.2f} to {self.high:.2f}), at most {self.bound:.2f}x"
        return f"{self.name} {100 * self.value:+.2f} ({100 * self.high:+.2f} at most), bound {100 * self.bound:+.2f}"

    @property
    def _seen(self) -> str:
        return "" if self.stretches is None else f" in {self.stretches} windows"

    @property
    def text(self) -> str:
        """For people, with figures."""
        kind, model, lane = self.lane
        where = f"{model}" + (f" ({lane})" if lane != "realtime" else "") + (f" on {kind}" if kind else "")
        counts = f"{self.samples[0]} samples against {self.samples[1]}"
        if self.value is None or self.low is None or self.high is None:
            return f"{where}: {self.name} has only {counts}{self._seen}"
        if self.name in ("p50", "p99"):
            return (
                f"{where}: {self.name} is {self.value:.2f}x that of the others ({self.low:.2f} to {self.high:.2f}, "
                f"{counts}), the bound is {self.bound:.2f}x"
            )
        return (
            f"{where}: {self.name} is {100 * self.value:+.2f} points against the others ({100 * self.low:+.2f} to "
            f"{100 * self.high:+.2f}, {counts}), the bound is {100 * self.bound:+.2f}"
        )


def overall(found: Sequence[Figure]) -> Answer:
    """Worse as soon as one is; within only when all are."""
    answers = {figure.answer for figure in found}
    if Answer.WORSE in answers:
        return Answer.WORSE
    return Answer.WITHIN if answers == {Answer.WITHIN} else Answer.OPEN


def decisive(found: Sequence[Figure]) -> Figure | None:
    """The figure to tell of: the one that is worse, else one that is open, else the one closest to its bound."""
    for answer in (Answer.WORSE, Answer.OPEN):
        if those := [figure for figure in found if figure.answer is answer]:
            return max(those, key=lambda figure: (figure.value or 0.0) / figure.bound)
    return max(found, key=lambda figure: (figure.high or 0.0) / figure.bound, default=None)
