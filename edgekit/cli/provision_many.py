"""`edgekit provision --inventory FILE`: many boards, some at a time: a line for each as it goes, and a table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.provision.inventory import Result

_MARKS = {"committed": "green", "already there": "green", "planned": "green", "rolled back": "red", "failed": "red"}
COMMON = (
    "release", "config", "model", "library", "requirements", "soak", "service", "repo", "trust_root", "repository",
    "group", "site", "broker", "broker_ca", "broker_dir", "interpreter",
)  # fmt: skip
"""What holds for all of them; `[[device]]` may say otherwise."""


def run_many(args: argparse.Namespace) -> int:
    from edgekit.config import home
    from edgekit.errors import UsageError
    from edgekit.provision.inventory import Many, read_inventory, words_for

    for flag in ("device", "own", "mqtt_password_file"):
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} is one device's; say it in the inventory, or leave it out")
    entries = read_inventory(args.inventory)
    bare = [entry.target for entry in entries if not (entry.release or entry.config or entry.model)]
    if bare and not (args.release or args.config or args.model):
        raise UsageError(f"say what to install on {bare[0]}: --model, --config or --release, here or there")
    common, folder = common_words(args), args.inventory.resolve().parent
    jobs = [(entry, words_for(entry, common, folder=folder)) for entry in entries]
    logs = home().root / "provision" / time.strftime("%Y%m%d-%H%M%S")
    with _watching([entry.target for entry in entries]) as say:
        results = Many(logs, parallel=args.parallel, max_failures=args.max_failures, say=say).run(jobs)
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
    else:
        print_table(results)
        print(f"each device's talk: {logs}", file=sys.stderr)
    return 0 if all(result.is_good for result in results) else 1


def common_words(args: argparse.Namespace) -> list[str]:
    """The operator's flags as words again, for the process of each device."""
    words = []
    for name in COMMON:
        value = getattr(args, name)
        if value is not None:
            text = str(value.resolve()) if isinstance(value, Path) else str(value)
            words.append(f"--{name.replace('_', '-')}={text}")
    words += [f"--wheel={path.resolve()}" for path in args.wheel]
    words += [f"--ssh-option={word}" for word in args.ssh_option]
    return [*words, *["--retry-denied"] * args.retry_denied, *["--dry-run"] * args.dry_run]


@contextmanager
def _watching(targets: Sequence[str]) -> Iterator[Callable[[str, str], None]]:
    """A line for each device that says what it does now; without a terminal only what became of it."""
    from edgekit.provision.inventory import ENDS

    if not sys.stderr.isatty():
        yield lambda target, text: print(f"{target}: {text}", file=sys.stderr) if text in ENDS else None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.fields[target]}"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        tasks = {target: bar.add_task("waiting", total=1, start=False, target=target) for target in targets}

        def say(target: str, text: str) -> None:
            bar.start_task(tasks[target])
            bar.update(tasks[target], description=text[:80], completed=1 if text in ENDS else 0)

        yield say


def print_table(results: Sequence[Result]) -> None:
    """What became of each, and the counts."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("target", overflow="fold")
    for title in ("outcome", "release"):
        table.add_column(title, no_wrap=True)
    table.add_column("s", justify="right")
    table.add_column("why", overflow="fold")
    for result in results:
        style = _MARKS.get(result.outcome, "yellow")
        seconds = f"{result.seconds:.0f}"
        table.add_row(result.target, Text(result.outcome, style=style), result.release or "-", seconds, result.reason)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    good = sum(result.is_good for result in results)
    word = "could have it" if any(result.outcome == "planned" for result in results) else "have it"
    print(f"{good} of {len(results)} devices {word}")
