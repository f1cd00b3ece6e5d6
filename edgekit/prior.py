"""A guess for a machine where nothing was measured: the rules of thumb of the published comparisons, and who disagreed.

Pure. The answer is marked as a prior: no rule of thumb has survived measuring, so it says what to measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.artifact import is_flash
from edgekit.bench.candidates import Candidate, to_record
from edgekit.errors import NoUsableArtifact
from edgekit.selection import Limits, Rejection, Selection, check_limits

FLASH, STANDARD = "flash", "standard"
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the rules look at. None: not known, and rules that need it stay silent."""

    memory_bytes: int | None
    vram_bytes: int | None = None
    "Of a discrete GPU; None when there is none."
    long_term: bool = False
    "The deployment must run unattended for years: maintenance counts."


@dataclass(frozen=True, slots=True)
class Vote:
    """One rule that spoke."""

    rule: str
    text: str
    wants: str


def votes(machine: Machine, limits: Limits) -> tuple[Vote, ...]:
    """Every rule that has something to say, the one that decides first.

    Order where they conflict: fits memory, latency bound, throughput, maintenance. (The accuracy floor stands between
    memory and latency; it speaks about one artifact, so `prior` applies it to the candidates.)
    """
    found = []
    if machine.vram_bytes is not None and machine.vram_bytes < 16 * _GIB:
        found.append(Vote("memory", f"{machine.vram_bytes / _GIB:.0f} GiB of GPU memory is less than 16", FLASH))
    elif machine.vram_bytes is not None and machine.vram_bytes >= 32 * _GIB:
        found.append(Vote("memory", f"{machine.vram_bytes / _GIB:.0f} GiB of GPU memory is 32 or more", STANDARD))
    elif machine.vram_bytes is None and machine.memory_bytes is not None and machine.memory_bytes < 8 * _GIB:
        found.append(Vote("memory", f"{machine.memory_bytes / _GIB:.1f} GiB of memory is less than 8", FLASH))
    if limits.latency_ms is not None and limits.latency_ms < 100:
        found.append(Vote("latency", f"{limits.latency_ms:g} ms is a bound below 100", STANDARD))
    elif limits.latency_ms is not None and limits.latency_ms > 500:
        found.append(Vote("latency", f"{limits.latency_ms:g} ms is a bound above 500", FLASH))
    if limits.qps is not None and limits.qps > 100:
        found.append(Vote("throughput", f"{limits.qps:g} queries/s is more than 100", STANDARD))
    elif limits.qps is not None and limits.qps < 50:
        found.append(Vote("throughput", f"{limits.qps:g} queries/s is less than 50", FLASH))
    if machine.long_term:
        found.append(Vote("maintenance", "it must stay stable for long", STANDARD))
    return tuple(found)


def prior(candidates: Sequence[Candidate], machine: Machine, limits: Limits) -> Selection:
    """The candidate that the rules point at; `is_prior` is True and the reasons name the rules that disagreed.

    Raises NoUsableArtifact (every artifact below the accuracy floor, or none), UsageError.
    """
    check_limits(limits)
    refused = [(c.name, why) for c in candidates if (why := _why_not(c, limits))]
    names = {name for name, _ in refused}
    usable = [c for c in candidates if c.name not in names]
    if not usable:
        raise NoUsableArtifact(candidates[0].artifact.record.model if candidates else "", refused)
    heard = votes(machine, limits)
    wanted = heard[0].wants if heard else STANDARD
    right = [c for c in usable if _kind(c) == wanted] or usable
    chosen = max(right, key=lambda c: (c.artifact.record.precision == "int8", c.settings.threads))
    record = chosen.artifact.record
    rejections = [*refused, *((c.name, "the rules point elsewhere") for c in usable if c is not chosen)]
    return Selection(
        model=record.model,
        artifact=record.name,
        artifact_sha256=record.sha256,
        precision=record.precision,
        settings=to_record(chosen.settings),
        reasons=tuple(_reasons(heard, wanted, _kind(chosen), record.model)),
        rejections=tuple(Rejection(candidate=name, reason=why) for name, why in rejections),
        p50_ms=None,
        p99_ms=None,
        peak_memory_bytes=None,
        accuracy_ratio=record.accuracy.ratio if record.accuracy else None,
        limits=limits,
        is_prior=True,
    )


def _kind(candidate: Candidate) -> str:
    return FLASH if is_flash(candidate.artifact.record.precision) else STANDARD


def _why_not(candidate: Candidate, limits: Limits) -> str | None:
    record = candidate.artifact.record
    if not record.fit:
        return f"build marked it unfit: {record.why_unfit or 'no reason given'}"
    if _kind(candidate) == STANDARD or limits.accuracy_floor <= 0:
        return None
    ratio = record.accuracy.ratio if record.accuracy else None
    if ratio is None:
        return "its accuracy is not known; an accuracy floor of 0 accepts that"
    if ratio < limits.accuracy_floor:
        return f"keeps {ratio:.1%} of the standard's accuracy, {limits.accuracy_floor:.1%} required"
    return None


def _reasons(heard: Sequence[Vote], wanted: str, got: str, model: str) -> list[str]:
    reasons = [f"a prior, nothing was measured here; measure it: edgekit bench {model}"]
    if not heard:
        reasons.append("no rule of thumb has anything to say; the standard is the safe choice")
    else:
        reasons.append(f"{wanted}, because {heard[0].text}")
    reasons += [f"the {vote.rule} rule disagrees: {vote.text}" for vote in heard if vote.wants != wanted]
    if got != wanted:
        reasons.append(f"there is no {wanted} artifact that may be used, so {got} it is")
    return reasons
