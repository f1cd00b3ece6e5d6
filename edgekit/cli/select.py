"""`edgekit select`: one artifact and its settings within your limits, and why not the others."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.artifact import UNKNOWN
from edgekit.cli.bench import add_space_arguments, space_of
from edgekit.cli.numbers import above_zero, within

if TYPE_CHECKING:
    from edgekit.errors import NoUsableArtifact
    from edgekit.selection import Limits, Selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    parser.add_argument("--latency-ms", type=float, help="the latency of a query that --percentile must keep")
    parser.add_argument("--percentile", default="p99", help="of the latency bound: p50, p90 or p99 (default: p99)")
    parser.add_argument("--qps", type=float, help="items a second that one session must answer")
    parser.add_argument("--memory-mb", type=float, help="the most memory at peak, in MiB")
    parser.add_argument(
        "--accuracy-floor", type=float, help="least share of the standard's accuracy (default: the model's own)"
    )
    parser.add_argument("--objective", default="latency", help="latency (default), throughput, memory or balanced")
    parser.add_argument(
        "--weights",
        nargs="+",
        metavar="TERM=SHARE",
        help="of the balanced score; what is not named keeps its part of the rest "
        "(default: throughput=0.4 memory=0.3 accuracy=0.2 deployability=0.1)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        metavar="SIZE",
        help="items of a query, where throughput counts (default: 1, 2, 4 and so on for as long as it gains)",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time of each candidate not measured yet")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="for the whole search (default: --seconds / 5 a candidate)"
    )
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    parser.add_argument("--no-measure", action="store_true", help="only what was measured before, else a rule of thumb")
    parser.add_argument(
        "--long-term", action="store_true", help="it must run unattended for years: one of the rules of thumb asks"
    )
    parser.add_argument("--explain", action="store_true", help="every rejected candidate with its reason")
    parser.add_argument("--json", action="store_true", help="print the selection as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.catalog import load_model
    from edgekit.choose import choose, guess, instead
    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.errors import NoUsableArtifact

    above_zero(latency_ms=args.latency_ms, qps=args.qps, memory_mb=args.memory_mb)
    above_zero(seconds=args.seconds, budget=args.budget, batch=min(args.batch) if args.batch else None)
    within(0, 1, accuracy_floor=args.accuracy_floor)
    model = load_model(args.model)
    limits, state = _limits(args, model.accuracy_floor), home()
    space = replace(space_of(args), batches=args.batch)
    try:
        if args.no_measure:
            selection = guess(model, limits, home=state, space=space, long_term=args.long_term)
        else:
            with share_bar() as progress:
                selection = choose(
                    model,
                    limits,
                    home=state,
                    seconds=args.seconds,
                    progress=progress,
                    fresh=args.fresh,
                    space=space,
                    budget_s=args.budget,
                )
    except NoUsableArtifact as none:
        _print_none(none, instead(model, limits, home=state, space=space), as_json=args.json)
        return 1
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(selection), indent=2).decode())
    else:
        print("\n".join(describe(selection, explain=args.explain)))
    return 0


def _limits(args: argparse.Namespace, floor: float) -> Limits:
    from edgekit.errors import UsageError
    from edgekit.selection import WEIGHTS, Limits

    if args.long_term and not args.no_measure:
        raise UsageError("--long-term is for the rules of thumb of --no-measure: measurements need no rule")
    if args.weights and args.objective != "balanced":
        raise UsageError(f"--weights are those of --objective balanced, not of {args.objective}")
    return Limits(
        latency_ms=args.latency_ms,
        latency_percentile=args.percentile,
        qps=args.qps,
        memory_bytes=int(args.memory_mb * 2**20) if args.memory_mb is not None else None,
        accuracy_floor=floor if args.accuracy_floor is None else args.accuracy_floor,
        objective=args.objective,
        weights=parse_weights(args.weights or (), WEIGHTS),
    )


def parse_weights(pairs: Sequence[str], default: Mapping[str, float]) -> dict[str, float]:
    """`["memory=0.6"]` -> all terms, those that are not named sharing the rest as in `default`. Raises UsageError."""
    from edgekit.errors import UsageError

    named: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            named[name] = float(text)
        except ValueError:
            named[name] = -1.0
        if name not in default or not 0 <= named[name] <= 1:
            raise UsageError(f"--weights {pair}: expected TERM=SHARE, 0 to 1, with a term of {', '.join(default)}")
    rest, theirs = 1 - sum(named.values()), sum(share for name, share in default.items() if name not in named)
    if rest < -1e-6 or (rest > 1e-6 and not theirs):
        raise UsageError(f"--weights {' '.join(pairs)}: add up to {1 - rest:g}, not to 1")
    return {
        name: named.get(name, share / theirs * max(0.0, rest) if theirs else 0.0) for name, share in default.items()
    }


def describe(selection: Selection, *, explain: bool) -> list[str]:
    """The selection in lines for people."""
    kept = f", keeps {selection.accuracy_ratio:.1%} of the accuracy" if selection.accuracy_ratio is not None else ""
    peak = f", peak {selection.peak_memory_bytes / 2**20:.0f} MiB" if selection.peak_memory_bytes else ""
    head = "prior (not measured)" if selection.is_prior else "selected"
    precision = "precision not declared" if selection.precision == UNKNOWN else selection.precision
    lines = [f"{head}: {selection.artifact} · {selection.settings.label} ({precision}{peak}{kept})"]
    lines += [f"  because  {reason}" for reason in selection.reasons]
    if not explain:
        count = len(selection.rejections)
        return [*lines, f"  {count} other{'s' if count != 1 else ''} rejected; --explain says why"] if count else lines
    lines += [f"  not      {r.candidate}: {r.reason}" for r in selection.rejections]
    return [*lines, *(f"  instead  {change}" for change in selection.would_change)]


def _print_none(none: NoUsableArtifact, changes: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        rejections = [{"candidate": name, "reason": why} for name, why in none.rejections]
        value = {"model": none.model, "rejections": rejections, "would_change": changes}
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return
    print(f"{none.model}: nothing fits")
    for name, why in none.rejections:
        print(f"  not      {name}: {why}")
    for change in changes:
        print(f"  instead  {change}")
