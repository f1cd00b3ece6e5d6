"""`edgekit keys`: the keys that sign a repository of releases."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest="step", metavar="create|show|rotate", required=True)
    create = steps.add_parser("create", help="a new key for each role: root, targets, online")
    show = steps.add_parser("show", help="the key ids, and which of them a repository trusts")
    rotate = steps.add_parser("rotate", help="replace one role's key; devices follow by themselves")
    rotate.add_argument("role", metavar="ROLE", choices=("root", "targets", "online"))
    for step in (create, show, rotate):
        step.add_argument("folder", metavar="FOLDER", type=Path, help="where the keys are kept")
        step.add_argument("--json", action="store_true", help="print the answer as JSON")
    show.add_argument("--repo", type=Path, help="a repository to compare with")
    rotate.add_argument("--repo", type=Path, required=True, help="the repository that trusts the key")
    rotate.add_argument("--dry-run", action="store_true", help="only say what would happen")


def run(args: argparse.Namespace) -> int:
    import json

    from edgekit.provision import keys

    if args.step == "create":
        found = keys.create(args.folder)
    elif args.step == "rotate":
        return _rotate(args)
    else:
        found = {role: str(keys.load(args.folder, role).public_key.keyid) for role in keys.ROLES}
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    trusted = _trusted(args.repo) if args.step == "show" and args.repo else None
    for role, keyid in found.items():
        mark = "" if trusted is None else "  trusted" if keyid in trusted else "  NOT trusted by this repository"
        print(f"{role:8} {keyid}  {keys.path_of(args.folder, role)}{mark}")
    if args.step == "create":
        print("keep root.pem and targets.pem off line; whoever has them decides what your devices run")
    return 0


def _trusted(repo: Path) -> set[str]:
    from edgekit.provision.repository import Repository

    return {keyid for role in Repository(repo).root().roles.values() for keyid in role.keyids}


def _rotate(args: argparse.Namespace) -> int:
    import json
    import tempfile

    from edgekit.provision import keys
    from edgekit.provision.repository import Repository

    repository = Repository(args.repo)
    old = str(keys.load(args.folder, args.role).public_key.keyid)
    if args.dry_run:
        print(f"would replace the {args.role} key {old[:12]} and sign root version {repository.root().version + 1}")
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder, prefix=".new-") as temp:
        new = keys.create_one(Path(temp), args.role)
        version = repository.rotate(args.folder, args.role, Path(temp))
        keys.replace(args.folder, args.role, Path(temp))
    if args.role != "root":
        repository.resign(args.folder)
    answer = {"role": args.role, "old": old, "new": new, "root_version": version}
    print(
        json.dumps(answer, indent=2) if args.json else f"{args.role}: {old[:12]} -> {new[:12]}, root version {version}"
    )
    return 0
