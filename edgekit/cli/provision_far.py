"""`edgekit provision user@host`: look, refuse early, bring what the board lacks, and let its own copy do the rest."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.provision_own import own_of

if TYPE_CHECKING:
    from edgekit.provision.enrol import Own
    from edgekit.provision.local import Step
    from edgekit.provision.release import Stored
    from edgekit.provision.remote import Board
    from edgekit.provision.ssh import Remote


def run_far(args: argparse.Namespace) -> int:
    from edgekit.cli.provision import REMOTE_ROOT
    from edgekit.provision.ssh import Remote

    host, _, folder = args.target.partition(":")
    with Remote(host, args.ssh_option) as remote:
        return _over(remote, args, folder or REMOTE_ROOT)


def _over(remote: Remote, args: argparse.Namespace, folder: str) -> int:
    from edgekit.cli.progress import share_bar
    from edgekit.cli.provision import extras, show_plan, stored_for
    from edgekit.cli.release import library_of
    from edgekit.errors import ReleaseError
    from edgekit.provision import remote as far
    from edgekit.provision.release import Target

    board = far.look(remote, folder, python=args.interpreter)
    print(_describe(remote, board), file=sys.stderr)
    far.become_root(remote, board, service=args.service)
    library = library_of(args.library)
    trust_root, settings = extras(args)
    own = own_of(args, board.root, lambda: board.device_id)
    target = Target(machine=board.machine, python=f"{board.python[0]}.{board.python[1]}")
    stored = stored_for(args, library, target)
    if problem := far.why_not(board, stored):
        raise ReleaseError(stored.release.name, problem)
    if args.dry_run:
        return show_plan(_plan(remote, board, stored, own), as_json=args.json)
    with share_bar() as progress:
        sent = far.bring(remote, board, stored, library, progress, python=args.interpreter)
    print(f"{sent / 1024:.0f} KiB sent", file=sys.stderr)
    extra = ("--service", args.service, *(["--json"] if args.json else []), *(["--retry-denied"] * args.retry_denied))
    gifts = far.Gifts(trust_root=trust_root, settings=settings, own=own)
    code, answer, talk = far.finish(remote, board, stored, gifts, python=args.interpreter, extra=extra)
    sys.stderr.write(talk)
    sys.stdout.write(answer)
    return code


def _plan(remote: Remote, board: Board, stored: Stored, own: Own) -> list[Step]:
    from edgekit.provision.local import Step

    size = sum(file.size_bytes for file in stored.release.files)
    how = " as root, through sudo" if remote.become else ""
    texts = [f"send at most {size / 1024:.0f} KiB to {remote.host}:{board.root}{how}"]
    texts += [f"give the device what is its own: {', '.join(own)}"] if own else []
    texts += [f"install release {stored.release.name}, switch, wait for the guard's verdict"]
    return [Step(what=text, is_needed=True) for text in texts]


def _describe(remote: Remote, board: Board) -> str:
    told = f"{board.board_id or 'unknown board'}, {board.machine}, Python {board.python[0]}.{board.python[1]}"
    free = f"{board.free_bytes >> 20} MiB free, device id {board.device_id or 'unknown'}"
    return f"{remote.host}: {told}, {free}"
