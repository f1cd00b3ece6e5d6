"""`edgekit probe`: the facts of this machine, as a table a person can read or as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=Path("/"), help="probe a captured file tree instead")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--print-script",
        action="store_true",
        help="print the probe as one file for any Python 3.8 or newer: edgekit probe --print-script | ssh pi python3 -",
    )


def run(args: argparse.Namespace) -> int:
    from edgekit.device.probe import as_json, probe
    from edgekit.profiles import board_tables

    if args.print_script:
        from edgekit.device.script import as_script

        sys.stdout.write(as_script(board_tables()))
        return 0
    if not args.root.is_dir():
        from edgekit.errors import UsageError

        raise UsageError(f"--root {args.root}: no such folder")
    facts = probe(args.root, board_tables())
    if args.json:
        print(json.dumps(as_json(facts), indent=2))
    else:
        from edgekit.cli.probe_table import render

        print(render(facts, shutil.get_terminal_size().columns))
    return 0
