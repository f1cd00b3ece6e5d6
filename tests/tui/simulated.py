"""A fleet that does not exist, as the messages its devices would send: for the console's tests and pictures.

`python -m tests.tui.simulated docs` draws the pictures of docs/console.md."""

from __future__ import annotations

import asyncio
import html
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from rich.cells import cell_len
from textual.app import App
from textual.pilot import Pilot

from edgekit.telemetry.desired import Desired, Reported, Step
from edgekit.telemetry.histogram import HistogramBuilder
from edgekit.telemetry.messages import (
    Birth,
    Event,
    Histogram,
    LaneMetrics,
    Metrics,
    ModelState,
    OutboxState,
    Readings,
    Received,
    State,
    Status,
    topic,
)  # fmt: skip
from edgekit_tui import places
from edgekit_tui.app import Console
from edgekit_tui.feed import Folder, View
from edgekit_tui.fleet_screen import FleetScreen
from edgekit_tui.news import Folded
from edgekit_tui.once import snapshot
from edgekit_tui.table import FleetTable

GIB = 2**30
NOW_S = 1_800_000_000.0
CELL_UNITS = 12.2
"Width of a cell in the pictures that Textual makes."


@dataclass(frozen=True)
class Board:
    name: str
    memory_gib: float
    slowness: float
    heat_c: float


BOARDS = {
    "orin": Board("Jetson Orin Nano 8GB", 7.4, 0.45, 58),
    "agx": Board("Jetson AGX Orin 32GB", 30.0, 0.2, 51),
    "pi5": Board("Raspberry Pi 5 8GB", 7.9, 1.0, 62),
    "pi4": Board("Raspberry Pi 4 4GB", 3.7, 2.4, 66),
    "coral": Board("Coral Dev Board", 0.98, 0.6, 57),
    "rk": Board("Radxa ROCK 5B", 15.6, 0.8, 55),
    "nuc": Board("Intel N100 mini PC", 15.4, 0.6, 49),
    "imx": Board("i.MX 8M Plus EVK", 5.6, 1.6, 60),
}
MODELS = {
    "ocr-detector": ("int8-static", "int8", "onnxruntime", "4 threads", 24.0, 40.0),
    "ocr-recognizer": ("fp32", "float32", "onnxruntime", "2 threads", 6.0, None),
    "voice-activity": ("fp32", "float32", "onnxruntime", "1 thread", 0.6, None),
    "file-type": ("int8-dynamic", "int8", "onnxruntime", "1 thread", 1.9, 5.0),
    "digits": ("int8-static", "int8", "litert", "XNNPACK", 0.21, None),
}
FLEET: tuple[tuple[str, str, str, tuple[str, ...], float], ...] = (
    ("berlin", "gate-north", "orin", ("ocr-detector", "ocr-recognizer"), 11.0),
    ("berlin", "gate-south", "orin", ("ocr-detector", "ocr-recognizer"), 9.5),
    ("berlin", "line-1-cam", "pi5", ("ocr-detector",), 8.0),
    ("berlin", "line-2-cam", "pi4", ("ocr-detector",), 5.0),
    ("berlin", "lobby-mic", "pi4", ("voice-activity",), 31.0),
    ("porto", "dock-1", "agx", ("ocr-detector",), 28.0),
    ("porto", "dock-2", "rk", ("ocr-detector",), 12.0),
    ("porto", "dock-3", "imx", ("digits",), 22.0),
    ("porto", "mail-scan", "nuc", ("file-type",), 40.0),
    ("lab", "bench-coral", "coral", ("digits",), 60.0),
    ("lab", "bench-pi5", "pi5", ("voice-activity",), 31.0),
    ("lab", "bench-n100", "nuc", ("ocr-recognizer",), 18.0),
)
STANDARD = ("gate-south", "dock-2")
"These still run the standard artifact."
THROTTLED, SILENT, DEAD = "line-2-cam", "dock-3", "bench-coral"


