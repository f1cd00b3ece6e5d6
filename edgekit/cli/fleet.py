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
    from rich.text import Text

    from edgekit.fleet import Device, Fleet
    from edgekit.telemetry.messages import Histogram
    from edgekit.telemetry.watch import Watcher

CONNECT_S = 6.0
LISTEN_S = 3.0
"""A device answers a reader's first question within two seconds."""
WIDE = 100
_WORDS = ("DEVICE", "STATE", "MODEL", "ARTIFACT")
_FIGURES = ("P50 ms", "P99 ms", "SAMPLES", "REQ/S", "FREE MiB", "°C", "SEEN", "GAPS")
_LEFT_OUT = ("SAMPLES", "REQ/S", "FREE MiB", "°C", "GAPS")
_BOOKKEEPING = ("said", "waiting_since_s", "steady", "track", "older", "newer", "newer_windows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "forget", nargs="*", metavar="forget SITE/DEVICE", help="clear a device that is gone, from broker and history"
    )
    add_mqtt_arguments(parser)
    parser.add_argument("--site", action="append", metavar="SITE", help="only this site (may be repeated)")
    parser.add_argument(
        "--for", dest="listen_s", type=float, metavar="SECONDS", default=LISTEN_S, help="how long to listen (default 3)"
    )
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it again every so many seconds")
    parser.add_argument("--json", action="store_true", help="print as JSON; with --watch one line each time")


def run(args: argparse.Namespace) -> int:
    above_zero(**{"for": args.listen_s, "watch": args.watch})
    for site in args.site or ():
        if not re.match(NAME_PATTERN, site):
            raise UsageError(f"--site {site}: a site is 1 to 63 of a-z, 0-9, '_' and '-'")
    if args.forget:
        return _forget(args)
    from edgekit.fleet import Fleet
    from edgekit.telemetry.watch import Watcher

    config = mqtt_config(args)
    watcher = Watcher(config, sites=args.site)
    watcher.start()
    try:
        _await_connection(watcher, f"{config.host}:{config.port}")
        fleet = _listen(watcher, Fleet(), args.listen_s)
        if args.watch is None:
            _show_once(fleet, as_json=args.json)
        else:
            _show_again(watcher, fleet, args.watch, as_json=args.json)
    finally:
        watcher.stop()
    if not fleet.devices:
        where = f"{config.host}:{config.port}"
        print(f"edgekit fleet: no device was heard within {args.listen_s:g} s at {where}", file=sys.stderr)
        return 1
    return 0


def _forget(args: argparse.Namespace) -> int:
    """`edgekit fleet forget SITE/DEVICE…`: a truthful no when one of them is online, which would only come back."""
    import re

    from edgekit.config import NAME_PATTERN
    from edgekit.fleet import Fleet, Presence
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
        fleet = _listen(watcher, Fleet(), args.listen_s)
        alive = [d for d in devices if d in fleet.devices and fleet.devices[d].presence is not Presence.OFFLINE]
        for site, device in devices:
            if (site, device) not in alive:
                watcher.forget(site, device)
                print(f"{site}/{device}: forgotten")
    finally:
        watcher.stop()
    for site, device in alive:
        print(f"edgekit fleet: {site}/{device} reports still and would come back; stop it first", file=sys.stderr)
    return 1 if alive else 0


def fleet_json(fleet: Fleet, now_s: float) -> dict[str, Any]:
    """The fleet's fields, with the percentiles that its histograms give."""
    import msgspec

    devices = []
    for device in _sorted(fleet):
        fields = {k: v for k, v in msgspec.to_builtins(device).items() if k not in _BOOKKEEPING}
        devices.append(
            {**fields, "p50_ms": _percentile(device.latency, 0.5), "p99_ms": _percentile(device.latency, 0.99)}
        )
    events = [msgspec.to_builtins(event) for event in fleet.events]
    return {"at_s": now_s, "devices": devices, "events": events, "malformed": fleet.malformed}


