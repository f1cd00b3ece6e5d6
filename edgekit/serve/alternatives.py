"""What to run beside or instead of a plan: the standard to compare with, the smallest, the next after failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from edgekit.artifact import STANDARD
from edgekit.bench import store
from edgekit.bench.candidates import to_session
from edgekit.bench.conditions import this_device
from edgekit.bench.record import Measurement
from edgekit.config import Home
from edgekit.errors import RuntimeUnavailable
from edgekit.fetch import all_artifacts
from edgekit.selection import Limits, why_not
from edgekit.serve.lane import CAREFUL, SHADOW
from edgekit.serve.plan import Plan, pinned_plan, with_settings

FASTER = 0.9
"""A change under strain must promise at least a tenth."""


def standard_plan(plan: Plan, *, home: Home) -> Plan:
    """The standard artifact on one thread, to compare with."""
    wanted = msgspec.structs.replace(plan.wanted, artifact=STANDARD, threads=1, batch=None)
    return replace(pinned_plan(plan.model, wanted, all_artifacts(plan.model, home), threads=1), lane=SHADOW)


def careful_plan(plan: Plan, *, home: Home) -> Plan:
    """The standard artifact with the plan's threads, for what a compressed one is not sure of."""
    wanted = msgspec.structs.replace(plan.wanted, artifact=STANDARD)
    threads = plan.settings.threads
    return replace(pinned_plan(plan.model, wanted, all_artifacts(plan.model, home), threads=threads), lane=CAREFUL)


def smaller_plan(plan: Plan, *, home: Home, threads: int) -> Plan | None:
    """The same lane with the smallest artifact that keeps the accuracy floor, or None when it already has it."""
    floor = plan.wanted.accuracy_floor
    artifacts = all_artifacts(plan.model, home)
    allowed = [
        a
        for a in artifacts
        if a.record.fit and (a.record.accuracy is None or (a.record.accuracy.ratio or 0.0) >= floor)
    ]
    for artifact in sorted(allowed, key=lambda a: a.record.size_bytes):
        if artifact.record.size_bytes >= plan.artifact.record.size_bytes:
            return None
        wanted = msgspec.structs.replace(plan.wanted, artifact=artifact.record.name)
        try:
            found = pinned_plan(plan.model, wanted, artifacts, threads=threads)
        except RuntimeUnavailable:
            continue
        return replace(found, wanted=plan.wanted, lane=plan.lane, reasons=("the smallest: memory is short",))
    return None


def next_plan(plan: Plan, *, home: Home, threads: int, is_out: Callable[[str], bool]) -> Plan | None:
    """The candidate after one that failed too often: the standard first, then the others by size; None: no other."""
    artifacts = all_artifacts(plan.model, home)
    for artifact in sorted(artifacts, key=lambda a: (a.record.name != STANDARD, a.record.size_bytes)):
        wanted = msgspec.structs.replace(plan.wanted, artifact=artifact.record.name)
        try:
            found = pinned_plan(plan.model, wanted, artifacts, threads=threads)
        except RuntimeUnavailable:
            continue
        if found.producer != plan.producer and not is_out(found.producer):
            why = f"{plan.label} failed too often of late"
            return replace(found, wanted=plan.wanted, lane=plan.lane, reasons=(why,))
    return None


def measured_peak_bytes(plan: Plan, home: Home) -> int | None:
    """The most memory that a process with this artifact was seen to take here. None: never measured."""
    if plan.selection is not None and plan.selection.peak_memory_bytes is not None:
        return plan.selection.peak_memory_bytes
    rows = store.load_all(home.measurements(plan.model.name))
    peaks = [m.peak_memory_bytes for m in rows if m.artifact_sha256 == plan.artifact.record.sha256]
    return max((peak for peak in peaks if peak is not None), default=None)


def faster_plan(plan: Plan, *, home: Home, threads: int) -> Plan | None:
    """The fastest candidate that was measured here to be clearly faster and keeps the accuracy floor; None: no other.

    Ranked as measured, cool and alone: what slows the device down slows all of them. Without a measurement of the
    plan's own there is nothing to compare with.
    """
    device, limits = this_device(), Limits(accuracy_floor=plan.wanted.accuracy_floor)
    stored = store.load_all(home.measurements(plan.model.name))
    rows = [m for m in stored if m.device == device and m.latency and m.settings.batch == 1]
    own = [m for m in rows if _is_of(m, plan)]
    if not own or own[-1].latency is None:
        return None
    own_ms = own[-1].latency.typical_ms
    artifacts = {a.record.sha256: a for a in all_artifacts(plan.model, home)}
    usable = [
        (m.latency.typical_ms, m)
        for m in rows
        if m.latency is not None
        and m.artifact_sha256 in artifacts
        and m.settings.threads <= threads
        and m.latency.typical_ms <= FASTER * own_ms
        and why_not(m, limits) is None
    ]
    for took_ms, m in sorted(usable, key=lambda pair: pair[0]):
        artifact = artifacts[m.artifact_sha256]
        why = f"measured at {took_ms:.3g} ms here where {plan.label} takes {own_ms:.3g} ms"
        found = with_settings(plan, artifact, to_session(m.settings), threads=m.settings.threads)
        if found.producer != plan.producer:
            return replace(found, reasons=(why,))
    return None


def _is_of(m: Measurement, plan: Plan) -> bool:
    settings = to_session(m.settings)
    ours = (plan.settings.runtime, plan.settings.threads, plan.settings.delegate)
    same = (settings.runtime, settings.threads, settings.delegate) == ours
    return same and m.artifact_sha256 == plan.artifact.record.sha256
