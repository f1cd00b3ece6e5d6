"""How a device stands with its release, in a word: the same on every screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from edgekit.ships import Ship
from edgekit.telemetry.desired import Step
from edgekit_tui.draw import Glyphs


class Standing(NamedTuple):
    """How far an update is."""

    order: int
    "Those that need somebody first, then step by step."
    word: str
    ink: str

    @property
    def is_trouble(self) -> bool:
        """It came to nothing."""
        return self.order < UNHEARD.order

    @property
    def rank(self) -> int:
        """In lists of devices: as `order`, but what is under way stays where it is from step to step."""
        return self.order if self.is_trouble or self.is_settled or self == UNHEARD else UNHEARD.order + 1

    @property
    def is_settled(self) -> bool:
        """There is nothing to tell of: it has what was wished, or nothing was."""
        return self.order >= STEPS[Step.COMMITTED].order


STEPS: Mapping[Step, Standing] = {
    Step.ROLLED_BACK: Standing(0, "rolled back", "bad"),
    Step.FAILED: Standing(0, "failed", "bad"),
    Step.REFUSED: Standing(1, "refused", "bad"),
    Step.CANCELLED: Standing(2, "cancelled", "warn"),
    Step.WAITING: Standing(4, "waiting", "warn"),
    Step.FETCHING: Standing(5, "fetching", "p50"),
    Step.INSTALLED: Standing(6, "installed", "p50"),
    Step.BOOTED: Standing(7, "booted", "p50"),
    Step.COMMITTED: Standing(8, "committed", "good"),
    Step.IDLE: Standing(9, "nothing asked", "faint"),
}
UNHEARD = Standing(3, "no answer yet", "warn")
BY_WORD: Mapping[str, Standing] = {one.word: one for one in (*STEPS.values(), UNHEARD)}


def standing(ship: Ship) -> Standing:
    """The report counts only when it answers the wish that stands."""
    if not ship.is_answered:
        return UNHEARD
    return STEPS[ship.reported.step if ship.reported is not None else Step.IDLE]


def reason(ship: Ship) -> str:
    """Why, in the device's words; none before it has answered."""
    return ship.reported.reason if ship.reported is not None and ship.is_answered else ""


def fetched(ship: Ship) -> float | None:
    """The share of the release that is here already; None while nothing is being fetched."""
    report = ship.reported
    return report.share if report is not None and ship.is_answered and report.step is Step.FETCHING else None


def words(word: str, fetched_ratio: float | None) -> str:
    """How far it is; while it fetches with the share."""
    return word if fetched_ratio is None else f"{word} {fetched_ratio * 100:.0f}%"


def mark(now: Standing, glyphs: Glyphs) -> str:
    """The symbol beside a release: what came to nothing and what is under way are told apart without colour."""
    return glyphs.cross if now.is_trouble else " " if now.is_settled else glyphs.other_state
