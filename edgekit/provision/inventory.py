"""Many devices at once: a list in TOML, each provisioned by a process of its own, so that one cannot harm another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgekit.errors import ConfigError
from edgekit.strict import read_toml

COMMITTED, ALREADY, PLANNED = "committed", "already there", "planned"
ROLLED_BACK, FAILED, NOT_STARTED = "rolled back", "failed", "not started"
ENDS = (COMMITTED, ALREADY, PLANNED, ROLLED_BACK, FAILED, NOT_STARTED)
_ENDED_S = 10.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[device]]`: one board, and what is different about it; the rest is as on the command line."""

    target: str
    site: str | None = None
    device: str | None = None
    group: str | None = None
    release: str | None = None
    config: str | None = None
    model: str | None = None
    requirements: str | None = None
    interpreter: str | None = None
    service: str | None = None
    ssh_options: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Paths in it are relative to its own folder."""

    device: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one device."""

    target: str
    device: str | None
    outcome: str
    "One of ENDS."
    release: str | None
    reason: str
    seconds: float
    log: str
    "Its whole talk."

    @property
    def is_good(self) -> bool:
        return self.outcome in (COMMITTED, ALREADY, PLANNED)


def read_inventory(path: Path) -> tuple[Entry, ...]:
    """Raises ConfigError naming file and key: nothing starts before all of it holds."""
    found = read_toml(path, Inventory).device
    if not found:
        raise ConfigError(path, "device", "the list is empty; it needs a [[device]] with a target for each")
    targets = [entry.target for entry in found]
    for entry in found:
        if not entry.target or entry.target.startswith("-"):
            raise ConfigError(path, "device.target", f"'{entry.target}' is not user@host[:FOLDER] or local:FOLDER")
        if targets.count(entry.target) > 1:
            raise ConfigError(path, "device.target", f"'{entry.target}' is there twice")
        if len([word for word in (entry.release, entry.config, entry.model) if word]) > 1:
            raise ConfigError(path, "device", f"{entry.target}: only one of release, config and model")
    names = [(entry.site, entry.device) for entry in found if entry.device]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(path, "device.device", f"'{twice[1]}' is given to two devices")
    return found


def words_for(entry: Entry, common: Sequence[str], *, folder: Path) -> list[str]:
    """The words after `edgekit provision` for one device; its own win over the common ones."""
    words = list(common)
    if entry.release or entry.config or entry.model:
        words = _without(words, ("--release", "--config", "--model"))
    for key in ("site", "device", "group", "release", "model", "interpreter", "service"):
        if value := getattr(entry, key):
            words += [f"--{key}={value}"]
    for key in ("config", "requirements"):
        if value := getattr(entry, key):
            words += [f"--{key}={folder / value}"]
    return [*words, *(f"--ssh-option={word}" for word in entry.ssh_options), "--json", "--", entry.target]


def _without(words: Sequence[str], keys: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.partition("=")[0] not in keys]


class Many:
    """Provisions a list of devices, some at a time; no new one is started after `max_failures` of them failed."""

    def __init__(self, logs: Path, *, parallel: int, max_failures: int, say: Callable[[str, str], None]) -> None:
        self._logs, self._parallel, self._max_failures, self._say = logs, parallel, max_failures, say
        self._lock = threading.Lock()
        self._failures = 0
        self._is_over = False
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, jobs: Sequence[tuple[Entry, list[str]]]) -> list[Result]:
        """A result for each job, in their order. On an interrupt the running ones are ended, then it is raised."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self._parallel) as pool:
            try:
                waiting = [pool.submit(self._one, entry, words) for entry, words in jobs]
                return [future.result() for future in waiting]
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Start no more, and end those that run: a device is safe to leave at any point."""
        with self._lock:
            self._is_over = True
            for child in self._running:
                child.terminate()

    def _one(self, entry: Entry, words: list[str]) -> Result:
        log = self._logs / (re.sub(r"[^A-Za-z0-9._-]+", "_", entry.target) + ".log")

        def result(outcome: str, reason: str, *, release: str | None = None, seconds: float = 0.0) -> Result:
            self._say(entry.target, outcome)
            return Result(
                target=entry.target, device=entry.device, outcome=outcome, release=release, reason=reason,
                seconds=round(seconds, 1), log=str(log),
            )  # fmt: skip

        with self._lock:
            if self._is_over or self._failures >= self._max_failures:
                over = f"{self._failures} devices failed before its turn" if self._failures else "interrupted"
                return result(NOT_STARTED, over)
            began = time.monotonic()
            child = subprocess.Popen(
                [sys.executable, "-m", "edgekit.cli.main", "provision", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=dict(os.environ, PYTHONUNBUFFERED="1"),
            )
            self._running.add(child)
        answer, talk = self._follow(entry.target, child, log)
        with self._lock:
            self._running.discard(child)
            outcome, release, reason = _read(child.returncode, answer, talk)
            self._failures += outcome in (ROLLED_BACK, FAILED)
        return result(outcome, reason, release=release, seconds=time.monotonic() - began)

    def _follow(self, target: str, child: subprocess.Popen[str], log: Path) -> tuple[str, list[str]]:
        """(its answer, what it said): each line is shown as it comes and kept in the log."""
        assert child.stdout is not None
        assert child.stderr is not None
        answer: list[str] = []
        reader = threading.Thread(target=lambda: answer.append(child.stdout.read() if child.stdout else ""))
        reader.start()
        talk = []
        with log.open("w", encoding="utf-8") as file:
            for line in child.stderr:
                file.write(line)
                file.flush()
                talk.append(line.rstrip())
                self._say(target, line.strip())
            child.wait()
            reader.join(_ENDED_S)
            file.write("".join(answer))
        child.stdout.close()
        child.stderr.close()
        return "".join(answer), talk


def _read(code: int, answer: str, talk: Sequence[str]) -> tuple[str, str | None, str]:
    """(outcome, release, reason) of one device's own answer, which is that of `edgekit provision --json`."""
    try:
        table = json.loads(answer)
    except ValueError:
        last = next((line for line in reversed(talk) if line), f"it ended with {code} without a word")
        return FAILED, None, last.removeprefix("edgekit provision: ")
    if isinstance(table, list):  # the plan
        return PLANNED, None, "; ".join(step["what"] for step in table if step["is_needed"]) or "nothing to do"
    slots = table["slots"] if "slots" in table else [table.get("slot") or {}]
    shown = next((slot for slot in slots if slot.get("slot") == table.get("active")), slots[0])
    release = table.get("release") or shown.get("release")
    if "slots" in table:
        return ALREADY, release, ""
    if code == 0:
        return COMMITTED, release, ""
    return ROLLED_BACK, release, str(shown.get("reason") or "")
