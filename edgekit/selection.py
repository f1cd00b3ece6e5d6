"""Which artifact with which runtime settings, and why not the others. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from edgekit.artifact import is_flash
from edgekit.bench.record import Measurement, Settings, Standing
from edgekit.bench.stats import SAMPLES_FOR_P99, ms, speed_up
from edgekit.errors import NoUsableArtifact
from edgekit.limits import OBJECTIVES, PERCENTILES, WEIGHTS, Limits, check_limits
from edgekit.score import Benefit, benefit, lead, needed_gain, score_terms

__all__ = [
    "OBJECTIVES", "PERCENTILES", "WEIGHTS", "Limits", "Rejection", "Selection",
    "check_limits", "score_terms", "select", "standings", "why_not",
]  # fmt: skip

_MIB = 2**20


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
    "Of a query, which holds `settings.batch` items."
    p99_ms: float | None
    peak_memory_bytes: int | None
    accuracy_ratio: float | None
    limits: Limits
    is_prior: bool = False
    "True when nothing was measured here and a rule of thumb stands in."
    device: Mapping[str, str] = {}
    "The machine on which it was measured, as `Measurement.device`."
    would_change: tuple[str, ...] = ()
    "Which other limit or objective would bring which other candidate."


def select(measurements: Sequence[Measurement], limits: Limits) -> Selection:
    """The best measured candidate within the limits.

    Hard limits come first. Among what is left the objective decides, but a lead counts only when it is proven
    (`Limits.min_gain`); of those that are tied with the best, the more accurate wins, then the simpler.

    Raises NoUsableArtifact with every candidate's reason, UsageError for limits that make no sense.
    """
    check_limits(limits)
    refused = [(m.candidate, why) for m in measurements if (why := why_not(m, limits))]
    names = {name for name, _ in refused}
    usable = [m for m in measurements if m.candidate not in names]
    if not usable:
        raise NoUsableArtifact(measurements[0].model if measurements else "", refused)
    benefits = {m.candidate: benefit(m, usable, limits) for m in usable}
    best = max(usable, key=lambda m: benefits[m.candidate].middle)
    # what a search stopped early was behind in its rounds: only the best of all may be one of these
    tied = [m for m in usable if m is best or not (m.rough or _leads(best, m, benefits, limits))]
    chosen = min(_not_surely_slower(tied, limits), key=lambda m: _preference(m, benefits))
    losers = [(m.candidate, _why_lost(m, chosen, benefits, limits)) for m in usable if m is not chosen]
    return Selection(
        model=chosen.model,
        artifact=chosen.artifact,
        artifact_sha256=chosen.artifact_sha256,
        precision=chosen.precision,
        settings=chosen.settings,
        reasons=(*_reasons(chosen, best, measurements, limits), *_score(chosen, usable, limits)),
        rejections=tuple(Rejection(candidate=name, reason=why) for name, why in [*losers, *refused]),
        p50_ms=chosen.latency.p50_ms if chosen.latency else None,
        p99_ms=chosen.latency.p99_ms if chosen.latency else None,
        peak_memory_bytes=chosen.peak_memory_bytes,
        accuracy_ratio=chosen.accuracy_ratio,
        limits=limits,
        device=chosen.device,
    )


def why_not(measurement: Measurement, limits: Limits) -> str | None:
    """The first hard limit that the candidate does not keep, with its numbers, or None."""
    m = measurement
    if m.failure is not None or m.latency is None:
        return m.failure or "was not measured"
    if not m.fit:
        return f"build marked it unfit: {m.why_unfit or 'no reason given'}"
    if m.settings.batch > 1 and not limits.counts_items:
        return f"for {limits.objective} a query holds one item"
    return _why_too_big(m, limits) or _why_inaccurate(m, limits) or _why_slow(m, limits) or _why_few(m, limits)


def _why_too_big(m: Measurement, limits: Limits) -> str | None:
    if limits.memory_bytes is None:
        return None
    if m.peak_memory_bytes is None:
        return "its peak memory could not be measured on this system"
    if m.peak_memory_bytes > limits.memory_bytes:
        return f"peaks at {m.peak_memory_bytes / _MIB:.0f} MiB, {limits.memory_bytes / _MIB:.0f} MiB allowed"
    return None


def _why_inaccurate(m: Measurement, limits: Limits) -> str | None:
    if limits.accuracy_floor <= 0:
        return None
    if m.accuracy_ratio is None:
        return f"its accuracy is not known ({m.accuracy_note or 'not measured'}); an accuracy floor of 0 accepts that"
    if m.accuracy_ratio < limits.accuracy_floor:
        return f"keeps {m.accuracy_ratio:.1%} of the standard's accuracy, {limits.accuracy_floor:.1%} required"
    return None


def _why_slow(m: Measurement, limits: Limits) -> str | None:
    bound, name, latency = limits.latency_ms, limits.latency_percentile, m.latency
    if bound is None or latency is None:
        return None
    value = {"p50": latency.p50_ms, "p90": latency.p90_ms, "p99": latency.p99_ms}[name]
    allowed = f"{bound:g} ms allowed"
    if value is not None:
        return f"{name} {ms(value)} ms{_for_a_query(m)}, {allowed}" if value > bound else None
    if latency.p50_low_ms > bound:
        return f"even its median, {ms(latency.p50_ms)} ms{_for_a_query(m)}, is above the {allowed}"
    needed = PERCENTILES[name]
    return f"{name} not supported ({latency.sample_count} samples, {needed} needed): bench --samples {needed} gets them"


def _for_a_query(m: Measurement) -> str:
    """What a latency is about where it is not that of one item."""
    return f" for a query of {m.settings.batch} items" if m.settings.batch > 1 else ""


def _why_few(m: Measurement, limits: Limits) -> str | None:
    if limits.qps is None or m.items_per_s >= limits.qps:
        return None
    return f"answers {_rate(m)}, {limits.qps:.10g} required"


def _rate(m: Measurement) -> str:
    """Throughput in words; a query of one item is an item."""
    if m.settings.batch > 1:
        return f"{m.items_per_s:.1f} items/s in batches of {m.settings.batch}"
    return f"{m.items_per_s:.1f} queries/s"


def _leads(best: Measurement, other: Measurement, benefits: Mapping[str, Benefit], limits: Limits) -> bool:
    """Whether the lead of `best` counts: also when chance was as much on its side as 99 % confidence allows."""
    times, least, _ = speed_up(other, best)
    return lead(benefits[best.candidate], benefits[other.candidate], least / times) > 1 + needed_gain(
        best, other, limits
    )


def _not_surely_slower(tied: Sequence[Measurement], limits: Limits) -> list[Measurement]:
    """Of those that are tied, the equally accurate ones that no other beats for sure: simpler must not mean slower.

    Two that are both tied with the best need not be tied with each other: the rounds that they shared tell.
    """
    accurate = min(map(_inaccuracy, tied))
    left = [m for m in tied if _inaccuracy(m) == accurate]
    return [m for m in left if not any(speed_up(m, o)[1] > 1 + needed_gain(o, m, limits) for o in left if o is not m)]


def standings(measurements: Sequence[Measurement], limits: Limits) -> list[Standing]:
    """Where each candidate stands while a search goes on: the leader first; who breaks a limit is not listed.

    A percentile that has too few samples yet breaks no limit.
    """
    open_ = msgspec.structs.replace(limits, latency_percentile="p50")
    usable = [m for m in measurements if why_not(m, open_) is None]
    if not usable:
        return []
    benefits = {m.candidate: benefit(m, usable, limits) for m in usable}
    ordered = sorted(usable, key=lambda m: -benefits[m.candidate].middle)
    best = ordered[0]
    found = [Standing(candidate=best.candidate, behind=1.0, behind_at_best=1.0, surely=False, surely_near=True)]
    for m in ordered[1:]:
        times, _, most = speed_up(m, best)
        mine, its = benefits[best.candidate], benefits[m.candidate]
        extra = (1 + needed_gain(best, m, limits)) / (1 + limits.min_gain)  # what the leader's further threads owe
        found.append(
            Standing(
                candidate=m.candidate,
                behind=lead(mine, its, 1.0) / extra,
                behind_at_best=lead(mine, its, min(1.0, _kindest(m, best, times) / times)) / extra,
                surely=_leads(best, m, benefits, limits),
                surely_near=lead(mine, its, most / times) < 1 + needed_gain(best, m, limits),
            )
        )
    return found


def _kindest(other: Measurement, best: Measurement, times: float) -> float:
    """How many times faster an item was in `best` in the shared round that was kindest to the other, else `times`."""
    assert other.latency is not None
    assert best.latency is not None
    if other.run_id != best.run_id:
        return times
    items = best.settings.batch / other.settings.batch
    pairs = zip(other.latency.round_p50_ms, best.latency.round_p50_ms, strict=False)
    return min((items * theirs / ours for theirs, ours in pairs), default=times)


def _preference(m: Measurement, benefits: Mapping[str, Benefit]) -> tuple[float, int, int, int, float]:
    """Order among ties: more accurate (to a tenth of a percent), the standard, smaller batch, fewer threads, better."""
    way = m.settings
    return (_inaccuracy(m), m.artifact != "standard", way.batch, way.threads, -benefits[m.candidate].middle)


def _inaccuracy(m: Measurement) -> float:
    return -round(m.accuracy_ratio if m.accuracy_ratio is not None else 0.0, 3)


def _why_lost(m: Measurement, chosen: Measurement, benefits: Mapping[str, Benefit], limits: Limits) -> str:
    mine, its = benefits[m.candidate], benefits[chosen.candidate]
    figure = _figure(m, mine, limits)
    if mine.middle > its.middle:
        gain = mine.middle / its.middle - 1
        sure = f"not surely more than {needed_gain(m, chosen, limits):.0%}"
        return f"{figure}: {gain:.1%} better, {sure}; ties go to the {_virtue(m, chosen)}"
    if not mine.middle:  # an older record without this figure
        return f"{figure}: worse than the selected"
    times = its.middle / mine.middle
    return f"{figure}: " + (f"{times:.2f}x worse than the selected" if times >= 1.005 else "as good as the selected")


def _virtue(m: Measurement, chosen: Measurement) -> str:
    return "more accurate" if (chosen.accuracy_ratio or 0) - (m.accuracy_ratio or 0) >= 0.001 else "simpler"


def _figure(m: Measurement, benefit: Benefit, limits: Limits) -> str:
    """The number that the objective looks at."""
    if limits.objective == "balanced":
        return f"score {benefit.middle:.3f}"
    if limits.objective == "memory":
        return f"peak {(m.peak_memory_bytes or 0) / _MIB:.0f} MiB"
    if limits.objective == "throughput":
        return _rate(m)
    return f"typically {ms(m.latency.typical_ms)} ms" if m.latency else "not measured"


def _reasons(
    chosen: Measurement, best: Measurement, measurements: Sequence[Measurement], limits: Limits
) -> tuple[str, ...]:
    assert chosen.latency is not None
    low, high = chosen.latency.p50_low_ms, chosen.latency.p50_high_ms
    typical = f"p50 {ms(chosen.latency.p50_ms)} ms{_for_a_query(chosen)}"
    reasons = [f"{typical} ({ms(low)} to {ms(high)} at 99 % confidence), {_wanted(limits)}"]
    if limits.counts_items:
        reasons.append(f"answers {_rate(chosen)}")
    if best is not chosen:
        reasons.append(f"{best.candidate} leads by less than can be proven; the {_virtue(best, chosen)} is kept")
    reasons += _against_the_other_kind(chosen, measurements)
    if chosen.latency.p99_ms is None:
        reasons.append(f"p99 not supported ({chosen.latency.sample_count} samples, {SAMPLES_FOR_P99} needed)")
    reasons += [f"doubtful conditions: {doubt}" for doubt in chosen.conditions.judged_bad]
    return tuple(reasons)


def _score(chosen: Measurement, usable: Sequence[Measurement], limits: Limits) -> list[str]:
    """The weighted score spelt out, so that it can be checked."""
    if limits.objective != "balanced":
        return []
    terms = score_terms(chosen, usable)
    total = sum(limits.weights[name] * value for name, value in terms.items())
    spelt = " + ".join(f"{limits.weights[name]:.3g} × {value:.2f} {name}" for name, value in terms.items())
    return [f"score {total:.3f} = {spelt}; 1 is the best of what keeps the limits"]


def _wanted(limits: Limits) -> str:
    bounds = [f"{limits.latency_percentile} within {limits.latency_ms:g} ms"] if limits.latency_ms is not None else []
    bounds += [f"at least {limits.qps:.10g} items/s"] if limits.qps is not None else []
    bounds += [f"at most {limits.memory_bytes / _MIB:.0f} MiB"] if limits.memory_bytes is not None else []
    aim = "best balanced score" if limits.objective == "balanced" else f"best for {limits.objective}"
    return aim + (f" with {', '.join(bounds)}" if bounds else "")


def _against_the_other_kind(chosen: Measurement, measurements: Sequence[Measurement]) -> list[str]:
    """Flash against standard, each at its fastest: the question that edgekit exists for."""
    compressed = is_flash(chosen.precision)
    others = [(m.item_ms, m) for m in measurements if is_flash(m.precision) != compressed and m.latency]
    if not others:
        return []
    _, other = min(others, key=lambda pair: pair[0])
    times, least, most = speed_up(other, chosen)
    kind = "the standard" if compressed else "Flash"
    how = f"{times:.2f}x as fast as" if times >= 1 else f"{1 / times:.2f}x slower than"
    sure = f"; between {least:.2f}x and {most:.2f}x as fast" if times >= 1 else ""
    return [f"{how} {kind} at its best ({other.candidate}{sure})"]
