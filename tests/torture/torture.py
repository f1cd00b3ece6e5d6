"""Cuts the power at every system call of an update that changes the file system, and looks what a restart makes of it.

usage: torture.py [--points N] [--updates N] [--restarts N]; 0 points: all of them. Prints a table, and as last line one
line of JSON: points, survived, updates, restarts. Needs strace. Four parts:

killed     a whole update under strace, which kills it at the Nth call of each kind, before the call is made
undone     the same with a release that fails its check, so that going back is cut off as well
forgotten  the recorded calls of a whole update, replayed up to each point with what was not synced forgotten, in two
           worst cases (see `replay`)
soak       updates interleaved with restarts: the slot changes after each update and never otherwise

A point is survived when a restart ends with a working good slot whose every byte is what its release says, and the
update, tried again, ends with the new release committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from edgekit.artifact import verify_file
from edgekit.errors import EdgekitError
from edgekit.provision import guard, slots, stage, wheel
from edgekit.provision.release import Library
from tests.torture.replay import TRACED, Disk, calls
from tests.torture.small import make

PROJECT = Path(__file__).resolve().parents[2]
CHANGING = (
    "openat", "write", "sendfile", "mkdir", "rename", "link", "symlink", "unlink", "unlinkat", "rmdir", "chmod",
    "fchmod", "ftruncate", "fsync", "sync", "flock",
)  # fmt: skip
PATIENCE_S = 60.0
T = TypeVar("T")


class Lost(Exception):
    """A point that was not survived, and how."""


class Bench:
    """A device with 1.0 committed in slot b and the older 0.9 in a, to be copied for each point."""

    def __init__(self, folder: Path) -> None:
        self.library, self.template, self.device = Library(folder / "library"), folder / "template", folder / "device"
        self.log = folder / "calls.log"
        slots.prepare(self.template)
        stage.install(self.template, make(self.library, "0.9"), stage.from_folder(self.library.blob))
        with powered(self.template):
            until_good(self.template)
        make(self.library, "1.0")
        update(self.template, self.library, "1.0")
        make(self.library, "2.0")
        make(self.library, "bad", check="no")

    def fresh(self) -> Path:
        """The device as it was before the update."""
        shutil.rmtree(self.device, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.template), str(self.device)], check=True)
        return self.device

    def traced(self, *options: str, release: str = "2.0") -> int:
        """The exit code of a whole update under strace. Its children are not traced and die with it."""
        script = PROJECT / "tests/torture/update_once.py"
        program = [sys.executable, script, self.device, self.library.folder, release]
        run = subprocess.Popen(
            ["strace", "-qq", "-o", self.log, *options, *program],
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        code = run.wait(PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        return code


@contextlib.contextmanager
def powered(root: Path) -> Iterator[None]:
    """The guard at work on a thread: what systemd does after power comes back; leaving it is an orderly shutdown."""
    stops: list[int] = []
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(guard.guard(root, {}, stops)))
    with (root / "guard.lock").open("a") as lock:
        guard.fcntl.flock(lock, guard.fcntl.LOCK_EX)
        thread.start()
        try:
            yield
        finally:
            stops.append(signal.SIGTERM)
            thread.join(PATIENCE_S)


def until_good(root: Path) -> str:
    """The release that runs from a good, active slot, every byte of which holds. Raises Lost."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        with contextlib.suppress(EdgekitError):
            now = slots.status(root)
            active = next((s for s in now.slots if s.slot == now.active), None)
            if active and active.state == slots.SlotState.GOOD and now.running == active.slot:
                check_bytes(root, active.slot)
                return str(now.running_release)
        time.sleep(0.01)
    raise Lost(f"no good slot runs: {slots.status(root)}")


def check_bytes(root: Path, slot: str) -> None:
    """Raises Lost when the slot does not hold what its release says."""
    stored = slots.read_release(root, slot)
    if stored is None:
        raise Lost(f"slot {slot} has no manifest")
    try:
        for file in stored.release.files:
            if file.is_wheel:
                wheel.verify(root / "store" / file.sha256, root / slot, name=file.path)
            else:
                verify_file(root / slot / file.path, sha256=file.sha256, size_bytes=file.size_bytes)
    except (EdgekitError, OSError) as e:
        raise Lost(f"slot {slot} is good by name only: {e}") from e


def update(root: Path, library: Library, name: str) -> None:
    """A whole update while the guard runs. Raises Lost when the release is not committed."""
    stored = library.load(name)
    with powered(root):
        if not any(s.digest == stored.digest and s.state == "pending" for s in slots.status(root).slots):
            stage.install(root, stored, stage.from_folder(library.blob))
        if (runs := until_good_or_pending_ends(root)) != name:
            raise Lost(f"{runs} runs, not {name}: {slots.status(root)}")
    slots.tidy(root)
    if not stage.is_committed(root, stored):
        raise Lost(f"{name} is not committed: {slots.status(root)}")


def until_good_or_pending_ends(root: Path) -> str:
    end_s = time.monotonic() + PATIENCE_S
    while any(s.state == "pending" for s in slots.status(root).slots) and time.monotonic() < end_s:
        time.sleep(0.01)
    return until_good(root)


