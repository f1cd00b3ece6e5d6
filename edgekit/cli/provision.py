"""`edgekit provision`: make a bare board, or a folder of this machine, a device that runs a release and can go back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.numbers import not_below_zero, within
from edgekit.cli.provision_own import own_of

if TYPE_CHECKING:
    from edgekit.provision.local import Step
    from edgekit.provision.release import Library, Stored, Target
    from edgekit.provision.settings import Settings
    from edgekit.provision.update import Outcome

REMOTE_ROOT = "/opt/edgekit"
EXPLANATION = """\
edgekit provision TARGET installs a release on a device, watches it become healthy, and goes back if it does not.

  TARGET   user@host[:FOLDER]     a board, over the system's ssh (keys, ~/.ssh/config and known hosts are honoured)
           local:FOLDER           a folder of this machine, to try it out
           --inventory FILE       many boards, --parallel N at a time
           --offline-image DIR    no board: the same for a USB stick or an image build
  what     --model digits         one model of the catalog, with the artifacts that are here
           --config edgekit.toml  everything a daemon may serve
           --release NAME         made before with: edgekit release create
  whose    --site lab --device line-3 --broker mqtt.lan --broker-dir DIR   its name and its MQTT password

  edgekit provision local:/tmp/device --model digits     try it here
  edgekit provision pi@raspberrypi.local --model digits --dry-run
  make flash-device TARGET=pi@raspberrypi.local MODEL=digits
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help="user@host[:FOLDER] or local:FOLDER")
    _add_what(parser)
    _add_whose(parser)
    many = parser.add_argument_group("many devices, or none yet")
    many.add_argument("--inventory", type=Path, metavar="FILE", help="TOML with a [[device]] and its target for each")
    many.add_argument("--parallel", type=int, default=4, metavar="N", help="so many at a time; else 4")
    many.add_argument("--max-failures", type=int, default=3, metavar="N", help="then start no more; else 3")
    many.add_argument("--offline-image", type=Path, metavar="DIR", help="write it for a USB stick or an image build")
    many.add_argument("--machine", help="of the offline image, as uname -m: x86_64, aarch64, armv7l; else this one")
    many.add_argument("--python", metavar="X.Y", help="of the offline image; else this one's")
    parser.add_argument("--interpreter", default="python3", help="the board's Python; else python3")
    parser.add_argument("--ssh-option", action="append", default=[], metavar="WORD", help="goes to ssh, such as -p2222")
    parser.add_argument("--retry-denied", action="store_true", help="try a release again that failed there")
    parser.add_argument(
        "--later", action="store_true", help="leave the verdict to the device's next start (local: only)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the plan")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is installed")
    what = group.add_mutually_exclusive_group()
    what.add_argument("--release", metavar="NAME", help="a release of the library")
    what.add_argument("--config", type=Path, help="make a release of this edgekit.toml first")
    what.add_argument("--model", help="make a release that serves this one model")
    group.add_argument("--library", type=Path, help="folder of releases; else in edgekit's own")
    group.add_argument("--requirements", type=Path, help="hash-locked list of the wheels for the board")
    group.add_argument("--wheel", type=Path, action="append", default=[], help="a further wheel, edgekit's own")
    group.add_argument("--soak", type=float, default=10.0, metavar="SECONDS", help="must stay healthy so long; else 10")
    group.add_argument("--service", choices=("auto", "system", "user", "none"), default="auto", help="who starts it")


