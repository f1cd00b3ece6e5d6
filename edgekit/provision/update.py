"""What an updater on the device does: look what is offered, decide, bring it, switch, wait for the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import Cancelled, ConfigError, ReleaseError, RuntimeUnavailable, SlotError
from edgekit.provision import slots, stage
from edgekit.provision.download import Download, Manners
from edgekit.provision.release import Stored
from edgekit.provision.settings import FILE, Settings

if TYPE_CHECKING:
    from edgekit.provision.trust import Trust

HOLD = "hold"
"""While this file exists in ROOT/shared, the application wants no update; its first line says why."""
UNGUARDED_S = 30.0
_RESTARTED_S = 15.0
"""The guard begins the other slot at once; its service, where the guard itself was ended, after a few seconds."""
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is offered, beside what runs."""

    repository: str
    group: str
    offered: str | None
    "None: nothing for this group."
    digest: str | None
    "Of the offered manifest."
    sequence: int | None
    active: str | None
    will_install: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an update ended. The four states are apart: installed, booted, healthy, committed."""

    release: str
    slot: slots.Slot
    running_release: str | None
    received_bytes: int

    @property
    def is_committed(self) -> bool:
        return self.slot.state == slots.SlotState.GOOD


def look(root: Path, settings: Settings, *, retry_denied: bool = False) -> tuple[Finding, Stored | None]:
    """What the repository offers this device and whether it will be taken. Raises ReleaseError, UnreachableError."""
    if settings.repository is None:
        raise ConfigError(root / FILE, "repository", "this device was not told where to look; give --repository URL")
    trust = _trust(root, settings.repository)
    offer = trust.offer(settings.group)
    now = slots.status(root)
    active = next((slot for slot in now.slots if slot.slot == now.active), None)
    held = slots.read_release(root, now.active) if now.active else None

    def finding(reason: str, *, will_install: bool = False) -> Finding:
        return Finding(
            repository=settings.repository or "",
            group=settings.group,
            offered=offer[0].release if offer else None,
            digest=offer[1].digest if offer else None,
            sequence=offer[0].sequence if offer else None,
            active=active.release if active else None,
            will_install=will_install,
            reason=reason,
        )

    if offer is None:
        return finding(f"the repository has nothing for group {settings.group}"), None
    promise, stored = offer
    if stored.release.sequence != promise.sequence or stored.release.name != promise.release:
        raise ReleaseError(promise.release, "its manifest is not the one that its signed custom data speaks of")
    if active is not None and active.digest == stored.digest and active.state == slots.SlotState.GOOD:
        return finding("it is installed and good"), None
    if held is not None and held.release.sequence > stored.release.sequence and not promise.downgrade_allowed:
        return finding(f"it is older than {held.release.name}, and no downgrade was signed"), None
    denied = now.denied.get(stored.digest)
    if denied and not retry_denied and time.time() < denied["not_before_unix_s"]:
        return finding(f"it failed here {denied['failures']}x: {denied['reason']}"), None
    return finding("it is new", will_install=True), stored


def _trust(root: Path, url: str) -> Trust:
    try:
        from edgekit.provision.trust import Trust
    except ModuleNotFoundError as e:
        raise RuntimeUnavailable("update", f"{e.name} is missing", "pip install tuf") from e
    return Trust(root / "trust", url)


def bring(
    root: Path,
    stored: Stored,
    settings: Settings,
    *,
    progress: stage.Progress | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    retry_denied: bool = False,
) -> tuple[str | None, int]:
    """Stage and switch; (slot, bytes received). Raises Cancelled also while the application holds updates back."""
    raise_if_held(root)
    download = downloader(root, settings, is_cancelled)
    if settings.jitter_s > 0:
        time.sleep(random.uniform(0, settings.jitter_s))
    slot = stage.install(root, stored, download, progress=progress, retry_denied=retry_denied)
    return slot, download.received_bytes


def downloader(root: Path, settings: Settings, is_cancelled: Callable[[], bool]) -> Download:
    """From the device's repository, with its manners; it ends also when the application begins to hold updates back."""
    manners = Manners(
        bytes_per_s=settings.bytes_per_s, is_cancelled=lambda: is_cancelled() or (root / "shared" / HOLD).exists()
    )
    return Download(settings.repository or "", manners)


def raise_if_held(root: Path) -> None:
    """Raises Cancelled with the application's reason while it wants no update."""
    path = root / "shared" / HOLD
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        raise Cancelled(f"the application holds updates back ({path}): {lines[0] if lines else 'no reason given'}")


def await_verdict(root: Path, slot: str, *, received_bytes: int = 0, timeout_s: float = 3600.0) -> Outcome:
    """Wait until the guard has judged the slot, then tidy up. Raises SlotError when it does not in time."""
    end_s = time.monotonic() + timeout_s
    guarded_s = time.monotonic()
    while True:
        now = slots.status(root)
        if now.running is not None:
            guarded_s = time.monotonic()
        entry = next(s for s in now.slots if s.slot == slot)
        if entry.state in (slots.SlotState.GOOD, slots.SlotState.BAD):
            break
        if time.monotonic() > guarded_s + UNGUARDED_S:
            mend = "start the service: the verdict comes then"
            raise SlotError(slot, f"is staged, but no guard has run for {UNGUARDED_S:.0f} s; {mend}", rolled_back=False)
        if time.monotonic() > end_s:
            raise SlotError(slot, f"no verdict within {timeout_s:.0f} s; look with: edgekit slots", rolled_back=False)
        time.sleep(_POLL_S)
    slots.tidy(root)
    return Outcome(
        release=entry.release or "",
        slot=entry,
        running_release=_settled(root).running_release,
        received_bytes=received_bytes,
    )


def _settled(root: Path) -> slots.Status:
    """After a verdict the guard still has to start the other slot: what runs is told once it does, if there is one."""
    end_s = time.monotonic() + _RESTARTED_S
    while True:
        now = slots.status(root)
        has_good = any(slot.state is slots.SlotState.GOOD for slot in now.slots)
        if now.running is not None and now.running == now.active:
            return now
        if not has_good or time.monotonic() > end_s:
            return now
        time.sleep(_POLL_S)
