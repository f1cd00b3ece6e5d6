"""The two slots of a device: what each holds, which one runs, and the steps from empty to good or bad.

ROOT holds `a` and `b`, the link `active`, `state.json`, the files of releases by content in `store`, what both slots
share in `shared`, and the guard. Which slot runs is the guard's doing; here is what prepares, asks and looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from edgekit.errors import ReleaseError, SlotError
from edgekit.provision import state
from edgekit.provision.program import GUARD as GUARD
from edgekit.provision.program import guard_version, install_guard
from edgekit.provision.release import Stored, parse


class SlotState(str, Enum):
    """As it appears in `state.json`."""

    EMPTY = "empty"
    STAGED = "staged"
    "Complete and verified on the disk, never started."
    PENDING = "pending"
    "To be started and judged by the guard."
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot. The four times are apart on purpose: a release that is installed is not one that works."""

    slot: str
    state: SlotState
    release: str | None = None
    digest: str | None = None
    tries: int = 0
    reason: str | None = None
    "Why it is bad, or how the last try ended."
    installed_unix_s: int | None = None
    booted_unix_s: int | None = None
    healthy_unix_s: int | None = None
    committed_unix_s: int | None = None
    verdict: Mapping[str, Any] | None = None
    "What its own check measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A device's slots as they are now."""

    active: str | None
    running: str | None
    "The slot whose daemon the guard runs; None when no guard runs."
    running_release: str | None
    "Read from the running slot itself."
    slots: tuple[Slot, ...]
    denied: Mapping[str, Mapping[str, Any]]
    journal: Mapping[str, Any] | None
    "The step of an update that is under way or was cut off."
    guard_version: int | None


def status(root: Path) -> Status:
    """Raises SlotError for a folder that is none of ours or a state that cannot be read."""
    table = _read(root)
    running = running_slot(root)
    return Status(
        active=state.active_slot(root),
        running=running,
        running_release=_release_name(root, running),
        slots=tuple(_slot(name, table["slots"][name]) for name in state.SLOTS),
        denied=table["denied"],
        journal=table["journal"],
        guard_version=guard_version(root),
    )


def _slot(name: str, entry: Mapping[str, Any]) -> Slot:
    known = {key: entry[key] for key in Slot.__dataclass_fields__ if key in entry and key not in ("slot", "state")}
    return Slot(slot=name, state=SlotState(entry["state"]), **known)


def _read(root: Path) -> state.State:
    if not (root / "state.json").is_file():
        raise SlotError(
            "a and b", f"{root} holds no slots; make them with: edgekit provision local:{root}", rolled_back=False
        )
    try:
        return state.read_state(root)
    except ValueError as e:
        raise SlotError(
            "a and b", f"{root}/state.json: {e}; the guard mends it when it starts", rolled_back=False
        ) from e


