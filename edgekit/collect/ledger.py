"""Which windows of a device are in, by epoch and sequence number: each counts once, and how far it is without a hole.

Pure. `fleet.sequence` asks what a reader missed; here the answer must survive restarts and decides what is stored.
"""

from __future__ import annotations

import msgspec

MOST_AHEAD = 65_536
"""Windows of one epoch that may be in before those below them; a device sends in order, so more is hostile."""
MOST_LOST = 65_536
"""Lost windows remembered one by one."""


class Page(msgspec.Struct, kw_only=True):
    """One epoch of one device. Mutable: it is changed for every window."""

    next: int = 0
    "All below are in, or are known not to come."
    ahead: set[int] = msgspec.field(default_factory=set)
    "In, although something below is not."
    lost: set[int] = msgspec.field(default_factory=set)
    "Below `next`, but never seen: given up by the device, or delivered to someone before us."

    def enter(self, seq: int, oldest_seq: int = 0) -> bool:
        """Take in one window: True the first time.

        `oldest_seq`: the device's word that nothing below it waits any more.
        """
        if oldest_seq > self.next:
            self._give_up(min(oldest_seq, seq))
        if seq == self.next:
            self.next += 1
            self._close_up()
            return True
        if seq < self.next:
            is_late = seq in self.lost
            self.lost.discard(seq)
            return is_late
        if seq in self.ahead or len(self.ahead) >= MOST_AHEAD:
            return False
        self.ahead.add(seq)
        return True

    def _give_up(self, up_to: int) -> None:
        for seq in range(self.next, min(up_to, self.next + MOST_LOST)):
            if seq not in self.ahead and len(self.lost) < MOST_LOST:
                self.lost.add(seq)
        self.ahead = {seq for seq in self.ahead if seq >= up_to}
        self.next = up_to
        self._close_up()

    def _close_up(self) -> None:
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
