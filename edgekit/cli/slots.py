"""`edgekit slots`: what a device's two slots hold, which one runs, what was refused; and the check the guard runs."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.cli.numbers import above_zero

if TYPE_CHECKING:
    from edgekit.provision.slots import Slot, Status

DEFAULT_ROOT = Path("/opt/edgekit")
_TIMES = ("installed", "booted", "healthy", "committed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help=f"the device's folder; else {DEFAULT_ROOT}")
    parser.add_argument("--json", action="store_true", help="print the slots as JSON")
    check = parser.add_argument_group("for the guard", "is the daemon that now runs what its release promises?")
    check.add_argument("--self-check", type=Path, metavar="SLOT", help="measure the objectives of the release in SLOT")
    check.add_argument("--own", type=Path, metavar="FILE", help="what the device says of itself, such as its port")
    check.add_argument("--pid", type=int, help="its process id, for its memory")
    check.add_argument("--seconds", type=float, default=60.0, help="to measure for, at most")


def run(args: argparse.Namespace) -> int:
    above_zero(seconds=args.seconds)
    if args.self_check is not None:
        return self_check(args)
    from edgekit.provision.slots import status

    now = status(args.root)
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(now), indent=2).decode())
    else:
        print("\n".join(describe(now)))
    return 0


def self_check(args: argparse.Namespace) -> int:
    """One line of JSON, as the guard reads it; 0 healthy, 1 not."""
    import msgspec

    from edgekit.errors import ReleaseError
    from edgekit.own import CONFIG, load_device_config
    from edgekit.provision.health import Verdict, judge
    from edgekit.provision.slots import read_release
    from edgekit.serve.client import Client

    stored = read_release(args.self_check.parent, args.self_check.name)
    if stored is None:
        raise ReleaseError(str(args.self_check), "holds no release to be checked")
    http = load_device_config(args.self_check / CONFIG, args.own).http
    url = f"http://127.0.0.1:{http.port}"
    token = Path(http.token_file).read_text(encoding="ascii").strip() if http.token_file else None
    with Client(url, token=token) as client:
        if problem := why_no_updater(args.self_check.parent):
            verdict = Verdict(healthy=False, reason=problem)
        elif not client.is_ready():
            verdict = Verdict(healthy=False, reason=f"{url} does not say that it is ready")
        else:
            verdict = judge(
                stored.release.objectives,
                args.self_check,
                lambda model, feed: client.infer(model, feed)[0],
                daemon=args.pid,
                seconds=args.seconds,
            )
    print(msgspec.json.encode(verdict).decode())
    return 0 if verdict.healthy else 1


def why_no_updater(root: Path) -> str | None:
    """Why the release that runs us could not bring the next one, or None: it would be the last over the network."""
    from edgekit.provision.settings import read_settings

    if read_settings(root).repository is None:
        return None
    try:
        import edgekit.provision.follow
        import edgekit.provision.trust  # noqa: F401
    except ImportError as e:
        return f"with it no update would ever come again: {e}"
    return None


def describe(now: Status) -> list[str]:
    """The slots in lines for people."""
    lines = []
    for slot in now.slots:
        marks = [word for word, held in (("active", now.active), ("running", now.running)) if held == slot.slot]
        release = slot.release or "-"
        lines.append(f"slot {slot.slot}  {slot.state.value:8} {release:16} {' '.join(marks)}".rstrip())
        lines += [f"        {text}" for text in details(slot)]
    for digest, denied in now.denied.items():
        lines.append(f"refused {digest[:12]}  {denied['failures']}x: {denied['reason']}")
    if now.journal is not None:
        lines.append(f"under way: {now.journal['release']} into slot {now.journal['slot']}, step {now.journal['step']}")
    return lines


def details(slot: Slot) -> list[str]:
    """When it came how far, what was measured, and what was wrong: lines for people."""
    times = [(name, getattr(slot, f"{name}_unix_s")) for name in _TIMES]
    told = [f"{name} {datetime.fromtimestamp(t, timezone.utc):%Y-%m-%d %H:%M:%S}" for name, t in times if t is not None]
    lines = ["  ".join(told)] if told else []
    for figures in (slot.verdict or {}).get("figures", ()):
        p99 = f", p99 {figures['p99_ms']:.2f} ms" if figures["p99_ms"] is not None else ""
        p50 = f"p50 {figures['p50_ms']:.2f} ms{p99} of {figures['sample_count']} samples, " if figures["p50_ms"] else ""
        agreed = f"agrees with {figures['agreement']:.1%} of {figures['agreement_count']} samples"
        lines.append(f"measured: {figures['model']}: {p50}{agreed}")
    if slot.reason:
        lines.append(f"because: {slot.reason}")
    return lines
