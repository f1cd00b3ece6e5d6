"""What a device says of an update: from its slots, its errand and what its updater does at the moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from edgekit.provision.errand import Errand
from edgekit.provision.slots import Slot, SlotState, Status
from edgekit.telemetry.desired import Reported, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What the updater does just now; nothing of it must survive."""

    step: Step
    reason: str = ""
    share: float = 0.0


def report(
    now: Status, errand: Errand | None, doing: Doing | None, *, group: str, unix_ms: int, problem: str = ""
) -> Reported:
    """Installed, booted, healthy and committed are told apart; what runs is read from the running slot.

    Args:
        problem: a message on `desired` that could not be read.
    """
    running = next((slot for slot in now.slots if slot.slot == now.running), None)
    told = Reported(
        t_unix_ms=unix_ms,
        group=group,
        running=now.running_release or "",
        running_digest=(running.digest or "") if running else "",
    )
    if errand is None:
        return replace(told, step=Step.REFUSED if problem else Step.IDLE, reason=problem)
    slot = slot_of(now, errand)
    step, reason = _step(now, errand, slot, doing)
    return replace(
        told,
        desired=errand.release,
        desired_id=errand.id,
        step=step,
        reason=(problem or reason)[:4000],
        share=round(min(1.0, max(0.0, doing.share)), 2) if doing and step is Step.FETCHING else 0.0,
        attempts=errand.attempts,
        received_bytes=errand.received_bytes,
        installed_unix_s=slot.installed_unix_s if slot else None,
        booted_unix_s=slot.booted_unix_s if slot else None,
        healthy_unix_s=slot.healthy_unix_s if slot else None,
        committed_unix_s=slot.committed_unix_s if slot else None,
    )


def slot_of(now: Status, errand: Errand) -> Slot | None:
    """The slot that this errand filled, while it still holds what was put there."""
    slot = next((slot for slot in now.slots if slot.slot == errand.slot), None)
    return slot if slot is not None and slot.digest == errand.slot_digest else None


def has_left_our_hands(now: Status, errand: Errand) -> bool:
    """The guard has it or has judged it, or it was given up: nothing is left to be brought."""
    slot = slot_of(now, errand)
    judged = slot is not None and slot.state in (SlotState.PENDING, SlotState.GOOD, SlotState.BAD)
    replaced = errand.slot is not None and slot is None
    return errand.outcome is not None or judged or replaced


def _step(now: Status, errand: Errand, slot: Slot | None, doing: Doing | None) -> tuple[Step, str]:
    if errand.outcome is not None:
        return errand.outcome, errand.reason
    if errand.slot is not None and slot is None:
        return Step.FAILED, f"another update has taken slot {errand.slot} since"
    if slot is not None and slot.state is SlotState.BAD:
        return Step.ROLLED_BACK, slot.reason or "it did not become healthy"
    if slot is not None and slot.state is SlotState.GOOD:
        if now.active == slot.slot:
            return Step.COMMITTED, ""
        denied = now.denied.get(errand.slot_digest, {})
        return Step.ROLLED_BACK, str(denied.get("reason", "the other slot was made active again"))
    if slot is not None and slot.state is SlotState.PENDING:
        unguarded = "" if now.running else "no guard runs: start the service"
        return (Step.BOOTED if slot.booted_unix_s else Step.INSTALLED), slot.reason or unguarded
    if doing is not None:
        return doing.step, doing.reason
    return Step.WAITING, errand.reason
