"""What `edgekit build` gains, model by model, beside other quantisers' defaults: one run, one thread and two.

Two picks a model, both of what keeps 99 % of the standard's metric: `fastest`, and `balanced`, which is also never
colder at start, hungrier at peak or wider (p99/p50) than the standard in its own runtime, and at most 0.4 of its size
where it is INT8. The standard itself is always a pick. A balanced pick is measured a second time; what it then breaks
is a violation.

Peers: onnxruntime's static and dynamic quantisers, NNCF for OpenVINO, ai-edge-quantizer; each has --peer-seconds. Where
a peer fails, is unfit or is slower than the standard, its user would keep the standard, and that is what counts.
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
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import contenders
from bench_build_picks import FLOOR, NOISE, compare
from sides import FOR_P99

from edgekit.config import home


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return round(math.exp(sum(logs) / len(logs)), 3) if logs else None


def instead_of(peer_ms: float | None, standard_ms: float) -> float:
    """What a peer's user has: its model, or the standard where it has none that is fit and faster."""
    return standard_ms if peer_ms is None else min(peer_ms, standard_ms)


def headline(rows: Sequence[dict[str, Any]], *, has_widths: bool) -> dict[str, Any]:
    """The fields of the last line, over all models and thread counts."""
    best = [
        instead_of(row["best_peer"]["ms"] if row["best_peer"] else None, row["standard_ms"]) / row["fastest"]["ms"]
        for row in rows
    ]
    return {
        "models": len({row["model"] for row in rows}),
        "geomean_speedup": geomean(row["standard_ms"] / row["fastest"]["ms"] for row in rows),
        "slower_than_standard": sum(row["fastest"]["ms"] > NOISE * row["standard_ms"] for row in rows),
        "below_accuracy_floor": sum(row[pick]["kept"] < FLOOR for row in rows for pick in ("fastest", "balanced")),
        "geomean_vs_best_peer": geomean(best),
        "balanced_geomean_speedup": geomean(row["standard_ms"] / row["balanced"]["ms"] for row in rows),
        "balanced_violations": sum(row["balanced"]["broken"] is not None for row in rows) if has_widths else None,
    }


def sum_up(rows: Sequence[dict[str, Any]]) -> None:
    """The picks of each model, then each peer's own gain beside ours on the same models."""
    print(f"\n{'model':20} {'threads':>7} {'fastest':>8} {'balanced':>8} {'best peer':>9}  picks")
    for row in rows:
        base, peer = row["standard_ms"], row["best_peer"]
        own = f"{base / row['fastest']['ms']:7.2f}× {base / row['balanced']['ms']:7.2f}×"
        other = f"{base / peer['ms']:8.2f}×" if peer else f"{'none fit':>9}"
        picks = f"{row['fastest']['name']} | {row['balanced']['name']}"
        print(f"{row['model']:20} {row['threads']:7} {own} {other}  {picks} | {peer['name'] if peer else '-'}")
    for threads in sorted({row["threads"] for row in rows}):
        mine = [row for row in rows if row["threads"] == threads]
        fast = geomean(row["standard_ms"] / row["fastest"]["ms"] for row in mine)
        even = geomean(row["standard_ms"] / row["balanced"]["ms"] for row in mine)
        print(f"\n{threads} thread{'s' * (threads > 1)}: fastest {fast}×, balanced {even}×")
        for peer in sorted({name for row in mine for name in row["peers"]}):
            there = [row for row in mine if peer in row["peers"]]
            theirs = geomean(r["standard_ms"] / instead_of(r["peers"][peer], r["standard_ms"]) for r in there)
            ours = geomean(r["standard_ms"] / r["fastest"]["ms"] for r in there)
            useful = sum(row["peers"][peer] is not None for row in there)
            print(f"  {peer}: {theirs}×, ours {ours}× on these {len(there)} models; fit and not slower on {useful}")
        behind = [
            f"{row['model']} {row['best_peer']['ms'] / row['fastest']['ms']:.2f}×"
            for row in mine
            if row["best_peer"] and row["best_peer"]["ms"] < 0.97 * row["fastest"]["ms"]
        ]
        print(f"  more than 3 % behind the best peer: {', '.join(behind) or 'nowhere'}")


def measure(name: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One model at every thread count; taken from --results where it has been measured."""
    kept = options.results / f"{name}.json" if options.results else None
    if kept is not None and kept.exists():
        print(f"\n{name}: measured before, see {kept}")
        return list(json.loads(kept.read_text(encoding="utf-8")))
    begun = time.monotonic()
    case = contenders.prepare(name, home(), folder, options.peer_seconds)
    if case is None:
        return []
    prepared_s = time.monotonic() - begun
    rows = [
        {"model": name, **compare(case, count, seconds=options.seconds, samples=options.samples)}
        for count in options.threads
        if count <= (os.cpu_count() or 1)
    ]
    print(f"  ({prepared_s:.0f} s to make all sides, {time.monotonic() - begun - prepared_s:.0f} s to measure them)")
    sys.stdout.flush()
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(contenders.NAMES)}; none: all")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="of racing at each thread count")
    parser.add_argument("--samples", type=int, default=700, help="of the balanced pick and the standard, for p99/p50")
    parser.add_argument("--peer-seconds", type=float, default=75.0, help="that each other quantiser has for a model")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep each model's figures; go on from there")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    begun, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="edgekit-bench-") as folder:
        for name in options.models or contenders.NAMES:
            rows += measure(name, options, Path(folder))
    sum_up(rows)
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes")
    print(json.dumps(headline(rows, has_widths=options.samples >= FOR_P99)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
