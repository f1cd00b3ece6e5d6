"""A fleet as a table for people and as JSON: a row for each model on each device, or for each group of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from edgekit.fleet import Device, Fleet
    from edgekit.groups import Group, Listening
    from edgekit.ships import Ship
    from edgekit.telemetry.messages import Histogram

WIDE = 100
_WORDS = ("DEVICE", "STATE", "RELEASE", "MODEL", "ARTIFACT")
_FIGURES = ("P50 ms", "P99 ms", "SAMPLES", "REQ/S", "FREE MiB", "°C", "SEEN", "GAPS")
_LEFT_OUT = ("SAMPLES", "REQ/S", "FREE MiB", "°C", "GAPS")
_OF_A_MODEL = ("MODEL", "ARTIFACT", "P50 ms", "P99 ms", "SAMPLES", "REQ/S")
_GROUP_FIGURES = ("DEVICES", "P50 ms", "P99 ms", "SAMPLES", "REQ/S", "FAILED")
_BOOKKEEPING = ("said", "waiting_since_s", "steady", "track", "older", "newer", "newer_windows")


def fleet_json(state: Listening, now_s: float) -> dict[str, Any]:
    """The fleet's fields, with the percentiles that its histograms give; of each device also its models apart.

    `desired` and `reported` are what its updater was told and says; null where it has none.
    """
    import msgspec

    devices = []
    for device in _sorted(state.fleet):
        fields = {k: v for k, v in msgspec.to_builtins(device).items() if k not in _BOOKKEEPING}
        models = [
            {"model": model, "artifact": artifact, **_figures(latency)}
            for model, artifact, latency, _ in _models(state, device)
            if model
        ]
        ship = msgspec.structs.asdict(state.ship(device))
        devices.append({**fields, **_percentiles(device.latency), "models": models, **msgspec.to_builtins(ship)})
    events = [msgspec.to_builtins(event) for event in state.fleet.events]
    return {"at_s": now_s, "devices": devices, "events": events, "malformed": state.fleet.malformed}


def groups_json(state: Listening, by: str, now_s: float) -> dict[str, Any]:
    """The groups with their counts, the merged histogram and its percentiles."""
    from edgekit.groups import group

    groups = [
        {
            by: found.name,
            "devices": found.devices,
            "requests": found.total.requests,
            "errors": found.total.errors,
            "rejected": found.total.rejected,
            "cache_hits": found.total.cache_hits,
            "qps": found.qps,
            **_figures(found.total.infer_ms),
        }
        for found in group(state, by)
    ]
    return {"at_s": now_s, "by": by, "groups": groups, "malformed": state.fleet.malformed}


def fleet_table(state: Listening, now_s: float, *, width: int) -> Table:
    """The last line is the fleet's own percentile, from merged histograms.

    Under `WIDE` columns of the terminal, what tells the least about a device is left out; the releases are where no
    device reports one.
    """
    footers, devices = _footers(state.fleet), _sorted(state.fleet)
    left_out = _LEFT_OUT if width < WIDE else ()
    if not any(state.ship(device).reported for device in devices):
        left_out = (*left_out, "RELEASE")
    shown = [name for name in (*_WORDS, *_FIGURES) if name not in left_out]
    table = _table(shown, _WORDS, footers)
    for device in devices:
        whole = {**_device_cells(device, now_s), "RELEASE": _release(state.ship(device))}
        for i, (model, artifact, latency, qps) in enumerate(_models(state, device)):
            cells = _model_cells(model, artifact, latency, qps) | (whole if i == 0 else {})
            table.add_row(*(cells.get(name, "") for name in shown))
    return table


def groups_table(state: Listening, by: str) -> Table:
    """A row a group; the last line is all of them together."""
    from edgekit.fleet import merged_latency
    from edgekit.groups import group

    groups, heading = group(state, by), by.upper()
    merged = merged_latency(state.fleet.devices.values())
    footers = {heading: f"{len(groups)} groups", "DEVICES": str(len(state.fleet.devices))}
    table = _table((heading, *_GROUP_FIGURES), (heading,), footers | _latency_cells(merged))
    for found in groups:
        table.add_row(*_group_cells(found))
    return table


def _group_cells(found: Group) -> tuple[Text | str, ...]:
    from rich.text import Text

    total = found.total
    failed = total.errors + total.rejected
    latency = _latency_cells(total.infer_ms)
    return (
        Text(printable(found.name) or "–"),
        str(found.devices),
        latency["P50 ms"],
        latency["P99 ms"],
        latency["SAMPLES"],
        _number(found.qps, 1),
        str(failed) if failed else "",
    )


def _table(headings: Sequence[str], words: Sequence[str], footers: dict[str, str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    for name in headings:
        style: dict[str, Any] = {"overflow": "fold"} if name in words else {"justify": "right", "no_wrap": True}
        table.add_column(name, footer=footers.get(name, ""), **style)
    return table


def _models(state: Listening, device: Device) -> list[tuple[str, str, Histogram | None, float | None]]:
    """(model, artifact, latency, requests a second in the last window) of each; one without a name for none."""
    heard, last = state.of(device), device.last_metrics
    artifacts: dict[str, list[str]] = {}
    for served in device.birth.models if device.birth else ():
        artifacts.setdefault(served.model, []).append(served.artifact)
    for lane in sorted(heard.lanes):
        known = artifacts.setdefault(lane.model, [])
        if lane.artifact and not known:
            known.append(lane.artifact)
    rows: list[tuple[str, str, Histogram | None, float | None]] = []
    for model, names in artifacts.items():
        requests = [lane.requests for lane in last.lanes if lane.model == model] if last else []
        qps = sum(requests) * 1000 / last.window_ms if last and device.history else None
        rows.append((model, ", ".join(dict.fromkeys(names)), heard.of_model(model).infer_ms, qps))
    return rows or [("", "", device.latency, device.history[-1].qps if device.history else None)]


def _device_cells(device: Device, now_s: float) -> dict[str, Text | str]:
    """Column -> what stands there for a device. What is not known is a dash. Its own words are never markup."""
    from rich.text import Text

    colours = {"online": "green", "late": "yellow", "stale": "magenta", "offline": "red"}
    presence = device.presence.value
    why = f" ({printable(device.reason)})" if device.reason else ""
    last = device.history[-1] if device.history else None
    free = last.memory_available_bytes if last else None
    return {
        "DEVICE": f"{device.site}/{device.device}",
        "STATE": Text.assemble((presence, colours[presence]), why),
        "FREE MiB": _number(free / 2**20 if free is not None else None, 0),
        "°C": _number(last.temperature_c if last else None, 1),
        "SEEN": _ago(now_s - device.last_seen_s) if device.last_seen_s else "never",
        "GAPS": str(device.gaps) if device.gaps else "",
    }


def _release(ship: Ship) -> Text:
    """What runs, and how far an update is. Why it came to nothing takes more room than a cell; --json tells it."""
    from rich.text import Text

    from edgekit.telemetry.desired import FINAL, Step

    if ship.reported is None:
        return Text("–")
    running, step = printable(ship.running) or "none", ship.reported.step
    if not ship.is_answered:
        return Text.assemble(running, (" (no answer yet)", "yellow"))
    if step in (Step.IDLE, Step.COMMITTED):
        return Text(running)
    words = step.value.replace("_", " ") + (f" {ship.reported.share:.0%}" if step is Step.FETCHING else "")
    return Text.assemble(running, (f" ({words})", "red" if step in FINAL else "yellow"))


def _model_cells(model: str, artifact: str, latency: Histogram | None, qps: float | None) -> dict[str, Text | str]:
    from rich.text import Text

    words = {"MODEL": Text(printable(model) or "–"), "ARTIFACT": Text(printable(artifact) or "–")}
    return {**words, **_latency_cells(latency), "REQ/S": _number(qps, 1)}


def _latency_cells(latency: Histogram | None) -> dict[str, str]:
    figures = _percentiles(latency)
    return {
        "P50 ms": _number(figures["p50_ms"], 2),
        "P99 ms": _number(figures["p99_ms"], 2),
        "SAMPLES": str(latency.count) if latency and latency.count else "–",
    }


def _footers(fleet: Fleet) -> dict[str, str]:
    from edgekit.fleet import merged_latency

    online = sum(device.presence.value == "online" for device in fleet.devices.values())
    counts = {"DEVICE": f"{len(fleet.devices)} devices", "STATE": f"{online} online"}
    return counts | _latency_cells(merged_latency(fleet.devices.values()))


def _figures(latency: Histogram | None) -> dict[str, Any]:
    import msgspec

    return {"latency": msgspec.to_builtins(latency), **_percentiles(latency)}


def _percentiles(latency: Histogram | None) -> dict[str, float | None]:
    """None where the samples are too few to support it."""
    from edgekit.bench.stats import SAMPLES_FOR_P99
    from edgekit.telemetry.histogram import quantile

    count = latency.count if latency else 0
    return {
        "p50_ms": quantile(latency, 0.5) if latency and count else None,
        "p99_ms": quantile(latency, 0.99) if latency and count >= SAMPLES_FOR_P99 else None,
    }


def printable(words: str) -> str:
    """A device's own words without what would steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)


def _sorted(fleet: Fleet) -> list[Device]:
    return [fleet.devices[key] for key in sorted(fleet.devices)]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
