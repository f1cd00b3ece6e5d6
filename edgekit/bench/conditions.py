"""On what machine a measurement was taken, and what else was going on there."""

from __future__ import annotations

from pathlib import Path

from edgekit.bench.record import Conditions
from edgekit.device import sensors
from edgekit.device.cpu import read_cpu
from edgekit.device.tree import Tree

_BUSY_SHARE = 0.5


def this_device(root: str | Path = "/") -> dict[str, str]:
    """What a figure belongs to: measurements taken under another of these values say nothing about this machine."""
    cpu = read_cpu(Tree(root))
    return {
        "architecture": cpu.architecture or "unknown",
        "cpu": cpu.model or "unknown",
        "isa": " ".join(cpu.features or ()),
        "cores": str(cpu.cores_usable or "unknown"),
    }


def conditions(root: str | Path = "/") -> Conditions:
    """The conditions now, and what speaks against trusting figures taken under them."""
    tree = Tree(root)
    cpu, reading = read_cpu(tree), sensors.read(root)
    governor = tree.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", 64)
    governor = governor.strip() if governor else None
    doubts = []
    if reading.load_1m is not None and cpu.cores_online and reading.load_1m > _BUSY_SHARE * cpu.cores_online:
        doubts.append(f"load {reading.load_1m:.1f} on {cpu.cores_online} cores before it began")
    if governor in ("powersave", "conservative") and cpu.architecture != "x86_64":
        doubts.append(f"the '{governor}' governor lowers the clock")
    if reading.throttled:
        doubts.append("the clocks are throttled")
    if reading.under_voltage:
        doubts.append("the power supply is too weak (under-voltage)")
    return Conditions(
        load_1min=reading.load_1m,
        governor=governor,
        temperature_c=reading.temperature_c,
        throttled=reading.throttled,
        quota_cores=cpu.quota_cores,
        judged_bad=tuple(doubts),
        notes=(*cpu.notes, *reading.problems),
    )
