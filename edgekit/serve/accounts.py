"""What a lane tells of its work: counts since start for a scraper, windows for the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.serve.metrics import LaneCounts

if TYPE_CHECKING:
    from edgekit.telemetry.reporter import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Of one lane. Thread-safe. `recorder` None: there is no telemetry."""

    model: str
    lane: str
    artifact: str
    counts: LaneCounts
    recorder: Recorder | None

    def observe(self, *, queue_ms: float, infer_ms: float, items: int) -> None:
        """One answered request, in an inference of `items`."""
        self.counts.observe(queue_ms=queue_ms, infer_ms=infer_ms)
        if self.recorder is not None:
            self.recorder.observe(
                model=self.model,
                lane=self.lane,
                artifact=self.artifact,
                infer_ms=infer_ms,
                queue_ms=queue_ms,
                batch_size=items,
            )

    def refuse(self, *, errors: int = 0, rejected: int = 0) -> None:
        """Requests that got no answer but an error."""
        self.counts.refuse(errors=errors, rejected=rejected)
        self._tell(errors=errors, rejected=rejected)

    def hit(self) -> None:
        """A request answered from the cache."""
        self.counts.hit()
        self._tell(cache_hits=1)

    def _tell(self, **counts: int) -> None:
        if self.recorder is not None:
            self.recorder.count(model=self.model, lane=self.lane, artifact=self.artifact, **counts)