def fleet_table(fleet: Fleet, now_s: float, *, width: int) -> Table:
    """The fleet as a table for people; the last line is the fleet's own percentile, from merged histograms.

    Under `WIDE` columns of the terminal, what tells the least about a device is left out.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    footers = _footers(fleet)
    shown = [name for name in (*_WORDS, *_FIGURES) if width >= WIDE or name not in _LEFT_OUT]
    for name in shown:
        is_word = name in _WORDS
        style: dict[str, Any] = {"overflow": "fold"} if is_word else {"justify": "right", "no_wrap": True}
        table.add_column(name, footer=footers.get(name, ""), **style)
    for device in _sorted(fleet):
        cells = _cells(device, now_s)
        table.add_row(*(cells[name] for name in shown))
    return table


def _await_connection(watcher: Watcher, endpoint: str) -> None:
    """Raises BrokerError when there is no connection soon."""
    deadline = time.monotonic() + CONNECT_S
    while not watcher.connected:
        if watcher.failed or time.monotonic() > deadline:
            raise BrokerError(endpoint, watcher.state)
        time.sleep(0.02)


def _listen(watcher: Watcher, fleet: Fleet, seconds: float) -> Fleet:
    from edgekit.fleet import fold

    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
        fleet = fold(fleet, watcher.drain(), now_s=time.time())
    return fleet


def _show_once(fleet: Fleet, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(fleet_json(fleet, time.time()), indent=2))
    elif fleet.devices:
        console = _console()
        console.print(fleet_table(fleet, time.time(), width=console.width))
        if not any(device.windows for device in fleet.devices.values()):
            longest_s = max(device.window_s for device in fleet.devices.values())
            print(f"no window heard yet; --for {longest_s + 2:.0f} waits for one", file=sys.stderr)


def _show_again(watcher: Watcher, fleet: Fleet, every_s: float, *, as_json: bool) -> None:
    """Until interrupted. On a terminal the table is redrawn in place."""
    if as_json:
        for state in _states(watcher, fleet, every_s):
            print(json.dumps(fleet_json(state, time.time())), flush=True)
        return
    console = _console()
    if not console.is_terminal:
        for state in _states(watcher, fleet, every_s):
            console.print(fleet_table(state, time.time(), width=console.width))
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for state in _states(watcher, fleet, every_s):
            live.update(fleet_table(state, time.time(), width=console.width), refresh=True)


def _states(watcher: Watcher, fleet: Fleet, every_s: float) -> Iterator[Fleet]:
    while True:
        yield fleet
        fleet = _listen(watcher, fleet, every_s)
        if not watcher.connected:
            print(f"edgekit fleet: broker: {watcher.state}; trying again", file=sys.stderr)


def _console() -> Any:
    import shutil

    from rich.console import Console

    # A file or pipe has no width: what folds there is unreadable, whatever COLUMNS says.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    return Console(width=width, highlight=False)


def _sorted(fleet: Fleet) -> list[Device]:
    return [fleet.devices[key] for key in sorted(fleet.devices)]


def _cells(device: Device, now_s: float) -> dict[str, Text | str]:
    """Column -> what stands there for a device. What is not known is a dash. Its own words are never markup."""
    from rich.text import Text

    colours = {"online": "green", "late": "yellow", "stale": "magenta", "offline": "red"}
    state = device.presence.value
    why = f" ({_printable(device.reason)})" if device.reason else ""
    served = device.birth.models if device.birth else ()
    last = device.history[-1] if device.history else None
    free = last.memory_available_bytes if last else None
    return {
        "DEVICE": f"{device.site}/{device.device}",
        "STATE": Text.assemble((state, colours[state]), why),
        "MODEL": Text("\n".join(_printable(model.model) for model in served) or "–"),
        "ARTIFACT": Text("\n".join(_printable(model.artifact) for model in served) or "–"),
        "P50 ms": _number(_percentile(device.latency, 0.5), 2),
        "P99 ms": _number(_percentile(device.latency, 0.99), 2),
        "SAMPLES": str(device.latency.count) if device.latency else "–",
        "REQ/S": _number(last.qps if last else None, 1),
        "FREE MiB": _number(free / 2**20 if free is not None else None, 0),
        "°C": _number(last.temperature_c if last else None, 1),
        "SEEN": _ago(now_s - device.last_seen_s) if device.last_seen_s else "never",
        "GAPS": str(device.gaps) if device.gaps else "",
    }


def _printable(words: str) -> str:
    """A device's own words without what would steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)


def _footers(fleet: Fleet) -> dict[str, str]:
    from edgekit.fleet import merged_latency

    merged = merged_latency(fleet.devices.values())
    count = merged.count if merged else 0
    online = sum(device.presence.value == "online" for device in fleet.devices.values())
    footers = {"DEVICE": f"{len(fleet.devices)} devices", "STATE": f"{online} online", "SAMPLES": str(count or "–")}
    footers["P50 ms"] = _number(_percentile(merged, 0.5), 2)
    footers["P99 ms"] = _number(_percentile(merged, 0.99), 2)
    return footers


def _percentile(latency: Histogram | None, q: float) -> float | None:
    """None where the samples are too few to support it."""
    from edgekit.bench.stats import SAMPLES_FOR_P99
    from edgekit.telemetry.histogram import quantile

    if latency is None or latency.count < (SAMPLES_FOR_P99 if q > 0.5 else 1):
        return None
    return quantile(latency, q)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
