"""Which of two builds runs faster here, and which loads faster: interleaved, so that a busy machine hits both alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgekit.runtimes.session import SessionSettings, open_session

WARM_UP, MOST_RUNS, LOADS = 3, 60, 5
CLEAR_RUNS, CLEAR_RATIO = 15, 1.25
"""A race is over when in each of so many rounds the same one was ahead by so much: 15 heads in a row are no chance."""


def race(
    paths: Sequence[Path],
    feed: Mapping[str, np.ndarray],
    settings: Sequence[SessionSettings],
    *,
    budget_s: float = 1.0,
) -> list[float]:
    """Median latency of each artifact in ms, one thread, over at most `budget_s` of running all of them in turn.

    It decides between two builds; what a user is told about speed comes from `edgekit bench`.
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
            if is_clear(times):
                break
        return [1e3 * float(np.median(taken)) for taken in times]
    finally:
        for session in sessions:
            session.close()


def is_clear(times: Sequence[Sequence[float]]) -> bool:
    """Whether every two of them were apart by `CLEAR_RATIO`, the same way round, in each round; times by round."""
    rounds = np.asarray(times)
    if rounds.shape[1] < CLEAR_RUNS:
        return False
    ahead = all(
        (rounds[i] * CLEAR_RATIO < rounds[j]).all() or (rounds[j] * CLEAR_RATIO < rounds[i]).all()
        for i in range(len(rounds))
        for j in range(i)
    )
    return len(rounds) > 1 and ahead


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
