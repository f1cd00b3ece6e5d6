"""`edgekit build`: flash artifacts from a model's standard one, each measured against it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.artifact import Artifact
    from edgekit.build import Report
    from edgekit.config import Home
    from edgekit.manifest import Model

METRICS = ("top1", "spearman", "agreement")
METHODS = ("minmax", "percentile", "entropy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of the catalog, or your own .onnx file")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE.npz",
        help="samples to calibrate with: one array per input, with a leading sample axis",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE.npy",
        help="one class number per sample for --metric top1; one score per pair of samples for --metric spearman",
    )
    parser.add_argument(
        "--metric", choices=METRICS, help="how accuracy is judged (default: the manifest); spearman: sentence pairs"
    )
    parser.add_argument(
        "--ranges", choices=METHODS, help="how calibration picks ranges (default: the first that holds)"
    )
    parser.add_argument(
        "--axis", action="append", default=[], metavar="NAME=SIZE", help="fix a dynamic axis in what is built"
    )
    parser.add_argument(
        "--prune", action="store_true", help="make the 2:4 pruned artifact also where no runtime gains from it"
    )
    parser.add_argument(
        "--search-s",
        type=float,
        metavar="SECONDS",
        help="search so long for the best mix of INT8 and float (default: only where INT8 misses the accuracy floor)",
    )
    parser.add_argument(
        "--write-manifest",
        type=Path,
        metavar="FOLDER",
        help="keep your own model, its samples and these choices as a manifest; give FOLDER as the model from then on",
    )
    parser.add_argument("--overwrite", action="store_true", help="with --write-manifest: replace what is there")
    parser.add_argument("--explain", action="store_true", help="what was done, and what stays in float and why")
    parser.add_argument("--json", action="store_true", help="print the artifact records as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.build import Options, report
    from edgekit.catalog import load_model
    from edgekit.cli.numbers import not_below_zero, parse_axes
    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.fetch import standard_artifact

    not_below_zero(search_s=args.search_s)
    model, state = load_model(args.model), home()
    if model.source.format != "onnx":
        return _nothing_to_build(model, state)
    options = Options(
        calibration=args.calibration,
        labels=args.labels,
        metric=args.metric,
        axes=parse_axes(args.axis),
        method=args.ranges,
        search_s=args.search_s,
        prune=args.prune,
    )
    if args.write_manifest:
        from edgekit.build.own import write_manifest

        model = write_manifest(model, options, args.write_manifest, overwrite=args.overwrite)
        options = replace(options, calibration=None, labels=None, metric=None)  # the manifest says so now
        print(f"{model.folder}: manifest written; from now on: edgekit build {args.write_manifest}", file=sys.stderr)
    standard_artifact(model, state)  # the download has its own progress; without it the shares below mean little
    with share_bar() as progress:
        made = report(model, home=state, options=options, progress=progress)
    if args.json:
        _print_json(made)
    else:
        _print_table(model, made)
        if args.explain:
            _explain(made)
    for name, reason in made.refused.items():
        print(f"{name}: not built: {reason}", file=sys.stderr)
    return 0 if any(a.record.fit for a in made.artifacts[1:]) else 1


def _nothing_to_build(model: Model, state: Home) -> int:
    """A LiteRT standard: this version builds from ONNX; what lies ready is named."""
    from edgekit.fetch import all_artifacts

    ready = [artifact.record.name for artifact in all_artifacts(model, state)]
    print(f"{model.name}: its standard artifact is {model.source.format}; this version builds from ONNX only")
    print(f"there are: {', '.join(ready)}")
    return 1


def _print_json(made: Report) -> None:
    import msgspec

    value: dict[str, Any] = {
        "artifacts": [{"path": str(a.path), **msgspec.to_builtins(a.record)} for a in made.artifacts],
        "refused": made.refused,
    }
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _print_table(model: Model, made: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    standard = made.artifacts[0]
    table = Table(title=f"{model.name} {model.version}", title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("artifact", "left"), ("precision", "left"), ("size", "right"), ("ratio", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("speed", justify="right")
    metric = next((a.record.accuracy.metric for a in made.artifacts if a.record.accuracy), "accuracy")
    table.add_column(metric, justify="right")
    table.add_column("kept", justify="right")
    table.add_column("fit")
    for artifact in made.artifacts:
        table.add_row(*_row(artifact, standard))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for artifact in made.artifacts:
        for remark in filter(None, (artifact.record.why_unfit, *artifact.record.notes)):
            print(f"{artifact.record.name}: {remark}")
    if made.is_cached:
        print("nothing had to be built: all of it is as before", file=sys.stderr)


def _row(artifact: Artifact, standard: Artifact) -> tuple[str, ...]:
    record, accuracy = artifact.record, artifact.record.accuracy
    ratio = accuracy.ratio if accuracy else None
    return (
        record.name,
        record.precision,
        f"{record.size_bytes / 1024:,.0f} KiB",
        f"{record.size_bytes / standard.record.size_bytes:.2f}×",
        record.recipe.get("speed", "1.00×").split()[0],
        f"{accuracy.value:.4f}" if accuracy else "-",
        f"{100 * ratio:.1f} %" if ratio is not None else "-",
        "yes" if record.fit else "no",
    )


def _explain(made: Report) -> None:
    """The recipe of each artifact and the kinds of kernels that the runtime will use for it."""
    for artifact in made.artifacts[1:]:
        record = artifact.record
        print(f"\n{record.name}")
        for step, text in record.recipe.items():
            if step != "key":
                print(f"  {step}: {text}")
        kinds = ", ".join(f"{kind} {count}" for kind, count in record.node_counts.items())
        print(f"  runs as: {kinds}")
        if told := made.compiled.get(record.name):
            print(f"  ahead of time, for OpenVINO: {told}")
        for node, precision in record.plan.items():
            print(f"  {node}: {precision}")
        if record.accuracy:
            for name, noise in record.accuracy.per_output_sqnr_db.items():
                print(f"  output {name}: {'identical' if noise is None else f'{noise:.1f} dB above its noise'}")
