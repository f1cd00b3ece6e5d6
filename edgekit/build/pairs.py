"""Sentence embeddings judged by their task: do similarities rank pairs as people do? Samples 1 and 2 are a pair, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgekit.errors import UsageError
from edgekit.pipeline.data import Sample

METRIC = "spearman"
MASK = "attention_mask"


def similarity(samples: Sequence[Sample], outputs: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> float:
    """Spearman's rank correlation between cosines of paired embeddings and the pairs' labels, -1..1.

    The embedding is the first output: (1, dimensions) as it is, (1, tokens, dimensions) as the mean over the tokens
    that the input `attention_mask` admits. Raises UsageError: no or non-numeric labels, labels all alike.
    """
    vectors = [embedding(sample, next(iter(output.values()))) for sample, output in zip(samples, outputs, strict=True)]
    found = [cosine(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    wanted = [_score(sample) for sample in samples[::2]]
    if len(set(wanted)) < 2:
        raise UsageError(f"metric {METRIC} needs labels that differ")
    if not np.isfinite(found).all() or len(set(found)) < 2:
        return 0.0
    return float(np.corrcoef(ranks(found), ranks(wanted))[0, 1])


def embedding(sample: Sample, output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One float64 vector for one sample. Raises UsageError for an output that is none."""
    values = np.asarray(output, np.float64)
    if values.ndim == 3 and len(values) == 1:
        mask = np.asarray(sample.inputs.get(MASK, np.ones(values.shape[:2])), np.float64).reshape(-1)
        return np.asarray(values[0].T @ mask / max(mask.sum(), 1.0))
    if values.ndim == 2 and len(values) == 1:
        return np.asarray(values[0])
    raise UsageError(f"metric {METRIC} needs an output [1, dimensions] or [1, tokens, dimensions], not {values.shape}")


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Of two vectors; 0 when one is null."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def ranks(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """Rank of each value, equal values sharing the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def _score(sample: Sample) -> float:
    if sample.label is None:
        raise UsageError(
            f"metric {METRIC} needs labels: give --labels FILE.npy with one score for each pair of samples"
        )
    try:
        return float(sample.label)
    except ValueError as e:
        raise UsageError(f"label '{sample.label}' is not a score") from e
