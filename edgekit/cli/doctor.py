"""`edgekit doctor`: what is installed and really loads, and the command that mends each fault."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.runtimes.checkup import Check

_MARKS = {"ok": ("ok", "green"), "missing": ("--", "dim"), "broken": ("!!", "bold red")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.catalog import board_tables
    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.device.probe import probe
    from edgekit.runtimes.available import survey
    from edgekit.runtimes.checkup import BROKEN, checkup

    with share_bar() as progress:
        progress("running a model of one operator in every runtime", 0.1)
        runtimes = survey()
    checks = checkup(probe(profiles=board_tables()), runtimes, home().root)
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        _print(checks)
    return 1 if any(check.state == BROKEN for check in checks) else 0


def _print(checks: tuple[Check, ...]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, style = _MARKS[check.state]
        line = Text.assemble((mark, style), f"  {check.name:<{width}}  ", (check.detail, "dim" if mark == "--" else ""))
        console.print(line, soft_wrap=True, highlight=False)
        if check.mend:
            console.print(Text(f"{'':{width + 6}}{check.mend}", style="cyan"), soft_wrap=True, highlight=False)
    broken = sum(check.state == "broken" for check in checks)
    summary = f"{broken} broken: the commands above mend them" if broken else "nothing is broken"
    console.print(Text(summary, style="bold red" if broken else "bold green"), highlight=False)
