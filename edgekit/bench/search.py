"""The best of many candidates in a fraction of a sweep's time: successive halving over rounds taken in turns."""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from edgekit.bench.candidates import Candidate
from edgekit.bench.conditions import conditions
from edgekit.bench.contender import (
    Contender,
    Plan,
    begin,
    finish,
    guarded,
    needs_more,
    row_of,
    take_slice,
)
from edgekit.bench.process import Process
from edgekit.bench.record import Measurement, Standing
from edgekit.bench.run import ROUNDS, Progress, most_at_once
from edgekit.bench.stats import MIN_SAMPLES
from edgekit.manifest import Model

Judge = Callable[[Sequence[Measurement]], Sequence[Standing]]
"""Who may still win, the leader first; who is not named cannot win at all (too inaccurate, too big)."""

_FIRST_WARM_UP_S = 0.25
_HOPELESS = 2.5
"""So many times slower than another's first queries: noise does not do that on a machine fit to measure on."""
_NEAR = 1.05
_RUNGS = (2, 2, 4)
"""Rounds before each of the first decisions; then four each."""
_SLICE_S = (0.02, 0.25)


def search(
    model: Model,
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    budget_s: float,
    judge: Judge,
    progress: Progress | None = None,
) -> list[Measurement]:
    """A row for every candidate, in the order given; those that were dropped on the way are marked `rough`.

    Every candidate is started and warmed up briefly, which no search can save. Then all take turns; after each rung
    the worse half goes, unless it is near or nothing is certain yet, until one leads for sure or the time is over.

    Args:
        budget_s: for all of it. Starting each candidate and eight rounds of the last ones are never cut short.
        judge: called after each rung with the rows of all candidates.
    """
    end = time.monotonic() + budget_s
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-search-")))
        race = _Race(model, plan, judge, stack, progress or (lambda _text, _share: None), end)
        most = most_at_once(candidates, plan)
        for i, candidate in enumerate(candidates):
            race.tell(f"starting {candidate.name}")
            race.start(candidate, folder / f"{i}.npz")
            race.make_room(most)
        race.run()
        return race.rows()


