"""What a device was told to become and how far its updater got: `desired.json`, which survives every restart.

Pure but for reading and writing that file. What a slot can tell is not repeated here: once the release lies in one,
the guard's state says what becomes of it.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgekit.errors import ConfigError, EdgekitError, SlotError, UnreachableError
from edgekit.files import write_atomic
from edgekit.strict import read_json
from edgekit.telemetry.desired import Desired, Step

logger = logging.getLogger(__name__)

FILE = "desired.json"
MAX_ATTEMPTS = 10
FIRST_WAIT_S, LONGEST_WAIT_S = 15.0, 3600.0
"""Between attempts, doubling: ten of them are given up after some two to three hours."""
BYTES_FACTOR, BYTES_SLACK = 3, 1 << 20
"""At most so many times the release's size is received for one wish, however often it is resumed."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One wish. Unknown keys are of newer releases and are ignored."""

    release: str
    digest: str = ""
    id: str = ""
    attempts: int = 0
    received_bytes: int = 0
    not_before_unix_s: float = 0.0
    slot: str | None = None
    "Where it was staged, written down before the guard is asked to try it."
    slot_digest: str = ""
    "Of what was staged there."
    outcome: Step | None = None
    "Set when it ended before it lay in a slot."
    reason: str = ""
    "Of the outcome, or of the last attempt that failed."


def read_errand(root: Path) -> Errand | None:
    """None when nothing was asked; a file that does not hold counts as that, since the broker says it again."""
    path = root / FILE
    if not path.exists():
        return None
    try:
        return read_json(path, Errand)
    except ConfigError as e:
        logger.warning("%s; what was desired is asked of the broker again", e)
        return None


def write_errand(root: Path, errand: Errand) -> None:
    write_atomic(root / FILE, msgspec.json.format(msgspec.json.encode(errand), indent=1))


def heard(errand: Errand | None, desired: Desired | None, *, not_before_unix_s: float) -> Errand | None:
    """The errand after a message on `desired`; None for `desired`: it was taken back.

    A retained message comes again with every connection: the same wish changes nothing. What the guard is trying
    already cannot be taken back any more; its verdict comes.
    """
    if desired is None:
        if errand is None or errand.outcome is not None or errand.slot is not None:
            return errand
        return replace(errand, outcome=Step.CANCELLED, reason="it was taken back")
    if is_same_wish(errand, desired):
        return errand
    return Errand(release=desired.release, digest=desired.digest, id=desired.id, not_before_unix_s=not_before_unix_s)


def is_same_wish(errand: Errand | None, other: Errand | Desired) -> bool:
    if errand is None:
        return False
    return (errand.release, errand.digest, errand.id) == (other.release, other.digest, other.id)


def refused(errand: Errand, reason: str) -> Errand:
    return replace(errand, outcome=Step.REFUSED, reason=reason)


def after(errand: Errand, error: EdgekitError, *, now_s: float, dice: random.Random) -> Errand:
    """The errand after a failed attempt: another one later where that may mend it, else the end.

    Worth another try: what does not answer (UnreachableError), and a device that is busy or full (SlotError).
    """
    if not isinstance(error, UnreachableError | SlotError):
        return replace(errand, outcome=Step.FAILED, reason=str(error))
    attempts = errand.attempts + 1
    if attempts >= MAX_ATTEMPTS:
        return replace(
            errand, attempts=attempts, outcome=Step.FAILED, reason=f"given up after {attempts} attempts: {error}"
        )
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**errand.attempts) * dice.uniform(0.5, 1.0)
    return replace(errand, attempts=attempts, not_before_unix_s=now_s + wait_s, reason=str(error))


def wait_s(errand: Errand, now_s: float) -> float:
    """How long until the next attempt. A clock that was set meanwhile cannot make it longer than the longest wait."""
    return min(LONGEST_WAIT_S, max(0.0, errand.not_before_unix_s - now_s))


def may_receive(errand: Errand, size_bytes: int) -> bool:
    """Whether one more attempt may be made for a release of `size_bytes`."""
    return errand.received_bytes <= BYTES_FACTOR * size_bytes + BYTES_SLACK
