"""`edgekit fleet`: the fleet as a table or as JSON, once or again and again."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgekit.cli.mqtt_options import add_mqtt_arguments, mqtt_config
from edgekit.cli.numbers import above_zero
from edgekit.config import NAME_PATTERN
from edgekit.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from edgekit.groups import Listening
    from edgekit.telemetry.watch import Watcher

CONNECT_S = 6.0
LISTEN_S = 3.0
"""A device answers a reader's first question within two seconds."""
GROUPS = ("site", "board", "model", "artifact", "lane")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "forget", nargs="*", metavar="forget SITE/DEVICE", help="clear a device that is gone, from broker and history"
    )
    add_mqtt_arguments(parser)
    parser.add_argument("--site", action="append", metavar="SITE", help="only this site (may be repeated)")
    parser.add_argument(
        "--for", dest="listen_s", type=float, metavar="SECONDS", default=LISTEN_S, help="how long to listen (default 3)"
    )
    parser.add_argument("--by", choices=GROUPS, help="a row a group, its percentiles from merged histograms")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it again every so many seconds")
    parser.add_argument("--json", action="store_true", help="print as JSON; with --watch one line each time")


def run(args: argparse.Namespace) -> int:
    above_zero(**{"for": args.listen_s, "watch": args.watch})
    for site in args.site or ():
        if not re.match(NAME_PATTERN, site):
            raise UsageError(f"--site {site}: a site is 1 to 63 of a-z, 0-9, '_' and '-'")
    if args.forget:
        return _forget(args)
    from edgekit.groups import Listening
    from edgekit.telemetry.watch import Watcher

    config = mqtt_config(args)
    watcher = Watcher(config, sites=args.site)
    watcher.start()
    try:
        _await_connection(watcher, f"{config.host}:{config.port}")
        state = _listen(watcher, Listening(), args.listen_s)
        if args.watch is None:
            _show_once(state, args.by, as_json=args.json)
        else:
            _show_again(watcher, state, args.watch, args.by, as_json=args.json)
    finally:
        watcher.stop()
    if not state.fleet.devices:
        where = f"{config.host}:{config.port}"
        print(f"edgekit fleet: no device was heard within {args.listen_s:g} s at {where}", file=sys.stderr)
        return 1
    return 0


def _forget(args: argparse.Namespace) -> int:
    """`edgekit fleet forget SITE/DEVICE…`: a truthful no when one of them is online, which would only come back."""
    from edgekit.fleet import Presence
    from edgekit.groups import Listening
    from edgekit.telemetry.watch import Watcher

    verb, *names = args.forget
    devices = [tuple(name.split("/")) for name in names]
    if verb != "forget" or not names:
        raise UsageError("edgekit fleet forget SITE/DEVICE takes one or more devices")
    if wrong := [
        n for n, d in zip(names, devices, strict=True) if len(d) != 2 or not all(re.match(NAME_PATTERN, x) for x in d)
    ]:
        raise UsageError(f"'{wrong[0]}' is not SITE/DEVICE")
    config = mqtt_config(args)
    watcher = Watcher(config, sites=sorted({site for site, _ in devices}))
    watcher.start()
    try:
        _await_connection(watcher, f"{config.host}:{config.port}")
        fleet = _listen(watcher, Listening(), args.listen_s).fleet
        alive = [d for d in devices if d in fleet.devices and fleet.devices[d].presence is not Presence.OFFLINE]
        for site, device in devices:
            if (site, device) not in alive:
                watcher.forget(site, device)
    finally:
        delivered = watcher.stop()
    if watcher.refused or not delivered:  # MQTT 5 refuses in words, others hang up
        raise BrokerError(f"{config.host}:{config.port}", "does not let this user forget devices; the steward may")
    for site, device in devices:
        if (site, device) not in alive:
            print(f"{site}/{device}: forgotten")
    for site, device in alive:
        print(f"edgekit fleet: {site}/{device} reports still and would come back; stop it first", file=sys.stderr)
    return 1 if alive else 0


def _await_connection(watcher: Watcher, endpoint: str) -> None:
    """Raises BrokerError when there is no connection soon."""
    deadline = time.monotonic() + CONNECT_S
    while not watcher.connected:
        if watcher.failed or time.monotonic() > deadline:
            raise BrokerError(endpoint, watcher.state)
        time.sleep(0.02)


def _listen(watcher: Watcher, state: Listening, seconds: float) -> Listening:
    from edgekit.groups import listen

    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
        state = listen(state, watcher.drain(), now_s=time.time())
    return state


def _json(state: Listening, by: str | None) -> dict[str, Any]:
    from edgekit.cli.fleet_table import fleet_json, groups_json

    return fleet_json(state, time.time()) if by is None else groups_json(state, by, time.time())


def _table(state: Listening, by: str | None, *, width: int) -> Table:
    from edgekit.cli.fleet_table import fleet_table, groups_table

    return fleet_table(state, time.time(), width=width) if by is None else groups_table(state, by)


def _show_once(state: Listening, by: str | None, *, as_json: bool) -> None:
    devices = state.fleet.devices.values()
    if as_json:
        print(json.dumps(_json(state, by), indent=2))
    elif devices:
        console = _console()
        console.print(_table(state, by, width=console.width))
        if not any(device.windows for device in devices):
            longest_s = max(device.window_s for device in devices)
            print(f"no window heard yet; --for {longest_s + 2:.0f} waits for one", file=sys.stderr)


def _show_again(watcher: Watcher, state: Listening, every_s: float, by: str | None, *, as_json: bool) -> None:
    """Until interrupted. On a terminal the table is redrawn in place."""
    if as_json:
        for now in _states(watcher, state, every_s):
            print(json.dumps(_json(now, by)), flush=True)
        return
    console = _console()
    if not console.is_terminal:
        for now in _states(watcher, state, every_s):
            console.print(_table(now, by, width=console.width))
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for now in _states(watcher, state, every_s):
            live.update(_table(now, by, width=console.width), refresh=True)


def _states(watcher: Watcher, state: Listening, every_s: float) -> Iterator[Listening]:
    while True:
        yield state
        state = _listen(watcher, state, every_s)
        if not watcher.connected:
            print(f"edgekit fleet: broker: {watcher.state}; trying again", file=sys.stderr)


def _console() -> Any:
    import shutil

    from rich.console import Console

    # A file or pipe has no width: what folds there is unreadable, whatever COLUMNS says.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    return Console(width=width, highlight=False)
