"""The best of many candidates in a fraction of a sweep's time: successive halving over rounds taken in turns."""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

import msgspec

from edgekit.bench.candidates import Candidate
from edgekit.bench.conditions import conditions
from edgekit.bench.contender import Contender, Plan, begin, finish, guarded, needs_more, row_of, take_slice
from edgekit.bench.process import Process
from edgekit.bench.record import Measurement, Standing
from edgekit.bench.run import ROUNDS, Progress, cold_starts, most_at_once
from edgekit.bench.spared import Known, why_spared
from edgekit.bench.stats import MIN_SAMPLES, SAMPLES_FOR_P90, percentile
from edgekit.manifest import Model

Judge = Callable[[Sequence[Measurement], bool], Sequence[Standing]]
"""Who may still win, the leader first; who is not named cannot (too inaccurate, too big). True: check the leader."""

_FIRST_WARM_UP_S = 0.25
_IMPRESSION_S = 0.08
_HOPELESS = 2.5
"""So many times slower than another's first queries: noise does not do that on a machine fit to measure on."""
_RUNGS = ((2, 1.15), (2, 1.08), (4, 1.05))
"""Rounds before each decision, and how far behind is far then; the last goes on. What is put out is out, so before
there are enough rounds it must have been far behind in each of them."""
_SLICE_S = (0.02, 0.25)
_ROUNDS_LEFT = 32
"""Rounds for which the time that is left is shared out: many short ones compare best."""
_KEPT_FOR_RACE = 0.25
_REMATCH = 0.5
"""Of the budget more for the last two or three, while it is not decided whether the leader's lead counts."""
_LAST = 3


def search(
    model: Model,
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    budget_s: float,
    judge: Judge,
    progress: Progress | None = None,
) -> list[Measurement]:
    """A row for every candidate, in the order given; those that were stopped on the way are marked `rough`.

    Every candidate is started and gives a first impression, which no search can save, unless it is clear without.
    Those that are not hopeless take turns; after each rung the worse half goes, unless it is near or nothing is
    certain yet, until one leads for sure or the time is over. The last two or three have some more for a rematch. If
    nobody of these may win, the others have their turn.

    Args:
        budget_s: for all but the rematch. Starting the candidates is never cut short, and a quarter is kept for the
            race.
        judge: called after each rung with the rows of all candidates, and at the end of a race to check its leader.
    """
    end = time.monotonic() + budget_s
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-search-")))
        race = _Race(model, plan, judge, stack, progress or (lambda _text, _share: None), end)
        race.start(candidates, folder)
        race.run()
        return race.rows()


