"""Measurements on their way to a choice: whose accuracy was checked is known, the others are taken for faultless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from edgekit.bench.candidates import Candidate
from edgekit.bench.record import Measurement, Standing
from edgekit.bench.run import Progress
from edgekit.errors import NoUsableArtifact
from edgekit.limits import PERCENTILES, Limits
from edgekit.room import Room
from edgekit.selection import Selection, select, standings, why_not
from edgekit.verify import Verifier
from edgekit.whatif import what_if

Finish = Callable[[Candidate], Measurement]
"""Measure one candidate to the end."""

_CHECKED = ("accuracy_value", "accuracy_ratio", "fit", "why_unfit", "accuracy_note")


class Judged:
    """Checks the accuracy of a candidate only when it leads, since each check costs as much as measuring it."""

    def __init__(
        self,
        verifier: Verifier,
        candidates: Sequence[Candidate],
        limits: Limits,
        progress: Progress,
        room: Room | None = None,
    ) -> None:
        self._verifier, self._limits, self._progress, self._room = verifier, limits, progress, room
        self._candidates: Mapping[str, Candidate] = {candidate.name: candidate for candidate in candidates}
        self._checked: dict[str, Mapping[str, object]] = {}

    def standings(self, rows: Sequence[Measurement], final: bool) -> list[Standing]:
        """As `selection.standings`; when it is final, the leader has been checked."""
        while True:
            found = standings(self._seen(rows), self._limits)
            if not found or not final or found[0].candidate in self._checked:
                return found
            self._check(rows, found[0].candidate)

    def check_all(self, rows: Sequence[Measurement]) -> None:
        """Check every one that was measured."""
        for row in rows:
            if row.failure is None and row.candidate not in self._checked:
                self._check(rows, row.candidate)

    def select(self, rows: Iterable[Measurement], finish: Finish) -> Selection:
        """As `selection.select`; what is chosen is checked and was measured to the end. Raises NoUsableArtifact."""
        known = {row.candidate: row for row in rows}
        while True:
            try:
                selection = select(self._seen(known.values()), self._limits)
                name = f"{selection.artifact} · {selection.settings.label}"
            except NoUsableArtifact:
                if (hope := self._worth_measuring_on(known.values())) is None:
                    raise
                name = hope
            if name not in self._checked:
                self._check(known.values(), name)
            elif known[name].rough:
                self._progress(f"measuring {name} to the end", 1.0)
                known[name] = finish(self._candidates[name])
            else:
                changes = what_if(self._seen(known.values()), self._limits, name)
                return msgspec.structs.replace(selection, would_change=changes)

    def _worth_measuring_on(self, rows: Iterable[Measurement]) -> str | None:
        """The fastest that a search stopped early and that breaks no limit but for a percentile without samples."""
        open_ = msgspec.structs.replace(self._limits, latency_percentile="p50")
        left = [
            (row.latency.p50_ms, row.candidate)
            for row in self._seen(rows)
            if row.rough and row.latency and why_not(row, open_) is None
            if row.latency.sample_count < PERCENTILES[self._limits.latency_percentile]
        ]
        return min(left)[1] if left else None

    def _check(self, rows: Iterable[Measurement], name: str) -> None:
        self._progress(f"checking the accuracy of {name}", 1.0)
        row = next(row for row in rows if row.candidate == name)
        judged = self._verifier.judge(row, self._candidates[name])
        self._checked[name] = {field: getattr(judged, field) for field in _CHECKED}

    def _seen(self, rows: Iterable[Measurement]) -> list[Measurement]:
        """The rows with what is known of their accuracy; before it is checked, nothing speaks against one.

        One that does not fit into the machine's memory is a failure.
        """
        faultless = {"accuracy_ratio": 1.0, "fit": True, "why_unfit": None}
        seen = [msgspec.structs.replace(row, **self._checked.get(row.candidate, faultless)) for row in rows]
        return [self._room.applied(row) for row in seen] if self._room else seen