def running_slot(root: Path) -> str | None:
    """The slot that the guard says it runs, while it holds its lock."""
    try:
        with (root / "guard.lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        name = (root / "running").read_text(encoding="ascii") if (root / "running").exists() else ""
        return name if name in state.SLOTS else None
    except FileNotFoundError:
        return None


def read_release(root: Path, slot: str) -> Stored | None:
    """The manifest of what lies in `slot`; None when it holds none that parses."""
    try:
        return parse((root / slot / "release.json").read_bytes())
    except (OSError, ReleaseError):
        return None


def _release_name(root: Path, slot: str | None) -> str | None:
    stored = read_release(root, slot) if slot else None
    return stored.release.name if stored else None


@contextlib.contextmanager
def updating(root: Path) -> Iterator[None]:
    """Hold the updater's lock. Raises SlotError when another update is under way."""
    with (root / "update.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise SlotError("a and b", f"another update of {root} is under way", rolled_back=False) from e
        yield


def prepare(root: Path) -> None:
    """Make `root` a device's folder, or complete it. Safe to repeat."""
    for folder in (root, root / "store", root / "shared" / "daemon"):
        folder.mkdir(parents=True, exist_ok=True)
    install_guard(root)
    state.change(root, lambda _: None)


def begin(root: Path, stored: Stored, *, retry_denied: bool = False, now_s: float | None = None) -> str:
    """Claim the inactive slot for a release and return it; what it held counts as gone from here on.

    Raises SlotError: an update awaits its verdict, the slot still runs, or the release was refused before.
    """
    digest, name = stored.digest, stored.release.name
    if stored.release.guard_version > (guard_version(root) or 0):
        problem = f"{name} needs guard version {stored.release.guard_version}, this device has {guard_version(root)}"
        raise SlotError("a and b", problem, rolled_back=False)
    claimed: list[str] = []

    def claim(table: state.State) -> None:
        slot = _claimable(root, table)
        denied = table["denied"].get(digest)
        if denied and not retry_denied and (now_s or time.time()) < denied["not_before_unix_s"]:
            why = f"{name} failed here {denied['failures']}x: {denied['reason']}; --retry-denied tries it again"
            raise SlotError(slot, why, rolled_back=False)
        entry = table["slots"][slot]
        if entry.get("state") != "staged" or entry.get("digest") != digest:
            table["slots"][slot] = {"state": "empty", "release": name, "digest": digest}
        table["journal"] = {"step": "stage", "slot": slot, "release": name, "digest": digest}
        claimed.append(slot)

    state.change(root, claim)
    return claimed[0]


def _claimable(root: Path, table: state.State) -> str:
    for slot in state.SLOTS:
        if table["slots"][slot]["state"] == "pending":
            waiting = table["slots"][slot].get("release")
            raise SlotError(slot, f"{waiting} still awaits its verdict; look with: edgekit slots", rolled_back=False)
    slot = state.other(state.active_slot(root) or "b")
    if running_slot(root) == slot:
        raise SlotError(slot, "its daemon still runs; wait until it has ended", rolled_back=False)
    return slot


def mark_staged(root: Path, slot: str) -> None:
    """Everything of the release is on the disk, verified and synced."""

    def staged(table: state.State) -> None:
        table["slots"][slot].update(state="staged", installed_unix_s=int(time.time()))
        table["journal"]["step"] = "switch"

    state.change(root, staged)


def switch(root: Path, slot: str) -> None:
    """Ask the guard to try a staged slot: pending first, then the link; a cut between the two is completed by it."""

    def pend(table: state.State) -> str:
        if table["slots"][slot]["state"] != "staged":
            raise SlotError(slot, f"is {table['slots'][slot]['state']}, not staged", rolled_back=False)
        table["slots"][slot].update(state="pending", tries=0, reason=None)
        table["journal"]["step"] = "judge"
        return slot

    state.change(root, pend)


def target_of_rollback(root: Path) -> Slot:
    """The slot that a rollback would go to. Raises SlotError when there is nothing good to go back to."""
    now = status(root)
    back = next((slot for slot in now.slots if now.active and slot.slot == state.other(now.active)), None)
    if back is None or back.state != SlotState.GOOD:
        held = "nothing" if back is None else back.state.value
        problem = f"there is nothing good to go back to: the other slot is {held}"
        raise SlotError(now.active or "a", problem, rolled_back=False)
    return back


def roll_back(root: Path, reason: str) -> str:
    """Make the other, good slot the active one and refuse the release we leave; the one we go to is refused no more.

    Returns the slot we go to.
    """
    back = target_of_rollback(root).slot
    active = state.other(back)

    def leave(table: state.State) -> str:
        if table["slots"][active]["state"] == "pending":
            state.mark_bad(table, active, reason, time.time())
        else:
            state.deny(table, table["slots"][active].get("digest"), reason, time.time())
        table["denied"].pop(table["slots"][back].get("digest"), None)  # who goes back to it allows it again
        return back

    state.change(root, leave)
    return back


def tidy(root: Path) -> None:
    """After a commit: drop slots that hold nothing to go back to, content that no slot needs, and the old guard."""
    table = state.read_state(root)
    active = state.active_slot(root)
    if active is None or table["slots"][active]["state"] != "good":
        return
    for slot in state.SLOTS:
        if table["slots"][slot]["state"] in ("empty", "bad") and slot != running_slot(root):
            shutil.rmtree(root / slot, ignore_errors=True)
    kept = {file.sha256 for slot in state.SLOTS if (s := read_release(root, slot)) for file in s.release.files}
    for path in (root / "store").iterdir():
        if path.name not in kept:
            path.unlink()
    install_guard(root)
