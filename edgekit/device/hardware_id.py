"""An id for this unit that survives reinstalling and is not cloned with an SD card."""

from __future__ import annotations

import re
from typing import Optional

from edgekit.device.identity import dmi, is_filler
from edgekit.device.tree import Tree


def device_id(tree: Tree) -> Optional[str]:
    """A stable id from hardware, matching [a-z0-9_-]{1,63}; None where nothing unique can be read.

    The SoC's serial number first, then the address of the first built-in network port, then the DMI UUID. The UUID
    comes last because only root may read it, and a daemon and a user must get the same id. Never machine-id: an SD
    card is cloned with it.
    """
    for name in (
        "proc/device-tree/serial-number",
        "sys/firmware/devicetree/base/serial-number",
        "sys/devices/soc0/serial_number",
        "sys/devices/soc0/soc_uid",
    ):
        found = _as_id("soc", tree.line(name))
        if found:
            return found
    serial = re.search(r"^Serial\s*:\s*(\w+)\s*$", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    return (
        _as_id("soc", serial.group(1) if serial else None)
        or _as_id("mac", _permanent_mac(tree))
        or _as_id("dmi", dmi(tree, "product_uuid"))
    )


def _permanent_mac(tree: Tree) -> Optional[str]:
    """Of a network port that is hardware (`device`), not on USB (it moves between boards), not randomised."""
    found = []
    for name in tree.names("sys/class/net"):
        folder = f"sys/class/net/{name}"
        on_usb = tree.target(folder + "/device/subsystem") == "usb"
        if not tree.exists(folder + "/device") or on_usb or tree.integer(folder + "/addr_assign_type") not in (0, None):
            continue
        address = tree.line(folder + "/address") or ""
        if re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", address) and address != "00:00:00:00:00:00":
            local = bool(int(address[:2], 16) & 2)  # given by software, as virtual machines have it
            found.append((local, not name.startswith("e"), address))  # wired before wireless
    return min(found)[2].replace(":", "") if found else None


def _as_id(prefix: str, text: Optional[str]) -> Optional[str]:
    cleaned = re.sub(r"[^a-z0-9]+", "", (text or "").lower())[:58]
    blank = not cleaned or len(set(cleaned)) == 1 or is_filler(cleaned)
    return None if blank or len(cleaned) < 6 else f"{prefix}-{cleaned}"
