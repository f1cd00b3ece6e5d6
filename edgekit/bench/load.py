"""The queries of a scenario, issued by LoadGen's rules. Runs inside the worker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

MAX_QUERIES = 200_000


def single_stream(run: Callable[[], None], seconds: float, least: int) -> list[float]:
    """The next query as soon as the last is answered. Milliseconds of each."""
    return multi_stream(run, seconds, least, 1)


def multi_stream(run: Callable[[], None], seconds: float, least: int, streams: int) -> list[float]:
    """Queries of `streams` samples each, one after the other; a query is answered with its last sample."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MAX_QUERIES:
        start = time.perf_counter()
        for _ in range(streams):
            run()
        stop = time.perf_counter()
        times.append((stop - start) * 1000)
        if stop >= end and len(times) >= max(1, least):
            break
    return times


def server(run: Callable[[], None], seconds: float, least: int, qps: float, seed: int) -> list[float]:
    """Queries arrive by themselves, at random, `qps` a second on average; each counts from its arrival."""
    source = random.Random(seed)
    times: list[float] = []
    began = time.perf_counter()
    arrival = began
    while len(times) < MAX_QUERIES:
        arrival += source.expovariate(qps)
        if arrival - began > seconds and len(times) >= max(1, least):
            break
        wait = arrival - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        run()
        times.append((time.perf_counter() - arrival) * 1000)
    return times


def offline(run: Callable[[], None], seconds: float, least: int) -> list[float]:
    """Everything is there from the start; only the rate counts."""
    return multi_stream(run, seconds, least, 1)
