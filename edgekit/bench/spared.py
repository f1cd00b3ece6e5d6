"""Which candidates need not be started, from what is known of their kin: fewer threads, smaller batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgekit.bench.candidates import Candidate
from edgekit.bench.stats import ms

_MARGIN = 1.2
"""More than threads can gain: a thread more frees some cache, too."""
_GAIN = 0.03
"""Two doublings of the batch that gain an item less than this are the last: what larger ones gain is less still. One
would not do: first impressions are of different moments."""
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a candidate was seen to take."""

    candidate: Candidate
    query_ms: float
    peak_bytes: int | None = None
    failure: str | None = None
    "It was started and has no figures."

    @property
    def item_ms(self) -> float:
        return self.query_ms / self.candidate.settings.batch


def why_spared(
    candidate: Candidate,
    known: Sequence[Known],
    best: Known | None,
    *,
    bound_ms: float | None = None,
    memory_bytes: int | None = None,
) -> str | None:
    """Why it need not be started, or None.

    Args:
        best: the fastest of those that may win. None: nobody may yet.
        bound_ms: on the latency of a query.
        memory_bytes: what a worker may hold.
    """
    kin = [k for k in known if k.candidate.name != candidate.name and _is_kin(k.candidate, candidate)]
    well = [k for k in kin if k.failure is None]
    return (
        _why_failing(candidate, kin)
        or (_why_too_slow(candidate, well, best) if best else None)
        or _why_too_large(candidate, well, bound_ms, memory_bytes)
    )


def _is_kin(other: Candidate, mine: Candidate) -> bool:
    """The same in no larger batches, with one thread or as many."""
    if other.artifact.record.name != mine.artifact.record.name or other.settings.batch > mine.settings.batch:
        return False
    single = replace(mine.settings.one_item(), threads=1, spinning=False)
    return other.settings.one_item() in (single, mine.settings.one_item())


def _smaller(candidate: Candidate, kin: Sequence[Known]) -> list[Known]:
    """The same in smaller batches, the largest last."""
    mine = candidate.settings
    found = [k for k in kin if k.candidate.settings.threads == mine.threads and _batch(k) < mine.batch]
    return sorted(found, key=_batch)


def _why_failing(candidate: Candidate, kin: Sequence[Known]) -> str | None:
    """What fails with few items fails with more."""
    failed = [k for k in _smaller(candidate, kin) if k.failure is not None]
    return f"not started: {_in_batches(_batch(failed[0]))} it failed: {failed[0].failure}" if failed else None


def _why_too_slow(candidate: Candidate, kin: Sequence[Known], best: Known) -> str | None:
    """More threads make it faster by their number at most, and a larger batch an item by the number of items."""
    for other in kin:
        mine, its = candidate.settings, other.candidate.settings
        most = _MARGIN * mine.threads / its.threads * mine.batch / its.batch
        times = other.item_ms / best.item_ms
        if times > most:
            alone = "with one thread" if mine.batch == its.batch else _in_batches(its.batch)
            return f"not started: {alone} it is {times:.1f}x slower than {best.candidate.name}"
    return None


def _why_too_large(
    candidate: Candidate, kin: Sequence[Known], bound_ms: float | None, memory_bytes: int | None
) -> str | None:
    """The next smaller batch breaks a limit already, or the last two gained nothing."""
    line = _smaller(candidate, kin)
    if not line:
        return None
    last = line[-1]
    if bound_ms is not None and last.query_ms > bound_ms:
        words = f"a query of {_batch(last)} item{'s' * (_batch(last) > 1)} takes {ms(last.query_ms)} ms already"
        return f"not started: {words}, {bound_ms:g} ms allowed"
    peak = _foretold_bytes(line[-2], last, candidate.settings.batch) if len(line) > 1 else None
    if memory_bytes is not None and peak is not None and peak > memory_bytes:
        return f"not started: it would peak at {peak / _MIB:.0f} MiB, {memory_bytes / _MIB:.0f} MiB allowed"
    return _why_no_gain(line)


def _why_no_gain(line: Sequence[Known]) -> str | None:
    if len(line) < 3:
        return None
    best, larger = min(line[:-2], key=_item_ms), min(line[-2:], key=_item_ms)
    if larger.item_ms <= (1 - _GAIN) * best.item_ms:
        return None
    sizes = f"in batches of {_batch(line[-2])} and {_batch(line[-1])}"
    words = f"{sizes} an item takes {ms(larger.item_ms)} ms at best, {ms(best.item_ms)} ms {_in_batches(_batch(best))}"
    return f"not started: {words}"


def _foretold_bytes(before: Known, last: Known, batch: int) -> float | None:
    """The peak of a larger batch, as it grew from one to the next."""
    if before.peak_bytes is None or last.peak_bytes is None:
        return None
    each = (last.peak_bytes - before.peak_bytes) / (_batch(last) - _batch(before))
    return last.peak_bytes + max(0.0, each) * (batch - _batch(last))


def _item_ms(known: Known) -> float:
    return known.item_ms


def _batch(known: Known) -> int:
    return known.candidate.settings.batch


def _in_batches(size: int) -> str:
    return f"in batches of {size}" if size > 1 else "one at a time"
