"""`edgekit demo`: the main job on this machine, step by step, with real models and real input."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.numbers import within

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from edgekit.config import Home
    from edgekit.demo.stage import Stage
    from edgekit.device.probe import Facts
    from edgekit.manifest import Model

MODELS = ("ocr-detector", "ocr-recognizer")
OFFLINE_MODELS = ("digits",)
RUNTIMES = ("onnxruntime", "litert")
"""What the demo's extra brings; `edgekit bench` measures whatever is installed, at length."""
MEASURE_S = 1.0
RATE_HZ = 8.0
SAMPLES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", metavar="NAME", help=f"default: {' and '.join(MODELS)}")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="without a terminal: how long to watch (default: 10)"
    )
    parser.add_argument("--no-console", action="store_true", help="print the fleet also when there is a terminal")


def run(args: argparse.Namespace) -> int:
    import tempfile
    from pathlib import Path

    from rich.console import Console

    from edgekit.config import home
    from edgekit.demo.stage import stage

    within(0, 86400, seconds=args.seconds)
    console = Console() if sys.stdout.isatty() else Console(width=132)
    state = home()
    facts = _show_machine(console)
    models = _fetched(console, args.model, state)
    for model in models:
        _make_and_choose(console, model, state, facts)
    _step(console, "Serve", "a broker, a daemon with what was selected, one with the standard, a load on both")
    inputs = {model.name: _inputs(model) for model in models}
    with (
        tempfile.TemporaryDirectory(prefix="edgekit-demo-") as folder,
        stage(Path(folder), inputs, "standard", rate_hz=RATE_HZ) as running,
    ):
        code = _watch(running, args)
    console.print("\nStopped; nothing is left running. Next: edgekit --help, or your own model: edgekit bench my.onnx")
    return code


def _step(console: Console, title: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble("\n", (f" {title} ", "bold reverse"), f" {text}"), highlight=False)


def _show_machine(console: Console) -> Facts:
    from edgekit.cli.probe_table import render
    from edgekit.device.probe import probe
    from edgekit.profiles import board_tables

    _step(console, "Probe", "what is this machine?")
    facts = probe(profiles=board_tables())
    print(render(facts, console.width))
    return facts


def _fetched(console: Console, names: list[str] | None, state: Home) -> list[Model]:
    """The models with their standard artifacts here. Without a network: the one that needs none, and said so."""
    from edgekit.catalog import load_model
    from edgekit.cli.progress import bytes_bar
    from edgekit.errors import FetchError
    from edgekit.fetch import standard_artifact

    models = [load_model(name) for name in names or MODELS]
    try:
        for model in models:
            with bytes_bar(f"fetching {model.name}") as progress:
                standard_artifact(model, state, progress=progress)
    except FetchError as e:
        if names:
            raise
        _step(console, "Offline", f"{e}; going on with {', '.join(OFFLINE_MODELS)}, which needs no download")
        models = [load_model(name) for name in OFFLINE_MODELS]
    return models


def _make_and_choose(console: Console, model: Model, state: Home, facts: Facts) -> None:
    """Build flash artifacts, measure all candidates here, select, and print the table and the verdict."""
    from edgekit.bench.run import Plan
    from edgekit.bench.stats import SAMPLES_FOR_P90
    from edgekit.build import build
    from edgekit.choose import Space, choose, find_candidates, measure
    from edgekit.cli.bench_table import print_table
    from edgekit.cli.progress import share_bar
    from edgekit.cli.select import describe
    from edgekit.runtimes.available import installed_runtimes
    from edgekit.selection import Limits

    _step(console, model.name, f"{model.summary}: build Flash, bench it beside the standard, select")
    with share_bar() as progress:
        build(model, home=state, facts=facts, progress=progress)
    space = Space(runtimes=[name for name in installed_runtimes() if name in RUNTIMES])
    with share_bar() as progress:
        found = find_candidates(model, state, facts, space)
        plan = Plan(seconds=MEASURE_S, min_samples=SAMPLES_FOR_P90)
        rows = measure(model, found, home=state, plan=plan, progress=progress)
    print_table(model, rows)
    limits = Limits(accuracy_floor=model.accuracy_floor)
    selection = choose(model, limits, home=state, facts=facts, seconds=MEASURE_S, space=space)
    for line in describe(selection, explain=False):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _inputs(model: Model) -> list[dict[str, np.ndarray]]:
    from itertools import islice

    from edgekit.pipeline.data import evaluation

    return [dict(sample.inputs) for sample in islice(evaluation(model), SAMPLES)]


def _watch(running: Stage, args: argparse.Namespace) -> int:
    """The console, or the fleet's table for some seconds. 1 when requests failed."""
    import subprocess
    import time

    from edgekit.cli.main import main

    host, port = running.broker.host, str(running.broker.port)
    if sys.stdout.isatty() and sys.stdin.isatty() and not args.no_console:
        # A command of its own: the headless package knows no console.
        subprocess.run([sys.executable, "-m", "edgekit_tui.main", "--host", host, "--port", port], check=False)
    else:
        time.sleep(max(0.0, args.seconds - 4.0))
        main(["fleet", "--host", host, "--port", port, "--for", "4"])
    failures = running.failures
    for failure in failures:
        print(f"edgekit demo: {failure}", file=sys.stderr)
    return 1 if failures else 0
