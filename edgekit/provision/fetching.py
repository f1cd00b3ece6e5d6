"""One attempt to do what was desired: look, refuse or bring, ask the guard. Every step may be cut off and repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from edgekit.errors import Cancelled, ConfigError, EdgekitError, ReleaseError, RuntimeUnavailable
from edgekit.provision import slots, stage, update
from edgekit.provision.errand import Errand, after, may_receive, refused, write_errand
from edgekit.provision.release import Stored
from edgekit.provision.report import Doing
from edgekit.provision.settings import Settings
from edgekit.telemetry.desired import Step

Say = Callable[[Doing], None]
HELD_S = 5.0
"""How soon to look again whether the application allows updates."""


def attempt(
    root: Path,
    errand: Errand,
    settings: Settings,
    *,
    is_cancelled: Callable[[], bool],
    say: Say,
    now_s: float,
    dice: random.Random,
) -> Errand:
    """The errand after one more attempt. Touches the inactive slot only, and asks the guard when that is complete."""
    try:
        update.raise_if_held(root)
    except Cancelled as e:
        say(Doing(step=Step.WAITING, reason=str(e)))
        return replace(errand, not_before_unix_s=now_s + HELD_S, reason=str(e))
    say(Doing(step=Step.FETCHING, reason="looking what is offered"))
    try:
        finding, stored = update.look(root, settings)
    except (ReleaseError, RuntimeUnavailable, ConfigError) as e:
        return refused(errand, str(e))
    except EdgekitError as e:
        return after(errand, e, now_s=now_s, dice=dice)
    if why := why_another(errand, finding):
        return refused(errand, why)
    if stored is None:
        active = _good_slot(root, finding.digest)
        return replace(errand, slot=active, slot_digest=finding.digest) if active else refused(errand, finding.reason)
    size_bytes = sum(file.size_bytes for file in stored.release.files)
    if not may_receive(errand, size_bytes):
        what = f"{errand.received_bytes} bytes received for {size_bytes}, and it is not complete: {errand.reason}"
        return replace(errand, outcome=Step.FAILED, reason=what)
    return _bring(root, errand, stored, settings, is_cancelled=is_cancelled, say=say, now_s=now_s, dice=dice)


def why_another(errand: Errand, finding: update.Finding) -> str | None:
    """Why what is signed for this device is not what was desired of it, or None."""
    if finding.offered is None:
        return f"{finding.reason}, and {errand.release} was desired"
    if finding.offered != errand.release:
        return f"what is signed for group {finding.group} is {finding.offered}, not {errand.release}"
    if errand.digest and finding.digest != errand.digest:
        return f"what is signed as {errand.release} is {str(finding.digest)[:12]}, not the desired {errand.digest[:12]}"
    return None


def _good_slot(root: Path, digest: str | None) -> str | None:
    now = slots.status(root)
    good = (s for s in now.slots if s.slot == now.active and s.state is slots.SlotState.GOOD and s.digest == digest)
    return next((slot.slot for slot in good), None)


def _bring(
    root: Path,
    errand: Errand,
    stored: Stored,
    settings: Settings,
    *,
    is_cancelled: Callable[[], bool],
    say: Say,
    now_s: float,
    dice: random.Random,
) -> Errand:
    """Stage, note where, switch: in this order, so that after a cut it is known whose verdict comes."""
    download = update.downloader(root, settings, is_cancelled)
    before = errand.received_bytes
    try:
        with slots.updating(root):
            slot = stage.stage(
                root,
                stored,
                download,
                progress=lambda text, done: say(Doing(step=Step.FETCHING, reason=text, share=done)),
            )
            errand = replace(
                errand, slot=slot, slot_digest=stored.digest, received_bytes=before + download.received_bytes, reason=""
            )
            write_errand(root, errand)
            slots.switch(root, slot)
    except Cancelled as e:
        told = "" if is_cancelled() else str(e)  # else the application began to hold it back
        errand = replace(errand, reason=told, not_before_unix_s=now_s + HELD_S)
    except EdgekitError as e:
        errand = after(errand, e, now_s=now_s, dice=dice)
    return replace(errand, received_bytes=before + download.received_bytes)
