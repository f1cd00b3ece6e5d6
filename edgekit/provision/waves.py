"""Who gets a release when: a few canaries of every kind of board, then group by group. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are told together and judged together, by "site/device"."""

    name: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device that may take part."""

    key: str
    '"site/device"'
    group: str
    kind: str
    "Of board; only like is compared with like."
    is_online: bool


def plan(
    candidates: Sequence[Candidate], *, canary: Sequence[float], groups: Sequence[str], seed: str
) -> tuple[Wave, ...]:
    """The waves, each device in exactly one.

    Args:
        canary: shares of all devices, growing: after the n-th wave so many have it. One device at least.
        groups: in this order, after the canaries; candidates of other groups take no part.
        seed: makes the choice, so that not every release burns the same devices.
    """
    taking = [c for c in candidates if c.group in groups]
    order = _spread(taking, seed)
    waves, taken = [], 0
    for i, share in enumerate(canary, 1):
        upto = min(len(order), max(taken + 1, math.ceil(share * len(order) - 1e-9)))
        name = "canary" if len(canary) == 1 else f"canary {i}"
        if chosen := order[taken:upto]:
            waves.append(Wave(name=name, devices=tuple(sorted(c.key for c in chosen))))
        taken = upto
    rest = order[taken:]
    for group in groups:
        if members := tuple(sorted(c.key for c in rest if c.group == group)):
            waves.append(Wave(name=f"group {group}", devices=members))
    return tuple(waves)


def _spread(candidates: Sequence[Candidate], seed: str) -> list[Candidate]:
    """All of them in the order in which they become canaries: kinds in turn, those that answer first."""
    kinds: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (not c.is_online, _draw(seed, c.key))):
        kinds.setdefault(candidate.kind, []).append(candidate)
    # The commonest kind first: one canary in a mixed fleet should speak for most of it.
    queues = sorted(kinds.values(), key=lambda queue: (-len(queue), queue[0].kind))
    order: list[Candidate] = []
    for i in range(max((len(queue) for queue in queues), default=0)):
        order += [queue[i] for queue in queues if i < len(queue)]
    return order


def _draw(seed: str, key: str) -> str:
    return hashlib.sha256(f"{seed}\0{key}".encode()).hexdigest()
