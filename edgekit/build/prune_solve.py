"""Which weights of one layer go, and what the others become so that its outputs change least. Numbers only.

The layer is a matrix of weights, rows its outputs; what it multiplies is known by second moments. Magnitude looks at
the weights alone. Second order removes column by column and lets those still to come make up for it (optimal brain
surgeon, layer by layer); then the rest is fitted exactly to what the layer computed before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgekit.build.prune_pattern import GROUP, KEPT

DAMPING = 0.01
"""Of the mean second moment, added to each: directions that the samples hardly show must not decide."""
BLOCK = 128
STEPS = 40
CLOSE = 1e-4
"""Of the first residual: where fitting stops."""


class Moments(NamedTuple):
    """Of what a layer multiplies, n values at a time."""

    gram: np.ndarray
    "(n, n) mean of the products of any two, as deviations from `mean`."
    mean: np.ndarray
    "(n,); zeros where the layer has no bias, since nothing could take up a shift of its outputs."


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


def fit(start: np.ndarray, mask: np.ndarray, weights: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """The weights under `mask` whose outputs come closest to those of `weights`, by conjugate gradients.

    Each row is a system of its own, since each keeps other columns; solved together they are one product a step.
    """
    ridge = np.float32(ridge_of(gram))
    gram, kept = gram.astype(np.float32), mask.astype(np.float32)
    scale = np.diag(gram) + ridge
    found = (start * mask).astype(np.float32)
    lost = weights.astype(np.float32) - found
    residual = (lost @ gram + ridge * lost) * kept
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


def left_over(pruned: np.ndarray, weights: np.ndarray, gram: np.ndarray) -> float:
    """What the layer's outputs differ by, as a share of what they vary by."""
    lost = weights - pruned
    size = np.einsum("ij,ij->", weights @ gram, weights)
    return float(max(0.0, np.einsum("ij,ij->", lost @ gram, lost)) / max(size, 1e-30))


def _symmetric(values: np.ndarray) -> np.ndarray:
    return np.asarray((values + values.T) / 2)
