"""The console without a terminal: the fleet once as text or JSON, or drawn into a picture."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from textual.pilot import Pilot

from edgekit.errors import BrokerError, ConfigError, UsageError
from edgekit_tui.columns import Pen, arrange, columns_for, gap_of, sort_rows, widest
from edgekit_tui.draw import Glyphs, fit
from edgekit_tui.feed import PERIOD_S, Folder, Source, View
from edgekit_tui.news import Folded
from edgekit_tui.rows import LIVE, Row

if TYPE_CHECKING:
    from edgekit_tui.app import Console

CONNECT_S = 5.0
"A broker that does not answer by then is taken for unreachable."
FONT_FACES = re.compile(r"@font-face \{[^}]*\}\s*")
"Textual's pictures fetch their font from the network; ours use what the reader has."
FONT, FONTS = "font-family: Fira Code,", "font-family: Fira Code, DejaVu Sans Mono, Menlo, Consolas,"
QUIET_S = 0.5
"Retained messages arrive in a burst; this long without a new device, and the fleet is taken for known."


def gather(
    source: Source, folder: Folder, *, wait_s: float, endpoint: str, clock: Callable[[], float] = time.time
) -> View:
    """The fleet as soon as every live device has sent a window, or after `wait_s`.

    Raises BrokerError when there is no connection within `CONNECT_S` or `wait_s`, whichever is less.
    """
    started = last_change = time.monotonic()
    view: View | None = None
    source.start()
    try:
        while (elapsed := time.monotonic() - started) < wait_s:
            newer = folder.step(clock())
            if newer is not None and (view is None or newer.totals.devices != view.totals.devices):
                last_change = time.monotonic()
            view = newer or view
            if view is not None and not view.link.was_connected and elapsed > min(CONNECT_S, wait_s):
                break
            if view is not None and is_complete(view) and time.monotonic() - last_change > QUIET_S:
                break
            time.sleep(PERIOD_S)
        if view is None or not view.link.was_connected:
            raise BrokerError(endpoint, f"no connection within {min(CONNECT_S, wait_s):g} s: {source.state}")
    finally:
        source.stop()
    return view


def is_complete(view: View) -> bool:
    """Every device that is alive has told who it is and sent a window."""
    devices = view.fleet.devices.values()
    return bool(devices) and all(
        device.birth is not None and device.last_metrics is not None for device in devices if device.presence in LIVE
    )


def as_json(view: View) -> str:
    """The totals, rows and events with exactly the fields they have, but for the histograms behind percentiles."""
    value = msgspec.to_builtins(
        {
            "now_s": view.now_s,
            "totals": view.totals,
            "rows": view.rows,
            "events": view.fleet.events,
            "releases": [
                {"site": site, "device": device, "desired": ship.desired, "reported": ship.reported}
                for (site, device), ship in view.releases.items()
            ],
        }
    )
    for part in (value["totals"], *value["totals"]["cells"], *value["rows"]):
        del part["latency"]
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def as_table(view: View, *, width: int, glyphs: Glyphs) -> str:
    """The fleet table as plain text."""
    every = columns_for(view.releases)
    rows = sort_rows(view.rows, every[1], descending=False)
    layout = arrange(every, width, widest(every, rows))
    pen = Pen(glyphs=glyphs, now_s=view.now_s)
    lines = [[fit(column.title, cells, glyphs, right=column.right) for column, cells in layout]]
    for row in rows:
        texts = ["".join(text for text, _ in column.draw(row, cells, pen)) for column, cells in layout]
        lines.append([fit(text, cells, glyphs, right=c.right) for text, (c, cells) in zip(texts, layout, strict=True)])
    return "\n".join((" " * gap_of(width)).join(line).rstrip() for line in lines)


def snapshot(app: Console, view: View, path: Path, *, size: tuple[int, int], then: Callable[[Console], object]) -> None:
    """Draw the view without a terminal and write the picture as SVG. `then` may turn to another screen first.

    Raises ConfigError when the file cannot be written.
    """

    async def shoot(pilot: Pilot[object]) -> None:
        app.post_message(Folded(view))
        await pilot.pause()
        then(app)
        await pilot.pause()
        await pilot.pause()
        drawn.append(app.export_screenshot(title="edgekit-console"))
        app.exit()

    drawn: list[str] = []
    app.run(headless=True, size=size, auto_pilot=shoot)
    write_picture(drawn[0], path)


def write_picture(drawn: str, path: Path) -> None:
    """Write a picture that Textual drew. Raises ConfigError when the file cannot be written."""
    _write(path, FONT_FACES.sub("", drawn).replace(FONT, FONTS))


def export(rows: Sequence[Row], view: View, path: Path) -> None:
    """Write rows as .csv or .json, histories left out. Raises ConfigError, UsageError for another ending."""
    values = [msgspec.to_builtins(row) for row in rows]
    for value in values:
        del value["latency"], value["history"]
    if path.suffix == ".json":
        _write(path, msgspec.json.format(msgspec.json.encode({"now_s": view.now_s, "rows": values}), indent=2).decode())
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(
            text, fieldnames=[name for name in Row.__struct_fields__ if name not in ("latency", "history")]
        )
        writer.writeheader()
        writer.writerows(values)
        _write(path, text.getvalue())
    else:
        raise UsageError(f"export: {path.name} must end in .csv or .json")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise ConfigError(path, None, f"cannot be written: {e.strerror}") from e
