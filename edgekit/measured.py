"""What is known of a model's candidates from earlier: which measurements still hold, and which are worth repeating."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from edgekit.bench import store
from edgekit.bench.candidates import Candidate
from edgekit.bench.conditions import conditions, lasting, this_device
from edgekit.bench.contender import Contender, Plan, accuracy_fields, row_of
from edgekit.bench.record import Conditions, Latency, Measurement
from edgekit.bench.spared import Known, why_spared
from edgekit.bench.store import Stored
from edgekit.config import Home
from edgekit.limits import Limits
from edgekit.manifest import Model
from edgekit.selection import why_not

_MOST_TRIES = 3
"""Under conditions that turn out doubtful each time: a neighbour that comes and goes is part of this machine."""
_RETRY_MS = 60_000
"""The load of the machine is an average over a minute: sooner, nothing else is known of it."""


def keep(model: Model, home: Home, taken: Sequence[Measurement]) -> None:
    """Store what was measured. A failure may be of the moment (memory), so it is tried again next time.

    Raises ConfigError when the disk does not let us.
    """
    store.save(home.measurements(model.name), [m for m in taken if m.failure is None and m.latency is not None])


def known(model: Model, found: Sequence[Candidate], home: Home) -> dict[str, Measurement]:
    """Candidate name -> what was measured of it on this machine, as it is set now. Raises ConfigError."""
    return {name: measurement for name, (measurement, _) in _stored(model, found, home).items()}


def valid(model: Model, found: Sequence[Candidate], home: Home, plan: Plan) -> dict[str, Measurement]:
    """What need not be measured again. What a search stopped early is measured on only when it would be chosen.

    What was measured under doubtful conditions is measured again once they are good, but not for ever.
    Raises ConfigError when the store cannot be used.
    """
    stored, is_calm, now_ms = _stored(model, found, home), not conditions().judged_bad, time.time_ns() // 1_000_000
    return {
        name: old.measurement
        for name, old in stored.items()
        if _suffices(old.measurement, plan) and not (is_calm and is_worth_repeating(old, now_ms))
    }


def is_worth_repeating(old: Stored, now_ms: int) -> bool:
    """Whether a measurement is doubtful, and conditions that are good now may make a better one. Pure."""
    age_ms = now_ms - old.measurement.taken_at_unix_ms
    return 0 < old.doubtful_count < _MOST_TRIES and not 0 <= age_ms < _RETRY_MS


def spared(found: Sequence[Candidate], rows: Mapping[str, Measurement], limits: Limits) -> dict[str, str]:
    """Candidate name -> why it need not be measured, for those whose kin show that they are no hope. Pure.

    Args:
        rows: what is measured, by candidate name, with what is known of its accuracy.
    """
    open_ = msgspec.structs.replace(limits, latency_percentile="p50")
    known = [
        (Known(candidate=c, query_ms=row.latency.typical_ms, peak_bytes=row.peak_memory_bytes), row)
        for c in found
        if (row := rows.get(c.name)) and row.latency
    ]
    best = min((k for k, row in known if why_not(row, open_) is None), key=lambda k: k.item_ms, default=None)
    if best is None:
        return {}
    everyone = [k for k, _ in known]
    left = [candidate for candidate in found if candidate.name not in rows]
    whys = {c.name: why_spared(c, everyone, best, bound_ms=limits.latency_ms) for c in left}
    return {name: why for name, why in whys.items() if why is not None}


def unstarted(model: Model, candidate: Candidate, why: str) -> Measurement:
    """The row of a candidate that was not measured, with the reason."""
    return row_of(model, Contender(candidate=candidate, failure=why), Conditions(), "", in_turns=0)


def _suffices(m: Measurement, plan: Plan) -> bool:
    return m.latency is not None and (m.rough or _has_enough(m.latency, plan))


def _has_enough(latency: Latency, plan: Plan) -> bool:
    hopeless = plan.bound_ms is not None and latency.p50_low_ms > plan.bound_ms
    return hopeless or latency.sample_count >= plan.min_samples


def _stored(model: Model, found: Sequence[Candidate], home: Home) -> dict[str, Stored]:
    """As stored, with what the artifacts' records say of accuracy today."""
    records = {candidate.name: candidate.artifact.record for candidate in found}
    stored = store.load(home.measurements(model.name), found, this_device(), lasting(conditions()))
    return {
        name: old._replace(measurement=msgspec.structs.replace(old.measurement, **accuracy_fields(records[name])))
        for name, old in stored.items()
    }
