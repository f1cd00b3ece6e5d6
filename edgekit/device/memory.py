"""How much memory there is, and how much of it this process may use."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from edgekit.device.cgroups import Limit, memory_limits, memory_used
from edgekit.device.tree import Tree, to_int

_LINE = re.compile(r"^([A-Za-z][\w()]*):[ \t]*(\d{1,20})[ \t]*(kB)?[ \t]*$")
_SANE_BYTES = 1 << 50
"A petabyte: more than any edge device, less than the sentinels that mean nothing."
_DISAGREE_RATIO = 0.9
"Kernel, initrd and firmware take up to a tenth on a healthy board."
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Memory:
    """Bytes throughout; None: cannot tell. Swap and zram are listed and never counted."""

    total_bytes: Optional[int]
    "MemTotal: what the kernel manages."
    usable_bytes: Optional[int]
    "The least of the total and every control-group limit on the path."
    available_bytes: Optional[int]
    "What could be allocated now without swapping, within the limits."
    model: Optional[str]
    '"unified": CPU and accelerators share it; "discrete": an accelerator has its own.'
    declared_bytes: Optional[int]
    "Nominal size by the board's own code or profile; never a measurement."
    firmware_bytes: Optional[int]
    "Sum of the device tree's memory nodes, as the boot loader filled them in; on some boards a placeholder."
    contiguous_bytes: Optional[int]
    "CMA pool; lies inside the total and serves only movable allocations meanwhile."
    carveout_bytes: Optional[int]
    "Set aside by the device tree; lies outside the total."
    swap_bytes: Optional[int]
    limits: Tuple[Limit, ...] = ()
    "Those below the total, tightest first."
    notes: Tuple[str, ...] = ()


def read_meminfo(tree: Tree) -> Dict[str, int]:
    """The fields of /proc/meminfo in bytes; a line that is cut off or has no unit says nothing.

    Source: Documentation/filesystems/proc.rst. Check by hand: head -3 /proc/meminfo
    """
    text = tree.text("proc/meminfo", 64 * 1024) or ""
    whole = text.rpartition("\n")[0].splitlines() if not text.endswith("kB") else text.splitlines()
    fields: Dict[str, int] = {}
    for line in whole:
        match = _LINE.match(line)
        if match and match.group(3) and match.group(1) not in fields:
            fields[match.group(1)] = int(match.group(2)) * 1024
        elif line.startswith("Mem:") and len(line.split()) >= 3:  # Linux 2.4's table, in bytes
            columns = line.split()
            for key, column in (("MemTotal", 1), ("MemFree", 3)):
                number = to_int(columns[column]) if column < len(columns) else None
                if number is not None and number >= 0:
                    fields.setdefault(key, number)
    return fields


def available_bytes(tree: Tree) -> Optional[int]:
    """What could be allocated now, within MemAvailable and every control-group limit."""
    fields = read_meminfo(tree)
    total = total_bytes(tree)
    return None if total is None else _available(tree, fields, total, _tighter(tree, total))[0]


def read_memory(
    tree: Tree,
    *,
    model: Optional[str] = None,
    declared_bytes: Optional[int] = None,
    firmware_bytes: Optional[int] = None,
    reserved: Tuple[Optional[int], Optional[int]] = (None, None),
) -> Memory:
    """The memory of this machine; `reserved` is (contiguous pool, carve-outs) by the device tree."""
    fields = read_meminfo(tree)
    total = total_bytes(tree)
    notes: List[str] = []
    limits: Tuple[Limit, ...] = ()
    available = usable = None
    if total is not None:
        limits = _tighter(tree, total)
        usable = min([total, *(limit.bytes for limit in limits)])
        available, note = _available(tree, fields, total, limits)
        notes += note
        notes += _about_declared(total, declared_bytes) or _about_firmware(total, firmware_bytes)
    elif fields or tree.exists("proc/meminfo"):
        notes.append("/proc/meminfo shows no usable MemTotal, so the total is unknown")
    contiguous = fields.get("CmaTotal") or reserved[0]
    if contiguous and total and contiguous > total // 4:
        notes.append(
            f"{contiguous // _MIB} MiB of the total are a contiguous pool (CMA): only movable pages may use it"
        )
    return Memory(
        total_bytes=total,
        usable_bytes=usable,
        available_bytes=available,
        model=model,
        declared_bytes=declared_bytes,
        firmware_bytes=firmware_bytes,
        contiguous_bytes=contiguous,
        carveout_bytes=reserved[1],
        swap_bytes=_swap(tree, fields),
        limits=limits,
        notes=tuple(notes),
    )


def _sane_total(fields: Dict[str, int]) -> Optional[int]:
    total = fields.get("MemTotal", 0)
    return total if 0 < total < _SANE_BYTES else None


def total_bytes(tree: Tree) -> Optional[int]:
    """MemTotal where it makes sense; on an operator's macOS, what the system's own count of pages says."""
    total = _sane_total(read_meminfo(tree))
    if total is None and tree.live and not tree.exists("proc/meminfo") and "SC_PHYS_PAGES" in _sysconf_names():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def _sysconf_names() -> Dict[str, int]:
    return getattr(os, "sysconf_names", {})


def _tighter(tree: Tree, total: int) -> Tuple[Limit, ...]:
    """Limits below the total. "No limit" has many spellings (they depend on the page size), all above any total."""
    below = [limit for limit in memory_limits(tree) if limit.bytes < total]
    return tuple(sorted(below, key=lambda limit: limit.bytes))


def _available(
    tree: Tree, fields: Dict[str, int], total: int, limits: Tuple[Limit, ...]
) -> Tuple[Optional[int], List[str]]:
    """What is available and what must be said about it."""
    notes: List[str] = []
    value = fields.get("MemAvailable", 0)
    if not value:
        parts = [fields.get(key) for key in ("MemFree", "Buffers", "Cached")]
        if parts[0] is None:
            return None, notes
        value = sum(part or 0 for part in parts)
        notes.append("no MemAvailable here: available is MemFree + Buffers + Cached")
    if value > total:
        notes.append("meminfo says more is available than there is; host and container values are mixed")
        value = total
    for limit in limits:
        used = memory_used(tree, limit)
        value = min(value, max(0, limit.bytes - (used or 0)))
    return value, notes


def _about_declared(total: int, declared: Optional[int]) -> List[str]:
    if not declared:
        return []
    sizes = f"{total / _MIB / 1024:.2f} GiB, the board is declared with {declared / _MIB / 1024:.0f} GiB"
    if total < declared * _DISAGREE_RATIO:
        return [f"Linux shows {sizes}: firmware carve-outs or a mem= setting take the rest"]
    if total > declared:
        return [f"Linux shows {sizes}: the declaration is wrong for this unit, the measured total holds"]
    return []


def _about_firmware(total: int, firmware: Optional[int]) -> List[str]:
    """Only a larger figure means something: a smaller one is a placeholder."""
    if firmware is None or total >= firmware * _DISAGREE_RATIO:
        return []
    gib = 1024 * _MIB
    return [
        f"the boot loader reports {firmware / gib:.2f} GiB, Linux manages {total / gib:.2f} GiB: the rest is set aside"
    ]


def _swap(tree: Tree, fields: Dict[str, int]) -> Optional[int]:
    sizes = [
        to_int(row[2])
        for row in (line.split() for line in (tree.text("proc/swaps") or "").splitlines()[1:65])
        if len(row) >= 3
    ]
    known = [size * 1024 for size in sizes if size is not None and size >= 0]
    return sum(known) if known else fields.get("SwapTotal")
