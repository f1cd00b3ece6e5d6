"""What the words of the command line do to the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.content import Content
from textual.screen import Screen

from edgekit.errors import UsageError
from edgekit.fleet import Device
from edgekit_tui import draw, once
from edgekit_tui.action_screen import ActionScreen
from edgekit_tui.actions import order
from edgekit_tui.command import PLACES, Request, parse_send
from edgekit_tui.device_screen import DeviceScreen
from edgekit_tui.places import DEVICES, MODEL, MODELS, Place
from edgekit_tui.query import parse_query
from edgekit_tui.table import FleetTable
from edgekit_tui.theme import THEMES
from edgekit_tui.view_screen import ViewScreen

if TYPE_CHECKING:
    from edgekit_tui.app import Console


def run(console: Console, request: Request) -> None:
    """Do it. Raises UsageError, ConfigError that say why not."""
    if request.name in PLACES:
        console.action_go(request.name)
    else:
        WORDS[request.name](console, request.rest)


def palette(console: Console, screen: Screen[object]) -> Iterable[SystemCommand]:
    """What the palette offers: help, places, and every listed device by name."""
    yield SystemCommand("Help", "keys, filter and symbols", console.action_help)
    yield SystemCommand("Screenshot", "save this screen as SVG", lambda: console.deliver_screenshot())
    yield SystemCommand("Quit", "leave the console", console.exit)
    for kind in PLACES:
        yield SystemCommand(kind.capitalize(), f"go to {kind}", lambda kind=kind: console.action_go(kind))
    if isinstance(screen, ViewScreen) and console.view is not None:
        rows = console.devices.shown or console.view.rows
        for row in {(row.site, row.device): row for row in reversed(rows)}.values():
            name, what = _plain(console, f"Open {row.device}"), _plain(console, f"{row.site}  {row.board}  {row.state}")
            yield SystemCommand(name, what, lambda key=row.key: console.open_device(key))


def _plain(console: Console, text: str) -> str:
    """Text of a device for the palette, which takes what it is given for markup."""
    return Content(draw.clean(text, not console.glyphs.unicode)).markup


def _device(console: Console, name: str) -> None:
    if not console.open_named(name):
        raise UsageError(f"no device '{name}'")


def _model(console: Console, name: str) -> None:
    known = {row.model for row in console.view.rows} if console.view else set()
    if name not in known:
        raise UsageError(f"no model '{name}'; there are {', '.join(sorted(known)) or 'none'}")
    console.go((Place(MODELS), Place(MODEL, (name,))))


def _filter(console: Console, terms: str) -> None:
    parse_query(terms)
    console.go((Place(DEVICES, (terms,)),))


def _theme(console: Console, name: str) -> None:
    known = [theme.name for theme in THEMES]
    found = next((one for one in known if name in (one, one.removeprefix("edgekit-"))), None)
    if found is None:
        raise UsageError(f"no theme '{name}'; there are {', '.join(known)}")
    console.theme = found


def _send(console: Console, rest: str) -> None:
    """Ask before sending; nothing leaves this console without a y."""
    verb, everyone, args = parse_send(rest)
    if console.sender is None:
        raise UsageError(f"{verb}: this console only reads (--read-only, --replay)")
    if console.view is None:
        raise UsageError(f"{verb}: no device is known yet")
    if console.timeline.looking is not None:
        raise UsageError(f"{verb}: this is the past; space goes back to the present")
    devices = _listed(console) if everyone else [_current(console, verb)]
    console.push_screen(ActionScreen(order(verb, devices, args), console.sender, console.glyphs))


def _listed(console: Console) -> list[Device]:
    """The devices of the filtered list, in its order."""
    assert console.view is not None
    rows = console.devices.shown if console.devices.is_mounted else console.view.rows
    keys = dict.fromkeys((row.site, row.device) for row in rows)
    return [console.view.fleet.devices[key] for key in keys if key in console.view.fleet.devices]


def _current(console: Console, verb: str) -> Device:
    """The device that is open, or under the cursor."""
    assert console.view is not None
    screen, key = console.base, None
    if isinstance(screen, DeviceScreen):
        key = screen.key[:2]
    elif screen is console.devices and (row := screen.query_one(FleetTable).selected) is not None:
        key = (row.site, row.device)
    device = console.view.fleet.devices.get(key) if key else None
    if device is None:
        raise UsageError(f"{verb}: choose a device first, or write  :{verb} all")
    return device


def _ago(console: Console, text: str) -> None:
    match = re.fullmatch(r"(\d+)([smh]?)", text)
    if match is None:
        raise UsageError(f"ago: '{text}' is not 90s, 10m or 2h")
    seconds = int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    console.look_back(console.now_s - seconds)


def _export(console: Console, name: str) -> None:
    """The listed rows, as they are filtered and sorted."""
    if console.view is None:
        raise UsageError("export: nothing is known yet")
    rows = console.devices.shown if console.devices.is_mounted else list(console.view.rows)
    once.export(rows, console.view, Path(name).expanduser())
    console.notify(f"{len(rows)} rows written to {name}", markup=False)


def _screenshot(console: Console, name: str) -> None:
    path = Path(name).expanduser()
    if path.suffix != ".svg":
        raise UsageError(f"screenshot: {name} must end in .svg")
    once.write_picture(console.export_screenshot(title="edgekit-console"), path)
    console.notify(f"written to {name}", markup=False)


WORDS: Mapping[str, Callable[[Console, str], object]] = {
    "device": _device,
    "model": _model,
    "filter": _filter,
    "back": lambda console, _: console.action_wander(-1),
    "ping": lambda console, rest: _send(console, f"ping {rest}"),
    "rebirth": lambda console, rest: _send(console, f"rebirth {rest}"),
    "send": _send,
    "ack": lambda console, _: console.acknowledge(console.view.alerts if console.view else ()),
    "pause": lambda console, _: console.action_pause(),
    "ago": _ago,
    "scale": lambda console, _: console.action_scale(),
    "export": _export,
    "screenshot": _screenshot,
    "theme": _theme,
    "help": lambda console, _: console.action_help(),
    "quit": lambda console, _: console.exit(),
}
