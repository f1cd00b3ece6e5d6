"""`edgekit rollout`: a release over a fleet in waves; each goes on only when telemetry proves that it holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.mqtt_options import add_mqtt_arguments, mqtt_config
from edgekit.cli.numbers import above_zero, within

if TYPE_CHECKING:
    from edgekit.fleet import Fleet
    from edgekit.provision.compare import Bounds
    from edgekit.provision.crier import Crier
    from edgekit.provision.rollout import Limits, Rollout
    from edgekit.provision.rollout_file import RolloutFile
    from edgekit.provision.survey import Survey

LISTEN_S = 4.0
"""Devices answer the first question within two seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest="step", metavar="start|resume|pause|abort|status", required=True)
    start = steps.add_parser("start", help="plan the waves, show them, and go", allow_abbrev=False)
    start.add_argument("release", metavar="RELEASE", help="published for the groups before: edgekit repo publish")
    start.add_argument("--repo", type=Path, help="folder of the repository: check that it is offered, and to whom")
    start.add_argument("--group", action="append", default=[], help="whose devices, in this order; else as offered")
    start.add_argument("--site", action="append", default=[], help="only this site (may be repeated)")
    start.add_argument("--canary", default="10", metavar="PERCENT[,…]", help="of all devices first; else 10")
    start.add_argument("--listen", type=float, default=LISTEN_S, metavar="SECONDS", help="for devices; else 4")
    start.add_argument("--dry-run", action="store_true", help="only print the plan")
    _add_limits(start)
    resume = steps.add_parser("resume", help="go on where it was left, stopped or killed", allow_abbrev=False)
    pause = steps.add_parser("pause", help="tell nobody further, take back what has not begun", allow_abbrev=False)
    abort = steps.add_parser("abort", help="the same, for good", allow_abbrev=False)
    status = steps.add_parser("status", help="how far it is", allow_abbrev=False)
    for step in (resume, pause, abort, status):
        step.add_argument("release", metavar="RELEASE", nargs="?", help="else the latest rollout here")
    for step in (start, resume, pause, abort, status):
        step.add_argument("--state", type=Path, metavar="FOLDER", help="of rollouts; else in edgekit's own")
        step.add_argument("--json", action="store_true", help="print the rollout as JSON")
    for step in (start, resume, pause, abort):
        add_mqtt_arguments(step)
    for step in (start, resume):
        step.add_argument("--take-over", action="store_true", help="although another operator's rollout is unfinished")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group(
        "when a wave goes on", "ratios and points are updated devices against the others"
    )
    limits.add_argument("--p50", type=float, default=1.10, metavar="RATIO", help="at most; else 1.10")
    limits.add_argument("--p99", type=float, default=1.20, metavar="RATIO", help="at most; else 1.20")
    limits.add_argument("--errors", type=float, default=1.0, metavar="POINTS", help="more failed requests; else 1")
    limits.add_argument("--shadow", type=float, default=2.0, metavar="POINTS", help="less agreement; else 2")
    limits.add_argument("--samples", type=int, default=662, help="on either side at least; 0: do not compare; else 662")
    limits.add_argument("--observe", type=float, default=300.0, metavar="SECONDS", help="at least; else 300")
    limits.add_argument("--patience", type=float, default=3600.0, metavar="SECONDS", help="undecided: stop; else 3600")
    limits.add_argument("--success", type=float, default=95.0, metavar="PERCENT", help="of a wave must commit; else 95")
    limits.add_argument("--failure", type=float, default=5.0, metavar="PERCENT", help="of a wave may not; else 5")


def run(args: argparse.Namespace) -> int:
    from edgekit.config import home
    from edgekit.errors import ConfigError
    from edgekit.provision.rollout_file import RolloutFile, names

    folder = args.state or home().root / "rollouts"
    release = args.release or next(iter(names(folder)), None)
    if release is None:
        raise ConfigError(folder, None, "there is no rollout here yet; begin one with: edgekit rollout start RELEASE")
    file = RolloutFile(folder, release)
    if args.step == "start":
        return _start(args, file)
    if args.step == "resume":
        return _resume(args, file)
    if args.step in ("pause", "abort"):
        return _ask(args, file)
    rollout = file.read()
    _print(rollout) if args.json else print("\n".join(describe(rollout, is_driven=file.is_driven())))
    return 0