def survive(root: Path, library: Library) -> None:
    """A restart, then the update once more. Raises Lost."""
    with powered(root):
        if (runs := until_good(root)) not in ("1.0", "2.0"):
            raise Lost(f"after the restart {runs} runs")
        if (runs := until_good_or_pending_ends(root)) not in ("1.0", "2.0"):
            raise Lost(f"after the verdict {runs} runs")
    update(root, library, "2.0")


def killed_points(bench: Bench, release: str) -> list[tuple[str, int]]:
    """Every call of an undisturbed update that may change the file system: its name and which of its kind it is."""
    bench.fresh()
    if bench.traced("-e", f"trace={','.join(CHANGING)}", release=release) != (0 if release == "2.0" else 1):
        raise SystemExit(f"the update to {release} ends otherwise than it should, without being disturbed")
    seen: Counter[str] = Counter()
    points = []
    for line in bench.log.read_text(errors="replace").splitlines():
        call = line.partition("(")[0]
        seen[call] += 1
        is_reading = call == "openat" and "O_WRONLY" not in line and "O_RDWR" not in line
        if call in CHANGING and not is_reading and (call not in ("openat",) or str(bench.device) in line):
            points.append((call, seen[call]))
    return points


def spread(points: Sequence[T], count: int) -> list[T]:
    """At most `count` of them, evenly; all when `count` is 0."""
    if count == 0 or count >= len(points):
        return list(points)
    return [points[i * len(points) // count] for i in range(count)]


def torture_killed(bench: Bench, count: int, release: str = "2.0") -> list[tuple[str, str | None]]:
    """Of the good 2.0, or of `bad`, which is rolled back: killed on the way there and back."""
    results = []
    for call, nth in spread(killed_points(bench, release), count):
        bench.fresh()
        code = bench.traced("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}", release=release)
        if code in (0, 1):  # it made fewer calls this time: not a point
            continue
        results.append((call, outcome(bench, bench.device)))
    return results


def torture_forgotten(bench: Bench, count: int) -> list[tuple[str, str | None]]:
    """Replays one recorded update; the device is drawn anew, as the disk would have it, at each point."""
    bench.fresh()
    bench.traced("-xx", "-s", "9999999", "-e", f"trace={TRACED}")
    recorded = list(calls(bench.log.read_text()))
    bench.fresh()
    disk = Disk(bench.device)
    changing = sum(disk.feed(*call) for call in recorded)
    chosen = set(spread(range(2 * changing), count))
    bench.fresh()
    disk, results, at = Disk(bench.device), [], 0
    for call in recorded:
        if not disk.feed(*call):
            continue
        for case in ("strict", "metadata"):
            if at in chosen:
                shutil.rmtree(bench.device)
                disk.draw(bench.device, case)
                results.append((f"{case} after {call[0]}", outcome(bench, bench.device)))
            at += 1
    return results


def outcome(bench: Bench, root: Path) -> str | None:
    """None when survived, else how it was lost."""
    try:
        survive(root, bench.library)
    except (Lost, EdgekitError, OSError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
    return None


def soak(bench: Bench, updates: int, restarts: int) -> tuple[int, int]:
    """Updates done and restarts made. Raises Lost when a slot changes without an update, or does not with one."""
    root, made = bench.fresh(), 0
    for i in range(updates):
        before = slots.status(root).active
        make(bench.library, f"soak-{i}")
        update(root, bench.library, f"soak-{i}")
        after = slots.status(root).active
        if after == before:
            raise Lost(f"update {i} left slot {before} active")
        while made * updates < restarts * (i + 1):
            with powered(root):
                until_good(root)
            made += 1
            if slots.status(root).active != after:
                raise Lost(f"a restart after update {i} changed the slot")
    return updates, made


def table(part: str, results: list[tuple[str, str | None]]) -> None:
    by_call: dict[str, list[str | None]] = {}
    for call, lost in results:
        by_call.setdefault(call, []).append(lost)
    for call, outcomes in sorted(by_call.items()):
        print(f"{part:10} {call:24} {len(outcomes):6} points {outcomes.count(None):6} survived")
    for call, lost in results:
        if lost is not None:
            print(f"  LOST at {call}: {lost}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the power at every write of an update.")
    parser.add_argument("--points", type=int, default=0, help="at most so many of each part; 0: all")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=200)
    args = parser.parse_args()
    if shutil.which("strace") is None:
        print("torture needs strace; to mend it: sudo apt install strace", file=sys.stderr)
        return 1
    guard.say = lambda _text: None  # its log of hundreds of starts is not the answer
    with tempfile.TemporaryDirectory(prefix="edgekit-torture-") as folder:
        bench = Bench(Path(folder))
        results = torture_killed(bench, args.points)
        table("killed", results)
        undone = torture_killed(bench, args.points, "bad")
        table("undone", undone)
        results += undone
        forgotten = torture_forgotten(bench, args.points)
        table("forgotten", forgotten)
        results += forgotten
        updates, restarts = soak(bench, args.updates, args.restarts)
        print(f"soak       {updates} updates, {restarts} restarts: the slot changed with each update, never otherwise")
    survived = sum(lost is None for _, lost in results)
    print(json.dumps({"points": len(results), "survived": survived, "updates": updates, "restarts": restarts}))
    return 0 if survived == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
