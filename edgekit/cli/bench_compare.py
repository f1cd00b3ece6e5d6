"""`edgekit bench --compare STANDARD FLASH`: the two at their fastest and at every size, figure by figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgekit.artifact import is_flash
from edgekit.bench.candidates import Candidate
from edgekit.bench.compare import Comparison, compare
from edgekit.bench.figure import Figure, percent
from edgekit.bench.record import Measurement, Start
from edgekit.bench.run import Plan, Progress, cold_starts
from edgekit.bench.stats import ms
from edgekit.bench.why import Why, why
from edgekit.catalog import load_model
from edgekit.choose import find_candidates, measure
from edgekit.cli.bench import plan_of, space_of
from edgekit.cli.bench_table import STANDARD
from edgekit.cli.progress import share_bar
from edgekit.config import Home, home
from edgekit.device.probe import probe
from edgekit.errors import ArtifactError, EdgekitError, UsageError
from edgekit.manifest import Model
from edgekit.runtimes.axes import session_axes

_MORE_STARTS = 2
_MIB = 2**20
_NO_SIZES = "the model has no size that varies"


def run_compare(args: argparse.Namespace) -> int:
    """Exit code 0. Raises UsageError for names that are not there, ArtifactError when one of the two cannot run."""
    model, state, facts = load_model(args.model), home(), probe()
    found = find_candidates(model, state, facts, space_of(args))
    sides = [_side(found, name) for name in args.compare]
    plan = plan_of(args, facts)
    with share_bar() as progress:
        rows = measure(model, [*sides[0], *sides[1]], home=state, plan=plan, progress=progress, fresh=True)
        split = len(sides[0])
        pair = (_best(sides[0], rows[:split]), _best(sides[1], rows[split:]))
        starts = [_starts(model, candidate, plan, progress) for candidate, _ in pair]
        chosen = [candidate for candidate, _ in pair]
        scenarios = _scenarios(model, chosen, state, plan, progress)
        whys = _whys(model, chosen, plan, progress)
    result = compare(pair[0][1], pair[1][1], starts=(starts[0], starts[1]), scenarios=scenarios, whys=whys)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    else:
        _draw(result)
    return 0


def _side(found: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates of one artifact, or of a kind. Raises UsageError naming what there is."""
    names = STANDARD if name == "standard" else (name,)  # saved as onnxruntime optimised it, it is still the standard
    exact = [candidate for candidate in found if candidate.artifact.record.name in names]
    if not exact and name == "flash":
        exact = [candidate for candidate in found if is_flash(candidate.artifact.record.precision)]
    if not exact:
        there = ", ".join(dict.fromkeys(candidate.artifact.record.name for candidate in found))
        hint = "; make one with edgekit build" if name == "flash" else ""
        raise UsageError(f"--compare: there is no '{name}' here, only {there}{hint}")
    return exact


def _best(side: Sequence[Candidate], rows: Sequence[Measurement]) -> tuple[Candidate, Measurement]:
    timed = [(row.latency.typical_ms, i) for i, row in enumerate(rows) if row.latency]
    if not timed:
        raise ArtifactError(side[0].artifact.path, rows[0].failure or "was not measured")
    i = min(timed)[1]
    return side[i], rows[i]


def _starts(model: Model, candidate: Candidate, plan: Plan, progress: Progress) -> list[Start]:
    progress(f"starting {candidate.name} again", 1.0)
    return cold_starts(model, candidate, _MORE_STARTS, plan)


def _whys(model: Model, pair: Sequence[Candidate], plan: Plan, progress: Progress) -> tuple[Why, Why] | None:
    """None, with a line, when one of the two cannot be profiled: the other figures stand without."""
    found = []
    for candidate in pair:
        progress(f"profiling {candidate.name}", 1.0)
        try:
            found.append(why(model, candidate, plan))
        except EdgekitError as e:
            print(f"no causes: {candidate.name} cannot be profiled: {e}", file=sys.stderr)
            return None
    return found[0], found[1]


def _scenarios(
    model: Model, pair: Sequence[Candidate], state: Home, plan: Plan, progress: Progress
) -> Mapping[str, tuple[Measurement, Measurement] | str]:
    """The two again at the smallest and at the largest size that the manifest allows."""
    sizes = {axis: values for axis, values in model.axes.items() if len(set(values)) > 1}
    if not sizes:
        return {"short inputs": _NO_SIZES, "long inputs": _NO_SIZES}
    found: dict[str, tuple[Measurement, Measurement] | str] = {}
    for name, pick in (("short inputs", min), ("long inputs", max)):
        axes = {axis: pick(values) for axis, values in sizes.items()}
        fixed = [(c.artifact.record.name, axis) for c in pair for axis in axes if axis in c.artifact.record.axes]
        if fixed:
            found[name] = f"{fixed[0][0]} is fixed at {fixed[0][1]}={_size_of(pair, *fixed[0])}"
            continue
        resized = [_at(model, candidate, axes) for candidate in pair]
        first, second = measure(model, resized, home=state, plan=plan, progress=progress, fresh=True)
        found[name] = (first, second)
    return found


def _size_of(pair: Sequence[Candidate], name: str, axis: str) -> int:
    return next(c.artifact.record.axes[axis] for c in pair if c.artifact.record.name == name)


def _at(model: Model, candidate: Candidate, axes: Mapping[str, int]) -> Candidate:
    bound = session_axes(model, axes, candidate.artifact.record.axes)
    return replace(candidate, settings=replace(candidate.settings, axes=bound))


def _draw(result: Comparison) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(Text(f"standard: {result.standard}\nflash:    {result.flash}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column(result.model, no_wrap=True)
    for heading in ("standard", "flash", "delta", "articles"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in result.figures:
        style = {True: "red", False: "green", None: ""}[figure.is_penalty]
        table.add_row(
            figure.name,
            _value(figure, figure.standard),
            _value(figure, figure.flash),
            Text(_ratio(figure.delta_ratio), style=style),
            Text(_ratio(figure.published_ratio), style="dim"),
        )
    console.print(table)
    for figure in result.figures:
        if figure.standard is None:
            console.print(Text(f"{figure.name} –: {figure.note}"), soft_wrap=True)
    for line in result.findings:
        console.print(Text(line), soft_wrap=True)


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "–"
    if figure.unit == "ms":
        return f"{ms(value)} ms"
    if figure.unit == "bytes":
        return f"{value / _MIB:.2f} MiB"
    if figure.unit in ("ratio", "±"):
        return f"{'±' if figure.unit == '±' else ''}{value:.1%}"
    if figure.unit == "page faults":
        return f"{value:.1f}"
    return f"{value:.0f}" if value >= 10 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else percent(value)