def _start(args: argparse.Namespace, file: RolloutFile) -> int:
    from edgekit.errors import ConfigError
    from edgekit.provision import rollout as ro
    from edgekit.provision.crier import Crier

    bounds, limits, canary = _limits(args)
    groups, digest = _offered(args)
    if not args.dry_run and file.exists() and file.read().condition in ro.UNFINISHED:
        mend = f"edgekit rollout resume {file.release}, or abort {file.release}"
        raise ConfigError(file.path, None, f"a rollout of {file.release} is unfinished: {mend}")
    with Crier(mqtt_config(args), args.site) as crier:
        survey = _survey(crier, args.listen)
        rollout = survey.plan(
            args.release, digest=digest, groups=groups, canary=canary, sites=args.site, bounds=bounds, limits=limits
        )
        print("\n".join(survey.describe(rollout)), file=sys.stdout if args.dry_run else sys.stderr)
        if args.dry_run:
            return 0
        with file.driving():
            return _drive(args, file, rollout, crier, survey.fleet)


def _resume(args: argparse.Namespace, file: RolloutFile) -> int:
    from edgekit.errors import ConfigError
    from edgekit.provision import rollout as ro
    from edgekit.provision.crier import Crier

    with file.driving():
        rollout = file.read()
        if rollout.condition not in ro.UNFINISHED:
            raise ConfigError(file.path, None, f"is {rollout.condition.value}: {rollout.why}")
        if rollout.condition is not ro.Condition.RUNNING:
            rollout = ro.told_anew(rollout)
        with Crier(mqtt_config(args), rollout.sites) as crier:
            return _drive(args, file, rollout, crier)


def _drive(
    args: argparse.Namespace, file: RolloutFile, rollout: Rollout, crier: Crier, fleet: Fleet | None = None
) -> int:
    """Until it ends or stops; 0 when every wave has it."""
    from edgekit.cli.progress import share_bar
    from edgekit.provision import rollout as ro
    from edgekit.provision.conductor import Conductor
    from edgekit.provision.crier import Claim
    from edgekit.provision.rollout_file import operator

    sites = sorted({key.partition("/")[0] for key in rollout.kinds})
    with share_bar() as show:
        conductor = Conductor(
            rollout, file, crier, note=lambda line: print(line, file=sys.stderr), show=show, fleet=fleet
        )
        claim = Claim(id=rollout.id, release=rollout.release, operator=operator())
        crier.claim(claim, sites, take_over=args.take_over, hear=conductor.hear)
        file.write(conductor.rollout)
        try:
            ended = conductor.run()
        except KeyboardInterrupt:
            mend = f"go on with: edgekit rollout resume {rollout.release}"
            print(f"left in the middle; devices that were told go on. {mend}", file=sys.stderr)
            raise
        if ended.condition not in ro.UNFINISHED:
            crier.release(sites)
    _print(ended) if args.json else print(verdict(ended))
    return 0 if ended.condition is ro.Condition.DONE else 1


def _ask(args: argparse.Namespace, file: RolloutFile) -> int:
    """Of the process that drives it; when none does, it is done here."""
    from msgspec.structs import replace

    from edgekit.provision import rollout as ro
    from edgekit.provision.crier import Crier

    rollout = file.read()
    if file.is_driven():
        file.ask(args.step)
        print(f"{args.step} was asked of the process that drives it", file=sys.stderr)
        return 0
    if rollout.condition not in ro.UNFINISHED:
        print(verdict(rollout))
        return 1
    condition = ro.Condition.PAUSED if args.step == "pause" else ro.Condition.ABORTED
    with file.driving(), Crier(mqtt_config(args), rollout.sites) as crier:
        rollout = replace(rollout, condition=condition, why=f"{args.step} was asked for")
        file.write(rollout)
        for key in set(rollout.current.devices) - set(ro.committed(rollout)):
            crier.tell(key, b"")
        if condition is ro.Condition.ABORTED:
            crier.release(sorted({key.partition("/")[0] for key in rollout.kinds}))
        crier.settle()
    _print(rollout) if args.json else print(verdict(rollout))
    return 0


