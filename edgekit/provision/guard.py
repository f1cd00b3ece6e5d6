"""Starts the right slot and goes back when a new one does not become healthy: `python3 guard.pyz ROOT`.

A small program of standard library only (this file and its neighbours `launch`, `relay`, `state`) that lies beside the
two slots and not in them: an update replaces edgekit itself, so what judges an update must not come with it. systemd
starts it first. It counts the try before it starts a pending slot, waits for READY=1, lets the release's own check and
a soak pass, and marks the slot good; or marks it bad with the reason and starts the other. It never downloads anything
and never writes into a slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from edgekit.provision.launch import read_launch
from edgekit.provision.relay import Relay
from edgekit.provision.state import (
    State,
    active_slot,
    change,
    choose,
    count_try,
    empty_state,
    is_superseded,
    mark_bad,
    mark_good,
    read_state,
    uncount_try,
    write_durably,
)

VERSION = 2
"""Raised with every change, so that devices are given it. A release says which version it needs at least."""
POLL_S = 0.1
_TURNS = 20
CONFIG_FAULT = 78
"""sysexits.h EX_CONFIG: there is nothing to run."""


class Fault(NamedTuple):
    """Why a slot did not become healthy. `is_final`: measured or impossible, so not worth another try."""

    reason: str
    is_final: bool = False


class Interrupted(Exception):
    """We were told to stop, or another slot is to run: no fault of this one."""


class Run:
    """A slot's daemon as our child, and the datagrams between it and systemd. Use as a context."""

    def __init__(self, root: Path, slot: str, environ: Mapping[str, str], stops: list[int]) -> None:
        self._root, self._slot, self._environ, self._stops = root, slot, environ, stops
        self._seen = None  # so that a change between the choice and this run is seen
        self.launch = read_launch(root, slot)
        self._relay = Relay(environ.get("NOTIFY_SOCKET"))
        try:
            self.daemon = self._start(self.launch.run, stderr=self._relay.stderr)
        except OSError:
            self._relay.close()
            raise
        (root / "running").write_text(slot, encoding="ascii")  # means something only while we hold our lock

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        """SIGTERM, then SIGKILL to what does not heed it."""
        end_s = time.monotonic() + self.launch.stop_s
        if self.daemon.poll() is None:
            self.daemon.terminate()
        while self.daemon.poll() is None and time.monotonic() < end_s:
            self._relay.pump(POLL_S)
        if self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        self._relay.close()
        (self._root / "running").write_text("", encoding="ascii")

    def _start(
        self, argv: list[str], *, stdout: IO[bytes] | None = None, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        # WATCHDOG_PID names us; without it sd_watchdog_enabled(3) means whoever has the variable.
        drop = ("NOTIFY_SOCKET", "WATCHDOG_PID")
        env = {k: v for k, v in self._environ.items() if k not in drop and not k.startswith("PYTHON")}
        env["NOTIFY_SOCKET"] = self._relay.address
        env.update(self.launch.env)
        folder = str(self._root / self._slot)
        return subprocess.Popen(argv, env=env, cwd=folder, stdout=stdout, stderr=stderr, preexec_fn=_die_with_us)

    def wait_for(self, holds: Callable[[], bool], seconds: float = float("inf")) -> bool:
        """Relay datagrams until `holds()` (True), time is up or the daemon has ended (False). Raises Interrupted."""
        end_s = time.monotonic() + seconds
        while not holds():
            if self.daemon.poll() is not None or time.monotonic() > end_s:
                return False
            self._relay.pump(POLL_S)
            if self._stops:
                self._relay.is_ending = True
                raise Interrupted("told to stop")
            seen = _fingerprint(self._root)
            if seen != self._seen and is_superseded(read_state(self._root), active_slot(self._root), self._slot):
                raise Interrupted("another slot is to run")
            self._seen = seen
        return True

    def find_fault(self) -> Fault | None:
        """None when the slot has become healthy: ready in time, checked, soaked, checked again."""
        launch = self.launch
        if not self.wait_for(lambda: self._relay.was_ready, launch.ready_s):
            return self._ended("before it was ready") or Fault(f"not ready within {launch.ready_s:g} s")
        change(self._root, lambda state: _note(state, self._slot, "booted_unix_s", int(time.time())))
        fault = self._check()
        if fault is None and launch.soak_s > 0:
            self.wait_for(lambda: False, launch.soak_s)
            fault = self._ended("while soaking") or self._check()
        return fault

    def _ended(self, when: str) -> Fault | None:
        code = self.daemon.poll()
        if code is None:
            return None
        self._relay.pump(0.0)
        last = self._relay.last_line()
        return Fault(f"the daemon ended with {code} {when}" + (f": {last}" if last else ""))

    def _check(self) -> Fault | None:
        """Run the release's own check; its last line is {"healthy": bool, "reason": text, …}."""
        if self.launch.check is None:
            return None
        with tempfile.TemporaryFile() as said:
            argv = [word.replace("{pid}", str(self.daemon.pid)) for word in self.launch.check]
            check = self._start(argv, stdout=said)
            try:
                done = self.wait_for(lambda: check.poll() is not None, self.launch.check_s)
            finally:
                if check.poll() is None:
                    check.kill()
                check.wait()
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().splitlines()
        if not done:
            return self._ended("during its check") or Fault(f"its check took over {self.launch.check_s:g} s")
        try:
            verdict = json.loads(lines[-1])
            is_healthy, reason = verdict["healthy"] is True, str(verdict.get("reason") or "its check says no")
        except (ValueError, IndexError, KeyError, TypeError):
            return Fault(f"its check ended with {check.returncode} and no verdict")
        change(self._root, lambda state: _note(state, self._slot, "verdict", verdict))
        return None if is_healthy else Fault(reason, is_final=True)


def settle(root: Path) -> str | None:
    """Complete what a power cut interrupted and return the slot to run; afterwards `active` points to it."""
    chosen: list[str | None] = []

    def judge(state: State) -> str | None:
        chosen.append(choose(state, active_slot(root), time.time()))
        return chosen[0]

    change(root, judge)
    return chosen[0]


def mend(root: Path) -> None:
    """Replace a state that cannot be read by trust in the active slot: better an unknown past than no service."""
    slot = active_slot(root)
    path = root / "state.json"
    try:
        read_state(root)
        if slot is None or path.exists():
            return
        problem = "it is gone"
    except ValueError as e:
        problem = str(e)
        shutil.copyfile(path, root / "state.json.damaged")
    fresh = empty_state()
    if slot is not None:
        fresh["slots"][slot] = {"state": "good", "reason": f"taken over: state.json did not hold ({problem})"}
    write_durably(path, json.dumps(fresh).encode())
    say(f"{path} does not hold ({problem}): the active slot is taken for good")


def try_pending(root: Path, slot: str, environ: Mapping[str, str], stops: list[int]) -> int | None:
    """One counted try. The exit code when the service is to end, None to choose anew."""
    tries = change(root, lambda state: count_try(state, slot))["slots"][slot]["tries"]
    say(f"slot {slot} is pending: try {tries}")
    try:
        with Run(root, slot, environ, stops) as run:
            fault = run.find_fault()
            if fault is None:
                change(root, lambda state: mark_good(state, slot, time.time()))
                say(f"slot {slot} is good")
                run.wait_for(lambda: False)
                return run.daemon.returncode
    except Interrupted:
        change(root, lambda state: uncount_try(state, slot))
        return 0 if stops else None
    except (OSError, ValueError, KeyError, TypeError) as e:
        fault = Fault(f"it cannot be started: {e}", is_final=True)
    say(f"slot {slot}: {fault.reason}")
    if fault.is_final:
        change(root, lambda state: mark_bad(state, slot, fault.reason, time.time()))
    else:
        change(root, lambda state: _note(state, slot, "reason", fault.reason))
    return None


def run_good(root: Path, slot: str, environ: Mapping[str, str], stops: list[int]) -> int | None:
    """Until the daemon ends. A committed slot that cannot be started at all is given up for the other."""
    try:
        with Run(root, slot, environ, stops) as run:
            run.wait_for(lambda: False)
            return run.daemon.returncode
    except Interrupted:
        return 0 if stops else None
    except (OSError, ValueError, KeyError, TypeError) as e:
        reason = f"it cannot be started: {e}"
        say(f"slot {slot}: {reason}")
        change(root, lambda state: mark_bad(state, slot, reason, time.time()))
        return None


def guard(root: Path, environ: Mapping[str, str], stops: list[int]) -> int:
    """Run slots until the service is to end; its exit code. `stops` grows when a signal says so."""
    mend(root)
    while True:
        slot = settle(root)
        if slot is None:
            say(f"no slot of {root} is good: install a release with 'edgekit provision' or 'edgekit update'")
            return CONFIG_FAULT
        is_pending = read_state(root)["slots"][slot]["state"] == "pending"
        code = (try_pending if is_pending else run_good)(root, slot, environ, stops)
        if code is not None:
            return 128 - code if code < 0 else code


def main(argv: list[str], environ: Mapping[str, str] = os.environ) -> int:
    if argv == ["--version"]:
        print(VERSION)
        return 0
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        say("usage: guard.pyz ROOT, the folder that holds the slots a and b")
        return 2
    root = Path(argv[0]).resolve()
    with open(str(root / "guard.lock"), "a", encoding="ascii") as lock:
        if not _take(lock):
            say(f"another guard runs {root}")
            return 1
        stops: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, _: stops.append(signum))
        (root / "running").write_text("", encoding="ascii")  # a guard that was killed left its last word there
        return guard(root, environ, stops)


def _take(lock: IO[str]) -> bool:
    """Hold the lock for as long as we run. Whoever asks which slot runs shares it for a moment: that is waited for."""
    for _ in range(_TURNS):
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(POLL_S)
    return False


def say(text: str) -> None:
    print("edgekit guard: " + text, file=sys.stderr, flush=True)


def _note(state: State, slot: str, key: str, value: Any) -> None:
    state["slots"][slot][key] = value


def _fingerprint(root: Path) -> Any:
    status = os.stat(str(root / "state.json"))
    return status.st_ino, status.st_mtime_ns, active_slot(root)


def _die_with_us() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
