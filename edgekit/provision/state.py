"""What both slots share: which one is active, what is known of each, and what was refused. Standard library only.

Everything here is used by the guard, which runs outside the slots, and by `slots`, which runs inside one. The release
before must be able to read what a newer one wrote: unknown keys are kept, and no key ever leaves the schema.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCHEMA = 1
SLOTS = ("a", "b")
MAX_TRIES = 3
"""Three, not one: a brown-out during the first start is common on boards fed over USB."""
BACKOFF_S = (3600, 6 * 3600, 24 * 3600)
"""How long a failed release is refused, by the number of its failures; after the last, until an operator allows it."""
FOREVER_S = 2**52

State = dict[str, Any]
"""{"schema", "slots": {"a": {"state", "release", "digest", …}, "b": …}, "denied": {digest: …}, "journal"}.

A slot's `state` is one of empty, staged, pending, good, bad."""


def other(slot: str) -> str:
    return "b" if slot == "a" else "a"


def empty_state() -> State:
    return {"schema": SCHEMA, "slots": {slot: {"state": "empty"} for slot in SLOTS}, "denied": {}, "journal": None}


def read_state(root: Path) -> State:
    """The state; a fresh one when there is none. Raises ValueError when the file does not hold."""
    try:
        text = (root / "state.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return empty_state()
    state: State = json.loads(text)
    slots = state.get("slots") if isinstance(state, dict) else None
    if not isinstance(slots, dict) or not all(isinstance(slots.get(slot), dict) for slot in SLOTS):
        raise ValueError("state.json does not tell of the slots a and b")
    state.setdefault("denied", {})
    state.setdefault("journal", None)
    return state


def change(root: Path, how: Callable[[State], str | None]) -> State:
    """Let `how` edit the state; what it leaves is written atomically, durably and by one writer at a time.

    When `how` returns a slot, the link `active` is set to it under the same lock: whoever chooses a slot by the state
    must not be overtaken by another who changes the state in between.
    """
    with locked(root / "state.lock"):
        before = read_state(root)
        after = copy.deepcopy(before)
        slot = how(after)
        if after != before or not (root / "state.json").exists():
            write_durably(root / "state.json", json.dumps(after, indent=1, sort_keys=True).encode())
        if slot is not None and active_slot(root) != slot:
            _point(root, slot)
    return after


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of `path`; the kernel frees it however we end."""
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_durably(path: Path, data: bytes) -> None:
    """Old content or new, never a part: temp file, fsync, rename, fsync of the folder. For one writer at a time.

    The temp file has always the same name, so that what a power cut leaves is written over and never piles up.
    """
    temp = path.with_name(f".{path.name}.tmp")
    with open(temp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def active_slot(root: Path) -> str | None:
    """Where the link `active` points; None when it does not exist yet."""
    try:
        target = os.readlink(str(root / "active"))
    except OSError:
        return None
    return target if target in SLOTS else None


def _point(root: Path, slot: str) -> None:
    """A new link renamed over the old: there is always one."""
    temp = root / ".active.tmp"
    with contextlib.suppress(FileNotFoundError):
        temp.unlink()
    os.symlink(slot, str(temp))
    os.replace(str(temp), str(root / "active"))
    sync_folder(root)


# What may happen to a state. Each edits the state that `change` hands it; none touches anything else.


def count_try(state: State, slot: str) -> None:
    """Before the attempt, so that one which ends without a word has been counted."""
    entry = state["slots"][slot]
    entry.update(tries=entry.get("tries", 0) + 1, reason=None)


def uncount_try(state: State, slot: str) -> None:
    """The board was shut down in order meanwhile: no fault of the release."""
    entry = state["slots"][slot]
    entry["tries"] = max(0, entry.get("tries", 0) - 1)


def mark_good(state: State, slot: str, now_s: float) -> None:
    """Committed: final, whatever happens to reports about it."""
    entry = state["slots"][slot]
    entry.update(state="good", tries=0, reason=None, healthy_unix_s=int(now_s), committed_unix_s=int(now_s))
    state["denied"].pop(entry.get("digest"), None)
    state["journal"] = None


def mark_bad(state: State, slot: str, reason: str, now_s: float) -> None:
    """Refused from now on, with the reason, so that the same release is not offered and taken for ever."""
    entry = state["slots"][slot]
    entry.update(state="bad", reason=reason)
    state["journal"] = None
    deny(state, entry.get("digest"), reason, now_s)


def deny(state: State, digest: str | None, reason: str, now_s: float) -> None:
    """Note one more failure of the release `digest`."""
    if digest is None:
        return
    failures = state["denied"].get(digest, {}).get("failures", 0) + 1
    wait_s = BACKOFF_S[failures - 1] if failures <= len(BACKOFF_S) else FOREVER_S
    state["denied"][digest] = {"reason": reason, "failures": failures, "not_before_unix_s": int(now_s) + wait_s}


def choose(state: State, active: str | None, now_s: float) -> str | None:
    """The slot to run, None when there is none. A pending slot that has had its tries becomes bad in `state`."""
    for slot in SLOTS:
        entry = state["slots"][slot]
        if entry.get("state") != "pending":
            continue
        tries = entry.get("tries", 0)
        if tries < MAX_TRIES:
            return slot
        last = entry.get("reason") or "it ended without a word (power cut, kill or out of memory)"
        mark_bad(state, slot, f"{tries} starts, none became healthy; the last: {last}", now_s)
    good = [slot for slot in SLOTS if state["slots"][slot].get("state") == "good"]
    if active in good:
        return active
    return good[0] if good else None


def is_superseded(state: State, active: str | None, running: str) -> bool:
    """True when another slot than the running one is to run now."""
    rival = state["slots"][other(running)].get("state") == "pending"
    return rival or active != running or state["slots"][running].get("state") not in ("pending", "good")
