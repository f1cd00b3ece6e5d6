"""How much memory a model may take on this machine at its peak: what is usable less what the board's system needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from edgekit.bench.record import Measurement
from edgekit.board import Board
from edgekit.device.probe import Facts, fitting
from edgekit.profiles import board_tables

_MIB = 2**20
_RESERVE_BYTES = next(f.default for f in msgspec.structs.fields(Board) if f.name == "memory_reserve_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that a candidate may hold at its peak."""

    usable_bytes: int
    "Of the machine, under every control-group limit."
    reserve_bytes: int
    "Declared by the board's profile; a machine that matches none keeps as much as a small board."

    @property
    def bytes(self) -> int:
        return max(0, self.usable_bytes - self.reserve_bytes)

    def why_not(self, row: Measurement) -> str | None:
        """Why the candidate does not fit this machine, with its numbers, or None. What was not measured fits. Pure."""
        peak = row.peak_memory_bytes
        if peak is None or peak <= self.bytes:
            return None
        return (
            f"peaks at {peak / _MIB:.0f} MiB, and this machine has {self.bytes / _MIB:.0f} MiB to give: "
            f"{self.usable_bytes / _MIB:.0f} usable, {self.reserve_bytes / _MIB:.0f} in reserve for the system"
        )

    def applied(self, row: Measurement) -> Measurement:
        """The row; of a candidate that does not fit, as a failure with that reason. Pure."""
        why = self.why_not(row) if row.failure is None else None
        return row if why is None else msgspec.structs.replace(row, failure=why)


def room(facts: Facts) -> Room | None:
    """The room on the machine of `facts`. None: it does not tell its memory. Raises CatalogError for a bad profile."""
    usable = facts.memory.usable_bytes
    if usable is None:
        return None
    tables = board_tables()
    named = next((table for table in tables if table.get("id") == facts.board.profile), None)
    found = named or next((match.profile for match in fitting("/", tables)), None)
    return Room(usable_bytes=usable, reserve_bytes=_reserve(found or {}))


def _reserve(profile: Mapping[str, Any]) -> int:
    return int(profile.get("memory_reserve_bytes", _RESERVE_BYTES))
