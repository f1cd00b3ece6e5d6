"""Which weights of one layer go, and what the others become so that its outputs change least. Numbers only.

The layer is a matrix of weights, rows its outputs; what it multiplies is known by second moments. Magnitude looks at
the weights alone. Second order removes column by column and lets those still to come make up for it (optimal brain
surgeon, layer by layer); then the rest is fitted exactly to what the layer computed before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from edgekit.build.prune_pattern import GROUP, KEPT

DAMPING = 0.01
"""Of the mean second moment, added to each: directions that the samples hardly show must not decide."""
BLOCK = 128
STEPS = 40
MOST_GAIN = 2.0
CLOSE = 1e-4
"""Of the first residual: where fitting stops."""


class Moments(NamedTuple):
    """Of what a layer multiplies, n values at a time, each as deviation from its mean where the layer has a bias."""

    gram: np.ndarray
    "(n, n) mean of now × now: the input as the graph pruned so far makes it."
    cross: np.ndarray
    "(n, n) mean of before × now: `before` as the untouched graph makes it."
    own: np.ndarray
    "(n, n) mean of before × before."
    mean_now: np.ndarray
    mean_before: np.ndarray


def by_magnitude(weights: np.ndarray) -> np.ndarray:
    """The mask of the two largest of every four neighbours in a row; True is kept."""
    return keep_largest(np.abs(weights))


def keep_largest(scores: np.ndarray) -> np.ndarray:
    """The mask of the `KEPT` largest scores of every `GROUP` neighbours; equal ones by position."""
    groups = scores.reshape(-1, GROUP)
    order = np.argsort(-groups, axis=1, kind="stable")
    mask = np.zeros_like(groups, bool)
    np.put_along_axis(mask, order[:, :KEPT], True, axis=1)
    return mask.reshape(scores.shape)


def by_second_order(weights: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mask, and the weights that are left with what they took over from those that are gone.

    Source of the order of elimination: Frantar and Alistarh, SparseGPT (2023), with 2 of 4 as the pattern.
    """
    size = weights.shape[1]
    weights = np.where(np.diag(gram) > 0, weights, 0.0)  # whatever multiplies only zeros can go
    damped = gram + (DAMPING * np.trace(gram) / size + 1e-12) * np.eye(size)
    upper = np.linalg.cholesky(_symmetric(np.linalg.inv(damped))).T
    left, mask = weights.astype(np.float64), np.ones(weights.shape, bool)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        gone = np.zeros((len(left), end - start))
        for i in range(start, end):
            if i % GROUP == 0:
                cost = left[:, i : i + GROUP] / np.diag(upper)[i : i + GROUP]
                mask[:, i : i + GROUP] = keep_largest(cost**2)
            error = np.where(mask[:, i], 0.0, left[:, i] / upper[i, i])
            left[:, i:end] -= np.outer(error, upper[i, i:end])
            gone[:, i - start] = error
        left[:, end:] -= gone @ upper[start:end, end:]
    return mask, np.where(mask, left, 0.0)


def ridge_of(gram: np.ndarray) -> float:
    """How much a weight's own value counts beside the samples."""
    return float(DAMPING * np.trace(gram) / len(gram)) + 1e-12


def wanted(weights: np.ndarray, moments: Moments) -> np.ndarray:
    """The right-hand side of the fit: outputs on the old inputs, seen through the new ones; and the old weights."""
    return np.asarray(weights @ moments.cross + ridge_of(moments.gram) * weights)


def unpruned(weights: np.ndarray, moments: Moments) -> np.ndarray:
    """The weights that, all of them kept, come closest to the old outputs on the new inputs."""
    size = len(moments.gram)
    damped = moments.gram + ridge_of(moments.gram) * np.eye(size)
    return np.asarray(np.linalg.solve(damped, wanted(weights, moments).T).T)


def fit(start: np.ndarray, mask: np.ndarray, weights: np.ndarray, moments: Moments) -> np.ndarray:
    """The weights under `mask` that come closest to the old outputs: conjugate gradients, all rows side by side.

    Each row is a system of its own, since each keeps other columns; solved together they are one product a step.
    """
    ridge = np.float32(ridge_of(moments.gram))
    gram, kept = moments.gram.astype(np.float32), mask.astype(np.float32)
    scale = np.diag(gram) + ridge
    found = (start * mask).astype(np.float32)
    residual = (wanted(weights, moments).astype(np.float32) - found @ gram - ridge * found) * kept
    step = residual / scale
    energy = (residual * step).sum(axis=1)
    enough = CLOSE**2 * energy + 1e-30
    for _ in range(STEPS):
        if (energy <= enough).all():
            break
        image = (step @ gram + ridge * step) * kept
        length = energy / np.maximum((step * image).sum(axis=1), 1e-30)
        found += length[:, None] * step
        residual -= length[:, None] * image
        scaled = residual / scale
        fresh = (residual * scaled).sum(axis=1)
        step = scaled + (fresh / np.maximum(energy, 1e-30))[:, None] * step
        energy = fresh
    return np.asarray(np.where(mask, found, 0.0))


def left_over(pruned: np.ndarray, weights: np.ndarray, moments: Moments) -> float:
    """What the layer's outputs differ by, as a share of what they vary by; over the samples, damping aside."""
    ours = np.einsum("ij,ij->", pruned @ moments.gram, pruned)
    both = np.einsum("ij,ij->", weights @ moments.cross, pruned)
    theirs = np.einsum("ij,ij->", weights @ moments.own, weights)
    return float(max(0.0, (ours - 2 * both + theirs) / max(theirs, 1e-30)))


def match(pairs: Iterable[tuple[np.ndarray, np.ndarray]], through_zero: bool) -> tuple[np.ndarray, np.ndarray]:
    """The gain and shift of each channel that give `now` the mean and the spread of `before`.

    `pairs`: (before, now), each (places, channels). `through_zero`: there is nothing to shift with. A gain stays
    within a factor of `MOST_GAIN`. Not the gain of least squares, which shrinks what is noisy, layer after layer.
    """
    sums, count = np.zeros((4, 1)), 0
    for before, now in pairs:
        a, b = before.astype(np.float64), now.astype(np.float64)
        sums = sums + np.stack([a.sum(0), b.sum(0), (a * a).sum(0), (b * b).sum(0)])
        count += len(a)
    mean_before, mean_now, old, own = sums / max(count, 1)
    if not through_zero:
        old, own = old - mean_before**2, own - mean_now**2
    usable = (own > 1e-12) & (old > 1e-12)
    gain = np.where(usable, np.sqrt(np.where(usable, old, 1.0) / np.where(usable, own, 1.0)), 1.0)
    gain = np.clip(gain, 1 / MOST_GAIN, MOST_GAIN)
    return gain, np.zeros_like(gain) if through_zero else mean_before - gain * mean_now


def _symmetric(values: np.ndarray) -> np.ndarray:
    return np.asarray((values + values.T) / 2)
