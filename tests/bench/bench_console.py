"""The console under a large fleet: first paint, key to paint, processor and memory. `make bench-console` runs it.

A real broker, a cheap publisher, and the real program in a pseudo-terminal of 200 x 60 while keys are typed into it.
Key to paint is measured inside the program: from the key's arrival to the flush of the first paint after its action.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import math
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edgekit.telemetry.broker import start_broker

KEYS = "jjkjkG g 9 9 5 5 \x06 \x02 jjj kk t t g"
"Typed over and over: moving, paging and sorting; every one repaints."
ROOT = Path(__file__).resolve().parents[2]


class Stopwatch:
    """Times keys from their arrival to the flush of the first paint that follows their action. Two threads use it."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self.flushed_s: list[float] = []
        self.pressed = self.answered = 0.0
        "When the last key arrived, and the last one whose action is done."
        self.acted: list[float] = []
        "When the keys arrived whose action is done and whose paint is not."
        self._written: list[float] = []
        self.seen: dict[str, float] = {}
        self.longest_gc_ms = 0.0
        self._gc_began = 0.0
        gc.callbacks.append(self._collecting)

    def painted(self) -> None:
        """The screen hands a paint to the writer."""
        self._written, self.acted = self._written + self.acted, []
        if "view_s" in self.seen:
            self.seen.setdefault("painted_s", time.time())

    def flushed(self) -> None:
        """The writer has written all that it was handed."""
        done, self._written = self._written, []
        now = time.monotonic()
        self.took_ms += [(now - pressed) * 1e3 for pressed in done]
        self.flushed_s += [now] * len(done)

    def _collecting(self, phase: str, _: object) -> None:
        if phase == "start":
            self._gc_began = time.monotonic()
        else:
            self.longest_gc_ms = max(self.longest_gc_ms, (time.monotonic() - self._gc_began) * 1e3)


class Flushed:
    """The terminal, whose flush is noted."""

    def __init__(self, file: IO[str], watch: Stopwatch) -> None:
        self._file, self._watch = file, watch
        self.write, self.fileno = file.write, file.fileno

    def flush(self) -> None:
        self._file.flush()
        self._watch.flushed()


def child(port: int, report: Path, options: list[str]) -> int:
    """The console, with its reactions timed."""
    from textual import events
    from textual.drivers._writer_thread import WriterThread

    from edgekit_tui import app as console_app
    from edgekit_tui import main as console_main

    watch = Stopwatch()

    class Timed(console_app.Console):
        CSS_PATH = Path(console_app.__file__).with_name("console.tcss")

        async def on_event(self, event: events.Event) -> None:
            if isinstance(event, events.Key):
                watch.pressed = event.time  # once more when it bubbles up to here, after its action
            await super().on_event(event)

        async def run_action(self, *args: object, **kwargs: object) -> bool:
            done = await super().run_action(*args, **kwargs)  # type: ignore[arg-type]
            if watch.pressed not in (0.0, watch.answered):
                watch.answered = watch.pressed
                watch.acted.append(watch.pressed)
            return done

        def watch_view(self) -> None:
            super().watch_view()
            if self.view is not None and self.view.rows:
                watch.seen.setdefault("data_s", self.view.totals.last_seen_s or time.time())
                watch.seen.setdefault("view_s", time.time())

        def _display(self, screen: object, renderable: object) -> None:
            super()._display(screen, renderable)  # type: ignore[arg-type]
            if renderable is not None:
                watch.painted()

    made = WriterThread.__init__
    WriterThread.__init__ = lambda self, file: made(self, Flushed(file, watch))  # type: ignore[assignment, arg-type, method-assign]
    console_app.Console = Timed  # type: ignore[misc]
    code = console_main.main(["--port", str(port), "--screen", "devices", *options])
    report.write_text(
        json.dumps(
            {"took_ms": watch.took_ms, "flushed_s": watch.flushed_s, "longest_gc_ms": watch.longest_gc_ms, **watch.seen}
        )
    )
    return code


class Watched:
    """The console in a pseudo-terminal whose screen nobody looks at."""

    def __init__(self, port: int, report: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        command = [sys.executable, "-m", "tests.bench.bench_console", "--child", str(port), str(report)]
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env,
                                        start_new_session=True)  # fmt: skip
        os.close(slave)
        self.written_bytes = 0
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        try:
            while piece := os.read(self._master, 1 << 16):
                self.written_bytes += len(piece)
        except OSError:
            return  # the console has ended

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    children = [int(p) for f in Path(f"/proc/{pid}/task").glob("*/children") for p in f.read_text().split()]
    return [pid, *(one for child_pid in children for one in tree(child_pid))]


