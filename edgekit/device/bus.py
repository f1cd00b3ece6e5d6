"""What hangs on PCI and USB, which driver holds it, and the device nodes that programs open."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Optional, Tuple

from edgekit.device.tree import Tree

_PCI = "sys/bus/pci/devices"
_USB = "sys/bus/usb/devices"


@dataclass(frozen=True)
class PciDevice:
    """One PCI function; ids as numbers, `kind` the 24-bit class code."""

    address: str
    vendor: int
    device: int
    kind: int
    driver: Optional[str]
    "The bound driver; None: none is, or the tree does not show it."
    described: bool
    "The folder is the kernel's own, so a missing driver link means that no driver is bound."

    @property
    def id(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


@dataclass(frozen=True)
class UsbDevice:
    """One USB device; `node` is what a program opens, below /dev/bus/usb."""

    port: str
    vendor: int
    product: int
    node: Optional[str]

    @property
    def id(self) -> str:
        return f"{self.vendor:04x}:{self.product:04x}"


@dataclass(frozen=True)
class DeviceNode:
    """A device node and whether the current user may use it; None: not this machine, so it cannot be tried."""

    path: str
    readable: Optional[bool]
    writable: Optional[bool]
    group: Optional[str]
    mode: Optional[str]
    'As in chmod: "0660".'

    @property
    def refused(self) -> bool:
        """True when the current user lacks a right that every runtime needs."""
        return self.readable is False or self.writable is False


def pci_devices(tree: Tree) -> Tuple[PciDevice, ...]:
    """Every PCI function. Check by hand: lspci -nn"""
    found = []
    for address in tree.names(_PCI):
        folder = f"{_PCI}/{address}"
        vendor, device = tree.integer(folder + "/vendor", 16), tree.integer(folder + "/device", 16)
        if vendor is None or device is None:
            continue
        kind = tree.integer(folder + "/class", 16) or 0
        driver = tree.target(folder + "/driver")
        found.append(PciDevice(address, vendor, device, kind, driver, tree.exists(folder + "/uevent")))
    return tuple(found)


def usb_devices(tree: Tree) -> Tuple[UsbDevice, ...]:
    """Every USB device. Check by hand: lsusb"""
    found = []
    for port in tree.names(_USB):
        folder = f"{_USB}/{port}"
        vendor, product = tree.integer(folder + "/idVendor", 16), tree.integer(folder + "/idProduct", 16)
        if vendor is None or product is None:
            continue
        bus, number = tree.integer(folder + "/busnum"), tree.integer(folder + "/devnum")
        node = None if bus is None or number is None else f"dev/bus/usb/{bus:03d}/{number:03d}"
        found.append(UsbDevice(port, vendor, product, node))
    return tuple(found)


def device_nodes(tree: Tree, *names: str) -> Tuple[DeviceNode, ...]:
    """Those of the nodes that exist; "*" at the end of a name stands for a number (or "0:1:0")."""
    paths = []
    for name in names:
        if not name.endswith("*"):
            paths += [name] if tree.exists(name) else []
            continue
        folder, _, stem = name[:-1].rpartition("/")
        paths += [f"{folder}/{entry}" for entry in tree.names(folder) if _numbered(entry, stem)]
    return tuple(_node(tree, path) for path in paths)


def _numbered(entry: str, stem: str) -> bool:
    rest = entry[len(stem) :]
    return entry.startswith(stem) and bool(rest) and all(letter.isdigit() or letter == ":" for letter in rest)


def _node(tree: Tree, path: str) -> DeviceNode:
    status = tree.status(path) if tree.live else None
    if status is None:
        return DeviceNode("/" + path, None, None, None, None)
    return DeviceNode(
        path="/" + path,
        readable=os.access("/" + path, os.R_OK),
        writable=os.access("/" + path, os.W_OK),
        group=_group_name(status.st_gid),
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
    )


def _group_name(number: int) -> str:
    import grp  # only when there is a node to describe

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
