"""Time in line for a CPU: nothing on a free one, about half of it with a neighbour on the same core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.bench.waits import Span, Waits, shared_waits_ms

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel keeps no schedstat")


def _work(seconds: float) -> float:
    """Compute for so much CPU time; returns the wall time in ms."""
    start, end = time.perf_counter(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return (time.perf_counter() - start) * 1000


@linux
def test_what_a_neighbour_takes_is_waiting_and_the_rest_is_our_own():
    before = os.sched_getaffinity(0)
    core = min(before)
    neighbour = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        os.sched_setaffinity(0, {core})
        with Waits() as line:
            start = line.read()
            wall_ms = _work(0.2)
            (waited,) = shared_waits_ms([Span(start, line.read(), wall_ms)])
    finally:
        os.sched_setaffinity(0, before)
        neighbour.kill()
        neighbour.wait()
        neighbour.stdout.close()
    assert waited > 50
    assert wall_ms - waited == pytest.approx(200, rel=0.15)


def test_a_kernel_that_does_not_tell_is_no_waiting(tmp_path):
    with Waits(tmp_path / "none") as line:
        assert line.read() is None
    assert shared_waits_ms([]) == []
    told = Span(((0, 0),), ((5_000_000, 2_000_000),), 7.0)
    assert shared_waits_ms([Span(None, None, 5.0), told, Span(None, told.after, 5.0)]) == [0.0, 2.0, 0.0]


def test_only_waiting_that_all_working_threads_share_counts_and_idle_ones_do_not():
    before = ((0, 0), (0, 1_000_000), (5, 0))
    after = ((10_000_000, 4_000_000), (9_000_000, 9_000_000), (5, 70_000_000))
    spans = [Span(before, after, 10.0), Span(before, after, 14.0), Span(before, after, 5.0)]
    assert shared_waits_ms(spans) == [2.0, 0.0, 4.0]  # 4 and 8 ms: of 10 ms 2 at once at least; none waits 8 of 5


def test_two_threads_that_take_turns_on_one_cpu_lose_nothing():
    """Although the kernel tells what one of them ran only later."""
    nothing, first, second = ((0, 0), (0, 0)), ((4, 5_000_000), (0, 0)), ((8, 10_000_000), (9, 10_000_000))
    spans = [Span(nothing, first, 10.0), Span(first, second, 10.0)]
    assert shared_waits_ms(spans) == [0.0, 5.0 + 10.0 - 10.0]


def test_of_one_working_thread_all_waiting_counts():
    assert shared_waits_ms([Span(((0, 0), (0, 0)), ((1_000, 0), (10_000_000, 3_000_000)), 13.0)]) == [3.0]