def _survey(crier: Crier, seconds: float) -> Survey:
    import time

    from edgekit.provision.survey import Survey

    survey, until_s = Survey(), time.monotonic() + seconds
    while time.monotonic() < until_s:
        for message in crier.drain():
            survey.hear(message)
        time.sleep(0.1)
    return survey


def _limits(args: argparse.Namespace) -> tuple[Bounds, Limits, list[float]]:
    from edgekit.errors import UsageError
    from edgekit.provision.compare import Bounds
    from edgekit.provision.rollout import Limits

    above_zero(p50=args.p50, p99=args.p99, observe=args.observe, patience=args.patience, listen=args.listen)
    within(0, 100, errors=args.errors, shadow=args.shadow, success=args.success, failure=args.failure)
    within(0, 10**9, samples=args.samples)
    try:
        canary = [float(word) / 100 for word in args.canary.split(",")]
    except ValueError:
        canary = []
    if not canary or canary != sorted(set(canary)) or not 0 < canary[0] <= canary[-1] <= 1:
        raise UsageError(f"--canary {args.canary}: expected growing percentages from above 0 to 100, such as 1,10,50")
    bounds = Bounds(
        p50_ratio=args.p50,
        p99_ratio=args.p99,
        failed=args.errors / 100,
        disagreed=args.shadow / 100,
        samples=args.samples,
    )
    limits = Limits(
        success=args.success / 100,
        failure=args.failure / 100,
        observe_s=args.observe,
        patience_s=max(args.patience, args.observe),
    )
    return bounds, limits, canary


def _offered(args: argparse.Namespace) -> tuple[list[str], str]:
    """(the groups in order, the manifest's digest), as far as the repository tells. Raises ReleaseError."""
    from edgekit.errors import ReleaseError

    if args.repo is None:
        return args.group or ["default"], ""
    from edgekit.provision.repository import Repository

    offers = {offer.group: offer for offer in Repository(args.repo).offers()}
    groups = args.group or [name for name, offer in offers.items() if offer.release == args.release]
    mend = f"edgekit repo publish {args.release} --group …"
    if not groups:
        raise ReleaseError(args.release, f"{args.repo} offers it to no group; to mend it: {mend}")
    for group in groups:
        offer = offers.get(group)
        if offer is None or offer.release != args.release:
            has = offer.release if offer else "nothing"
            raise ReleaseError(args.release, f"{args.repo} offers {has} to group {group}; to mend it: {mend}")
    return groups, offers[groups[0]].digest


def describe(rollout: Rollout, *, is_driven: bool) -> list[str]:
    """How far it is, in lines for people."""
    from edgekit.provision import rollout as ro

    all_good = len(ro.committed(rollout))
    lines = [f"{rollout.release}: {rollout.condition.value}, {all_good} of {len(rollout.kinds)} devices have it"]
    for i, wave in enumerate(rollout.waves):
        good, bad = len(ro.committed(rollout, wave)), ro.failed(rollout, wave)
        is_current = i == rollout.wave and rollout.condition is not ro.Condition.DONE
        mark = ">" if is_current else "✓" if i < rollout.wave or rollout.condition is ro.Condition.DONE else " "
        phase = f"  {rollout.phase.value}" if is_current else ""
        lines.append(f" {mark} wave {i + 1}  {wave.name:14} {good} of {len(wave.devices)} committed{phase}")
        lines += [f"        {key} {rollout.devices[key].step.value}: {rollout.devices[key].reason}" for key in bad[:5]]
    if rollout.why:
        lines.append(rollout.why)
    elif not is_driven and rollout.condition is ro.Condition.RUNNING:
        lines.append(f"nobody drives it; go on with: edgekit rollout resume {rollout.release}")
    return lines


def verdict(rollout: Rollout) -> str:
    """One line: what came of it, and what to do next."""
    from edgekit.provision.rollout import Condition

    mend = {
        Condition.STOPPED: f"; resume {rollout.release} judges the wave again, abort {rollout.release} ends it",
        Condition.PAUSED: f"; go on with: edgekit rollout resume {rollout.release}",
    }
    return f"{rollout.release}: {rollout.condition.value}: {rollout.why}{mend.get(rollout.condition, '')}"


def _print(value: Any) -> None:
    import msgspec

    fields = {k: v for k, v in msgspec.to_builtins(value).items() if k != "before"}
    print(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode())
