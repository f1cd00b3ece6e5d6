"""`edgekit bench --why`: where the time of each artifact goes, and what that means."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgekit.artifact import is_flash
from edgekit.bench.candidates import Candidate
from edgekit.bench.stats import ms
from edgekit.bench.why import CONVERTING, LAYOUT, NO_COUNTERS, Why, against, why
from edgekit.catalog import load_model
from edgekit.choose import find_candidates
from edgekit.cli.bench import plan_of, space_of
from edgekit.cli.progress import share_bar
from edgekit.config import home
from edgekit.device.probe import probe
from edgekit.errors import ArtifactError

_MOST_KINDS = 8


def run_why(args: argparse.Namespace) -> int:
    """Every artifact in every runtime, with the first thread count; one that cannot be run has a line on stderr.

    Exit code 0. Raises ArtifactError when none can be run.
    """
    model, state, facts = load_model(args.model), home(), probe()
    wanted = _once(find_candidates(model, state, facts, space_of(args)))
    found: list[Candidate] = []
    told: list[Why] = []
    failed: list[tuple[Candidate, ArtifactError]] = []
    with share_bar() as progress:
        for i, candidate in enumerate(wanted):
            progress(f"profiling {candidate.name}", i / len(wanted))
            try:
                told.append(why(model, candidate, plan_of(args, facts)))
                found.append(candidate)
            except ArtifactError as e:
                failed.append((candidate, e))
    if not told:
        raise failed[0][1]
    for candidate, error in failed:
        print(f"failed: {candidate.name}: {error.problem}", file=sys.stderr)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return 0
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    for one in told:
        _draw(console, one)
    if any(one.counts is None for one in told):
        console.print(NO_COUNTERS, soft_wrap=True)
    for candidate, one in zip(found, told, strict=True):
        if not is_flash(candidate.artifact.record.precision):
            continue
        base = [w for c, w in zip(found, told, strict=True) if _is_base(c, candidate)]
        for line in against(base[0], one) if base else ():
            console.print(f"{one.candidate} against the standard: {line}", markup=False, soft_wrap=True)
    return 0


def _once(found: Sequence[Candidate]) -> list[Candidate]:
    """One thread count of each artifact and runtime: the operators are the same."""
    first: dict[tuple[str, str], Candidate] = {}
    for candidate in found:
        first.setdefault((candidate.artifact.record.name, candidate.settings.runtime), candidate)
    return list(first.values())


def _is_base(base: Candidate, flash: Candidate) -> bool:
    return base.artifact.record.name == "standard" and base.settings.runtime == flash.settings.runtime


def _draw(console: Console, one: Why) -> None:
    console.print(f"[bold]{escape(one.candidate)}[/]: {ms(one.query_ms)} ms a query", highlight=False, soft_wrap=True)
    if one.profile.has_times:
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        for heading, side in (
            ("operator", "left"),
            ("", "left"),
            ("count", "right"),
            ("ms", "right"),
            ("share", "right"),
        ):
            table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True)
        for operator in one.profile.operators[:_MOST_KINDS]:
            kind = operator.kind
            what = "converts" if kind in CONVERTING else "layout" if kind in LAYOUT else ""
            share = operator.time_ms / one.profile.total_ms if one.profile.total_ms else 0.0
            precision = "float" if operator.is_float else "int"
            table.add_row(f"  {kind}", what or precision, str(operator.count), ms(operator.time_ms), f"{share:.0%}")
        console.print(table)
    for sentence in (said for said in one.sentences if said != NO_COUNTERS):
        console.print(f"  {sentence}", markup=False, highlight=False, soft_wrap=True)
