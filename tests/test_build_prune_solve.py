"""One layer's weights: which go, what the others take over, and that the fit is the least-squares one."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.build import prune_solve as solve
from edgekit.build.prune_pattern import is_two_of_four

RNG = np.random.default_rng(5)


def gram(rows):
    return rows.T @ rows / len(rows)


def correlated(count=600, size=32, rank=12):
    """Inputs that largely repeat each other, as activations do."""
    return RNG.normal(size=(count, rank)) @ RNG.normal(size=(rank, size)) + 0.1 * RNG.normal(size=(count, size))


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1]),
        ([4, -1, 3, 0], [1, 0, 1, 0]),
        ([0, 0, 0, 0], [1, 1, 0, 0]),
        ([5, 5, 5, 5, 1, 9, 8, 2], [1, 1, 0, 0, 0, 1, 1, 0]),
    ],
)
def test_of_every_four_the_two_largest_stay(scores, kept):
    assert solve.keep_largest(np.array([scores], float)).astype(int).tolist() == [kept]


def test_magnitude_does_not_see_the_sign():
    assert solve.by_magnitude(np.array([[-9.0, 1.0, 0.5, 2.0]])).tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("size", [8, 128, 132, 260])
def test_second_order_gives_two_of_four_for_widths_around_the_block(size):
    inputs, weights = correlated(size=size), RNG.normal(size=(5, size))
    mask, left = solve.by_second_order(weights, gram(inputs))
    assert is_two_of_four(left)
    assert mask.sum() == weights.size // 2
    assert not left[~mask].any()


def test_second_order_costs_less_than_magnitude_on_inputs_that_repeat_each_other():
    inputs, weights = correlated(), RNG.normal(size=(16, 32))
    seen = gram(inputs)
    _, left = solve.by_second_order(weights, seen)
    plain = np.where(solve.by_magnitude(weights), weights, 0)
    assert solve.left_over(left, weights, seen) < 0.5 * solve.left_over(plain, weights, seen)


def test_without_correlation_second_order_is_magnitude():
    weights = RNG.normal(size=(6, 16))
    mask, left = solve.by_second_order(weights, np.eye(16))
    assert (mask == solve.by_magnitude(weights)).all()
    assert np.allclose(left[mask], weights[mask])


def test_a_channel_that_is_never_used_goes_first():
    inputs = RNG.normal(size=(200, 8))
    inputs[:, 2] = 0
    weights = np.ones((3, 8))
    weights[:, 2] = 100
    mask, _ = solve.by_second_order(weights, gram(inputs))
    assert not mask[:, 2].any()


def test_the_fit_is_least_squares_on_what_is_kept():
    inputs, weights = correlated(size=16, rank=16), RNG.normal(size=(4, 16))
    seen, mask = gram(inputs), solve.by_magnitude(weights)
    found = solve.fit(np.where(mask, weights, 0), mask, weights, seen)
    damped = seen + solve.ridge_of(seen) * np.eye(16)
    for row in range(4):
        kept = mask[row]
        exact = np.linalg.solve(damped[np.ix_(kept, kept)], (weights[row] @ damped)[kept])
        assert np.allclose(found[row, kept], exact, atol=2e-2 * np.abs(exact).max())
        assert not found[row, ~kept].any()


def test_fitting_never_makes_it_worse():
    inputs, weights = correlated(size=64, rank=20), RNG.normal(size=(8, 64))
    seen = gram(inputs)
    mask, left = solve.by_second_order(weights, seen)
    fitted = solve.fit(left, mask, weights, seen)
    assert solve.left_over(fitted, weights, seen) <= 1.001 * solve.left_over(left, weights, seen)


def test_nothing_pruned_leaves_the_weights_alone():
    inputs, weights = correlated(), RNG.normal(size=(4, 32))
    everything = np.ones(weights.shape, bool)
    assert np.allclose(solve.fit(weights, everything, weights, gram(inputs)), weights, atol=1e-5)
    assert solve.left_over(weights, weights, gram(inputs)) == 0


def test_what_is_left_over_is_the_error_of_the_outputs():
    inputs, weights = correlated(), RNG.normal(size=(5, 32))
    other = weights + 0.1 * RNG.normal(size=weights.shape)
    before, after = inputs @ weights.T, inputs @ other.T
    share = np.sum((after - before) ** 2) / np.sum(before**2)
    assert solve.left_over(other, weights, gram(inputs)) == pytest.approx(share)


def test_inputs_of_zeros_are_no_division_by_zero():
    weights = RNG.normal(size=(2, 8))
    seen = gram(np.zeros((10, 8)))
    mask, left = solve.by_second_order(weights, seen)
    assert np.isfinite(solve.fit(left, mask, weights, seen)).all()
    assert solve.left_over(left, weights, seen) == 0
