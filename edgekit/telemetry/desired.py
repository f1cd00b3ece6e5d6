"""What an operator wishes of a device, and what the device says became of it: topics `desired` and `reported`.

A wish only wakes the device's updater. What may be installed, by which group, and whether it may be an older release,
is signed in the repository; nothing here is believed.
"""

from __future__ import annotations

from enum import Enum

from edgekit.telemetry.payload import Count, Payload, Ratio, Text, Word


class Step(str, Enum):
    """How far a device is with what it was told. The four times in `Reported` say the same of what was reached."""

    IDLE = "idle"
    "Nothing was asked."
    WAITING = "waiting"
    "Until its turn, until the application allows it, or until the next attempt; `reason` says which."
    FETCHING = "fetching"
    INSTALLED = "installed"
    "Complete and verified in the other slot; the guard starts it."
    BOOTED = "booted"
    "Its daemon was ready; the guard measures and soaks it."
    COMMITTED = "committed"
    "It was healthy, and that is final."
    ROLLED_BACK = "rolled_back"
    "It was not; the release before runs. `reason` holds what was measured."
    REFUSED = "refused"
    "It may not be taken: wrong release, another group's, older, not signed, or it failed here before."
    FAILED = "failed"
    "Given up after as many attempts or bytes as are allowed."
    CANCELLED = "cancelled"


FINAL = frozenset((Step.COMMITTED, Step.ROLLED_BACK, Step.REFUSED, Step.FAILED, Step.CANCELLED))
"""Nothing further happens by itself."""


class Desired(Payload, frozen=True, kw_only=True):
    """Topic `desired`, retained: look for this release. An empty payload takes it back."""

    v: int = 1
    release: Word
    "The name that the device must find offered to its group."
    digest: Word = ""
    "Of the manifest, hex SHA-256; empty: any release of that name that is signed for the group."
    id: Word = ""
    "Of the wish; another id is another wish, which is tried even if the same release was given up before."


class Reported(Payload, frozen=True, kw_only=True):
    """Topic `reported`, retained: what became of the wish, and what runs. None: not reached."""

    v: int = 1
    t_unix_ms: Count
    group: Word = ""
    "Whose releases the device takes."
    running: Word = ""
    "Read from the running slot itself; empty: none runs."
    running_digest: Word = ""
    desired: Word = ""
    desired_id: Word = ""
    step: Step = Step.IDLE
    reason: Text = ""
    share: Ratio = 0.0
    "Of what is to be fetched."
    attempts: Count = 0
    received_bytes: Count = 0
    installed_unix_s: Count | None = None
    booted_unix_s: Count | None = None
    healthy_unix_s: Count | None = None
    committed_unix_s: Count | None = None
