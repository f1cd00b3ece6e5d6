"""One model at one thread count: who races, which two are picked and by what right, and the table of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import contenders
from sides import FOR_P99, OWN, PEER, STANDARD, Side, Track, start_cold

FLOOR = 0.99
NOISE = 1.02
"""Of a race, and of a cold start."""
SMALL = 0.4
"""Of the standard's size, for what is called INT8."""
WIDER = 1.05
NEAR = 1.4
"""Times the fastest: who is slower than that after the first heat runs no second."""
STARTS = 5
"""Pairs of cold starts at most, two a time."""
HOPELESS = 1.3
"""Times the standard's: no further start will mend that."""
TRIES = 3
"""So many are tried as balanced picks; a width takes 700 runs of two sides."""


def is_fit(side: Side) -> bool:
    return side.kind == STANDARD or (side.kept is not None and side.kept >= FLOOR)


def compare(case: contenders.Case, threads: int, *, seconds: float, samples: int) -> dict[str, Any]:
    """All sides in turns, the two picks, and what they are worth; printed, and as plain values."""
    sides = [side.fresh(threads) for side in case.sides]
    track = Track(sides, [case.feed_of(side) for side in sides])
    track.heat(sides, budget_s=seconds / 3, least=12)
    standard = sides[0]
    judge_faster(case, sides)
    best_ms = min(side.p50_ms for side in sides if is_fit(side))
    near = [s for s in sides if s is standard or ((s.kept is None or is_fit(s)) and s.p50_ms < NEAR * best_ms)]
    track.heat(near, budget_s=seconds, least=40)
    judge_faster(case, near)  # some only now
    fit = [side for side in sides if is_fit(side)]
    fastest = min((side for side in fit if side.kind != PEER), key=lambda side: side.p50_ms)
    peers = [side for side in fit if side.kind == PEER]
    del track
    balanced, against = balance(case, [side for side in fit if side.kind == OWN], standard, samples)
    broken = None
    if balanced is not standard:  # once more, on its own: what was chosen among several was also lucky
        broken = why_not_balanced(case, balanced.fresh(), standard.fresh(), samples)
        if broken:
            against[balanced.name] = f"chosen, but in a second measurement {broken}"
    best_peer = min(peers, key=lambda side: side.p50_ms, default=None)
    show(case, threads, sides, fastest, balanced, against)
    return {
        "threads": threads,
        "standard_ms": standard.p50_ms,
        "fastest": {"name": fastest.name, "ms": fastest.p50_ms, "kept": fastest.kept},
        "balanced": {"name": balanced.name, "ms": balanced.p50_ms, "kept": balanced.kept, "broken": broken},
        "best_peer": {"name": best_peer.name, "ms": best_peer.p50_ms} if best_peer else None,
        "peers": {side.name: side.p50_ms if is_fit(side) else None for side in sides if side.kind == PEER}
        | {name: None for name in case.missing if name in contenders.PEERS},
        "missing": dict(case.missing),
        "not_balanced": against,
    }


def judge_faster(case: contenders.Case, sides: Sequence[Side]) -> None:
    """What is slower than the standard is no pick and no peer worth having."""
    for side in sides[1:]:
        if side.kept is None and side.p50_ms < NOISE * sides[0].p50_ms:
            side.kept = case.kept(side)


def balance(case: contenders.Case, fit: Sequence[Side], standard: Side, samples: int) -> tuple[Side, dict[str, str]]:
    """The fastest that takes no more of anything than the standard, else the standard; and why not the faster ones."""
    against: dict[str, str] = {}
    tried = 0
    for side in sorted(fit, key=lambda s: s.p50_ms):
        if side.p50_ms > standard.p50_ms:
            break
        if side.is_int8 and side.size_bytes > SMALL * standard.size_bytes:
            against[side.name] = f"has {side.size_bytes / standard.size_bytes:.2f} of the standard's size"
            continue
        if tried == TRIES:
            against[side.name] = f"not tried: {TRIES} were"
            continue
        why = why_not_balanced(case, side, standard, samples)
        if why is None:
            return side, against
        against[side.name] = why
        tried += "p99" in why
    return standard, against


def why_not_balanced(case: contenders.Case, side: Side, standard: Side, samples: int) -> str | None:
    """Colder, hungrier or wider than the standard, as measured now; None if it is none of these."""
    feeds = [case.feed_of(standard), case.feed_of(side)]
    why: str | None = None
    for number in range(STARTS):  # the least of all starts so far: one that was disturbed says nothing
        start_cold([standard, side], feeds, repeats=2)
        cold, peak = side.cold_ms / standard.cold_ms, side.peak_bytes / standard.peak_bytes
        why = _why_worse_start(side, standard)
        if why is None or (number and max(cold, peak) > HOPELESS):
            break
    if why is not None:
        return why
    if samples < FOR_P99:
        return None
    pair = [standard.fresh(), side.fresh()]
    track = Track(pair, feeds)
    for _ in range(2):  # a machine that paused for one of them gets a second chance, on the samples of both
        track.heat(pair, budget_s=0.0, least=samples)
        before, after = pair[0].width, pair[1].width
        if after <= WIDER * before:
            return None
    told = " against ".join(f"{own.width:.2f}" for own in reversed(pair))
    return f"is wider: p99/p50 {told}; its p99 is {pair[1].p99_ms / pair[0].p99_ms:.2f} of the standard's"


def _why_worse_start(side: Side, standard: Side) -> str | None:
    if side.cold_ms > NOISE * standard.cold_ms:
        return f"is colder: {side.cold_ms:.0f} against {standard.cold_ms:.0f} ms to the first result"
    if side.peak_bytes > NOISE * standard.peak_bytes:
        return f"is hungrier: {side.peak_bytes / 2**20:.0f} against {standard.peak_bytes / 2**20:.0f} MiB at peak"
    return None


def show(
    case: contenders.Case,
    threads: int,
    sides: Sequence[Side],
    fastest: Side,
    balanced: Side,
    against: Mapping[str, str],
) -> None:
    standard = sides[0]
    print(f"\n{case.name}, {threads} thread{'s' * (threads > 1)}")
    print(f"  {'':2} {'side':44} {'p50 ms':>8} {'speed':>7} {'kept':>8} {'size':>6} {'cold ms':>8} {'peak MiB':>8}")
    for side in sorted(sides, key=lambda side: side.p50_ms):
        marks = ("F" if side is fastest else " ") + ("B" if side is balanced else " ")
        kept = "-" if side.kept is None else f"{100 * side.kept:.1f} %"
        cold = "-" if side.cold_ms is None else f"{side.cold_ms:.0f}"
        peak = "-" if side.peak_bytes is None else f"{side.peak_bytes / 2**20:.0f}"
        size, speed = f"{side.size_bytes / standard.size_bytes:.2f}×", f"{standard.p50_ms / side.p50_ms:.2f}×"
        print(f"  {marks} {side.name:44} {side.p50_ms:8.3f} {speed:>7} {kept:>8} {size:>6} {cold:>8} {peak:>8}")
    for name, reason in case.missing.items():
        print(f"     {name:44} none: {reason}")
    for name, reason in against.items():
        print(f"     not balanced: {name} {reason}")
