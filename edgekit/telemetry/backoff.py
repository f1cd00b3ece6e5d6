"""How long to wait before the next attempt to connect: ever longer, and never all at once. Pure but for the dice."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """The waits between attempts; each is drawn from 0.2 to 1 times its length, so that fleets do not return as one."""

    first_s: float = 1.0
    longest_s: float = 60.0
    stable_s: float = 30.0
    "A connection that held so long ends the row of failures."
    takeover_s: float = 30.0
    "Two devices with one id kick each other off; this keeps the fight slow enough to be seen and mended."

    def failures(self, before: int, *, lasted_s: float) -> int:
        """Failures in a row, after a connection or attempt of this length ended."""
        return 0 if lasted_s > self.stable_s else before + 1

    def wait_s(self, failures: int, *, taken_over: bool = False) -> float:
        """How long to wait after so many failures in a row."""
        if taken_over:
            return self.takeover_s * random.uniform(1.0, 2.0)
        longest_s = min(self.longest_s, self.first_s * 2.0 ** min(max(0, failures - 1), 16))
        return longest_s * random.uniform(0.2, 1.0)


PATIENT = BackOff()
"""For what runs for months."""
EAGER = BackOff(first_s=0.5, longest_s=30.0)
"""For those that people wait for."""