def _add_whose(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what this device is given")
    group.add_argument("--site", help="where it stands; else default")
    group.add_argument("--device", metavar="ID", help="its name; else from its hardware")
    group.add_argument("--broker", metavar="HOST[:PORT]", help="where it reports to")
    group.add_argument("--broker-ca", type=Path, metavar="FILE", help="PEM of who signed the broker's certificate: TLS")
    secret = group.add_mutually_exclusive_group()
    secret.add_argument("--broker-dir", type=Path, metavar="DIR", help="of edgekit broker: makes the device's password")
    secret.add_argument("--mqtt-password-file", type=Path, metavar="FILE", help="the password it has there already")
    group.add_argument("--own", type=Path, metavar="PATH", help="or all of it ready-made: device.toml, or its folder")
    group.add_argument("--repository", metavar="URL", help="where it looks for updates")
    group.add_argument("--group", default="default", help="whose releases it takes")
    group.add_argument("--repo", type=Path, help="hand over the root of trust of this repository's folder")
    group.add_argument("--trust-root", type=Path, help="or of this root.json")


def run(args: argparse.Namespace) -> int:
    from edgekit.errors import UsageError

    ways = [name for name in ("target", "inventory", "offline_image") if getattr(args, name) is not None]
    if not ways:
        print(EXPLANATION, end="")
        return 0
    if len(ways) > 1:
        raise UsageError("one of TARGET, --inventory and --offline-image at a time")
    not_below_zero(soak=args.soak)
    within(1, 64, parallel=args.parallel)
    within(1, 10**6, **{"max-failures": args.max_failures})
    if args.inventory is not None:
        from edgekit.cli.provision_many import run_many

        return run_many(args)
    if not (args.release or args.config or args.model):
        raise UsageError("say what to install: --model, --config or --release")
    if args.offline_image is not None:
        return _offline(args)
    if args.target.startswith("local:"):
        return _local(args, Path(args.target.removeprefix("local:")).expanduser().resolve())
    if args.later:
        raise UsageError("--later is for local:FOLDER; over ssh the verdict is awaited")
    from edgekit.cli.provision_far import run_far

    return run_far(args)


def stored_for(args: argparse.Namespace, library: Library, target: Target | None = None) -> Stored:
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


def extras(args: argparse.Namespace) -> tuple[bytes | None, Settings | None]:
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
    trust_root, settings = extras(args)
    wish = local.Wish(
        root=root,
        stored=stored_for(args, library),
        library=library,
        service=args.service,
        trust_root=trust_root,
        settings=settings,
        own=own_of(args, str(root), _device_here),
        retry_denied=args.retry_denied,
        later=args.later,
    )
    steps = local.plan(wish)
    if args.dry_run:
        return show_plan(steps, as_json=args.json)
    print("\n".join(describe(steps)), file=sys.stderr)
    with share_bar() as progress:
        outcome = local.carry_out(wish, progress)
    return _tell(args, root, wish.stored.release.name, outcome)


def show_plan(steps: Sequence[Step], *, as_json: bool) -> int:
    _print(steps) if as_json else print("\n".join(describe(steps)))
    return 0


def describe(steps: Sequence[Step]) -> list[str]:
    """The plan in lines for people."""
    return [f"  {'do  ' if step.is_needed else 'done'}  {step.what}" for step in steps]


def _tell(args: argparse.Namespace, root: Path, name: str, outcome: Outcome | None) -> int:
    from edgekit.provision import local, slots

    if args.json:
        _print(outcome or slots.status(root))
    elif args.later:
        print(f"{root} has {name}: the guard judges it at the device's next start")
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


def _offline(args: argparse.Namespace) -> int:
    from edgekit.cli.progress import share_bar
    from edgekit.cli.release import library_of
    from edgekit.errors import UsageError
    from edgekit.provision.image import write_image
    from edgekit.provision.pack import this_machine
    from edgekit.provision.release import Target

    if args.dry_run:
        raise UsageError("--dry-run plans what a device gets; install.py of the offline image takes it too")
    here = this_machine()
    target = Target(machine=args.machine or here.machine, python=args.python or here.python)
    library = library_of(args.library)
    trust_root, settings = extras(args)
    own = own_of(args, REMOTE_ROOT, lambda: None)
    stored = stored_for(args, library, target)
    words = ["--service", args.service] if args.service != "auto" else []
    with share_bar() as progress:
        size = write_image(
            args.offline_image,
            stored,
            library,
            progress,
            own=own,
            trust_root=trust_root,
            settings=settings,
            words=words,
        )
    if args.json:
        _print({"folder": str(args.offline_image), "release": stored.release.name, "copied_bytes": size})
    else:
        print(f"{args.offline_image}: {stored.release.name}, {size / 1024:.0f} KiB copied; on the device: install.py")
    return 0


def _device_here() -> str | None:
    from edgekit.device.hardware_id import device_id
    from edgekit.device.tree import Tree

    return device_id(Tree())


def _print(value: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
