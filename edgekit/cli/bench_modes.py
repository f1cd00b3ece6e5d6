"""`edgekit bench` beyond the plain table: --scenario, --soak, --batch and --mix, each of the selected candidate."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgekit.bench.batches import why_one_item
from edgekit.bench.candidates import Candidate, in_batches, takes_batches
from edgekit.bench.record import Measurement
from edgekit.bench.run import bench
from edgekit.bench.scenarios import NAMES, Scenario, ScenarioResult, run_scenario
from edgekit.bench.soak import Soak, Together, mix, soak
from edgekit.bench.stats import ms
from edgekit.catalog import load_model
from edgekit.choose import Space, choose, find_candidates
from edgekit.cli.bench import plan_of, space_of
from edgekit.cli.progress import share_bar
from edgekit.config import home
from edgekit.device.probe import Facts, probe
from edgekit.errors import UsageError
from edgekit.manifest import Model
from edgekit.selection import Limits


def run_mode(args: argparse.Namespace) -> int:
    """The mode that the arguments ask for. Exit code 1 when a server scenario's bound is not kept."""
    if args.soak is not None and args.soak <= 0:
        raise UsageError("--soak must be more than zero minutes")
    if args.scenario:
        return _scenarios(args)
    if args.soak is not None:
        return _soak(args)
    return _mix(args) if args.mix else _batches(args)


def _chosen(args: argparse.Namespace, model: Model, facts: Facts, space: Space) -> Candidate:
    """The only candidate that the arguments leave, else the selected one (measured if it must be)."""
    state = home()
    found = find_candidates(model, state, facts, space)
    if len(found) == 1:
        return found[0]
    with share_bar() as progress:
        limits = Limits(accuracy_floor=0.0 if not model.data.evaluation else model.accuracy_floor)
        choice = choose(
            model,
            limits,
            home=state,
            facts=facts,
            seconds=args.seconds,
            progress=progress,
            space=space,
            is_stored=False,
        )
    wanted = f"{choice.artifact} · {choice.settings.label}"
    return next(candidate for candidate in found if candidate.name == wanted)


def _scenarios(args: argparse.Namespace) -> int:
    names = NAMES if "all" in args.scenario else tuple(dict.fromkeys(args.scenario))
    if "server" in names and (args.qps is None or args.latency_ms is None):
        raise UsageError("the server scenario needs --qps and --latency-ms")
    if (args.qps is not None and args.qps <= 0) or (args.latency_ms is not None and args.latency_ms <= 0):
        raise UsageError("--qps and --latency-ms must be more than zero")
    model, facts = load_model(args.model), probe()
    candidate, plan = _chosen(args, model, facts, space_of(args)), plan_of(args, facts)
    results = []
    with share_bar() as progress:
        for i, name in enumerate(names):
            progress(name, i / len(names))
            is_server = name == "server"
            scenario = Scenario(
                name=name,
                seconds=args.seconds,
                min_queries=args.samples or 0,
                qps=args.qps if is_server else None,
                bound_ms=args.latency_ms if is_server else None,
            )
            results.append(run_scenario(model, candidate, scenario, plan))
    _show(args, results, lambda console: _draw_scenarios(console, model, results))
    return 1 if any(result.holds is False for result in results) else 0


def _draw_scenarios(console: Console, model: Model, results: Sequence[ScenarioResult]) -> None:
    table = _table(
        console, f"{model.name}: {results[0].candidate}", "scenario", ["queries", "p50 ms", "claim", "samples/s"]
    )
    for result in results:
        claim = "–"
        if result.percentile is not None and result.estimate_ms is not None:
            claim = f"p{result.percentile * 100:.0f} ≤ {ms(result.estimate_ms)} ms"
        table.add_row(
            result.scenario.name, str(result.query_count), ms(result.p50_ms), claim, f"{result.samples_per_s:.1f}"
        )
    console.print(table)
    for result in results:
        for line in _said_of(result):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _said_of(result: ScenarioResult) -> list[str]:
    name, scenario, lines = result.scenario.name, result.scenario, []
    if result.percentile is not None and result.estimate_ms is None:
        lines.append(
            f"{name}: p{result.percentile * 100:.0f} not supported ({result.query_count} queries, "
            f"{result.queries_needed} needed); --samples {result.queries_needed} goes on until it is"
        )
    if scenario.bound_ms is not None and scenario.qps is not None:
        words = {True: "kept", False: "not kept", None: "neither kept nor broken for sure"}[result.holds]
        lines.append(
            f"{name}: {scenario.bound_ms:g} ms at {scenario.qps:g} queries/s is {words}: {result.over_bound_count} of "
            f"{result.query_count} were slower"
        )
    return lines