class _Race:
    """The candidates that are still alive, and those that are out."""

    def __init__(
        self, model: Model, plan: Plan, judge: Judge, stack: ExitStack, progress: Progress, end_s: float
    ) -> None:
        self._model, self._plan, self._judge, self._stack, self._progress = model, plan, judge, stack, progress
        self._end_s, self._began_s = end_s, time.monotonic()
        self._before, self._run_id = conditions(), uuid.uuid4().hex
        self._all: list[Contender] = []
        self._alive: list[Contender] = []
        self._order = random.Random(plan.seed)
        self._rounds = 0

    def tell(self, text: str) -> None:
        """Report what is going on, with the share of the time that is spent."""
        share = (time.monotonic() - self._began_s) / max(1e-9, self._end_s - self._began_s)
        self._progress(text, min(1.0, share))

    def start(self, candidate: Candidate, inputs: Path) -> None:
        """Start and warm up one more; whoever is far behind after that is out at once."""
        process = self._stack.enter_context(Process(memory_limit_bytes=self._plan.memory_limit_bytes))
        run = Contender(candidate=candidate, process=process)
        self._all.append(run)
        guarded(run, partial(begin, self._model, run, inputs, self._plan, warm_up_s=_FIRST_WARM_UP_S))
        if run.failure is not None:
            return
        self._alive.append(run)
        best = min(self._alive, key=_impression_ms)
        hopeless = [other for other in self._alive if _impression_ms(other) > _HOPELESS * _impression_ms(best)]
        if hopeless:
            for other in hopeless if self._may_win(best) else [best]:
                self._impress(other)
                self._drop(other)

    def make_room(self, most: int) -> None:
        """End the slowest of the living when there are more than memory holds."""
        while len(self._alive) > most:
            slowest = max(self._alive, key=_impression_ms)
            self._impress(slowest)
            self._drop(slowest)

    def run(self) -> None:
        """Rungs until it is decided or the time is over; then the last ones are measured to the end."""
        rung = 0
        while self._alive:
            for _ in range(_RUNGS[rung] if rung < len(_RUNGS) else 4):
                self._round()
            rung += 1
            standings = self._judge(self.rows())
            self._halve(standings)
            enough = self._rounds >= MIN_SAMPLES
            if enough and (len(self._alive) <= 1 or time.monotonic() >= self._end_s or _is_decided(standings)):
                break
        leader = self._judge(self.rows())[:1]
        for run in self._alive:
            if leader and run.candidate.name == leader[0].candidate:
                self._measure_on(run)
            guarded(run, partial(finish, run, self._plan))
        self._progress("done", 1.0)

    def rows(self) -> list[Measurement]:
        """All candidates as they stand now."""
        for run in self._alive:
            run.peak_bytes = run.process.peak_bytes()
        return [
            row_of(self._model, run, self._before, self._run_id, in_turns=self._rounds, rough=run not in self._alive)
            for run in self._all
        ]

    def _may_win(self, run: Contender) -> bool:
        """Whether a candidate that looks fastest is allowed at all; else it must not put others out."""
        self._impress(run)
        allowed = any(standing.candidate == run.candidate.name for standing in self._judge(self.rows()))
        run.forget_rounds()
        return allowed

    def _impress(self, run: Contender) -> None:
        """Make its warm-up count as its samples, with a few more where there are too few."""
        run.add_round(run.warm_ms[1:])
        missing = MIN_SAMPLES - len(run.samples_ms)
        if missing > 0:
            guarded(run, partial(take_slice, run, 60.0, missing, self._plan))

    def _round(self) -> None:
        left_s = max(0.0, self._end_s - time.monotonic())
        slice_s = left_s / (2 * MIN_SAMPLES * len(self._alive))
        slice_s = min(max(slice_s, _SLICE_S[0]), _SLICE_S[1], max(self._plan.seconds / ROUNDS[0], _SLICE_S[0]))
        for run in self._order.sample(self._alive, len(self._alive)):
            self.tell(f"{len(self._alive)} of {len(self._all)} left: {run.candidate.name}")
            guarded(run, partial(take_slice, run, slice_s, self._plan.max_samples, self._plan))
        self._rounds += 1
        self._alive = [run for run in self._alive if run.failure is None]

    def _halve(self, standings: Sequence[Standing]) -> None:
        """Drop who cannot win, who is surely behind, and the worse half; with few rounds only who is well behind."""
        places = {standing.candidate: (i, standing) for i, standing in enumerate(standings)}
        alive = [standing for standing in standings if any(r.candidate.name == standing.candidate for r in self._alive)]
        half = -(-len(alive) // 2)
        if not alive:
            return  # nobody may win: every one is measured as it is, the selection gives the reasons
        better = {standing.candidate for standing in alive[:half]}
        near = _NEAR if self._rounds >= MIN_SAMPLES else _NEAR**2
        for run in list(self._alive):
            place = places.get(run.candidate.name)
            is_far = place is None or (place[1].behind > near and run.candidate.name not in better)
            surely = place is not None and place[1].surely and self._rounds >= MIN_SAMPLES
            if is_far or surely:
                self._drop(run)

    def _measure_on(self, run: Contender) -> None:
        while needs_more(run, self._plan):
            self.tell(f"measuring {run.candidate.name}: {len(run.samples_ms)} of {self._plan.min_samples} samples")
            missing = max(self._plan.min_samples, MIN_SAMPLES) - len(run.samples_ms)
            guarded(run, partial(take_slice, run, 5.0, missing, self._plan))

    def _drop(self, run: Contender) -> None:
        self._alive.remove(run)
        run.peak_bytes = run.process.peak_bytes()
        run.process.close()


def _impression_ms(run: Contender) -> float:
    return median(run.warm_ms[1:] or run.warm_ms)


def _is_decided(standings: Sequence[Standing]) -> bool:
    """Nobody but the leader is left without a proof against it, or without one that it is as good."""
    return all(standing.surely or standing.surely_near for standing in standings[1:])
