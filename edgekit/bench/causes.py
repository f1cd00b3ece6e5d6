"""The causes that the reference articles name for Flash's penalties, looked for in this pair. Pure."""

from __future__ import annotations

from edgekit.bench.figure import PUBLISHED, PUBLISHED_SHARE, Figure, unmeasured
from edgekit.bench.why import NO_COUNTERS, Why

_SPARSE = frozenset({"DENSIFY", "SparseToDenseMatMul"})
"""Operators that unpack sparse weights while a query runs (LiteRT, onnxruntime)."""
_MORE = 1.03
_SOME_FAULTS = 1.0


def causes(standard: Why, flash: Why) -> list[Figure]:
    """Branch mispredictions, memory traffic, kernel launches, allocations, each for one query; sparse decoding."""
    return [
        _counted("branch mispredictions", "branch_misses", standard, flash),
        _counted("memory traffic", "cache_misses", standard, flash),
        _of("kernel launches", "operators", _launches(standard), _launches(flash), "operators run for a query"),
        _allocations(standard, flash),
        _sparse(standard, flash),
    ]


def _counted(name: str, field: str, standard: Why, flash: Why) -> Figure:
    ours, theirs = (_each(why, field) for why in (standard, flash))
    if ours is None or theirs is None:
        return unmeasured(name, "a query", NO_COUNTERS)
    return _of(name, "a query", ours, theirs, "as the CPU counts them")


def _each(why: Why, field: str) -> float | None:
    """Of one query. None: the kernel grants no such counter."""
    total: float | None = getattr(why.counts, field) if why.counts else None
    return None if total is None or not why.query_count else total / why.query_count


def _launches(why: Why) -> float:
    return float(sum(operator.count for operator in why.profile.operators))


def _allocations(standard: Why, flash: Why) -> Figure:
    ours, theirs = standard.page_faults, flash.page_faults
    if ours is None or theirs is None:
        return unmeasured("allocations", "page faults", "this system does not tell page faults")
    if max(ours, theirs) < _SOME_FAULTS:
        note = "both take their memory once and keep it"
        return Figure(
            name="allocations",
            unit="page faults",
            standard=ours,
            flash=theirs,
            delta_ratio=0.0,
            published_ratio=PUBLISHED["allocations"],
            is_penalty=False,
            note=note,
        )
    return _of("allocations", "page faults", ours, theirs, "page faults of a query: memory taken from the system anew")


def _sparse(standard: Why, flash: Why) -> Figure:
    """Shares of the time, not a ratio: the standard has no sparse weights."""
    name, published = "sparse decoding", PUBLISHED_SHARE["sparse decoding"]
    counts, shares = (
        [sum(o.count for o in why.profile.operators if o.kind in _SPARSE) for why in (standard, flash)],
        [_share(why) for why in (standard, flash)],
    )
    if counts[1] and not flash.profile.has_times:
        return unmeasured(name, "ratio", f"{counts[1]} operators unpack weights; {flash.profile.runtime} times none")
    note = f"of its time; the articles have {published:.0%}" if counts[1] else "nothing is unpacked while a query runs"
    return Figure(
        name=name,
        unit="ratio",
        standard=shares[0],
        flash=shares[1],
        delta_ratio=None,
        is_penalty=shares[1] > shares[0],
        note=note,
    )


def _share(why: Why) -> float:
    total = why.profile.total_ms
    return sum(o.time_ms for o in why.profile.operators if o.kind in _SPARSE) / total if total else 0.0


def _of(name: str, unit: str, standard: float, flash: float, note: str) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        standard=standard,
        flash=flash,
        delta_ratio=flash / standard - 1 if standard else None,
        published_ratio=PUBLISHED[name],
        is_penalty=flash > _MORE * standard,
        note=note,
    )
