"""What a telemetry window says of the system: memory, heat, power, and how busy the processors were since the last."""

from __future__ import annotations

import os
from pathlib import Path

from edgekit.device import sensors
from edgekit.device.tree import Tree
from edgekit.telemetry.messages import Readings


class SystemMeter:
    """Reads `root`'s sensors once a window; keeps the processors' counters of the window before."""

    def __init__(self, *, memory_total_bytes: int | None, root: Path = Path("/")) -> None:
        self._total_bytes, self._root = memory_total_bytes, root
        self._tree = Tree(root)
        self._ticks = self._read_ticks()
        self._sample = sensors.read(root)

    def read(self) -> Readings:
        """The system now; `cpu_percent` and the mean power are over the time since the last call."""
        before, self._sample = self._sample, sensors.read(self._root)
        return Readings(
            memory_available_bytes=self._sample.memory_available_bytes,
            memory_total_bytes=self._total_bytes,
            rss_bytes=self._rss_bytes(),
            temperature_c=self._sample.temperature_c,
            cpu_percent=self._cpu_percent(),
            power_mw=sensors.power_between(before, self._sample),
            throttled=self._sample.throttled,
        )

    def _rss_bytes(self) -> int | None:
        """Of this process. Check by hand: grep VmRSS /proc/PID/status"""
        fields = (self._tree.text("proc/self/statm") or "").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None

    def _cpu_percent(self) -> float | None:
        before, self._ticks = self._ticks, self._read_ticks()
        if before is None or self._ticks is None or self._ticks[1] <= before[1]:
            return None
        return round(100 * (self._ticks[0] - before[0]) / (self._ticks[1] - before[1]), 1)

    def _read_ticks(self) -> tuple[int, int] | None:
        """(busy, all) ticks of all cores. Source: proc(5), first line of /proc/stat; guest time is within user."""
        fields = (self._tree.text("proc/stat") or "").partition("\n")[0].split()
        if len(fields) < 6 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:]):
            return None
        ticks = [int(field) for field in fields[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
