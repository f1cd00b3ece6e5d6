"""In which order and how fast an outbox is emptied after an outage: live windows first, history at a stated rate.

And what of it is under way.
"""

from __future__ import annotations

from edgekit.telemetry.outbox import NOTHING, Item, Outbox

BURST = 100
"""So many go at once and in order: a short outage needs no ceremony."""


class Pace:
    """What of an outbox to send next over one connection. What waits when it begins is history."""

    def __init__(self, outbox: Outbox, history_per_s: float, *, now_s: float) -> None:
        self._outbox, self._rate = outbox, history_per_s
        self._history = NOTHING
        self._horizon = self._live = outbox.newest
        self._allowance, self._counted_s = float(BURST), now_s
        self.hurries = False
        "Send everything as fast as the broker takes it."
        self._has_history = True

    def next(self, limit: int, *, now_s: float) -> list[Item]:
        """At most `limit` items. Each is given once, until the outbox finds its acknowledgement overdue."""
        self._allowance = min(BURST, self._allowance + self._rate * max(0.0, now_s - self._counted_s))
        self._counted_s = now_s
        if self._outbox.overdue(now_s):
            self._history, self._horizon, self._has_history = NOTHING, self._live, True
        if self._outbox.depth <= BURST:  # in order
            old = self._old(limit)
            return old + self._new(limit - len(old))
        new = self._new(limit)
        return new + self._old(limit - len(new))

    def wait_s(self, longest_s: float, *, now_s: float) -> float:
        """How long there is nothing more to send, unless something new comes."""
        if not self._has_history or self._outbox.depth == 0:
            return longest_s
        missing = 1.0 - (self._allowance + self._rate * (now_s - self._counted_s))
        return min(longest_s, max(0.0, missing / self._rate)) if missing > 0 else longest_s

    def _new(self, limit: int) -> list[Item]:
        found = self._outbox.after(self._live, limit)
        if found:
            self._live = found[-1].number
        return found

    def _old(self, limit: int) -> list[Item]:
        if not self._has_history:
            return []
        allowed = limit if self.hurries else min(limit, int(self._allowance))
        found = self._outbox.after(self._history, allowed, up_to=self._horizon)
        if found:
            self._history = found[-1].number
        elif allowed > 0 and self._outbox.is_ready:
            self._has_history = False
        self._allowance = max(0.0, self._allowance - len(found))
        return found


class InFlight:
    """What was sent over a connection and not acknowledged, by packet id, oldest first."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Item | None, float]] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, packet_id: int, item: Item | None, *, now_s: float) -> None:
        """`item`: None for a message that is not from the outbox."""
        self._sent[packet_id] = (item, now_s)

    def acknowledged(self, packet_id: int) -> Item | None:
        """It has arrived; the item it was, if it was one."""
        return self._sent.pop(packet_id, (None, 0.0))[0]

    @property
    def only_items(self) -> bool:
        """Whether all messages from outside the outbox have arrived."""
        return all(item is not None for item, _ in self._sent.values())

    def waited_s(self, now_s: float) -> float:
        """How long the oldest has been under way; 0 when nothing is."""
        return now_s - next(iter(self._sent.values()))[1] if self._sent else 0.0
