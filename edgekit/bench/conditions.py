"""On what machine a measurement was taken, and what else was going on there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit.bench.record import Conditions
from edgekit.device import sensors
from edgekit.device.cpu import read_cpu
from edgekit.device.system import read_power
from edgekit.device.tree import Tree

_BUSY_SHARE = 0.5
_WAITED_SHARE = 0.1


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
    cpu, reading, power = read_cpu(tree), sensors.read(root), read_power(tree)
    found = Conditions(
        load_1min=reading.load_1m,
        governor=power.governor,
        temperature_c=reading.temperature_c,
        throttled=reading.throttled,
        under_voltage=reading.under_voltage,
        throttle_events_count=reading.throttle_events_count,
        power_mode=power.mode,
        cpu_hz=reading.cpu_hz,
        quota_cores=cpu.quota_cores,
        notes=(*cpu.notes, *reading.problems),
    )
    doubts = judge(found, cores=cpu.cores_online, architecture=cpu.architecture, modes=power.modes)
    return msgspec.structs.replace(found, judged_bad=doubts)


def judge(
    found: Conditions, *, cores: int | None, architecture: str | None, modes: Sequence[str] = ()
) -> tuple[str, ...]:
    """What speaks against figures taken under these conditions. Pure.

    Args:
        cores: that are online.
        modes: the power modes that this board has.
    """
    doubts = []
    if found.load_1min is not None and cores and found.load_1min > _BUSY_SHARE * cores:
        doubts.append(f"load {found.load_1min:.1f} on {cores} cores before it began")
    if found.governor in ("powersave", "conservative") and architecture != "x86_64":
        doubts.append(f"the '{found.governor}' governor lowers the clock")
    if found.throttled:
        doubts.append("the clocks are throttled")
    if found.under_voltage:
        doubts.append("the power supply is too weak (under-voltage)")
    fastest = next((mode for mode in modes if mode.upper().startswith("MAXN")), None)
    if found.power_mode is not None and fastest is not None and not found.power_mode.upper().startswith("MAXN"):
        doubts.append(f"power mode {found.power_mode} holds the clocks below those of {fastest}")
    if found.quota_cores is not None and found.quota_cores < 1:
        doubts.append(f"quota of {found.quota_cores:g} cores: the kernel stops every query that runs into it")
    return tuple(doubts)


def lasting(found: Conditions) -> dict[str, str]:
    """What of the conditions stays as it is until somebody changes it: a figure under another says nothing. Pure."""
    fields = ("power_mode", "governor", "quota_cores")
    return {name: str(value) for name in fields if (value := getattr(found, name)) is not None}


def since(before: Conditions, after: Conditions) -> Conditions:
    """`before`, with what changed for the worse until `after`. Pure."""
    doubts = list(before.judged_bad)
    started, ended = before.throttle_events_count, after.throttle_events_count
    if started is not None and ended is not None and ended > started:
        doubts.append(f"the clocks were throttled {ended - started} times meanwhile")
    doubts += [doubt for doubt in after.judged_bad if doubt not in doubts and not doubt.startswith("load ")]
    return msgspec.structs.replace(before, judged_bad=tuple(doubts), temperature_after_c=after.temperature_c)


def waiting(found: Conditions, ratio: float) -> Conditions:
    """The same for a candidate that spent this share of its time in line for a CPU. Pure."""
    if ratio <= _WAITED_SHARE:
        return found
    doubt = f"waiting for a CPU that others used was {ratio:.0%} of the time"
    return msgspec.structs.replace(found, judged_bad=(*found.judged_bad, doubt))
