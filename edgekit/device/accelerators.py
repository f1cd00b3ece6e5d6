"""What an accelerator is to edgekit, and the rule that tells "there" from "usable"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence, Set, Tuple

from edgekit.device.bus import DeviceNode, PciDevice, UsbDevice, device_nodes
from edgekit.device.devicetree import DeviceTree
from edgekit.device.tree import Tree


@dataclass(frozen=True)
class Accelerator:
    """One accelerator. `present` and `usable` are separate questions; None: files alone cannot tell."""

    kind: str
    """cuda_igpu, cuda_dgpu, gpu_paravirtual, edgetpu_usb, edgetpu_pcie, hailo, rknpu, vsi_npu, ethosu, neutron,
    c7x_mma, hexagon, intel_npu, amd_xdna, memryx, axelera, deepx, axcl or other_npu."""
    name: str
    present: Optional[bool]
    usable: Optional[bool]
    why_not_usable: Optional[str]
    "Why `usable` is not true."
    evidence: str
    "What was seen, and where."
    int8: Optional[bool] = None
    "Whether INT8 runs faster here than float does, by design of the hardware."
    precisions: Tuple[str, ...] = ()
    sparsity_2_4: Optional[bool] = None
    compute_capability: Optional[str] = None
    dla_cores: Optional[int] = None
    cores: Optional[int] = None
    max_hz: Optional[int] = None
    "Top of its clock table."
    memory_bytes: Optional[int] = None
    "Memory of its own. None: it shares the system's, or cannot tell."
    driver: Optional[str] = None
    nodes: Tuple[DeviceNode, ...] = ()


class Verdict(NamedTuple):
    """Whether it can be used and, unless it can, why not."""

    usable: Optional[bool]
    why: Optional[str]


class Scene(NamedTuple):
    """What the finders look at, read once."""

    tree: Tree
    dt: DeviceTree
    soc: Optional[str]
    pci: Tuple[PciDevice, ...]
    usb: Tuple[UsbDevice, ...]
    kernel: str
    "The text of /proc/version."
    arm_parts: Set[int]

    def loaded(self, *modules: str) -> Tuple[str, ...]:
        """Those of the kernel modules that are loaded."""
        return tuple(module for module in modules if self.tree.exists("sys/module/" + module))


def judge(
    nodes: Sequence[DeviceNode],
    *,
    loaded: Sequence[str] = (),
    pci: Optional[PciDevice] = None,
    node_suffices: bool,
    wanted: str,
    all_needed: bool = False,
) -> Verdict:
    """The verdict that follows from nodes and drivers.

    Args:
        nodes: the device nodes found for this accelerator.
        loaded: its kernel modules that are loaded.
        pci: its PCI function, which tells the bound driver.
        node_suffices: an open node is all that its runtime needs; False where runtimes refuse working nodes.
        wanted: what the driver would have made, for the reason: "/dev/hailo0".
        all_needed: the runtime opens every node, so that one refused is enough to stop it.
    """
    refused = [node for node in nodes if node.refused]
    if refused and (all_needed or len(refused) == len(nodes)):
        node = refused[0]
        return Verdict(False, f"no permission: {node.path} is for group {node.group} (mode {node.mode})")
    if nodes:
        return Verdict(True, None) if node_suffices else Verdict(None, "the node is there; only its runtime can tell")
    driver = pci.driver if pci is not None else None
    if driver == "vfio-pci":
        return Verdict(False, "vfio-pci holds it for a virtual machine")
    if loaded or driver:
        return Verdict(False, f"driver {driver or loaded[0]} is loaded but {wanted} is missing")
    if pci is not None and pci.described:
        return Verdict(False, f"no driver is bound to {pci.address}, so {wanted} is missing")
    return Verdict(None, f"neither {wanted} nor its driver shows here")


def accel_nodes(scene: Scene, *owners: str) -> Tuple[DeviceNode, ...]:
    """The /dev/accel nodes of a device: every vendor's driver uses the same names, so the owner is looked up.

    Args:
        owners: the PCI address, or words of the driver or compatible text in the device's uevent. Nodes whose owner
            the tree does not show are included.
    """
    found = []
    for node in device_nodes(scene.tree, "dev/accel/accel*"):
        folder = "sys/class/accel/" + node.path.rpartition("/")[2] + "/device"
        owner, uevent = scene.tree.target(folder), scene.tree.text(folder + "/uevent", 4096)
        unknown = owner is None and uevent is None
        if unknown or any(word in f"{owner} {uevent}" for word in owners):
            found.append(node)
    return tuple(found)
