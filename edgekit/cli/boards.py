"""`edgekit boards`: the boards edgekit knows, how far it goes on each, and which one this machine is."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.board import Board


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("board", nargs="?", help="show one board in full")
    parser.add_argument("--root", type=Path, default=Path("/"), help="match a captured file tree instead")
    parser.add_argument("--json", action="store_true", help="print as JSON")


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile that fits this machine, best first, and the rule by which it does."""

    id: str
    why: str


def run(args: argparse.Namespace) -> int:
    from edgekit.catalog import load_boards

    boards = load_boards()
    if args.board is not None:
        return _show(_named(args.board, boards), as_json=args.json)
    fits = _fits(args.root, boards)
    if args.json:
        import msgspec

        listed = [{"id": fit.id, "why": fit.why} for fit in fits]
        print(json.dumps({"boards": msgspec.to_builtins(boards), "fits": listed}, indent=2))
    else:
        # A file or pipe has no width: nothing is cut there, whatever COLUMNS says.
        print(table(boards, fits, shutil.get_terminal_size().columns if sys.stdout.isatty() else 132))
    return 0


def _fits(root: Path, boards: Sequence[Board]) -> tuple[Fit, ...]:
    import msgspec

    from edgekit.device.probe import fitting
    from edgekit.errors import UsageError

    if not root.is_dir():
        raise UsageError(f"--root {root}: no such folder")
    tables = [msgspec.to_builtins(board) for board in boards]
    return tuple(Fit(str(match.profile["id"]), match.why) for match in fitting(root, tables))


def _named(name: str, boards: Sequence[Board]) -> Board:
    import difflib

    from edgekit.errors import CatalogError

    found = next((board for board in boards if board.id == name), None)
    if found is None:
        near = difflib.get_close_matches(name, [board.id for board in boards], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`edgekit boards` lists them"
        raise CatalogError(name, None, f"no such board; {hint}")
    return found


def table(boards: Sequence[Board], fits: Sequence[Fit], width: int) -> str:
    """A line a board, at most `width` columns: where it is narrow the accelerators go first, then ends of names."""
    best = fits[0].id if fits else None
    rows: list[tuple[str, ...]] = [("", "board", "support", "name", "accelerators")]
    for board in boards:
        kinds = ", ".join(entry.kind for entry in board.accelerator if not entry.optional)
        mark = "▶" if board.id == best else ""
        rows.append((mark, board.id, board.support, board.name, kinds or "–"))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    if sum(widths) + 2 * 4 > width:
        rows = [row[:4] for row in rows]
        widths[3] = max(4, width - sum(widths[:3]) - 2 * 3)
    lines = ["  ".join(_cut(cell, widths[at]) for at, cell in enumerate(row)).rstrip() for row in rows]
    lines.insert(1, "─" * min(width, max(map(len, lines))))
    lines.append("")
    if not fits:
        lines += textwrap.wrap("No profile fits this machine: `edgekit probe` still says what it is.", width)
        return "\n".join(lines)
    lines += textwrap.wrap(f"This machine is {best}: {fits[0].why}.", width)
    for fit in fits[1:4]:
        said = f"{fit.id} fits as well, less closely: {fit.why}"
        lines += textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def _show(board: Board, *, as_json: bool) -> int:
    import msgspec

    if as_json:
        print(json.dumps(msgspec.to_builtins(board), indent=2))
        return 0
    lines = [f"{board.name} ({board.id})", f"  made by   {board.maker}" + (f", {board.soc}" if board.soc else "")]
    lines.append(f"  support   {board.support}: {board.support_reason}")
    if board.memory_bytes:
        lines.append(f"  memory    {board.memory_bytes / 2**30:g} GiB declared")
    lines.append(f"  reserve   {board.memory_reserve_bytes // 2**20} MiB are left to the system")
    for entry in board.accelerator:
        tops = f", {entry.peak_int8_tops:g} TOPS by the maker" if entry.peak_int8_tops else ""
        extra = " (an extra)" if entry.optional else ""
        lines.append(f"  has       {entry.kind}{extra}: {', '.join(entry.precisions) or entry.name}{tops}")
    for number, preference in enumerate(board.runtime, 1):
        hook = preference.provider or preference.delegate or preference.device or ""
        lines.append(f"  run {number}     {' '.join(filter(None, (preference.runtime, hook)))}")
        lines += [f"              {key} = {value}" for key, value in preference.options.items()]
    lines += [f"  note      {note}" for note in board.notes]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
