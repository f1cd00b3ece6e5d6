"""Which artifact with which runtime settings, and why not the others. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgekit.bench.record import Measurement, Settings


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requires. None: no such limit."""

    latency_ms: float | None = None
    latency_percentile: str = "p99"
    qps: float | None = None
    memory_bytes: int | None = None
    accuracy_floor: float = 0.99
    objective: str = "latency"


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was not chosen, with its one reason."""

    candidate: str
    reason: str


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The choice; what `select --json` prints and the daemon and the birth certificate carry."""

    model: str
    artifact: str
    artifact_sha256: str
    precision: str
    settings: Settings
    reasons: tuple[str, ...]
    rejections: tuple[Rejection, ...]
    p50_ms: float | None
    p99_ms: float | None
    peak_memory_bytes: int | None
    accuracy_ratio: float | None
    limits: Limits
    is_prior: bool = False
    "True when nothing was measured here and a rule of thumb stands in."


def select(measurements: Sequence[Measurement], limits: Limits) -> Selection:
    """The best measured candidate within the limits. Raises NoUsableArtifact."""
    raise NotImplementedError
