"""On what machine a measurement was taken, and what else was going on there."""

from __future__ import annotations

import os
from pathlib import Path

from edgekit.bench.record import Conditions
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


def conditions(root: str | Path = "/", *, own_load: float = 0.0) -> Conditions:
    """The conditions now. `own_load` is what this process itself adds to the load average."""
    tree = Tree(root)
    cpu = read_cpu(tree)
    load = _load_1min(tree)
    governor = tree.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", 64)
    governor = governor.strip() if governor else None
    doubts = []
    if load is not None and cpu.cores_online and load - own_load > _BUSY_SHARE * cpu.cores_online:
        doubts.append(f"others keep {load - own_load:.1f} of {cpu.cores_online} cores busy")
    if governor in ("powersave", "conservative") and cpu.architecture != "x86_64":
        doubts.append(f"the '{governor}' governor lowers the clock")
    return Conditions(
        load_1min=load,
        governor=governor,
        quota_cores=cpu.quota_cores,
        judged_bad=tuple(doubts),
        notes=cpu.notes,
    )


def _load_1min(tree: Tree) -> float | None:
    """Check by hand: cut -d' ' -f1 /proc/loadavg"""
    text = tree.text("proc/loadavg", 128)
    if text is None:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None