def of_model(device: str, model: str) -> tuple[str, str, str, str, float, float | None]:
    """What a device runs for a model."""
    artifact, precision, runtime, settings, typical_ms, limit = MODELS[model]
    if device in STANDARD and model == "ocr-detector":
        return "fp32", "float32", runtime, settings, typical_ms * 1.4, limit
    return artifact, precision, runtime, settings, typical_ms, limit


def window(
    site: str, device: str, seq: int, at_s: float, *, rng: np.random.Generator, window_s: float = 10.0
) -> Received:
    """One window of a device of FLEET."""
    board_id, models, qps = next((b, m, q) for s, d, b, m, q in FLEET if (s, d) == (site, device))
    board = BOARDS[board_id]
    hot = device == THROTTLED and seq > 30
    lanes = []
    for model in models:
        artifact, _, _, _, typical_ms, _ = of_model(device, model)
        drift = 1.9 + 0.25 * np.sin(seq / 5) if hot else 1 + 0.06 * np.sin(seq / 9)
        scale = typical_ms * board.slowness * float(drift)
        n = max(1, int(rng.poisson(qps * window_s)))
        latency, queue = HistogramBuilder(), HistogramBuilder()
        values = scale * rng.lognormal(0, 0.09, n) * np.where(rng.random(n) < 0.006, rng.uniform(1.5, 3.2, n), 1)
        latency.record_many(values)
        queue.record_many(0.05 + rng.exponential(0.3 * scale / 10, n))
        lanes.append(
            LaneMetrics(model=model, artifact=f"{model.split('-')[0]}-{artifact}", requests=n,
                        errors=int(rng.random() < 0.02), rejected=int(rng.poisson(2)) if hot else 0,
                        cache_hits=int(n * 0.07) if model == "file-type" else 0,
                        queue_ms=queue.histogram(), infer_ms=latency.histogram())
        )  # fmt: skip
    total = int(board.memory_gib * GIB)
    used = 0.35 + 0.1 * len(models) + 0.02 * np.sin(seq / 7) + (0.2 if board.memory_gib < 4 else 0)
    warmth = board.heat_c + (21 if hot else 2 * float(np.sin(seq / 6)))
    metrics = Metrics(
        epoch=3, seq=seq, t_unix_ms=int(at_s * 1000), t_mono_ms=seq * 10_000, window_ms=int(window_s * 1000),
        clock_synced=True, lanes=tuple(lanes),
        system=Readings(
            memory_available_bytes=int(total * (1 - used)), memory_total_bytes=total, rss_bytes=180 * 2**20,
            temperature_c=None if board_id == "nuc" else round(warmth, 1),
            cpu_percent=38.0 + 4 * float(np.sin(seq)), throttled=hot if board_id.startswith("pi") else None,
            power_mw=9400.0 if board_id in ("orin", "agx") else None,
        ),
        outbox=OutboxState(depth=int(rng.integers(0, 2))),
    )  # fmt: skip
    return _message(site, device, "metrics", metrics, at_s)


def birth(site: str, device: str, at_s: float) -> Received:
    """The birth certificate of a device of FLEET."""
    board_id, models = next((b, m) for s, d, b, m, _ in FLEET if (s, d) == (site, device))
    board = BOARDS[board_id]
    states = []
    for model in models:
        artifact, precision, runtime, settings, typical_ms, limit = of_model(device, model)
        limit = limit * max(1.0, board.slowness) if limit else None
        name, p50 = f"{model.split('-')[0]}-{artifact}", typical_ms * board.slowness
        reasons = (f"fastest measured p50 here: {p50:.2f} ms against {p50 * 1.9:.2f} ms of fp32",
                   "accuracy 99.4 % of the standard, above the floor of 99 %")  # fmt: skip
        stem = model.split("-")[0]
        rejections = (
            (f"{stem}-int8-dynamic", f"p99 {p50 * 6:.1f} ms is over the limit of {limit or 40:.0f} ms"),
            (f"{stem}-fp16", "accuracy 96.1 % is under the floor of 99 %"),
        )
        states.append(
            ModelState(model=model, artifact=name, precision=precision, runtime=runtime, settings=settings,
                       reasons=reasons, rejections=rejections, latency_limit_ms=limit, benched_p50_ms=p50,
                       benched_p99_ms=p50 * 1.6, accuracy_ratio=0.994)
        )  # fmt: skip
    value = Birth(
        epoch=3, t_unix_ms=int(at_s * 1000), board=board.name, board_id=board_id, models=tuple(states),
        facts={"machine": "aarch64", "cpu": {"cores_usable": 4, "features": ["asimddp", "i8mm", "fp16"]},
               "memory_total_bytes": int(board.memory_gib * GIB), "os": "Debian GNU/Linux 12", "kernel": "6.6.31",
               "accelerators": [{"kind": "gpu", "name": "Ampere"}] if board_id in ("orin", "agx") else []},
        versions={"edgekit": "0.1.0", "onnxruntime": "1.22.0", "python": "3.11.2"},
        allowed_commands=("ping", "rebirth", "reload") if site == "porto" else ("ping", "rebirth"),
    )  # fmt: skip
    return _message(site, device, "birth", value, at_s)


