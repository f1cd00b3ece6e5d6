"""`edgekit provision`: make a bare board, or a folder of this machine, a device that runs a release and can go back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.provision.local import Step
    from edgekit.provision.release import Library, Stored
    from edgekit.provision.settings import Settings
    from edgekit.provision.ssh import Remote
    from edgekit.provision.update import Outcome

REMOTE_ROOT = "/opt/edgekit"
EXPLANATION = """\
edgekit provision TARGET installs a release on a device, watches it become healthy, and goes back if it does not.

  TARGET   user@host[:FOLDER]   a board, over the system's ssh (keys, ~/.ssh/config and known hosts are honoured)
           local:FOLDER         a folder of this machine, to try it out or to build an image
  what     --model digits       one model of the catalog, with the artifacts that are here
           --config edgekit.toml  everything a daemon may serve
           --release NAME       made before with: edgekit release create

  edgekit provision local:/tmp/device --model digits     try it here
  edgekit provision pi@raspberrypi.local --model digits --dry-run
  make flash-device TARGET=pi@raspberrypi.local MODEL=digits
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help="user@host[:FOLDER] or local:FOLDER")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--release", metavar="NAME", help="a release of the library")
    what.add_argument("--config", type=Path, help="make a release of this edgekit.toml first")
    what.add_argument("--model", help="make a release that serves this one model")
    parser.add_argument("--library", type=Path, help="folder of releases; else in edgekit's own")
    parser.add_argument("--requirements", type=Path, help="hash-locked list of the wheels for the board")
    parser.add_argument("--wheel", type=Path, action="append", default=[], help="a further wheel, edgekit's own")
    parser.add_argument(
        "--soak", type=float, default=10.0, metavar="SECONDS", help="must stay healthy so long; else 10"
    )
    parser.add_argument("--service", choices=("auto", "system", "user", "none"), default="auto", help="who starts it")
    parser.add_argument("--repo", type=Path, help="hand over the root of trust of this repository's folder")
    parser.add_argument("--trust-root", type=Path, help="or of this root.json")
    parser.add_argument("--repository", metavar="URL", help="where the device looks for updates")
    parser.add_argument("--own", type=Path, metavar="FILE", help="device.toml: its name, port, broker and credentials")
    parser.add_argument("--group", default="default", help="whose releases it takes")
    parser.add_argument("--interpreter", default="python3", help="the board's Python; else python3")
    parser.add_argument("--ssh-option", action="append", default=[], metavar="WORD", help="goes to ssh, such as -p2222")
    parser.add_argument("--retry-denied", action="store_true", help="try a release again that failed there")
    parser.add_argument("--dry-run", action="store_true", help="only print the plan")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.errors import UsageError

    if args.target is None:
        print(EXPLANATION, end="")
        return 0
    if not (args.release or args.config or args.model):
        raise UsageError("say what to install: --model, --config or --release")
    if args.target.startswith("local:"):
        return _local(args, Path(args.target.removeprefix("local:")).expanduser().resolve())
    return _remote(args)


def _stored(args: argparse.Namespace, library: Library, target: Any = None) -> Stored:
    """The named release, or one made now; the same content is the same release, so a second run changes nothing."""
    if args.release:
        return library.load(args.release)
    import tempfile
    import time

    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.provision.pack import Order, pack, this_machine

    with tempfile.TemporaryDirectory(prefix="edgekit-provision-") as folder:
        config = args.config or Path(folder) / "edgekit.toml"
        if args.model:
            config.write_text(f'[[model]]\nname = "{args.model}"\n', encoding="utf-8")
        order = Order(
            name="",
            sequence=int(time.time()),
            config=config,
            target=target or this_machine(),
            requirements=args.requirements,
            wheels=tuple(args.wheel),
            soak_s=args.soak,
        )
        with share_bar() as progress:
            return pack(order, library, home(), progress)


def _extras(args: argparse.Namespace) -> tuple[bytes | None, Settings | None]:
    """(the root of trust, what the device is to remember), as far as they were given."""
    from edgekit.errors import UsageError
    from edgekit.provision.settings import Settings

    root = args.trust_root.read_bytes() if args.trust_root else None
    if args.repo:
        from edgekit.provision.repository import Repository

        root = Repository(args.repo).root_bytes()
    if args.repository and root is None:
        raise UsageError("--repository needs its root of trust: give --repo FOLDER or --trust-root FILE")
    return root, Settings(repository=args.repository, group=args.group) if args.repository else None


