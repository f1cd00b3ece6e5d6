"""Where one can be in the console, how the places are called, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OVERVIEW, DEVICES, DEVICE, MODELS, MODEL, EVENTS, RELEASES, ALERTS = (
    "overview", "devices", "device", "models", "model", "events", "releases", "alerts",
)  # fmt: skip
TOP: Mapping[str, str] = {"1": OVERVIEW, "2": DEVICES, "3": MODELS, "4": EVENTS, "6": RELEASES, "0": ALERTS}
"The places one key leads to; 5 and 9 sort the devices."
ALIASES: Mapping[str, str] = {
    "o": OVERVIEW, "home": OVERVIEW, "pulse": OVERVIEW, "d": DEVICES, "dev": DEVICES, "fleet": DEVICES, "f": DEVICES,
    "m": MODELS, "e": EVENTS, "ev": EVENTS, "event": EVENTS, "r": RELEASES, "rel": RELEASES, "release": RELEASES,
    "a": ALERTS, "alert": ALERTS,
}  # fmt: skip
KEPT = 50


@dataclass(frozen=True, slots=True)
class Place:
    """A screen and what it shows: a device by (site, device, model), a model by its name."""

    kind: str
    subject: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """As it stands in the breadcrumbs."""
        if not self.subject:
            return self.kind
        return self.subject[1] if self.kind == DEVICE else self.subject[0]


Route = tuple[Place, ...]
"From the overview, which is not part of it, down to where one is."


@dataclass(slots=True)
class Trail:
    """Where one has been, for back and forward."""

    paths: list[Route] = field(default_factory=lambda: [()])
    at: int = 0

    @property
    def here(self) -> Route:
        return self.paths[self.at]

    def go(self, path: Route) -> None:
        """Somewhere new; what was ahead is forgotten."""
        if path != self.here:
            self.paths = [*self.paths[: self.at + 1], path][-KEPT:]
            self.at = len(self.paths) - 1

    def replace(self, path: Route) -> None:
        """Here is now called otherwise: stepping to a neighbour leaves no trail."""
        self.paths[self.at] = path

    def step(self, by: int) -> Route | None:
        """The path `by` steps back or forward; None where the trail ends."""
        if not 0 <= self.at + by < len(self.paths):
            return None
        self.at += by
        return self.here
