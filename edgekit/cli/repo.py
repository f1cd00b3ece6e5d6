"""`edgekit repo`: publish releases as static files that devices trust by signatures, not by where they lie."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.provision.repository import Repository


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest="step", metavar="create|publish|refresh|show", required=True)
    create = steps.add_parser("create", help="an empty repository that trusts these keys")
    publish = steps.add_parser("publish", help="offer a release to groups of devices")
    publish.add_argument("release", metavar="RELEASE", help="a release of the library")
    publish.add_argument("--group", action="append", default=[], help="who gets it; else the group 'default'")
    publish.add_argument("--allow-downgrade", action="store_true", help="sign that devices may go back to it")
    publish.add_argument("--library", type=Path, help="folder of releases; else in edgekit's own")
    refresh = steps.add_parser("refresh", help="sign the metadata anew before it expires")
    show = steps.add_parser("show", help="what each group is to have, and until when that holds")
    for step in (create, publish, refresh, show):
        step.add_argument(
            "--repo", type=Path, required=True, help="folder of the repository: a web server's, or a stick"
        )
        step.add_argument("--json", action="store_true", help="print the offers as JSON")
    for step in (create, publish, refresh):
        step.add_argument("--keys", type=Path, required=True, help="folder of the keys")
    for step in (publish, refresh):
        step.add_argument("--days", type=int, default=90, help="how long devices may believe it; else 90")


def run(args: argparse.Namespace) -> int:
    from edgekit.cli.release import library_of
    from edgekit.errors import UsageError
    from edgekit.provision.repository import Repository

    repository = Repository(args.repo)
    if getattr(args, "days", 1) < 1:
        raise UsageError("--days must be 1 or more")
    if args.step == "create":
        repository.create(args.keys)
    elif args.step == "publish":
        library = library_of(args.library)
        repository.publish(
            library,
            library.load(args.release),
            args.keys,
            groups=args.group or ["default"],
            downgrade_allowed=args.allow_downgrade,
            days=args.days,
        )
    elif args.step == "refresh":
        repository.refresh(args.keys, days=args.days)
    return _show(repository, as_json=args.json)


def _show(repository: Repository, *, as_json: bool) -> int:
    import msgspec

    offers, until = repository.offers(), repository.valid_until()
    if as_json:
        answer = {"offers": offers, "valid_until": None if until is None else until.isoformat()}
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return 0
    print(f"{repository.folder}: root version {repository.root().version}")
    for offer in offers:
        downgrade = "  downgrade allowed" if offer.downgrade_allowed else ""
        print(f"  {offer.group:16} {offer.release:20} {offer.digest[:12]}  sequence {offer.sequence}{downgrade}")
    if until is not None:
        print(f"  devices believe it until {until:%Y-%m-%d %H:%M} UTC; renew with: edgekit repo refresh")
    return 0
