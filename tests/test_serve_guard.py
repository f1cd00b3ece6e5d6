"""What is given up when memory runs short, in which order, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.config import MemoryConfig
from edgekit.device.tree import Tree
from edgekit.serve import guard as guards
from edgekit.serve.guard import FRUGAL, NORMAL, REFUSING, SMALL, Guard, MemoryReading, give_back, level_of, read_now

GIB = 2**30
FINE = MemoryReading(available_bytes=GIB, usable_bytes=2 * GIB, rss_bytes=GIB // 10, pressure_percent=0.0)
CONFIG = MemoryConfig(low=(0.2, 0.1, 0.05))


def left(share: float) -> MemoryReading:
    return replace(FINE, available_bytes=int(share * 2 * GIB))


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.5, NORMAL), (0.201, NORMAL), (0.199, FRUGAL), (0.09, SMALL), (0.049, REFUSING), (0, REFUSING)],
)
def test_the_less_is_available_the_more_is_given_up(share, level):
    assert level_of(left(share), CONFIG) == level


def test_the_own_size_counts_where_it_is_limited():
    config = MemoryConfig(limit_mb=1000)
    for size_mb, level in ((700, NORMAL), (801, FRUGAL), (901, SMALL), (1001, REFUSING)):
        assert level_of(replace(FINE, rss_bytes=size_mb * 2**20), config) == level
    assert level_of(replace(FINE, rss_bytes=10**12), CONFIG) == NORMAL


def test_waiting_for_memory_makes_it_frugal_whatever_is_available():
    assert level_of(replace(FINE, pressure_percent=30.0), CONFIG) == FRUGAL
    assert level_of(replace(FINE, pressure_percent=20.0), CONFIG) == NORMAL


def test_a_system_that_tells_nothing_is_left_alone():
    unknown = MemoryReading(available_bytes=None, usable_bytes=None, rss_bytes=None, pressure_percent=None)
    assert level_of(unknown, MemoryConfig(limit_mb=1)) == NORMAL


def test_it_steps_up_one_at_a_time_so_that_each_step_can_help():
    guard = Guard(CONFIG)
    assert [guard.see(left(0.01), t) for t in range(5)] == [True, True, True, False, False]
    assert guard.level == REFUSING


def test_it_steps_down_only_well_above_the_watermark_and_after_a_while():
    guard = Guard(CONFIG)
    guard.see(left(0.19), 0)
    for t in range(1, 100):
        assert not guard.see(left(0.21), t), "above the watermark, not well above it"
    assert not guard.see(left(0.3), 100)
    assert not guard.see(left(0.3), 109)
    assert not guard.see(left(0.21), 109.5), "the wait begins anew"
    assert not guard.see(left(0.3), 110)
    assert guard.see(left(0.3), 120)
    assert guard.level == NORMAL


def test_the_kernels_words_are_read(plant):
    root = plant(
        {
            "proc/meminfo": "MemTotal:     2048000 kB\nMemFree:       10000 kB\nMemAvailable:  1024000 kB\n",
            "proc/self/statm": "50000 2560 100 1 0 100 0\n",
            "proc/pressure/memory": "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=3.00 avg60=0\n",
        }
    )
    reading = read_now(Tree(root), 2_097_152_000)
    assert (reading.available_bytes, reading.rss_bytes, reading.pressure_percent) == (1_048_576_000, 10_485_760, 12.5)
    assert str(reading) == "1000 MiB available, 10 MiB of its own, 12.5 % of the time waiting for memory"
    assert read_now(Tree(root / "nowhere"), None).available_bytes is None


def test_malloc_trim_is_looked_up_once():
    """Each look makes a class, a kilobyte in a cycle, and a reload gives back once or twice."""
    give_back()
    before = guards._malloc_trim.cache_info().misses
    for _ in range(5):
        give_back()
    assert guards._malloc_trim.cache_info().misses == before