def status(site: str, device: str, state: State, at_s: float, reason: str = "") -> Received:
    """Online or offline, in the device's or its Will's words."""
    return _message(site, device, "status", Status(state=state, epoch=3, reason=reason), at_s)


def event(site: str, device: str, kind: str, text: str, at_s: float) -> Received:
    """A state change."""
    return _message(site, device, "event", Event(epoch=3, t_unix_ms=int(at_s * 1000), kind=kind, text=text), at_s)


SHIPPED: Mapping[str, tuple[str, str, Step, str, float]] = {
    "gate-north": ("cameras", "2026.12", Step.COMMITTED, "", 1.0),
    "gate-south": ("cameras", "2026.11", Step.FETCHING, "", 0.42),
    "line-1-cam": ("cameras", "2026.11", Step.WAITING, "its turn is in 12 min", 0.0),
    "line-2-cam": ("cameras", "2026.11", Step.ROLLED_BACK, "p99 1.9 times that of 2026.11, limit 1.2", 1.0),
    "dock-1": ("docks", "2026.11", Step.IDLE, "", 0.0),
}
"Group, what runs, step, reason and share fetched."


def releases(at_s: float) -> Iterator[Received]:
    """A release on its way: wished of the cameras and of one more, which says nothing."""
    for site, device, *_ in FLEET:
        if site == "berlin" and device.startswith(("gate", "line", "lobby")):
            yield _message(site, device, "desired", Desired(release="2026.12", id="w1"), at_s)
        if device in SHIPPED:
            group, running, step, reason, share = SHIPPED[device]
            wish, id = ("2026.12", "w1") if step is not Step.IDLE else ("", "")
            report = Reported(t_unix_ms=int(at_s * 1000), group=group, running=running, step=step, reason=reason,
                              share=share, desired=wish, desired_id=id)  # fmt: skip
            yield _message(site, device, "reported", report, at_s)


def life(now_s: float, *, windows: int = 60, window_s: float = 10.0, seed: int = 7) -> Iterator[list[Received]]:
    """What arrives over the last `windows` windows until `now_s`, one list a window."""
    rng = np.random.default_rng(seed)
    start = now_s - windows * window_s
    yield [
        one
        for site, device, *_ in FLEET
        for one in (status(site, device, State.ONLINE, start), birth(site, device, start))
    ] + list(releases(start))
    for i in range(windows):
        at = start + (i + 1) * window_s - 1.0
        batch = []
        for n, (site, device, *_) in enumerate(FLEET):
            when = at - 0.6 * n
            if device == DEAD and i == windows - 6:
                batch.append(status(site, device, State.OFFLINE, when, "connection lost"))
            gone = (device == DEAD and i >= windows - 6) or (device == SILENT and i >= windows - 9)
            if not gone:
                batch.append(window(site, device, i, when, rng=rng, window_s=window_s))
        if i == 31:
            batch.append(event("berlin", THROTTLED, "throttled", "clock 1500 to 1000 MHz at 85.2 degrees", at - 4))
        if i == windows - 20:
            batch.append(
                event(
                    "porto", "dock-2", "selection", "ocr-detector: int8-static for fp32, p99 19.2 for 33.5 ms", at - 3
                )
            )
        if i == windows - 4:
            batch.append(event("berlin", "gate-north", "started", "ready after 4.1 s, 2 models warmed up", at - 2))
        yield batch


