"""One measurement: what was run, under which conditions, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class _Record(msgspec.Struct, frozen=True):
    pass


_IMPLIED = ("graph_optimization_level",)
"""Session options that follow from the artifact (a file saved as onnxruntime optimised it is not optimised again)."""


class Settings(_Record, frozen=True, kw_only=True):
    """The session settings of a candidate, as plain values (see `runtimes.session.SessionSettings`)."""

    runtime: str
    runtime_version: str
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    delegate: str | None = None
    delegate_options: Mapping[str, str] = {}
    threads: int
    spinning: bool
    axes: Mapping[str, int] = {}
    session_options: Mapping[str, str] = {}
    batch: int = 1
    "Items of a query."

    @property
    def label(self) -> str:
        """Short text for tables: runtime, provider or delegate where it is not the plain CPU, threads, batch."""
        hook = self.delegate or next((name for name, _ in self.providers), "")
        hook = hook.removesuffix("ExecutionProvider")
        where = f" {hook}" if hook not in ("", "CPU") else ""
        told = {name: value for name, value in self.session_options.items() if name not in _IMPLIED}
        further = "".join(f" {name}={value}" for name, value in sorted(told.items()))
        batch = f" batch {self.batch}" if self.batch > 1 else ""
        return f"{self.runtime}{where} {self.threads}t{' spinning' if self.spinning else ''}{further}{batch}"


class Latency(_Record, frozen=True, kw_only=True):
    """Steady-state latency of single queries, each of a whole batch. A percentile with too few samples is None.

    p90 needs 64 samples and p99 662 for 99 % confidence (design: Numbers that count).
    """

    sample_count: int
    mean_ms: float
    min_ms: float
    p50_ms: float
    p50_low_ms: float
    "Lower end of the 99 % confidence interval of the median, over rounds where there are enough."
    p50_high_ms: float
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float
    round_p50_ms: tuple[float, ...] = ()
    "Median of each round without waiting; in one run of bench all candidates take part in every round."
    quantiles_ms: tuple[float, ...] = ()
    "Of all samples, from 0 % to 100 % in steps of 2 %, for plots. Empty: older record."
    own_p50_ms: float | None = None
    "Median without the time spent in line for a CPU that others used. None: older record."
    waited_ratio: float = 0.0
    "Share of the time of all queries that was spent in that line."

    paired_ms: float | None = None
    "Of one that a search stopped early: the leader's median times how far it was behind when both took turns."
    spread_ratio: float | None = None
    "Half of what lies between the 5th and the 95th percentile of the own times, as a share of the median: ±."

    @property
    def typical_ms(self) -> float:
        """The median as the candidate's own doing: what a comparison looks at."""
        if self.paired_ms is not None:
            return self.paired_ms
        return self.p50_ms if self.own_p50_ms is None else self.own_p50_ms


class Start(_Record, frozen=True, kw_only=True):
    """The parts of a cold start in a fresh process."""

    import_ms: float
    load_ms: float
    first_ms: float
    "The first inference after loading."
    loaded_bytes: int | None = None
    "Memory that stays after loading."
    temporary_bytes: int | None = None
    "Memory that loading took for a while beyond that."

    @property
    def total_ms(self) -> float:
        return self.import_ms + self.load_ms + self.first_ms


class Usage(_Record, frozen=True, kw_only=True):
    """What a query costs beside its time, on average."""

    cpu_ms: float
    page_faults: float
    context_switches: float
    energy_mj: float | None = None
    "Of the whole board or package meanwhile. None: no sensor tells."


class Conditions(_Record, frozen=True, kw_only=True):
    """What else was going on. None: this machine does not tell."""

    load_1min: float | None = None
    governor: str | None = None
    temperature_c: float | None = None
    throttled: bool | None = None
    under_voltage: bool | None = None
    throttle_events_count: int | None = None
    "Since boot."
    power_mode: str | None = None
    "Of a Jetson, by its own name."
    cpu_hz: int | None = None
    temperature_after_c: float | None = None
    quota_cores: float | None = None
    judged_bad: tuple[str, ...] = ()
    "Why figures taken under these conditions are doubtful; empty when nothing speaks against them."
    notes: tuple[str, ...] = ()


class Measurement(_Record, frozen=True, kw_only=True):
    """A candidate's row: artifact × settings on this machine."""

    schema: int = 1
    model: str
    artifact: str
    artifact_sha256: str
    precision: str
    size_bytes: int
    settings: Settings
    latency: Latency | None
    "None when the candidate failed; `failure` then says why."
    start: Start | None = None
    after_idle_ms: float | None = None
    peak_memory_bytes: int | None = None
    "VmHWM of the child process."
    throughput_qps: float | None = None
    "On average, without the time spent in line for a CPU that others used."
    usage: Usage | None = None
    "None: older record, or the system does not tell."
    accuracy_value: float | None = None
    accuracy_ratio: float | None = None
    accuracy_note: str | None = None
    "Where and with how many samples it was measured, or why it was not."
    fit: bool = True
    why_unfit: str | None = None
    ops_by_provider: Mapping[str, int] = {}
    partitions: int | None = None
    conditions: Conditions = Conditions()
    failure: str | None = None
    device: Mapping[str, str] = {}
    "Board id, CPU and ISA on which it was measured."
    taken_at_unix_ms: int
    run_id: str = ""
    "The same for everything that was measured in turns with one another."
    rough: bool = False
    "A search stopped measuring it early, since others were ahead; before it is used, it is measured to the end."

    @property
    def candidate(self) -> str:
        """Name of the candidate: artifact and settings."""
        return f"{self.artifact} · {self.settings.label}"

    @property
    def items_per_s(self) -> float:
        """What counts as throughput: a query answers a whole batch. 0 for what was not measured."""
        return (self.throughput_qps or 0.0) * self.settings.batch

    @property
    def item_ms(self) -> float:
        """The typical time of a query, shared out among its items."""
        assert self.latency is not None, "only of what was measured"
        return self.latency.typical_ms / self.settings.batch


class Standing(_Record, frozen=True, kw_only=True):
    """Where a candidate stands in a search."""

    candidate: str
    behind: float
    "How many times better the leader is, less what its further threads owe; 1 for the leader itself."
    behind_at_best: float
    "The same in the round that was kindest to it."
    surely: bool
    "The leader's lead is proven and large enough to count."
    surely_near: bool
    "It is proven that the lead is too small to count."