def cpu_s(pid: int) -> float:
    """Of the process and its descendants, to the nanosecond. Source: kernel sched-stats, first field of schedstat."""
    tasks = [task for one in tree(pid) for task in Path(f"/proc/{one}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def mib(pid: int) -> float:
    """The most its processes ever had resident."""
    status = [line for one in tree(pid) for line in Path(f"/proc/{one}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


@contextmanager
def fleet(port: int, devices: int, *options: str) -> Iterator[None]:
    """The publisher, once every device was born."""
    command = [sys.executable, "-m", "tests.bench.cheap_fleet", str(port), str(devices), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "born"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def loaded(folder: Path, port: int, *, warm_s: float, typed_s: float) -> dict[str, float | None]:
    """Start on a fleet that is already there, wait, type and measure."""
    console = Watched(port, folder / "report.json")
    time.sleep(warm_s)
    keys = [key for key in KEYS if key != " "]
    before, began = cpu_s(console.process.pid), time.monotonic()
    pressed, rng = 0, random.Random(1)
    late_ms: list[float] = []
    pressed_s: list[float] = []
    while time.monotonic() - began < typed_s:
        pressed_s.append(time.monotonic())
        console.press(keys[pressed % len(keys)])
        pressed += 1
        pause_s, slept = rng.uniform(0.1, 0.3), time.monotonic()
        time.sleep(pause_s)
        late_ms.append((time.monotonic() - slept - pause_s) * 1e3)
    cores = (cpu_s(console.process.pid) - before) / (time.monotonic() - began)
    most = mib(console.process.pid)
    console.stop()
    report = json.loads((folder / "report.json").read_text())
    took, late = report["took_ms"], ranks(late_ms)
    p = ranks(took)
    print(f"keys: {pressed} typed, {len(took)} painted; p50 {p[0.5]:.1f} p90 {p[0.9]:.1f} p99 {p[0.99]:.1f} "
          f"max {max(took):.1f} ms; {console.written_bytes / 1024:.0f} KiB written to the terminal")  # fmt: skip
    print(f"the machine itself: a sleeping process wakes up late by p50 {late[0.5]:.1f} p90 {late[0.9]:.1f} "
          f"p99 {late[0.99]:.1f} ms; longest garbage collection here {report['longest_gc_ms']:.0f} ms")  # fmt: skip
    if len(took) == pressed:  # the clock is the machine's, and paints keep the order of the keys
        whole = ranks((b - a) * 1e3 for a, b in zip(pressed_s, report["flushed_s"], strict=True))
        print(f"from the terminal's side, before the console has read the key: p50 {whole[0.5]:.1f} "
              f"p90 {whole[0.9]:.1f} p99 {whole[0.99]:.1f} ms")  # fmt: skip
        by_key: dict[str, list[float]] = {}
        for i, took_ms in enumerate(took):
            by_key.setdefault(keys[i % len(keys)], []).append(took_ms)
        slowest = sorted(by_key.items(), key=lambda pair: -ranks(pair[1])[0.9])[:5]
        print(
            "slowest keys, p50 and p90: "
            + ", ".join(f"{k!r} {ranks(v)[0.5]:.0f} {ranks(v)[0.9]:.0f}" for k, v in slowest)
        )
    if len(took) < 662:
        print(f"note: a p99 at 99 % confidence wants 662 samples; here it stands on {len(took)}")
    return {
        "first_paint_s": round(report["painted_s"] - report["data_s"], 3),
        "key_to_paint_p99_ms": round(p[0.99], 1),
        "cores": round(cores, 3),
        "mib": round(most, 1),
    }


def ranks(values: Iterable[float]) -> dict[float, float]:
    """Median, p90 and p99 by nearest rank."""
    known = sorted(values)
    return {q: known[math.ceil(q * len(known)) - 1] for q in (0.5, 0.9, 0.99)}


def idle(folder: Path, *, seconds: float) -> float:
    """The share of a core while ten devices are silent."""
    with start_broker(folder / "idle", kind="mosquitto") as broker, fleet(broker.port, 10, "--silent"):
        console = Watched(broker.port, folder / "idle.json")
        time.sleep(8)
        before, began = cpu_s(console.process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(console.process.pid) - before) / (time.monotonic() - began)
        console.stop()
    return round(share, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--warm-s", type=float, default=25.0, help="before anything is measured")
    parser.add_argument("--typed-s", type=float, default=30.0, help="how long keys are typed")
    parser.add_argument("--idle-s", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-console-") as name:
        folder = Path(name)
        options = ("--window-s", str(args.window_s))
        with start_broker(folder / "broker", kind="mosquitto") as broker, fleet(broker.port, args.devices, *options):
            time.sleep(1)
            figures = loaded(folder, broker.port, warm_s=args.warm_s, typed_s=args.typed_s)
        figures = {"devices": args.devices, **figures, "idle_cores": idle(folder, seconds=args.idle_s)}
    print(f"{args.devices} devices, {args.devices / args.window_s:g} windows/s: {figures['cores']:.0%} of a core, "
          f"{figures['mib']:.0f} MiB; idle with 10 silent devices {figures['idle_cores']:.2%} of a core")  # fmt: skip
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
    sys.exit(main())
