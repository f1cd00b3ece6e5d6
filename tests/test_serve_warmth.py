"""How often a lane must be asked so that a pause costs nothing: learnt from requests, and only where it does cost."""

from __future__ import annotations

import pytest

from edgekit.serve.warmth import PAUSES_S, Warmth


def learnt(pause_s: float, ratio: float, count: int = 10) -> Warmth:
    warmth = Warmth()
    for _ in range(count):
        warmth.learn(pause_s, 10.0 * ratio, 10.0)
    return warmth


@pytest.mark.parametrize(
    ("pause_s", "ratio", "count", "interval_s"),
    [
        (10.0, 1.5, 10, 4.0),
        (2.0, 1.5, 10, 1.0),
        (1e6, 1.5, 10, 64.0),
        (10.0, 1.2, 10, None),
        (10.0, 1.5, 4, None),
        (1.9, 9.0, 10, None),
        (10.0, 0.5, 10, None),
    ],
    ids=["costs", "short", "long", "hardly", "too few", "no pause", "faster"],
)
def test_it_is_half_of_the_shortest_pause_that_has_a_cost(pause_s, ratio, count, interval_s):
    assert learnt(pause_s, ratio, count).interval_s == interval_s


def test_one_slow_request_is_chance():
    warmth = learnt(10.0, 1.0, 6)
    warmth.learn(10.0, 1000.0, 10.0)
    assert warmth.interval_s is None


def test_what_has_a_cost_no_more_is_forgotten():
    warmth = learnt(10.0, 2.0)
    for _ in range(20):
        warmth.learn(10.0, 10.0, 10.0)
    assert warmth.interval_s is None


def test_the_shortest_costly_pause_counts_and_nothing_is_learnt_without_a_usual_time():
    warmth = learnt(200.0, 2.0)
    assert warmth.interval_s == PAUSES_S[-1] / 2
    for _ in range(10):
        warmth.learn(40.0, 20.0, 10.0)
    assert warmth.interval_s == 16.0
    for _ in range(10):
        warmth.learn(3.0, 20.0, 0.0)
    assert warmth.interval_s == 16.0
