"""The operating system, its power modes and its storage, as far as they decide what can be deployed here."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from edgekit.device.tree import Tree

_MODE = re.compile(r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=([\w.+-]{1,40})", re.MULTILINE)


@dataclass(frozen=True)
class OsFacts:
    """None: cannot tell."""

    name: Optional[str]
    "PRETTY_NAME of os-release."
    kernel: Optional[str]
    l4t: Optional[str]
    'Release of Jetson Linux, "36.4.3".'
    container: Optional[str]
    '"docker", "podman", "lxc", "kubernetes", "container"; None: none shows.'
    page_size_bytes: Optional[int]


@dataclass(frozen=True)
class PowerFacts:
    """Settings that change how fast the same board is; momentary readings are in `sensors`."""

    mode: Optional[str]
    "Name of the chosen nvpmodel mode."
    modes: Tuple[str, ...]
    governor: Optional[str]
    "CPU frequency governor of core 0."


@dataclass(frozen=True)
class StorageFacts:
    """The file system that "/" is on."""

    filesystem: Optional[str]
    device: Optional[str]
    medium: Optional[str]
    '"sd or emmc", "nvme", "usb or sata disk", "virtual disk", "flash chip".'
    total_bytes: Optional[int]
    writeback: bool
    "Mounted with data=writeback: after a power cut, files may hold old blocks."


def read_os(tree: Tree) -> OsFacts:
    """Check by hand: cat /etc/os-release /proc/version /etc/nv_tegra_release"""
    text = tree.text("etc/os-release") or tree.text("usr/lib/os-release") or ""
    name = re.search(r'^PRETTY_NAME="?([^"\n]{1,100})', text, re.MULTILINE)
    kernel = tree.line("proc/sys/kernel/osrelease")
    if kernel is None:
        version = re.match(r"Linux version (\S{1,100})", tree.line("proc/version") or "")
        kernel = version.group(1) if version else None
    return OsFacts(
        name=name.group(1) if name else None,
        kernel=kernel[:100] if kernel else None,
        l4t=_l4t(tree),
        container=_container(tree),
        page_size_bytes=mmap.PAGESIZE if tree.live else _captured_page_size(tree),
    )


def read_power(tree: Tree) -> PowerFacts:
    """Check by hand: nvpmodel -q; cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"""
    modes: Dict[str, str] = {}
    for number, name in _MODE.findall(tree.text("etc/nvpmodel.conf") or ""):
        modes.setdefault(number.lstrip("0") or "0", name)
    status = re.match(r"pmode:(\d{1,6})", tree.line("var/lib/nvpmodel/status") or "")
    chosen = modes.get(status.group(1).lstrip("0") or "0") if status else None
    return PowerFacts(
        mode=chosen,
        modes=tuple(modes.values())[:32],
        governor=tree.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    )


def read_storage(tree: Tree) -> StorageFacts:
    """Check by hand: findmnt /; lsblk -d -o NAME,ROTA,TRAN,SIZE"""
    filesystem = device = options = None
    for line in (tree.text("proc/mounts") or tree.text("proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) >= 4 and fields[1] == "/" and fields[2] != "rootfs":
            device, filesystem, options = fields[0], fields[2], fields[3]
    return StorageFacts(
        filesystem=filesystem,
        device=device,
        medium=_medium(device),
        total_bytes=_size(tree),
        writeback="data=writeback" in (options or "").split(","),
    )


def _l4t(tree: Tree) -> Optional[str]:
    """BOARD in the same line is a build name, wrong on most boards, and not read."""
    text = tree.line("etc/nv_tegra_release") or ""
    match = re.match(r"# R(\d{1,3}) \(release\), REVISION: ([\d.]{1,10})", text)
    return f"{match.group(1)}.{match.group(2)}" if match else None


def _container(tree: Tree) -> Optional[str]:
    marks: List[Tuple[str, str]] = [(".dockerenv", "docker"), ("run/.containerenv", "podman")]
    for name, kind in marks:
        if tree.exists(name):
            return kind
    environment = (tree.data("proc/1/environ", 65536) or b"").split(b"\0")
    told = next((entry[10:].decode("ascii", "replace") for entry in environment if entry.startswith(b"container=")), "")
    if told:
        return told[:40]
    groups = tree.text("proc/1/cgroup") or tree.text("proc/self/cgroup") or ""
    words = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))
    return next((kind for word, kind in words if word in groups), None)


def _captured_page_size(tree: Tree) -> Optional[int]:
    match = re.search(r"^KernelPageSize:\s{1,40}(\d{1,6}) kB", tree.text("proc/self/smaps", 65536) or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _medium(device: Optional[str]) -> Optional[str]:
    name = (device or "").rpartition("/")[2]
    table = (
        ("mmcblk", "sd or emmc"), ("nvme", "nvme"), ("sd", "usb or sata disk"), ("vd", "virtual disk"),
        ("xvd", "virtual disk"), ("mtd", "flash chip"), ("ubi", "flash chip"),
    )  # fmt: skip
    return next((medium for prefix, medium in table if name.startswith(prefix)), None)


def _size(tree: Tree) -> Optional[int]:
    if not tree.live or not hasattr(os, "statvfs"):  # Windows has none
        return None
    status = os.statvfs("/")
    return status.f_blocks * status.f_frsize