def _local(args: argparse.Namespace, root: Path) -> int:
    from edgekit.cli.progress import share_bar
    from edgekit.cli.release import library_of
    from edgekit.provision import local

    library = library_of(args.library)
    trust_root, settings = _extras(args)
    wish = local.Wish(
        root=root,
        stored=_stored(args, library),
        library=library,
        service=args.service,
        trust_root=trust_root,
        settings=settings,
        own=args.own.read_bytes() if args.own else None,
        retry_denied=args.retry_denied,
    )
    steps = local.plan(wish)
    if args.dry_run:
        _print(steps) if args.json else print("\n".join(describe(steps)))
        return 0
    print("\n".join(describe(steps)), file=sys.stderr)
    with share_bar() as progress:
        outcome = local.carry_out(wish, progress)
    return _tell(args, root, wish.stored.release.name, outcome)


def describe(steps: Sequence[Step]) -> list[str]:
    """The plan in lines for people."""
    return [f"  {'do  ' if step.is_needed else 'done'}  {step.what}" for step in steps]


def _tell(args: argparse.Namespace, root: Path, name: str, outcome: Outcome | None) -> int:
    from edgekit.provision import local, slots

    if args.json:
        _print(outcome or slots.status(root))
    elif outcome is None:
        print(f"{root} has {name} already, and it is good: nothing to do")
    else:
        from edgekit.cli.update import describe_outcome

        print("\n".join(describe_outcome(outcome)))
    if outcome is not None and not outcome.is_committed:
        return 1
    if local.service_kind(args.service) == "none" and slots.running_slot(root) is None and not args.json:
        print(f"nothing starts it at boot here; by hand: {sys.executable} {root}/{slots.GUARD} {root}")
        if args.repository:
            print(f"and, to update when told: {sys.executable} -m edgekit.cli.main update --follow --root {root}")
    return 0


def _remote(args: argparse.Namespace) -> int:
    from edgekit.provision.ssh import Remote

    host, _, folder = args.target.partition(":")
    with Remote(host, args.ssh_option) as remote:
        return _over(remote, args, folder or REMOTE_ROOT)


def _over(remote: Remote, args: argparse.Namespace, folder: str) -> int:
    from edgekit.cli.progress import share_bar
    from edgekit.cli.release import library_of
    from edgekit.errors import ReleaseError, SlotError
    from edgekit.provision import remote as far
    from edgekit.provision.release import Target

    host = remote.host
    board = far.look(remote, folder, python=args.interpreter)
    told = f"{host}: {board.board_id or 'unknown board'}, {board.machine}, Python {board.python[0]}.{board.python[1]}"
    print(f"{told}, {board.free_bytes >> 20} MiB free, device id {board.device_id or 'unknown'}", file=sys.stderr)
    if not board.is_writable:
        mend = f"give a folder that is yours, such as {args.target.split(':')[0]}:edgekit"
        raise SlotError("a and b", f"{host}: {board.root} cannot be written by this user; {mend}", rolled_back=False)
    library = library_of(args.library)
    trust_root, settings = _extras(args)
    target = Target(machine=board.machine, python=f"{board.python[0]}.{board.python[1]}")
    stored = _stored(args, library, target)
    if problem := far.why_not(board, stored):
        raise ReleaseError(stored.release.name, problem)
    if args.dry_run:
        size = sum(file.size_bytes for file in stored.release.files)
        print(
            f"  would send at most {size / 1024:.0f} KiB to {board.root}, install {stored.release.name}, and watch it"
        )
        return 0
    with share_bar() as progress:
        sent = far.bring(remote, board, stored, library, progress, python=args.interpreter)
    print(f"{sent / 1024:.0f} KiB sent", file=sys.stderr)
    extra = ("--service", args.service, *(["--json"] if args.json else []), *(["--retry-denied"] * args.retry_denied))
    own = args.own.read_bytes() if args.own else None
    code, answer, talk = far.finish(
        remote, board, stored, python=args.interpreter, extra=extra, trust_root=trust_root, settings=settings, own=own
    )
    sys.stderr.write(talk)
    sys.stdout.write(answer)
    return code


def _print(value: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
