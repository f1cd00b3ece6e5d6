"""`edgekit release`: make, list, show and compare releases of a daemon's configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.numbers import above_zero, not_below_zero

if TYPE_CHECKING:
    from edgekit.provision.pack import Order
    from edgekit.provision.release import Diff, Library, Stored, Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest="step", metavar="lock|create|list|show|diff", required=True)
    lock = steps.add_parser("lock", help="print a hash-locked list of the wheels that edgekit needs on a board")
    lock.add_argument("package", metavar="PACKAGE", nargs="*", help="further packages")
    lock.add_argument("--extra", action="append", default=[], help="of edgekit-deploy; else serve and onnx")
    create = steps.add_parser("create", help="make a release from a daemon's configuration")
    create.add_argument("name", metavar="NAME", help="such as 2026.3 or 1.4.0; given once")
    create.add_argument("--config", type=Path, required=True, help="the edgekit.toml that the devices will run")
    create.add_argument("--requirements", type=Path, help="hash-locked list of wheels; else the device has edgekit")
    create.add_argument("--wheel", type=Path, action="append", default=[], help="a further wheel, edgekit's own")
    create.add_argument("--sequence", type=int, help="orders releases; else the time now, as Unix seconds")
    create.add_argument("--p99-ms", action="append", default=[], metavar="MODEL=MS", help="bound of the health gate")
    create.add_argument("--soak", type=float, default=30.0, metavar="SECONDS", help="must stay healthy so long")
    create.add_argument("--ready", type=float, default=120.0, metavar="SECONDS", help="must be ready within")
    listed = steps.add_parser("list", help="every release here, oldest first")
    show = steps.add_parser("show", help="what a release holds and asks")
    show.add_argument("name", metavar="NAME")
    diff = steps.add_parser("diff", help="what changes between two releases, and what is shipped for it")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    for step in (lock, create):
        step.add_argument("--machine", help="of the board, as uname -m says there; else this machine's")
        step.add_argument("--python", help="of the board, such as 3.11; else this one's")
    for step in (create, listed, show, diff):
        step.add_argument("--library", type=Path, help="folder of releases; else in edgekit's own")
        step.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    if args.step == "lock":
        return _lock(args)
    if args.step == "create":
        not_below_zero(soak=args.soak)
        above_zero(ready=args.ready)
    library = library_of(args.library)
    if args.step == "list":
        return _list(library, as_json=args.json)
    if args.step == "diff":
        from edgekit.provision.release import diff

        old, new = library.load(args.old), library.load(args.new)
        change = diff(old.release, new.release)
        _print(change) if args.json else print("\n".join(describe_diff(change, args.old, args.new)))
        return 0
    stored = _create(args, library) if args.step == "create" else library.load(args.name)
    _print(_plain(stored)) if args.json else print("\n".join(describe(stored)))
    return 0


def library_of(folder: Path | None) -> Library:
    """The named folder of releases, else the user's own."""
    from edgekit.config import home
    from edgekit.provision.release import Library

    return Library(folder or home().root / "releases")


def _create(args: argparse.Namespace, library: Library) -> Stored:
    from edgekit.cli.progress import share_bar
    from edgekit.config import home
    from edgekit.provision.pack import pack

    with share_bar() as progress:
        return pack(_order(args), library, home(), progress)


def _lock(args: argparse.Namespace) -> int:
    from edgekit.provision import wheelhouse

    packages = wheelhouse.needs_of_edgekit(args.extra or ["serve", "onnx"])
    print(wheelhouse.lock([*packages, *args.package], _target(args)), end="")
    return 0


def _target(args: argparse.Namespace) -> Target:
    from edgekit.provision.pack import this_machine
    from edgekit.provision.release import Target

    here = this_machine()
    return Target(machine=args.machine or here.machine, python=args.python or here.python)


def _order(args: argparse.Namespace) -> Order:
    import time

    from edgekit.provision.pack import Order

    return Order(
        name=args.name,
        sequence=int(time.time()) if args.sequence is None else args.sequence,
        config=args.config,
        target=_target(args),
        requirements=args.requirements,
        wheels=tuple(args.wheel),
        p99_ms=bounds(args.p99_ms),
        soak_s=args.soak,
        ready_s=args.ready,
    )


def bounds(words: list[str]) -> dict[str, float]:
    """`MODEL=MS` words as a mapping. Raises UsageError."""
    from edgekit.errors import UsageError

    found = {}
    for word in words:
        model, _, value = word.rpartition("=")
        try:
            found[model] = float(value)
        except ValueError:
            found[model] = 0.0
        if not model or not 0 < found[model] < float("inf"):
            raise UsageError(f"--p99-ms {word}: expected MODEL=MS, such as digits=5")
    return found


def _list(library: Library, *, as_json: bool) -> int:
    releases = [library.load(name) for name in library.names()]
    if as_json:
        _print([_plain(stored) for stored in releases])
    for stored in () if as_json else releases:
        size = sum(file.size_bytes for file in stored.release.files)
        print(f"{stored.release.name:20} {stored.digest[:12]}  {len(stored.release.files):4} files {_size(size)}")
    if not releases and not as_json:
        print(f"no release in {library.folder}; make one with: edgekit release create NAME --config edgekit.toml")
    return 0


def describe(stored: Stored) -> list[str]:
    """A release in lines for people."""
    release = stored.release
    target = (
        f"{release.target.machine} with Python {release.target.python}" if release.target.machine else "any machine"
    )
    lines = [f"release {release.name}  {stored.digest[:12]}  sequence {release.sequence}  for {target}"]
    for file in release.files:
        lines.append(f"  {file.path:60} {_size(file.size_bytes)}{'  wheel' if file.is_wheel else ''}")
    for asked in release.objectives:
        p99 = f"p99 <= {asked.p99_ms:g} ms, " if asked.p99_ms is not None else ""
        memory = f", memory <= {asked.memory_bytes >> 20} MiB" if asked.memory_bytes is not None else ""
        lines.append(f"  healthy when {asked.model}: {p99}agrees with {asked.accuracy:.1%} of the samples{memory}")
    return [*lines, f"  ready within {release.launch.ready_s:g} s, then healthy for {release.launch.soak_s:g} s"]


def describe_diff(change: Diff, old: str, new: str) -> list[str]:
    """A comparison in lines for people."""
    lines = [f"{old} -> {new}: {change.unchanged_count} files unchanged, {_size(change.shipped_bytes).strip()} to ship"]
    for sign, paths in (("+", change.added), ("-", change.removed), ("~", change.changed)):
        lines += [f"  {sign} {path}" for path in paths]
    return lines + [f"  ~ {name} (settings)" for name in change.settings]


def _size(size_bytes: int) -> str:
    """With the unit that leaves figures to read."""
    kib = size_bytes / 1024
    return f"{kib:8.1f} KiB" if kib < 1024 else f"{kib / 1024:8.1f} MiB"


def _plain(stored: Stored) -> dict[str, Any]:
    import msgspec

    return {"digest": stored.digest, **msgspec.to_builtins(stored.release)}


def _print(value: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
