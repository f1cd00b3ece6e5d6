"""Which of two builds runs faster here, and which loads faster: interleaved, so that a busy machine hits both alike."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgekit.runtimes.session import SessionSettings, open_session

WARM_UP, MOST_RUNS, LOADS = 3, 60, 5
CLEAR_RATIO, CHANCE = 1.25, 1e-4
"""A race is over when rounds say, with this much chance of a mistake, who is ahead of whom by so much."""


def race(
    paths: Sequence[Path],
    feed: Mapping[str, np.ndarray],
    settings: Sequence[SessionSettings],
    *,
    budget_s: float = 1.0,
    bound: float | None = None,
) -> list[float]:
    """Median latency of each artifact in ms, one thread, over at most `budget_s` of running all of them in turn.

    It decides between two builds; what a user is told about speed comes from `edgekit bench`.

    Args:
        bound: of the second latency over the first, where the decision hangs on it: the race ends as soon as it is
            surely below or above.
    """
    sessions = [open_session(path, chosen) for path, chosen in zip(paths, settings, strict=True)]
    try:
        for session in sessions:
            for _ in range(WARM_UP):
                session.run(feed)
        times: list[list[float]] = [[] for _ in sessions]
        end = time.perf_counter() + budget_s
        while len(times[-1]) < 5 or (time.perf_counter() < end and len(times[-1]) < MOST_RUNS):
            for session, taken in zip(sessions, times, strict=True):
                start = time.perf_counter()
                session.run(feed)
                taken.append(time.perf_counter() - start)
            if is_clear(times, bound):
                break
        return [1e3 * float(np.median(taken)) for taken in times]
    finally:
        for session in sessions:
            session.close()


def is_clear(times: Sequence[Sequence[float]], bound: float | None = None) -> bool:
    """Whether more rounds would decide nothing; times in seconds by contestant and round.

    By the sign test: a round is a coin that falls for one side, and so many of them on one side are no chance.
    """
    rounds = np.asarray(times)
    if bound is not None:
        first, second = rounds
        return _is_sure(second < bound * first) or _is_sure(second > bound * first)
    return len(rounds) > 1 and all(
        _is_sure(rounds[i] * CLEAR_RATIO < rounds[j]) or _is_sure(rounds[j] * CLEAR_RATIO < rounds[i])
        for i in range(len(rounds))
        for j in range(i)
    )


def _is_sure(hits: np.ndarray) -> bool:
    count, won = len(hits), int(hits.sum())
    return sum(math.comb(count, k) for k in range(won, count + 1)) < CHANCE * 2.0**count


def load_race(paths: Sequence[Path], settings: Sequence[SessionSettings]) -> list[float]:
    """Median time to open each artifact in ms, in turns, files in the page cache, the library imported."""
    times: list[list[float]] = [[] for _ in paths]
    for _ in range(LOADS):
        for path, chosen, taken in zip(paths, settings, times, strict=True):
            start = time.perf_counter()
            session = open_session(path, chosen)
            taken.append(time.perf_counter() - start)
            session.close()
    return [1e3 * float(np.median(taken)) for taken in times]
