"""What `edgekit build` gains, model by model, beside other quantisers' defaults: one run, one thread and two.

Two picks a model, both of what keeps 99 % of the standard's metric: `fastest`, and `balanced`, which is also never
colder at start, hungrier at peak or wider than the standard in its own runtime. The standard itself is always a pick.
Peers: onnxruntime's static and dynamic quantisers; NNCF for OpenVINO and ai-edge-quantizer where `.venv-peers` is.
Ends with one line of JSON; null: not measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import contenders
from sides import OWN, PEER, STANDARD, Side, race, start_cold

from edgekit.config import home

FLOOR = 0.99
SLOWER = 1.02
"""The noise of a race."""
SMALL = 0.4
"""Of the standard's size, for what is called INT8."""
WIDER = 1.05


@dataclass
class Tally:
    """Sums over models and thread counts."""

    speedups: list[float] = field(default_factory=list)
    against: list[float] = field(default_factory=list)
    balanced: list[float] = field(default_factory=list)
    by_peer: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    slower: int = 0
    below: int = 0
    violations: int = 0


def is_fit(side: Side) -> bool:
    return side.kind == STANDARD or (side.kept is not None and side.kept >= FLOOR)


def balance(sides: Sequence[Side], standard: Side) -> Side:
    """The fastest that takes no more of anything than the standard; the standard itself when there is none."""
    assert standard.cold_ms is not None
    assert standard.peak_bytes is not None
    for side in sorted((s for s in sides if s.kind == OWN and is_fit(s)), key=lambda s: s.p50_ms):
        if side.cold_ms is None or side.peak_bytes is None or side.p50_ms > standard.p50_ms:
            continue
        small = not side.is_int8 or side.size_bytes <= SMALL * standard.size_bytes
        if small and side.cold_ms <= standard.cold_ms and side.peak_bytes <= standard.peak_bytes:
            return side
    return standard


def compare(case: contenders.Case, threads: int, options: argparse.Namespace, tally: Tally) -> None:
    """One model at one thread count: all sides in turns, the two picks, and a table of it."""
    sides = [side.with_threads(threads) for side in case.sides]
    feeds = [case.feed_of(side) for side in sides]
    race(sides, feeds, budget_s=options.seconds * len(sides) / 4)
    standard = sides[0]
    fit = [side for side in sides if is_fit(side)]
    fastest = min((side for side in fit if side.kind != PEER), key=lambda side: side.p50_ms)
    peers = [side for side in fit if side.kind == PEER]
    worth = [
        s for s in sides if s is standard or s is fastest or (s.kind == OWN and s in fit and s.p50_ms < standard.p50_ms)
    ]
    start_cold(worth, [case.feed_of(side) for side in worth])
    balanced = balance(sides, standard)
    violations = 0
    if balanced is not standard:
        pair = [standard.with_threads(threads), balanced.with_threads(threads)]
        race(pair, [case.feed_of(side) for side in pair], budget_s=0.0, least=options.samples)
        if options.samples >= 662 and pair[1].width > WIDER * pair[0].width:
            violations = 1
            print(f"  {balanced.name}: p99/p50 {pair[1].width:.2f} against {pair[0].width:.2f} of the standard")
    show(case.name, threads, sides, fastest, balanced)
    tally.speedups.append(standard.p50_ms / fastest.p50_ms)
    tally.balanced.append(standard.p50_ms / balanced.p50_ms)
    best_peer = min(peers, key=lambda side: side.p50_ms, default=None)
    tally.against.append((best_peer.p50_ms if best_peer else standard.p50_ms) / fastest.p50_ms)
    for peer in peers:
        tally.by_peer.setdefault(peer.name, []).append((peer.p50_ms / fastest.p50_ms, standard.p50_ms / peer.p50_ms))
    tally.slower += fastest.p50_ms > SLOWER * standard.p50_ms
    tally.below += not (is_fit(fastest) and is_fit(balanced))
    tally.violations += violations


def show(name: str, threads: int, sides: Sequence[Side], fastest: Side, balanced: Side) -> None:
    standard = sides[0]
    print(f"\n{name}, {threads} thread{'s' * (threads > 1)}")
    print(f"  {'':2} {'side':44} {'p50 ms':>8} {'speed':>7} {'kept':>8} {'size':>6} {'cold ms':>8} {'peak MiB':>8}")
    for side in sorted(sides, key=lambda side: side.p50_ms):
        marks = ("F" if side is fastest else " ") + ("B" if side is balanced else " ")
        kept = "-" if side.kept is None else f"{100 * side.kept:.1f} %"
        cold = "-" if side.cold_ms is None else f"{side.cold_ms:.0f}"
        peak = "-" if side.peak_bytes is None else f"{side.peak_bytes / 2**20:.0f}"
        size, speed = f"{side.size_bytes / standard.size_bytes:.2f}×", f"{standard.p50_ms / side.p50_ms:.2f}×"
        print(f"  {marks} {side.name:44} {side.p50_ms:8.3f} {speed:>7} {kept:>8} {size:>6} {cold:>8} {peak:>8}")
    sys.stdout.flush()


def geomean(values: Sequence[float]) -> float | None:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3) if values else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=contenders.NAMES, help=f"of {', '.join(contenders.NAMES)}")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="of racing, for four sides")
    parser.add_argument("--samples", type=int, default=700, help="of the balanced pick and the standard, for p99/p50")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the peers advise on steps that they do not take themselves
    threads = [count for count in options.threads if count <= (os.cpu_count() or 1)]
    whole, models = Tally(), 0
    tallies = {count: Tally() for count in threads}
    with tempfile.TemporaryDirectory(prefix="edgekit-bench-") as folder:
        for name in options.models:
            case = contenders.prepare(name, home(), Path(folder))
            if case is None:
                continue
            models += 1
            for count in threads:
                compare(case, count, options, tallies[count])
    for count, tally in tallies.items():
        many = "s" * (count > 1)
        print(f"\n{count} thread{many}: fastest {geomean(tally.speedups)}×, balanced {geomean(tally.balanced)}×")
        for peer, pairs in sorted(tally.by_peer.items()):
            print(f"  against {peer}: {geomean([p[0] for p in pairs])}× on the {len(pairs)} models where it is fit")
        for key in ("speedups", "against", "balanced"):
            getattr(whole, key).extend(getattr(tally, key))
        whole.slower, whole.below = whole.slower + tally.slower, whole.below + tally.below
        whole.violations += tally.violations
    headline = {
        "models": models,
        "geomean_speedup": geomean(whole.speedups),
        "slower_than_standard": whole.slower,
        "below_accuracy_floor": whole.below,
        "geomean_vs_best_peer": geomean(whole.against),
        "balanced_geomean_speedup": geomean(whole.balanced),
        "balanced_violations": whole.violations if options.samples >= 662 else None,
    }
    print(json.dumps(headline))
    return 0


if __name__ == "__main__":
    sys.exit(main())
