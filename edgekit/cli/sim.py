"""`edgekit sim`: devices that do not exist, reporting as real ones do."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.cli.mqtt_options import add_mqtt_arguments, mqtt_config
from edgekit.cli.numbers import above_zero, not_below_zero, within
from edgekit.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from edgekit.sim.fleet import SimFleet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mqtt_arguments(parser)
    parser.add_argument("--devices", type=int, default=10, metavar="N", help="how many (default 10)")
    parser.add_argument("--sites", type=int, default=1, metavar="N", help="spread over so many sites (default 1)")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, metavar="SECONDS", help="default 60")
    parser.add_argument("--window", type=float, default=10.0, metavar="SECONDS", help="length of a window (default 10)")
    parser.add_argument("--drops", type=float, default=0.0, metavar="N", help="lost connections a device and hour")
    parser.add_argument("--deaths", type=float, default=0.0, metavar="N", help="power losses a device and hour")
    parser.add_argument("--skew", type=float, default=0.0, metavar="SECONDS", help="how wrong unset clocks are")
    parser.add_argument("--unsynced", type=float, default=0.1, metavar="RATIO", help="of all clocks, with --skew")
    parser.add_argument("--drain", type=float, default=60.0, metavar="SECONDS", help="wait for acknowledgements after")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same fleet")
    parser.add_argument("--cheap", type=float, metavar="WINDOWS_PER_S", help="one connection for all: for load only")
    parser.add_argument("--made", type=Path, metavar="FILE", help="write how many windows each device made")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    above_zero(devices=args.devices, sites=args.sites, window=args.window, cheap=args.cheap, **{"for": args.seconds})
    not_below_zero(drops=args.drops, deaths=args.deaths, skew=args.skew, drain=args.drain)
    within(0, 1, unsynced=args.unsynced)
    if args.tls or args.ca_file or args.certificate_file:
        raise UsageError("the simulator speaks to a broker on this machine and knows no TLS")
    if args.cheap is not None:
        return _flood(args)
    from edgekit.sim.device import Behaviour
    from edgekit.sim.fleet import SimFleet

    _raise_file_limit(args.devices)
    behaviour = Behaviour(
        window_s=args.window,
        drops_per_h=args.drops,
        deaths_per_h=args.deaths,
        unsynced_ratio=args.unsynced if args.skew else 0.0,
        skew_s=args.skew,
    )
    config = mqtt_config(args)
    _reach(str(config.host), config.port)
    fleet = SimFleet(config, behaviour, devices=args.devices, sites=args.sites, seed=args.seed)
    tally = fleet.run(args.seconds, drain_s=args.drain, on_tick=_progress(fleet))
    if args.made is not None:
        args.made.write_text(json.dumps(tally.made))
    numbers = {key: getattr(tally, key) for key in ("devices", "windows", "connections", "drops", "deaths")}
    numbers |= {"waiting": tally.waiting, "lost": tally.lost}
    if args.json:
        print(json.dumps(numbers))
    else:
        print(
            f"{tally.devices} devices made {tally.windows} windows over {tally.connections} connections "
            f"({tally.drops} dropped, {tally.deaths} power losses); {tally.waiting} not acknowledged, {tally.lost} lost"
        )
    return 0 if not tally.waiting and not tally.lost else 1


def _reach(host: str, port: int) -> None:
    """Raises BrokerError at once for a broker that is not there: the devices would wait for it for ever."""
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError as e:
        raise BrokerError(f"{host}:{port}", f"cannot be reached: {e.strerror or e}") from e


def _flood(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from edgekit.sim.flood import flood

    config = mqtt_config(args)
    _reach(str(config.host), config.port)
    sent = flood(config, devices=args.devices, windows_per_s=args.cheap, seconds=args.seconds, seed=args.seed)
    if args.json:
        print(json.dumps(asdict(sent)))
    else:
        print(f"{sent.windows} windows of {sent.devices} devices in {sent.seconds:.1f} s")
    return 0


def _progress(fleet: SimFleet) -> Callable[[], None]:
    """Says on a terminal, once a second, how it goes."""
    import time

    last_s = [0.0]

    def tick() -> None:
        if sys.stderr.isatty() and time.monotonic() - last_s[0] > 1.0:
            last_s[0] = time.monotonic()
            print(f"\r{fleet.connected} connected, {fleet.tally.windows} windows", end="", file=sys.stderr)

    return tick


def _raise_file_limit(devices: int) -> None:
    """One socket each. Raises UsageError where the system does not allow so many."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = devices + 100
    if soft < wanted:
        if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
            raise UsageError(
                f"{devices} devices need {wanted} open files, this system allows {hard}: ulimit -n {wanted}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
