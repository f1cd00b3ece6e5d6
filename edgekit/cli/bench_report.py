"""`edgekit bench --html FILE`: the table, and everything worth a plot, as one file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgekit.artifact import is_flash
from edgekit.bench.candidates import Candidate, in_batches, takes_batches
from edgekit.bench.record import Measurement
from edgekit.bench.report import render
from edgekit.bench.run import Plan, Progress, bench
from edgekit.bench.soak import soak
from edgekit.bench.why import Why, why
from edgekit.cli.bench_table import baseline, findings
from edgekit.errors import EdgekitError, UsageError
from edgekit.files import write_atomic
from edgekit.manifest import Model
from edgekit.runtimes.profile import TIMED

_BATCHES = (1, 2, 4, 8)


def check_target(name: str) -> None:
    """Raises UsageError when no file of that name can be written."""
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"--html {path}: its folder cannot be made: {e.strerror}") from e
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"--html {path}: {'is a folder' if path.is_dir() else 'its folder cannot be written to'}")


def write_report(
    args: argparse.Namespace,
    model: Model,
    found: Sequence[Candidate],
    rows: Sequence[Measurement],
    plan: Plan,
    progress: Progress,
) -> None:
    """Profile the best of each kind, sweep batches where the model takes them, soak if asked; write the page.

    Raises UsageError when the file cannot be written.
    """
    best, base = _best_of_each_kind(found, rows), baseline(rows)
    whys: list[Why] = []
    for candidate in best:
        progress(f"profiling {candidate.name}", 1.0)
        try:
            whys.append(why(model, candidate, plan))
        except EdgekitError as e:
            print(f"no operators of {candidate.name}: {e}", file=sys.stderr)
    warm = soak(model, best[0], args.soak, plan, progress=progress) if args.soak and best else None
    text = render(
        f"{model.name}: Flash against standard",
        rows,
        findings(rows, base),
        base=base,
        whys=whys,
        batches=_batches(model, best[0], plan) if best else None,
        soak=warm,
    )
    path = Path(args.html)
    try:
        write_atomic(path, text.encode())
    except OSError as e:
        raise UsageError(f"--html {path}: {e.strerror}") from e
    print(f"wrote {path}", file=sys.stderr)


def _best_of_each_kind(found: Sequence[Candidate], rows: Sequence[Measurement]) -> list[Candidate]:
    """The fastest, then the fastest of the other kind (Flash or standard); of each also in a runtime that times."""
    timed = sorted((row.latency.typical_ms, i) for i, row in enumerate(rows) if row.latency)
    chosen: dict[tuple[bool, bool], Candidate] = {}
    for _, i in timed:
        is_standard = not is_flash(rows[i].precision)
        chosen.setdefault((is_standard, False), found[i])
        if rows[i].settings.runtime in TIMED:
            chosen.setdefault((is_standard, True), found[i])
    return list({candidate.name: candidate for candidate in chosen.values()}.values())


def _batches(model: Model, candidate: Candidate, plan: Plan) -> dict[int, Measurement] | None:
    """None for a model or an artifact that takes one item at a time."""
    if not takes_batches(model, candidate):
        return None
    rows = bench(model, in_batches(model, candidate, _BATCHES), replace(plan, seconds=plan.seconds / 2, gain=None))
    return dict(zip(_BATCHES, rows, strict=True))