def _message(site: str, device: str, leaf: str, payload: msgspec.Struct, at_s: float) -> Received:
    return Received(topic=topic(site, device, leaf), payload=msgspec.json.encode(payload), received_s=at_s)


def histogram(values: object) -> Histogram:
    """These samples, in ms."""
    builder = HistogramBuilder()
    builder.record_many(np.asarray(values, dtype=np.float64))
    made = builder.histogram()
    assert made is not None
    return made


class Feeder:
    """A source that hands out what a test puts in, with the face of the broker's watcher."""

    def __init__(self) -> None:
        self.messages: list[Received] = []
        self.connected = True
        self.state = "connected"
        self.overrun = 0
        self.started = self.stopped = False

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stopped = True

    def drain(self) -> list[Received]:
        messages, self.messages = self.messages, []
        return messages


def lived(*, windows: int = 60, now_s: float = NOW_S) -> tuple[Feeder, Folder, View]:
    """The simulated fleet through the real fold, at `now_s`: the source, the folder and the last view."""
    source = Feeder()
    folder = Folder(source, endpoint="127.0.0.1:1883")
    view = None
    for batch in life(now_s, windows=windows):
        source.messages = batch
        view = folder.step(max(message.received_s for message in batch)) or view
    view = folder.step(now_s) or view
    assert view is not None
    return source, folder, view


@cache
def lived_view() -> View:
    """The last view of an hour's sixth in the simulated fleet; made once for all tests."""
    return lived()[2]


def screen_lines(app: App[None]) -> list[str]:
    """The text that stands on the screen, line by line, read from the app's own picture of it."""
    return lines_of(app.export_screenshot(simplify=True))


def lines_of(picture: str) -> list[str]:
    """The text of such a picture."""
    lines: dict[float, str] = {}
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*clip-path[^>]*>([^<]*)</text>', picture):
        line = lines.get(float(y), "")
        blanks = round(float(x) / CELL_UNITS) - cell_len(line)
        lines[float(y)] = line + " " * blanks + html.unescape(text).replace("\xa0", " ").rstrip("\n")
    return [lines[y].rstrip() for y in sorted(lines)]


Act = Callable[[Console, "Pilot[None]"], Awaitable[None]]


def drive(act: Act, *, size: tuple[int, int] = (120, 40), view: View | None = None, **options: object) -> None:
    """Run the console, post the view (or the lived one) as the worker does, and act."""

    async def session() -> None:
        app = Console(**{"clock": lambda: NOW_S, "start": "devices", **options})  # type: ignore[arg-type]
        async with app.run_test(size=size, notifications=True) as pilot:
            app.post_message(Folded(view or lived_view()))
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(session())


def text_of(app: Console) -> str:
    return "\n".join(screen_lines(app))


def table_of(app: Console) -> FleetTable:
    fleet = next(screen for screen in app.screen_stack if isinstance(screen, FleetScreen))
    return fleet.query_one(FleetTable)


def draw_pictures(folder: Path) -> None:
    """The pictures of docs/console.md, drawn by the console itself."""
    view = lived(windows=90)[2]
    model = (places.Place(places.MODELS), places.Place(places.MODEL, ("ocr-detector",)))
    pictures: dict[str, Callable[[Console], object]] = {
        "console": lambda app: None,
        "console-devices": lambda app: app.action_go(places.DEVICES),
        "console-device": lambda app: app.open_named("line-2-cam"),
        "console-model": lambda app: app.go(model),
        "console-releases": lambda app: app.action_go(places.RELEASES),
    }
    for name, then in pictures.items():
        snapshot(Console(clock=lambda: NOW_S), view, folder / f"{name}.svg", size=(132, 40), then=then)


if __name__ == "__main__":
    draw_pictures(Path(sys.argv[1]))
