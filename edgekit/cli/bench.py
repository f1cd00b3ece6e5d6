"""`edgekit bench`: artifacts × runtimes × threads measured on this machine, standard against flash."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.numbers import above_zero, parse_axes, within

if TYPE_CHECKING:
    from edgekit.bench.run import Plan
    from edgekit.choose import Space
    from edgekit.device.probe import Facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time of each candidate (default: 5)")
    parser.add_argument("--samples", type=int, help="measure on until each has so many (662 support a p99)")
    parser.add_argument("--memory-mb", type=float, help="end a candidate that holds more (default: what is free)")
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("STANDARD", "FLASH"),
        help="two artifacts figure by figure, each at its fastest; 'standard' and 'flash' name the best of their kind",
    )
    parser.add_argument("--html", metavar="FILE", help="also write a report with plots, one self-contained file")
    parser.add_argument("--why", action="store_true", help="where the time goes, operator by operator, in sentences")
    parser.add_argument("--policy", action="store_true", help="standard, flash, or flash first: accuracy and mean cost")
    parser.add_argument("--agreement", type=float, default=0.99, help="of a cascade with the standard (default: 0.99)")
    parser.add_argument("--export", metavar="FILE", help="write all measurements of the model that are stored here")
    parser.add_argument(
        "--merge", metavar="FILE", action="append", help="add measurements that were exported elsewhere"
    )
    modes = parser.add_argument_group("of the selected candidate, or the one that the options above leave")
    modes.add_argument(
        "--scenario",
        action="append",
        choices=("single-stream", "multi-stream", "server", "offline", "all"),
        help="a load of MLPerf's, with its rules (may be repeated)",
    )
    modes.add_argument("--qps", type=float, help="arrivals a second of the server scenario")
    modes.add_argument("--latency-ms", type=float, help="what the server scenario's p99 must keep")
    modes.add_argument("--soak", type=float, metavar="MINUTES", help="what is left of the speed after so long")
    modes.add_argument("--batch", type=int, nargs="+", metavar="SIZE", help="latency against batch size")
    modes.add_argument("--mix", nargs="+", metavar="MODEL", help="together with these models at the same time")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def add_space_arguments(parser: argparse.ArgumentParser) -> None:
    """What `bench` and `select` share: the model, and which candidates of it."""
    parser.add_argument("model", help="a model of the catalog, or your own .onnx or .tflite file")
    parser.add_argument("--artifact", action="append", metavar="NAME", help="only this artifact (may be repeated)")
    parser.add_argument("--runtime", action="append", metavar="NAME", help="only this runtime (may be repeated)")
    parser.add_argument("--threads", type=int, nargs="+", help="thread counts (default: 1 and all usable cores)")
    parser.add_argument("--wide", action="store_true", help="also spinning threads, and bf16 where the CPU has it")
    parser.add_argument(
        "--axis", action="append", default=[], metavar="NAME=SIZE", help="the size of a dynamic axis, such as side=640"
    )


def run(args: argparse.Namespace) -> int:
    from edgekit.catalog import load_model
    from edgekit.choose import find_candidates, measure
    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.device.probe import probe

    above_zero(seconds=args.seconds, samples=args.samples, memory_mb=args.memory_mb)
    above_zero(qps=args.qps, latency_ms=args.latency_ms, soak=args.soak)
    within(0, 1, agreement=args.agreement)
    if args.compare:
        from edgekit.cli.bench_compare import run_compare

        return run_compare(args)
    if args.export or args.merge:
        from edgekit.cli.bench_share import run_share

        return run_share(args)
    if args.why:
        from edgekit.cli.bench_why import run_why

        return run_why(args)
    if args.policy:
        from edgekit.cli.bench_policy import run_policy

        return run_policy(args)
    if args.html:
        from edgekit.cli.bench_report import check_target

        check_target(args.html)  # and that there is a plotting library: both before the measuring
    if args.scenario or (args.soak is not None and not args.html) or args.batch or args.mix:
        from edgekit.cli.bench_modes import run_mode

        return run_mode(args)
    model, state, facts = load_model(args.model), home(), probe()
    found = find_candidates(model, state, facts, space_of(args))
    with share_bar() as progress:
        rows = measure(model, found, home=state, plan=plan_of(args, facts), progress=progress, fresh=True)
        if args.html:
            from edgekit.cli.bench_report import write_report

            write_report(args, model, found, rows, plan_of(args, facts), progress)
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    else:
        from edgekit.cli.bench_table import print_table

        print_table(model, rows)
    return 0 if any(row.failure is None for row in rows) else 5


def space_of(args: argparse.Namespace) -> Space:
    """The arguments of `add_space_arguments` as values. Raises UsageError."""
    from edgekit.choose import Space
    from edgekit.errors import UsageError
    from edgekit.runtimes.session import RUNTIMES

    for name in args.runtime or ():
        if name not in RUNTIMES:
            raise UsageError(f"--runtime {name}: edgekit knows {', '.join(RUNTIMES)}")
    if args.threads and min(args.threads) < 1:
        raise UsageError("--threads must be 1 or more")
    return Space(
        artifacts=args.artifact,
        runtimes=args.runtime,
        threads=args.threads,
        axes=parse_axes(args.axis),
        is_wide=args.wide,
    )


def plan_of(args: argparse.Namespace, facts: Facts) -> Plan:
    """How long to measure, from the arguments."""
    from edgekit.bench.run import Plan
    from edgekit.bench.stats import MIN_SAMPLES

    limit = int(args.memory_mb * 2**20) if args.memory_mb else facts.memory.available_bytes
    if args.samples is None:
        return Plan(seconds=args.seconds, memory_limit_bytes=limit)
    return Plan(
        seconds=args.seconds,
        min_samples=max(MIN_SAMPLES, args.samples),
        max_samples=max(MIN_SAMPLES, args.samples),
        max_seconds=float("inf"),
        memory_limit_bytes=limit,
    )
