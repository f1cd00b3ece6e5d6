"""Which CPU this is, what all of its cores can do, and how many of them this process may use."""

from __future__ import annotations

import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple, Union

from edgekit.device.cgroups import cpu_quota, cpuset
from edgekit.device.tree import Tree, span, to_int

_NEEDS: Dict[str, Tuple[str, ...]] = {
    # x86: the operating system switches the wide registers on through XSAVE; without it the flag is an empty promise.
    "avx": ("xsave",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "avx2": ("avx",),
    "avx_vnni": ("avx2",),
    "avx_vnni_int8": ("avx2",),
    "avx512f": ("avx2",),
    "avx512bw": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512_vnni": ("avx512f",),
    "avx512_bf16": ("avx512f",),
    "avx512_fp16": ("avx512bw",),
    "amx_tile": ("xsave",),
    "amx_int8": ("amx_tile",),
    "amx_bf16": ("amx_tile",),
    # Arm, by the names of /proc/cpuinfo: asimddp is the INT8 dot product, i8mm the INT8 matrix product.
    "neon": (),
    "asimd": (),
    "asimdhp": ("asimd",),
    "asimddp": ("asimd",),
    "i8mm": ("asimd",),
    "bf16": ("asimd",),
    "sve": ("asimd",),
    "sve2": ("sve",),
    "svei8mm": ("sve",),
    "sme": (),
    "sme2": ("sme",),
    # RISC-V vectors
    "v": (),
}
"""Features that decide which kernels a runtime picks, and what each needs to be really usable."""

_ARM_PARTS = {
    0xD03: "Cortex-A53", 0xD04: "Cortex-A35", 0xD05: "Cortex-A55", 0xD07: "Cortex-A57", 0xD08: "Cortex-A72",
    0xD09: "Cortex-A73", 0xD0A: "Cortex-A75", 0xD0B: "Cortex-A76", 0xD0D: "Cortex-A77", 0xD41: "Cortex-A78",
    0xD42: "Cortex-A78AE", 0xD46: "Cortex-A510", 0xD47: "Cortex-A710", 0xD4B: "Cortex-A78C", 0xD4D: "Cortex-A715",
    0xD80: "Cortex-A520", 0xD81: "Cortex-A720", 0xD83: "Neoverse-V3AE", 0xD85: "Cortex-X925", 0xD87: "Cortex-A725",
    0xC07: "Cortex-A7", 0xC08: "Cortex-A8", 0xC09: "Cortex-A9", 0xC0E: "Cortex-A17", 0xD0C: "Neoverse-N1",
}  # fmt: skip
"Source: arch/arm64/include/asm/cputype.h and util-linux's lscpu-arm.c."
_NVIDIA_PARTS = {0x003: "Denver 2", 0x004: "Carmel"}
_QUALCOMM_PARTS = {0x802: "Kryo 3xx Gold", 0x803: "Kryo 3xx Silver", 0x804: "Kryo 4xx Gold", 0x805: "Kryo 4xx Silver"}
_LINE_LIMIT = 64 * 1024


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind. `max_hz` None: the kernel does not say."""

    name: str
    cores: Tuple[int, ...]
    max_hz: Optional[int]


@dataclass(frozen=True)
class Cpu:
    """The CPU; None: cannot tell."""

    architecture: Optional[str]
    'What programs are built for: "x86_64", "aarch64", "armv7l", "riscv64".'
    model: Optional[str]
    cores_online: Optional[int]
    cores_usable: Optional[int]
    "Threads worth starting: cores allowed by affinity and cpuset, at most the whole cores of the quota."
    quota_cores: Optional[float]
    "Cores' worth of time under the CFS quota; None: no quota."
    features: Optional[Tuple[str, ...]]
    "What all cores have and the operating system has switched on."
    clusters: Tuple[Cluster, ...]
    userland_bits: Optional[int]
    kernel_machine: Optional[str]
    notes: Tuple[str, ...] = ()


def usable_cores(root: Union[str, Path] = "/") -> int:
    """Threads worth starting on this machine, at least 1: affinity, cpuset and CFS quota taken into account."""
    tree = Tree(root)
    return _usable(tree, _online(tree, _blocks(tree)), cpu_quota(tree)) or 1


def read_cpu(tree: Tree) -> Cpu:
    """The CPU of this machine. Check by hand: lscpu; cat /proc/cpuinfo"""
    blocks = _blocks(tree)
    features, notes = _features(blocks)
    online = _online(tree, blocks)
    quota = cpu_quota(tree)
    machine = _kernel_machine(tree, blocks)
    bits = _userland_bits(tree)
    return Cpu(
        architecture=_architecture(machine, bits),
        model=_first(blocks, "model name") if _is_x86(blocks) else None,
        cores_online=len(online) or None,
        cores_usable=_usable(tree, online, quota),
        quota_cores=quota,
        features=features,
        clusters=_clusters(tree, blocks),
        userland_bits=bits,
        kernel_machine=machine,
        notes=notes,
    )


def arm_parts(tree: Tree) -> Set[int]:
    """The part numbers of Arm's own cores that /proc/cpuinfo lists."""
    return {part for maker, part in map(_maker_and_part, _blocks(tree)) if maker == 0x41 and part is not None}


def _blocks(tree: Tree) -> List[Dict[str, str]]:
    """/proc/cpuinfo as one mapping a paragraph, keys as written, first of equal keys kept."""
    blocks: List[Dict[str, str]] = [{}]
    for line in (tree.text("proc/cpuinfo", 1024 * 1024) or "").split("\n"):
        key, colon, value = line[:_LINE_LIMIT].partition(":")
        if not line.strip():
            blocks.append({})
        elif colon:
            if key.strip() == "processor" and "processor" in blocks[-1]:
                blocks.append({})
            blocks[-1].setdefault(key.strip(), value.strip())
    return [block for block in blocks if block]


def _features(blocks: List[Dict[str, str]]) -> Tuple[Optional[Tuple[str, ...]], Tuple[str, ...]]:
    """(features, notes): what every core lists, less what lacks its ground."""
    lists = [set(block[key].split()) for block in blocks for key in ("flags", "Features") if key in block]
    lists += [_riscv_extensions(block["isa"]) for block in blocks if "isa" in block]
    if not lists:
        return None, ()
    common, anywhere = set.intersection(*lists), set.union(*lists)
    found = {name for name in _NEEDS if name in common}
    removed: List[str] = []
    while True:
        baseless = {name for name in found if any(need not in common or need in removed for need in _NEEDS[name])}
        if not baseless:
            break
        found -= baseless
        removed += sorted(baseless)
    notes = [f"{name} is listed without {' and '.join(_NEEDS[name])}: not enabled by the system" for name in removed]
    partial = sorted(name for name in _NEEDS if name in anywhere - common)
    if partial:
        notes.append(f"only some cores have {', '.join(partial)}")
    return tuple(name for name in _NEEDS if name in found), tuple(notes)


def _riscv_extensions(isa: str) -> Set[str]:
    base, *long_names = isa.lower().split("_")
    return set(base[4:]) | set(long_names)


def _online(tree: Tree, blocks: List[Dict[str, str]]) -> Tuple[int, ...]:
    online = span(tree.line("sys/devices/system/cpu/online")) or _numbers(blocks)
    if not online and tree.live:  # an operator's machine without /proc
        return tuple(range(os.cpu_count() or 0))
    return online


def _numbers(blocks: List[Dict[str, str]]) -> Tuple[int, ...]:
    numbers = [to_int(block.get("processor")) for block in blocks]
    return tuple(sorted({number for number in numbers if number is not None and number >= 0}))


def _usable(tree: Tree, online: Tuple[int, ...], quota: Optional[float]) -> Optional[int]:
    allowed = set(online)
    for text in (tree.text("proc/self/status", 65536) or "").splitlines():
        if text.startswith("Cpus_allowed_list:"):
            allowed = allowed & set(span(text.partition(":")[2])) or allowed
    allowed = allowed & set(cpuset(tree)) or allowed
    if not allowed:
        return None if quota is None else max(1, int(quota))
    return len(allowed) if quota is None else max(1, min(len(allowed), int(quota)))


def _clusters(tree: Tree, blocks: List[Dict[str, str]]) -> Tuple[Cluster, ...]:
    """Cores grouped by kind and top clock, in the order of their numbers."""
    groups: Dict[Tuple[str, Optional[int]], List[int]] = {}
    hybrid = {
        core: name
        for folder, name in (("cpu_core", "performance"), ("cpu_atom", "efficiency"))
        for core in span(tree.line(f"sys/devices/{folder}/cpus"))
    }
    model = _first(blocks, "model name") or _first(blocks, "uarch") or "unknown"
    for block in blocks:
        number = to_int(block.get("processor"))
        if number is None or number < 0:
            continue
        khz = tree.integer(f"sys/devices/system/cpu/cpu{number}/cpufreq/cpuinfo_max_freq")
        name = _core_name(block) or hybrid.get(number) or model
        groups.setdefault((name, khz * 1000 if khz else None), []).append(number)
    return tuple(Cluster(name, tuple(cores), hz) for (name, hz), cores in groups.items())


def _maker_and_part(block: Dict[str, str]) -> Tuple[Optional[int], Optional[int]]:
    return to_int(block.get("CPU implementer"), 16), to_int(block.get("CPU part"), 16)


def _core_name(block: Dict[str, str]) -> Optional[str]:
    maker, part = _maker_and_part(block)
    if maker is None or part is None:
        return None
    names = {0x41: _ARM_PARTS, 0x4E: _NVIDIA_PARTS, 0x51: _QUALCOMM_PARTS}.get(maker, {})
    return names.get(part, f"core {maker:#04x}/{part:#05x}")


def _is_x86(blocks: List[Dict[str, str]]) -> bool:
    return any("flags" in block for block in blocks)


def _kernel_machine(tree: Tree, blocks: List[Dict[str, str]]) -> Optional[str]:
    """As `uname -m` says on the machine itself; of a captured tree, what /proc gives away."""
    if tree.live:
        return platform.machine() or None
    told = tree.line("proc/sys/kernel/arch")
    if told:
        return told
    flags = (_first(blocks, "flags") or "").split()
    if flags:
        return "x86_64" if "lm" in flags else "i686"
    if (_first(blocks, "isa") or "").startswith("rv64"):
        return "riscv64"
    arm = (_first(blocks, "Features") or "").split()
    if "asimd" in arm:
        return "aarch64"
    version = _first(blocks, "CPU architecture")
    return f"armv{version}l" if version in ("6", "7", "8") and arm else None


def _userland_bits(tree: Tree) -> Optional[int]:
    """Word size of the programs here, which may be half of the kernel's. Check by hand: getconf LONG_BIT"""
    if tree.live:
        return struct.calcsize("P") * 8
    for name in ("usr/bin/env", "bin/sh", "usr/bin/python3", "bin/busybox"):
        header = tree.data(name, 5) or b""
        if header[:4] == b"\x7fELF" and header[4:5] in (b"\x01", b"\x02"):
            return 32 * header[4]
    loaders = [name for folder in ("lib", "lib64", "usr/lib") for name in tree.names(folder)]
    wide = any(name.startswith(("ld-linux-aarch64", "ld-linux-x86-64", "ld-linux-riscv64")) for name in loaders)
    narrow = any(name.startswith(("ld-linux-armhf", "ld-linux.so")) for name in loaders)
    return 64 if wide else 32 if narrow else None


def _architecture(machine: Optional[str], bits: Optional[int]) -> Optional[str]:
    """What wheels must be built for: the kernel's machine unless the userland is narrower."""
    if bits == 32:
        return {"aarch64": "armv7l", "x86_64": "i686"}.get(machine or "", machine)
    return machine


def _first(blocks: List[Dict[str, str]], key: str) -> Optional[str]:
    return next((block[key] for block in blocks if block.get(key)), None)
