"""Warm-up runs until it no longer gets faster, and says so when it could not wait for that."""

from __future__ import annotations

import time

import numpy as np
import pytest

from edgekit.manifest import TensorSpec
from edgekit.runtimes.warmup import is_stable, random_inputs, warm_up


class _Warming:
    """A session each of whose runs takes `share` of the one before: the cold start of a real one, at a known speed."""

    def __init__(self, first_s: float = 0.02, share: float = 0.7) -> None:
        self.runs = 0
        self._next_s, self._share = first_s, share

    def run(self, inputs):
        self.runs += 1
        end = time.perf_counter() + self._next_s
        self._next_s *= self._share
        while time.perf_counter() < end:
            pass
        return {}


def test_it_goes_on_while_runs_get_faster():
    (result,) = warm_up(_Warming(), [{}])
    assert result.stable
    assert len(result.times_ms) > 10
    assert result.first_ms >= 20


def test_a_limit_ends_it_and_is_told():
    (by_count,) = warm_up(_Warming(), [{}], max_runs=4)
    assert len(by_count.times_ms) == 4
    assert not by_count.stable
    (by_time,) = warm_up(_Warming(first_s=0.05, share=1), [{}], max_s=0.1)
    assert len(by_time.times_ms) <= 3


def test_every_shape_is_warmed_up():
    session = _Warming(first_s=0.0001)
    results = warm_up(session, [{}, {}, {}])
    assert len(results) == 3
    assert session.runs == sum(len(result.times_ms) for result in results)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([5.0] * 9, False),
        ([5.0] * 10, True),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 1], False),
        ([9, 5, 5, 5, 5, 5, 5, 5, 5, 5], True),
        ([5, 5, 5, 5, 5, 6, 6, 6, 6, 6], True),
    ],
)
def test_stable_means_no_longer_falling(times, expected):
    assert is_stable(times) is expected


def test_random_inputs_are_seeded_and_in_range():
    specs = [
        TensorSpec(name="image", dtype="float32", shape=(1, 4)),
        TensorSpec(name="quantised", dtype="int8", shape=(64,)),
        TensorSpec(name="pixels", dtype="uint8", shape=(64,)),
        TensorSpec(name="tokens", dtype="int64", shape=("batch", 8)),
        TensorSpec(name="text", dtype="object", shape=(1,)),
        TensorSpec(name="flag", dtype="bool", shape=()),
    ]
    first, second = random_inputs(specs), random_inputs(specs)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert {name: value.dtype.name for name, value in first.items()} == {spec.name: spec.dtype for spec in specs}
    assert first["tokens"].shape == (1, 8)
    assert set(first["tokens"].ravel()) <= {0, 1}
    assert first["quantised"].min() < -50
    assert first["quantised"].max() > 50
    assert 0 <= first["image"].min() < first["image"].max() < 1
