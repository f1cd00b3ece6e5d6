"""Which windows of one device are missing, by epoch and sequence number. Pure."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

KEPT_EPOCHS = 4
"""Late windows of older epochs than these count as new without a gap."""
LISTED = 1_024
"""Missing windows remembered one by one for each epoch, so that a late one can be taken off; the rest is a number."""


class Arrival(Enum):
    """What a window is to those that came before it."""

    NEW = "new"
    LATE = "late"
    "It fills a gap, or comes from before the reader listened."
    DUPLICATE = "duplicate"


class Epoch(msgspec.Struct, frozen=True, gc=False):
    """One epoch of one device."""

    epoch: int
    first_seq: int
    "The first one this reader saw: what lies before may have been delivered while it did not listen."
    next_seq: int
    missing: frozenset[int] = frozenset()
    early: frozenset[int] = frozenset()
    "Seen although before `first_seq`."


class Track(msgspec.Struct, frozen=True, gc=False):
    """The windows of one device."""

    epochs: tuple[Epoch, ...] = ()
    "Newest first."
    unlisted: int = 0

    @property
    def gaps(self) -> int:
        """How many windows are missing."""
        return self.unlisted + sum(len(e.missing) for e in self.epochs)


NO_WINDOWS = Track()


def arrive(track: Track, epoch: int, seq: int) -> tuple[Track, Arrival]:
    """The track after one window. The first window ever seen opens it without a gap: we may have come late."""
    for i, known in enumerate(track.epochs):
        if known.epoch == epoch:
            after, unlisted, arrival = _within(known, seq)
            epochs = (*track.epochs[:i], after, *track.epochs[i + 1 :])
            return Track(epochs, track.unlisted + unlisted), arrival
    if track.epochs and epoch < track.epochs[0].epoch:
        opened, unlisted = Epoch(epoch, seq, seq + 1), 0
    else:
        first = 0 if track.epochs else seq
        opened, unlisted, _ = _within(Epoch(epoch, first, first), seq)
    epochs = tuple(sorted((*track.epochs, opened), key=lambda e: -e.epoch))
    forgotten = sum(len(e.missing) for e in epochs[KEPT_EPOCHS:])
    return Track(epochs[:KEPT_EPOCHS], track.unlisted + unlisted + forgotten), Arrival.NEW


def _within(known: Epoch, seq: int) -> tuple[Epoch, int, Arrival]:
    """The epoch after a window, how many missing ones were too many to list, and what the window is."""
    if seq == known.next_seq:
        return replace(known, next_seq=seq + 1), 0, Arrival.NEW
    if seq < known.first_seq and seq not in known.early and len(known.early) < LISTED:
        return replace(known, early=known.early | {seq}), 0, Arrival.LATE
    if seq < known.next_seq:
        if seq in known.missing:
            return replace(known, missing=known.missing - {seq}), 0, Arrival.LATE
        return known, 0, Arrival.DUPLICATE
    gap = seq - known.next_seq
    listed = min(gap, LISTED - len(known.missing))
    missing = known.missing.union(range(seq - listed, seq))
    return replace(known, next_seq=seq + 1, missing=missing), gap - listed, Arrival.NEW
