"""`edgekit update`, on the device: look what is offered, take it when it may be taken, wait for the verdict."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.cli.numbers import above_zero
from edgekit.cli.slots import DEFAULT_ROOT

if TYPE_CHECKING:
    from edgekit.config import DaemonConfig
    from edgekit.provision.settings import Settings
    from edgekit.provision.update import Finding, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help=f"the device's folder; else {DEFAULT_ROOT}")
    parser.add_argument("--check", action="store_true", help="only look: 0 when there is something to install, else 1")
    parser.add_argument("--repository", metavar="URL", help="http(s):// or file://; else as provisioned")
    parser.add_argument("--group", help="whose release to take; else as provisioned")
    parser.add_argument("--rate-kb-s", type=float, help="kilobytes a second at most; else as provisioned")
    parser.add_argument("--retry-denied", action="store_true", help="try a release again that failed here")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the verdict")
    parser.add_argument(
        "--follow", action="store_true", help="stay: update when told over MQTT, report what became of it"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    from edgekit.cli.progress import share_bar
    from edgekit.provision import update

    above_zero(rate_kb_s=args.rate_kb_s)
    settings = _settings(args)
    if args.follow:
        return follow(args.root, settings)
    finding, stored = update.look(args.root, settings, retry_denied=args.retry_denied)
    if args.check or stored is None:
        _print(finding) if args.json else print(describe(finding))
        up_to_date = stored is None and finding.offered is not None and finding.offered == finding.active
        return 0 if stored is not None or (up_to_date and not args.check) else 1
    with share_bar() as progress:
        slot, received = update.bring(args.root, stored, settings, progress=progress, retry_denied=args.retry_denied)
    if slot is None or args.no_wait:
        print(f"{stored.release.name} is pending in slot {slot}: the guard tries it")
        return 0
    outcome = update.await_verdict(args.root, slot, received_bytes=received)
    _print(outcome) if args.json else print("\n".join(describe_outcome(outcome)))
    return 0 if outcome.is_committed else 1


def follow(root: Path, settings: Settings) -> int:
    """Until a signal; when another release becomes the good one, this process becomes that release's updater."""
    import logging
    import signal

    from edgekit.errors import ConfigError
    from edgekit.provision.follow import Follower
    from edgekit.provision.settings import FILE

    if settings.repository is None:
        raise ConfigError(root / FILE, "repository", "this device was not told where to look; give --repository URL")
    root = root.resolve()
    _become(root, only_if_other=True)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    config, name = _identity(root)
    follower = Follower(root, settings, config.mqtt, site=config.site, device=name)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: follower.stop())
    print(f"following {config.site}/{name} for {root}: {settings.repository}, group {settings.group}", flush=True)
    if follower.run():
        print("another release is the good one now: its own updater goes on", file=sys.stderr, flush=True)
        _become(root, only_if_other=False)
    return 0


def _identity(root: Path) -> tuple[DaemonConfig, str]:
    """The configuration of the active slot with what is the device's own, and the device's name, as its daemon has."""
    from edgekit.device.hardware_id import device_id
    from edgekit.device.tree import Tree
    from edgekit.errors import ConfigError, SlotError
    from edgekit.own import CONFIG, OWN, load_device_config
    from edgekit.provision.state import active_slot

    slot = active_slot(root)
    if slot is None:
        raise SlotError("a and b", f"{root} has no release yet: install one with edgekit provision", rolled_back=False)
    path, own = root / slot / CONFIG, root / "shared" / OWN
    config = load_device_config(path, own)
    if config.mqtt.host is None:
        raise ConfigError(own, "mqtt.host", "without a broker nothing can tell this device to update")
    name = config.device or device_id(Tree())
    if name is None:
        raise ConfigError(own, "device", "nothing unique can be read from this hardware; give the device a name")
    return config, name


def _become(root: Path, *, only_if_other: bool) -> None:
    """Start this process anew with the code of the active slot, where slots bring their own.

    By the slot's own path and not through the link: what is imported later must be of the same release.
    """
    from edgekit.provision.state import active_slot

    here, site = Path(__file__).parents[2], root / (active_slot(root) or "a") / "site"
    is_ours = here.resolve().is_relative_to(root) and site.is_dir()
    if only_if_other and (not is_ours or here == site):
        return
    env = {**os.environ, "PYTHONPATH": str(site)} if is_ours else dict(os.environ)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def _settings(args: argparse.Namespace) -> Settings:
    from msgspec.structs import replace

    from edgekit.provision.settings import read_settings

    rate = None if args.rate_kb_s is None else args.rate_kb_s * 1000
    given = {"repository": args.repository, "group": args.group, "bytes_per_s": rate}
    return replace(read_settings(args.root), **{key: value for key, value in given.items() if value is not None})


def describe(finding: Finding) -> str:
    """One line for people."""
    offered = f"{finding.offered}: {finding.reason}" if finding.offered else finding.reason
    return f"{finding.repository} offers {offered}" if finding.offered else offered


def describe_outcome(outcome: Outcome) -> list[str]:
    """What became of the release, its four states apart."""
    from edgekit.cli.slots import details

    word = "committed" if outcome.is_committed else "rolled back"
    received = f", {outcome.received_bytes / 1024:.0f} KiB received" if outcome.received_bytes else ""
    lines = [f"{outcome.release}: {word}{received}; {outcome.running_release or 'nothing'} runs"]
    return lines + [f"  {text}" for text in details(outcome.slot)]


def _print(value: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
