"""The flattened device tree as the kernel shows it: who made the board, what is on it, which memory is set aside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

from edgekit.device.tree import Tree

_BASES = ("proc/device-tree", "sys/firmware/devicetree/base", "device-tree")
"The last is where add-on containers of Home Assistant get it."

_VENDORS = (
    "allwinner|amlogic|asus|beagle|brcm|firefly|friendlyarm|fsl|google|hardkernel|khadas|libretech|mediatek|nvidia|nxp|"
    "orangepi|phytec|pine64|qcom|radxa|raspberrypi|renesas|rockchip|samsung|seeed|solidrun|thundercomm|toradex|ti|"
    "variscite|xlnx|xunlong"
)
_GLUED = re.compile("(?=(?:" + _VENDORS + "),)")
_NODES_LIMIT = 2000
_CHIP_SUFFIX = re.compile(r"tegra\d+x$")


@dataclass(frozen=True)
class Node:
    """One device-tree node: its folder, its compatible strings, and whether its status says it is on."""

    path: str
    name: str
    compatible: Tuple[str, ...]
    enabled: bool


class DeviceTree:
    """The device tree below `tree`; empty on a PC and in a container that hides it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.base = next((base for base in _BASES if tree.exists(base + "/compatible")), _BASES[0])
        self.compatible = strings(tree.data(self.base + "/compatible", 4096))
        self.model = _printable(tree.line(self.base + "/model"))
        self._nodes: Optional[Tuple[Node, ...]] = None

    def nodes(self) -> Tuple[Node, ...]:
        """Nodes that carry a `compatible`, at most two levels below the root and `soc`-like buses, in order."""
        if self._nodes is None:
            self._nodes = tuple(self._walk())
        return self._nodes

    def matching(self, pattern: str) -> Tuple[Node, ...]:
        """Nodes with a compatible string that matches the regular expression in full."""
        wanted = re.compile(pattern)
        return tuple(node for node in self.nodes() if any(wanted.fullmatch(text) for text in node.compatible))

    def _walk(self) -> Iterator[Node]:
        """Breadth first. Devices are named `kind@address`; only buses are entered, so the walk stays short."""
        pending, seen = [(self.base, 0)], 0
        while pending and seen < _NODES_LIMIT:
            folder, depth = pending.pop(0)
            for name in self.tree.names(folder):
                if "@" not in name and not name.startswith(("soc", "bus", "firmware", "remoteproc")):
                    continue
                seen += 1
                path = folder + "/" + name
                if depth < 3 and name.startswith(("soc", "bus", "remoteproc", "axi", "interconnect", "ocp")):
                    pending.append((path, depth + 1))
                if _interesting(name):
                    yield self._node(path, name)

    def _node(self, path: str, name: str) -> Node:
        status = self.tree.line(path + "/status")
        return Node(path, name, strings(self.tree.data(path + "/compatible", 4096)), status in (None, "okay", "ok"))

    def installed_bytes(self) -> Optional[int]:
        """Sum of the memory nodes as the boot loader filled them in. Never a total: some list a placeholder only."""
        cells = (self._cells("#address-cells"), self._cells("#size-cells"))
        sizes: List[int] = []
        for name in self.tree.names(self.base):
            if name == "memory" or name.startswith("memory@"):
                sizes += _region_sizes(self.tree.data(f"{self.base}/{name}/reg", 4096), cells)
        return sum(sizes) or None

    def reserved(self) -> Tuple[Optional[int], Optional[int]]:
        """(contiguous pool, carve-outs) in bytes: what `reserved-memory` sets aside; the pool is inside MemTotal."""
        pool, carved = 0, 0
        folder = self.base + "/reserved-memory"
        for name in self.tree.names(folder):
            path = f"{folder}/{name}"
            if self.tree.exists(path + "/reusable") or name.startswith("linux,cma"):
                pool += int.from_bytes(self.tree.data(path + "/size", 8) or b"", "big")
            else:
                carved += sum(_region_sizes(self.tree.data(path + "/reg", 256), (None, None)))
        return pool or None, carved or None

    def _cells(self, name: str) -> Optional[int]:
        data = self.tree.data(f"{self.base}/{name}", 4)
        value = int.from_bytes(data, "big") if data and len(data) == 4 else 0
        return value if value in (1, 2) else None


def strings(data: Optional[bytes]) -> Tuple[str, ...]:
    """The strings of a property. Ends that a copy lost (NULs dropped or turned into line ends) are found again."""
    text = (data or b"").decode("utf-8", "replace").strip("\0\n ")
    found: List[str] = []
    for piece in re.split(r"[\0\r\n\t ]+", text):
        # A compatible string has one comma; more means that several lost the NUL between them.
        pieces = _GLUED.split(piece) if piece.count(",") > 1 else [piece]
        found += [part for part in pieces if part]
    return tuple(found[:64])


def soc_name(compatible: Tuple[str, ...]) -> Optional[str]:
    """The SoC: the last compatible string without its maker; tegra23x-like family names do not count."""
    names = [text.rpartition(",")[2] for text in compatible]
    names = [name for name in names if name and not _CHIP_SUFFIX.search(name)]
    return names[-1] if names else None


def _interesting(name: str) -> bool:
    """Accelerators hide behind few node names; the hundreds of others need not be opened."""
    return name.startswith(
        ("npu", "dsp", "remoteproc", "ethos", "accelerator", "neutron", "tpu", "ai-engine", "vipnano")
    )


def _region_sizes(data: Optional[bytes], cells: Tuple[Optional[int], Optional[int]]) -> List[int]:
    """The size of each (address, size) pair; unknown cell counts are taken from what divides the length."""
    data = data or b""
    choices = [cells] if None not in cells else [(2, 2), (2, 1), (1, 1)]
    for address, size in choices:
        step = 4 * ((address or 0) + (size or 0))
        if step and len(data) % step == 0:
            return [
                int.from_bytes(data[at + 4 * (address or 0) : at + step], "big") for at in range(0, len(data), step)
            ]
    return []


def _printable(text: Optional[str]) -> Optional[str]:
    cleaned = "".join(character for character in text or "" if character.isprintable()).strip()
    return cleaned[:120] or None