def _soak(args: argparse.Namespace) -> int:
    model, facts = load_model(args.model), probe()
    candidate = _chosen(args, model, facts, space_of(args))
    with share_bar() as progress:
        result = soak(model, candidate, args.soak, plan_of(args, facts), progress=progress)
    _show(args, result, lambda console: _draw_soak(console, model, result))
    return 0


def _draw_soak(console: Console, model: Model, result: Soak) -> None:
    table = _table(console, f"{model.name}: {result.candidate}", "after", ["queries", "p50 ms", "°C", "throttled"])
    for window in result.windows:
        heat = "–" if window.temperature_c is None else f"{window.temperature_c:.0f}"
        held = {None: "–", True: "yes", False: "no"}[window.throttled]
        table.add_row(f"{window.at_s:.0f} s", str(window.query_count), ms(window.p50_ms), heat, held)
    console.print(table)
    p99 = "not supported" if result.sustained_p99_ms is None else f"{ms(result.sustained_p99_ms)} ms"
    console.print(
        f"sustained (second half): p50 {ms(result.sustained_p50_ms)} ms, p99 {p99}; {result.finding}",
        highlight=False,
        soft_wrap=True,
    )


def _batches(args: argparse.Namespace) -> int:
    if min(args.batch) < 1:
        raise UsageError("--batch must be 1 or more")
    model, facts, space = load_model(args.model), probe(), space_of(args)
    takers = sorted(
        {c.artifact.record.name for c in find_candidates(model, home(), facts, space) if takes_batches(model, c)}
    )
    if not takers:
        raise UsageError(f"--batch: {model.name} takes one item at a time: {why_one_item(model)}")
    one = _chosen(args, model, facts, replace(space, artifacts=takers))
    sizes = tuple(dict.fromkeys(args.batch))
    with share_bar() as progress:
        rows = bench(model, in_batches(model, one, sizes), plan_of(args, facts), progress=progress)
    found = dict(zip(sizes, rows, strict=True))
    _show(args, rows, lambda console: _draw_batches(console, model, one, found))
    return 0


def _draw_batches(console: Console, model: Model, one: Candidate, rows: Mapping[int, Measurement]) -> None:
    table = _table(console, f"{model.name}: {one.name}", "batch", ["p50 ms", "ms an item", "items/s", "peak MiB"])
    for size, row in rows.items():
        if row.latency is None:
            table.add_row(str(size), row.failure or "failed", "", "", "")
            continue
        peak = f"{row.peak_memory_bytes / 2**20:.0f}" if row.peak_memory_bytes else "–"
        p50 = row.latency.p50_ms
        table.add_row(str(size), ms(p50), ms(p50 / size), f"{1000 * size / p50:.1f}", peak)
    console.print(table)


def _mix(args: argparse.Namespace) -> int:
    facts = probe()
    models = [load_model(name) for name in dict.fromkeys([args.model, *args.mix])]
    pairs = [(model, _chosen(args, model, facts, replace(space_of(args), artifacts=None))) for model in models]
    with share_bar() as progress:
        rows = mix(pairs, args.seconds, plan_of(args, facts), progress=progress)
    _show(args, rows, lambda console: _draw_mix(console, rows))
    return 0


def _draw_mix(console: Console, rows: Sequence[Together]) -> None:
    table = _table(
        console, "one after the other, and all at the same time", "model", ["alone ms", "together ms", "slower"]
    )
    for row in rows:
        table.add_row(
            f"{row.model} · {row.candidate}", ms(row.alone_p50_ms), ms(row.together_p50_ms), f"{row.slowdown:.2f}x"
        )
    console.print(table)
    total, shared = sum(row.alone_p50_ms for row in rows), sum(row.together_p50_ms for row in rows)
    console.print(f"alone they sum to {ms(total)} ms, together to {ms(shared)} ms", highlight=False)


def _table(console: Console, title: str, first: str, headings: Sequence[str]) -> Table:
    console.print(f"[bold]{escape(title)}[/]", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _show(args: argparse.Namespace, value: Any, draw: Any) -> None:
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return
    console = Console()
    draw(console if console.is_terminal else Console(width=120))
