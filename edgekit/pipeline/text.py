"""Reading text out of a recogniser's probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def ctc(probabilities: Array, alphabet: Sequence[str]) -> tuple[str, float]:
    """(steps, classes) -> (text, mean probability of its characters): greedy, class 0 is the blank.

    Source: Graves et al., "Connectionist Temporal Classification", 2006, best path decoding.
    """
    best = probabilities.argmax(axis=1)
    is_new = np.ones(len(best), bool)
    is_new[1:] = best[1:] != best[:-1]
    kept = np.flatnonzero(is_new & (best > 0))
    text = "".join(alphabet[best[i] - 1] for i in kept)
    return text, float(probabilities[kept, best[kept]].mean()) if len(kept) else 0.0


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements that turn `a` into `b` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]
