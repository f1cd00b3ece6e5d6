"""What bench and a worker say to each other: one JSON object a line over the worker's stdin and stdout."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edgekit.bench.counters import Counts
from edgekit.manifest import TensorSpec
from edgekit.runtimes.profile import Profile
from edgekit.runtimes.session import SessionSettings


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class Open(_Message, frozen=True, tag="open"):
    """Import the runtime and load the artifact, each timed."""

    path: str
    settings: SessionSettings


class First(_Message, frozen=True, tag="first"):
    """Take the inputs (an .npz written by the parent) and run for the first time, timed."""

    inputs: str


class WarmUp(_Message, frozen=True, tag="warm_up"):
    """Run until stable."""

    max_s: float


class Measure(_Message, frozen=True, tag="measure"):
    """Time single queries for so long, or so many."""

    seconds: float
    max_samples: int


class Place(_Message, frozen=True, tag="place"):
    """Report peak memory, then prove where the operators ran."""


class Load(_Message, frozen=True, tag="load"):
    """Put the load of a scenario on the session (see `bench.scenarios.Scenario`)."""

    scenario: str
    seconds: float
    min_queries: int = 0
    qps: float | None = None
    streams: int = 1
    seed: int = 0


class Explain(_Message, frozen=True, tag="explain"):
    """Count what the CPU counts over some queries, then profile as many by operator."""

    path: str
    settings: SessionSettings
    runs: int


Request = Open | First | WarmUp | Measure | Place | Load | Explain


class Opened(_Message, frozen=True, tag="opened"):
    """The artifact is loaded; what it takes, so that the parent can make inputs."""

    import_ms: float
    load_ms: float
    runtime_version: str
    inputs: tuple[TensorSpec, ...]
    scales: Mapping[str, tuple[float, int]]
    "Scale and zero point of quantised inputs."
    loaded_bytes: int | None = None
    "What the process holds more after loading than before. None where the system does not tell."
    temporary_bytes: int | None = None
    "What loading took for a while beyond that."


class Times(_Message, frozen=True, tag="times"):
    """Latencies in the order in which they were taken."""

    times_ms: tuple[float, ...]
    waits_ms: tuple[float, ...] = ()
    "How much of each was spent in line for a CPU that others used; empty where the kernel does not tell."
    usage: tuple[float, int, int] | None = None
    "All of them together: CPU seconds, page faults, context switches. None: Windows."


class Placed(_Message, frozen=True, tag="placed"):
    """The end of a worker's work."""

    peak_memory_bytes: int | None
    ops_by_provider: Mapping[str, int]
    partitions: int | None
    unused: tuple[str, ...] = ()


class Failed(_Message, frozen=True, tag="failed"):
    """An error that the worker survived."""

    reason: str


class Loaded(_Message, frozen=True, tag="loaded"):
    """What a scenario took."""

    times_ms: tuple[float, ...]
    span_s: float


class Explained(_Message, frozen=True, tag="explained"):
    """Where the time goes."""

    profile: Profile
    times_ms: tuple[float, ...]
    "Without profiling."
    usage: tuple[float, int, int] | None
    "Of these: CPU seconds, page faults, context switches."
    counts: Counts | None


Reply = Opened | Times | Placed | Loaded | Explained | Failed