class _Race:
    """The candidates that take turns, those that wait, and those that are out."""

    def __init__(
        self, model: Model, plan: Plan, judge: Judge, stack: ExitStack, progress: Progress, end_s: float
    ) -> None:
        self._model, self._plan, self._judge, self._stack, self._progress = model, plan, judge, stack, progress
        self._end_s, self._began_s = end_s, time.monotonic()
        self._before, self._run_id = conditions(), uuid.uuid4().hex
        self._unpaused = replace(plan, idle_s=0.0)
        self._all: list[Contender] = []
        self._waiting: list[Contender] = []
        self._racing: list[Contender] = []
        self._order = random.Random(plan.seed)
        self._race, self._rounds = 0, 0

    def tell(self, text: str) -> None:
        """Report what is going on, with the share of the time that is spent."""
        share = (time.monotonic() - self._began_s) / max(1e-9, self._end_s - self._began_s)
        self._progress(text, min(1.0, share))

    def start(self, candidates: Sequence[Candidate], folder: Path) -> None:
        """An impression of each, unless it is clear without."""
        self._folder, self._most = folder, most_at_once(candidates, self._plan)
        self._all = [Contender(candidate=candidate) for candidate in candidates]
        self._start(self._all)

    def _start(self, runs: Sequence[Contender]) -> None:
        """Small batches before large ones, and one thread before more: what they show may spare the others."""
        for wave in sorted({_wave(run) for run in runs}):
            self._start_wave([run for run in runs if _wave(run) == wave])

    def _start_wave(self, runs: Sequence[Contender]) -> None:
        """Load and warm up as many at the same time as there are cores, then take impressions one by one."""
        left = [run for run in runs if not self._is_spared(run)]
        with ThreadPoolExecutor(self._plan.starts_at_once) as pool:
            while left:
                room = self._most - len(self._waiting)
                group, left = left[: (count := max(1, min(room, 4 * self._plan.starts_at_once)))], left[count:]
                for run in group:
                    self.tell(f"starting {run.candidate.name}")
                    run.process = self._stack.enter_context(Process(memory_limit_bytes=self._plan.memory_limit_bytes))
                list(pool.map(self._load, group))
                for run in group:
                    guarded(run, partial(take_slice, run, _IMPRESSION_S, self._plan.max_samples, self._unpaused))
                    if run.failure is None:
                        run.impression_ms = min(run.own_ms[0]) / run.batch
                        run.peak_bytes = run.worker.peak_bytes()
                        self._waiting.append(run)
                while len(self._waiting) > self._most:
                    self._drop(max(self._waiting, key=lambda run: run.impression_ms))

    def _load(self, run: Contender) -> None:
        inputs = self._folder / f"{self._all.index(run)}.npz"
        guarded(run, partial(begin, self._model, run, inputs, self._plan, warm_up_s=_FIRST_WARM_UP_S))

    def run(self) -> None:
        """Races until one has a leader that is allowed to win; then the last ones are measured to the end."""
        standings: Sequence[Standing] = ()
        self._end_s = max(self._end_s, time.monotonic() + _KEPT_FOR_RACE * (self._end_s - self._began_s))
        while self._waiting and not self._racing:
            self._line_up()
            self._halve_until_decided()
            standings = self._judge(self.rows(), True)
            allowed = {standing.candidate for standing in standings}
            for run in list(self._racing) if standings else ():
                if run.candidate.name not in allowed:
                    self._drop(run)
            if not self._racing:
                self._start([run for run in self._all if run.process is None])  # for whom there is hope now
        for run in list(self._waiting):
            self._drop(run)
        for run in self._racing:
            self._measure_on(run, is_leader=bool(standings) and run.candidate.name == standings[0].candidate)
            guarded(run, partial(finish, run, self._plan))
        self._progress("done", 1.0)

    def rows(self) -> list[Measurement]:
        """All candidates as they stand now; who is out is placed by how far it was behind when it still took turns."""
        for run in (*self._waiting, *self._racing):
            run.peak_bytes = run.worker.peak_bytes()
        leader = min((run for run in self._racing if run.own_ms), key=lambda run: run.item_ms, default=None)
        return [self._row(run, leader) for run in self._all]

    def _row(self, run: Contender, leader: Contender | None) -> Measurement:
        is_in = run in self._racing
        row = row_of(
            self._model,
            run,
            self._before,
            f"{self._run_id}-{run.race}",
            in_turns=self._rounds if is_in else run.turns,
            rough=not is_in,
        )
        if is_in or leader is None or row.latency is None:
            return row
        behind = _behind(run, leader) * run.batch
        paired_ms, mean_ms = behind * leader.item_ms, behind * fmean(leader.own_samples_ms) / leader.batch
        placed = msgspec.structs.replace(row.latency, paired_ms=paired_ms)
        return msgspec.structs.replace(row, latency=placed, throughput_qps=1000 / mean_ms)

    def _is_spared(self, run: Contender) -> bool:
        best = self._best()
        known = [_known(other) for other in self._all if other.process is not None and other is not run]
        run.failure = why_spared(
            run.candidate,
            known,
            _known(best) if best else None,
            bound_ms=self._plan.bound_ms,
            memory_bytes=self._plan.memory_limit_bytes,
        )
        return run.failure is not None

    def _best(self) -> Contender | None:
        """The fastest of those that wait, and whose queries keep the latency bound if those of any do."""
        bound_ms = self._plan.bound_ms or float("inf")
        return min(self._waiting, key=lambda run: (run.query_ms > bound_ms, run.impression_ms), default=None)

    def _line_up(self) -> None:
        """Those on whom it is worth spending time; the others wait, in case none of these may win."""
        best = self._best()
        best_ms = best.impression_ms if best else 0.0
        self._racing = [run for run in self._waiting if run.impression_ms <= _HOPELESS * best_ms]
        self._waiting = [run for run in self._waiting if run not in self._racing]
        self._race, self._rounds = self._race + 1, 0
        for run in self._racing:
            run.forget_rounds()  # they were not taken in turns
            run.race = self._race

    def _halve_until_decided(self) -> None:
        rung, budget_s = 0, self._end_s - self._began_s
        while self._racing:
            rounds, far = _RUNGS[min(rung, len(_RUNGS) - 1)]
            for _ in range(rounds):
                self._round()
            rung += 1
            standings = self._judge(self.rows(), False)
            self._halve(standings, far)
            spare_s = _REMATCH * budget_s if len(self._racing) <= _LAST else 0.0
            is_over = time.monotonic() >= self._end_s + spare_s
            if self._rounds >= MIN_SAMPLES and (len(self._racing) <= 1 or is_over or _is_decided(standings)):
                return

    def _round(self) -> None:
        left_s = max(0.0, self._end_s - time.monotonic())  # none in a rematch: the shortest slices, and many
        slice_s = left_s / (_ROUNDS_LEFT * len(self._racing))
        slice_s = min(max(slice_s, _SLICE_S[0]), _SLICE_S[1], max(self._plan.seconds / ROUNDS[0], _SLICE_S[0]))
        for run in self._order.sample(self._racing, len(self._racing)):
            self.tell(f"{len(self._racing)} of {len(self._all)} left: {run.candidate.name}")
            guarded(run, partial(take_slice, run, slice_s, self._plan.max_samples, self._plan))
        self._rounds += 1
        self._racing = [run for run in self._racing if run.failure is None]

    def _halve(self, standings: Sequence[Standing], far: float) -> None:
        """Drop who cannot win, who is surely behind, and of the worse half who is far behind."""
        names = {run.candidate.name for run in self._racing}
        places = {standing.candidate: standing for standing in standings if standing.candidate in names}
        if not places:
            return  # nobody may win: every one is measured as it is, the selection gives the reasons
        better, is_enough = set(list(places)[: -(-len(places) // 2)]), self._rounds >= MIN_SAMPLES
        for run in list(self._racing):
            place = places.get(run.candidate.name)
            if place is None and len(run.samples_ms) < MIN_SAMPLES:
                continue  # its queries are long: nothing is known of it yet
            if place is None or (place.surely and is_enough):
                self._drop(run)
                continue
            behind = place.behind if is_enough else place.behind_at_best
            if behind > far and place.candidate not in better:
                self._drop(run)

    def _measure_on(self, run: Contender, *, is_leader: bool) -> None:
        """The last ones get the samples of a p90 unless that takes long, the leader those that its limit asks for.

        Their cold start is measured again: others were loading meanwhile.
        """
        missing = SAMPLES_FOR_P90 - len(run.samples_ms)
        if missing > 0:
            guarded(run, partial(take_slice, run, self._plan.seconds / 4, missing, self._plan))
        while is_leader and needs_more(run, self._plan):
            self.tell(f"measuring {run.candidate.name}: {len(run.samples_ms)} of {self._plan.min_samples} samples")
            missing = max(self._plan.min_samples, MIN_SAMPLES) - len(run.samples_ms)
            guarded(run, partial(take_slice, run, 5.0, missing, self._plan))
        if run.failure is None and self._plan.starts_at_once > 1:
            run.start = next(iter(cold_starts(self._model, run.candidate, 1, self._plan)), run.start)

    def _drop(self, run: Contender) -> None:
        """End it, with the samples that a median needs."""
        run.turns = self._rounds if run in self._racing else 0
        missing = MIN_SAMPLES - len(run.samples_ms)
        if missing > 0:
            guarded(run, partial(take_slice, run, 60.0, missing, self._unpaused))
        for group in (self._waiting, self._racing):
            if run in group:
                group.remove(run)
        run.peak_bytes = run.worker.peak_bytes()
        run.worker.close()


def _wave(run: Contender) -> tuple[int, bool]:
    return run.batch, run.candidate.settings.threads > 1


def _known(run: Contender) -> Known:
    return Known(candidate=run.candidate, query_ms=run.query_ms, peak_bytes=run.peak_bytes, failure=run.failure)


def _behind(run: Contender, leader: Contender) -> float:
    """How many times slower for an item: in the rounds in which both took turns, else by the first impressions."""
    if run.race != leader.race or not run.turns:
        return run.impression_ms / leader.impression_ms
    pairs = zip(run.own_ms[: run.turns], leader.own_ms, strict=False)
    items = leader.batch / run.batch
    return median(items * percentile(theirs, 0.5) / percentile(ours, 0.5) for theirs, ours in pairs)


def _is_decided(standings: Sequence[Standing]) -> bool:
    """Nobody but the leader is left without a proof against it, or without one that it is as good."""
    return all(standing.surely or standing.surely_near for standing in standings[1:])
