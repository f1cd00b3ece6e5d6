"""What may be loaded: what fits into the memory there is, and has not failed too often of late."""

from __future__ import annotations

import logging

from edgekit.config import Home
from edgekit.device.memory import available_bytes
from edgekit.device.tree import Tree
from edgekit.errors import NoUsableArtifact
from edgekit.serve.alternatives import measured_peak_bytes, next_plan, smaller_plan
from edgekit.serve.failures import Ledger
from edgekit.serve.guard import SMALL
from edgekit.serve.plan import Plan

logger = logging.getLogger(__name__)


def admitted(plan: Plan, *, current: Plan | None, level: int, home: Home, threads: int, ledger: Ledger | None) -> Plan:
    """`plan`, the next candidate while its runtime fails, or the smallest artifact while memory is short for it.

    `current` is what the lane serves now, `level` the memory guard's. Raises NoUsableArtifact when nothing fits.
    """
    plan = _not_failing(plan, home, threads, ledger)
    if is_same(current, plan) and level < SMALL:
        return plan
    why = "memory is short" if level >= SMALL else _why_not_fit(plan, home)
    if why is None:
        return plan
    refused = [(plan.label, why)]
    smaller = smaller_plan(plan, home=home, threads=threads)
    if smaller is None:
        if level >= SMALL:
            return plan
        raise NoUsableArtifact(plan.model.name, refused)
    if (still := _why_not_fit(smaller, home)) is not None:
        raise NoUsableArtifact(plan.model.name, [*refused, (smaller.label, still)])
    logger.warning("%s: not %s: %s", plan.model.name, plan.label, why)
    return smaller


def is_same(old: Plan | None, new: Plan) -> bool:
    """Whether a lane that serves `old` need not be loaded anew for `new`."""
    return old is not None and (old.artifact, old.settings, old.wanted) == (new.artifact, new.settings, new.wanted)


def _not_failing(plan: Plan, home: Home, threads: int, ledger: Ledger | None) -> Plan:
    if ledger is None or not ledger.is_out(plan.producer):
        return plan
    other = next_plan(plan, home=home, threads=threads, is_out=ledger.is_out)
    if other is None:
        logger.error("%s: %s fails again and again, and there is nothing else to run", plan.model.name, plan.label)
        return plan
    logger.warning("%s: %s instead: %s", plan.model.name, other.label, other.reasons[0])
    return other


def _why_not_fit(plan: Plan, home: Home) -> str | None:
    """Admission: what was measured to need more than is available now is not loaded."""
    peak, free = measured_peak_bytes(plan, home), available_bytes(Tree())
    if peak is None or free is None or peak <= free:
        return None
    return f"peaked at {peak / 2**20:.0f} MiB when measured, {free / 2**20:.0f} MiB are available"
