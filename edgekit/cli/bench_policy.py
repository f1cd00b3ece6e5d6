"""`edgekit bench --policy`: the standard, Flash, or Flash first and the standard only where that is unsure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from edgekit.artifact import STANDARD, is_flash
from edgekit.catalog import load_model
from edgekit.cli.numbers import parse_axes
from edgekit.config import ModelConfig, home
from edgekit.errors import NoUsableArtifact, RuntimeUnavailable, UsageError
from edgekit.fetch import all_artifacts
from edgekit.serve.plan import Plan, pinned_plan
from edgekit.serve.policies import PolicyResult, compare_policies


def run_policy(args: argparse.Namespace) -> int:
    """Every compressed artifact that is fit, or those of --artifact. Exit code 0."""
    if not 0 <= args.agreement < 1:
        raise UsageError(f"--agreement {args.agreement:g} must be from 0 to below 1")
    standard, flashes = _plans(args)
    results = compare_policies(standard, flashes, agreement=args.agreement)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
    else:
        _print(results, args.agreement)
    return 0


def _plans(args: argparse.Namespace) -> tuple[Plan, list[Plan]]:
    """The standard and the compressed ones, each in the first installed runtime that reads it, with one thread."""
    model = load_model(args.model)
    artifacts = all_artifacts(model, home())
    wanted = ModelConfig(name=args.model, threads=(args.threads or [1])[0], axes=parse_axes(args.axis))
    names = args.artifact or [a.record.name for a in artifacts if a.record.fit]
    refused: list[tuple[str, str]] = []
    plans: dict[str, Plan] = {}
    for name in dict.fromkeys((STANDARD, *names)):
        try:
            config = msgspec.structs.replace(wanted, artifact=name)
            plans[name] = pinned_plan(model, config, artifacts, threads=wanted.threads or 1)
        except RuntimeUnavailable as error:
            if name == STANDARD:
                raise
            refused.append((name, str(error)))
    standard = plans.pop(STANDARD)
    flashes = [plan for plan in plans.values() if is_flash(plan.artifact.record.precision)]
    if not flashes:
        why = refused or [(name, "is not compressed") for name in names] or [("flash", "`edgekit build` makes one")]
        raise NoUsableArtifact(model.name, why)
    return standard, flashes


def _print(results: Sequence[PolicyResult], agreement: float) -> None:
    first = results[0]
    title = f"judged on {first.samples} evaluation samples; the others set the threshold for {100 * agreement:g} %"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="")
    for name in ("policy", "artifact"):
        table.add_column(name)
    for name in (first.metric, "agrees", "mean ms", "vs standard", "asks standard"):
        table.add_column(name, justify="right")
    for one in results:
        table.add_row(
            one.policy,
            one.artifact,
            f"{one.accuracy:.4f}",
            f"{100 * one.agreement:.1f} %",
            f"{one.mean_ms:.4f}",
            "baseline" if one is first else _against(first.mean_ms / one.mean_ms),
            f"{100 * one.asked_standard:.1f} %",
        )
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def _against(times: float) -> str:
    """As the table of `bench` has it."""
    if abs(times - 1) < 0.005:
        return "the same"
    return f"{times:.2f}x faster" if times > 1 else f"{1 / times:.2f}x slower"
