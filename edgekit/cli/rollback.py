"""`edgekit rollback`: go back to the release before; the one we leave is refused until it is allowed again."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgekit.cli.slots import DEFAULT_ROOT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help=f"the device's folder; else {DEFAULT_ROOT}")
    parser.add_argument("--reason", default="rolled back by the operator", help="kept with the refused release")
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument("--json", action="store_true", help="print the slots afterwards as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.provision import slots

    if args.dry_run:
        back = slots.target_of_rollback(args.root)
        print(f"would go back to slot {back.slot}: {back.release}")
        return 0
    slot = slots.roll_back(args.root, args.reason)
    now = slots.status(args.root)
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(now), indent=2).decode())
    else:
        release = next(s.release for s in now.slots if s.slot == slot)
        running = "the guard switches to it now" if now.running else "it runs when the service starts"
        print(f"slot {slot} is active again: {release}; {running}")
    return 0
