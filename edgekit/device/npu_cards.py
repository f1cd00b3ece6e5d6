"""Accelerators on PCI and USB, and NPUs of PC processors, which show themselves on PCI as well."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from edgekit.device.accelerators import Accelerator, Scene, Verdict, accel_nodes, judge
from edgekit.device.bus import DeviceNode, PciDevice, device_nodes


class _Card(NamedTuple):
    kind: str
    name: str
    nodes: Tuple[str, ...]
    "Device nodes; () stands for /dev/accel, whose owner is looked up."
    modules: Tuple[str, ...]
    node_suffices: bool
    int8: Optional[bool]
    sparsity_2_4: Optional[bool]
    precisions: Tuple[str, ...] = ("int8",)


def _hailo(name: str, *modules: str) -> _Card:
    return _Card("hailo", name, ("dev/hailo*",), modules, True, True, False)


def _intel(name: str) -> _Card:
    return _Card("intel_npu", name, (), ("intel_vpu",), False, True, None, ("int8", "fp16"))


def _other(name: str) -> _Card:
    return _Card("other_npu", name, (), (), False, None, None, ())


_HAILO_8 = _hailo("Hailo-8 or Hailo-8L (one PCI id for both)", "hailo_pci")
_APEX = _Card("edgetpu_pcie", "Coral Edge TPU", ("dev/apex_*",), ("apex",), True, True, False)
_MEMRYX = _Card("memryx", "MemryX MX3", ("dev/memx*",), ("memx_cascade_plus_pcie",), True, True, None)
_AXCL_NODES = ("dev/axcl_host", "dev/ax_mmb_dev", "dev/msg_userdev")
# Unsourced: the module names of AXCL, the nodes and module names of Axelera and DEEPX.
_AXCL = _Card("axcl", "Axera AXCL card", _AXCL_NODES, ("axcl_host", "ax_pcie_host_dev"), False, True, None)
_AXELERA = _Card("axelera", "Axelera Metis AIPU", ("dev/metis-*",), ("metis",), False, True, None)
_XDNA_PRECISIONS = ("int8", "bf16")

_BY_ID: Dict[str, _Card] = {
    "1ac1:089a": _APEX,
    "1e60:2864": _HAILO_8,
    "1e60:45c4": _hailo("Hailo-10H", "hailo1x_pci"),
    "1e60:43a2": _hailo("Hailo-15L", "hailo1x_pci"),
    "1e60:26a2": _hailo("Hailo Mars", "hailo1x_pci"),
    "8086:7d1d": _intel("Intel NPU (Meteor Lake)"),
    "8086:ad1d": _intel("Intel NPU (Arrow Lake)"),
    "8086:643e": _intel("Intel NPU (Lunar Lake)"),
    "8086:b03e": _intel("Intel NPU (Panther Lake)"),
    "8086:fd3e": _intel("Intel NPU (Wildcat Lake)"),
    "1022:1502": _Card("amd_xdna", "AMD XDNA NPU", (), ("amdxdna",), False, True, None, _XDNA_PRECISIONS),
    "1022:17f0": _Card("amd_xdna", "AMD XDNA 2 NPU", (), ("amdxdna",), False, True, None, _XDNA_PRECISIONS),
    "1ac1:abcd": _other("Google Airbrush IPU"),
}
"Whole ids: a device number means nothing without its vendor. Source: pci.ids and the drivers' own headers."
_BY_VENDOR: Dict[int, _Card] = {
    0x1E60: _hailo("Hailo accelerator", "hailo_pci", "hailo1x_pci"),
    0x1FE9: _MEMRYX,
    0x1F9D: _AXELERA,
    0x1FF4: _Card("deepx", "DEEPX NPU", ("dev/dxrt*",), ("dxrt_driver",), False, True, None),
    0x1F4B: _AXCL,
    0x1F0D: _other("DeGirum ORCA"),
    0x209F: _other("Mobilint NPU"),
    0x1ED2: _other("FuriosaAI NPU"),
    0x1EFF: _other("Rebellions NPU"),
    0x1E52: _other("Tenstorrent accelerator"),
}
"Makers of nothing but accelerators. The vendor numbers of Axera and Tenstorrent are unsourced."
_BY_NODE = (_APEX, _HAILO_8._replace(name="Hailo accelerator"), _MEMRYX, _AXCL)
"Kinds whose node proves them when no bus shows, as in a container that was given the node."
_PROCESSING_ACCELERATOR = 0x1200
_CORAL_USB = {"1a6e:089a": "Coral USB Accelerator (not opened yet)", "18d1:9302": "Coral USB Accelerator (initialised)"}


def find(scene: Scene) -> List[Accelerator]:
    """The accelerator cards, sticks and PC NPUs of this machine."""
    pairs = [(device, card) for device in scene.pci for card in [_card_for(device)] if card is not None]
    found = [_from_pci(scene, device, card, pairs) for device, card in pairs]
    found += _from_usb(scene)
    kinds = {accelerator.kind for accelerator in found}
    for card in _BY_NODE:
        nodes = device_nodes(scene.tree, *card.nodes)
        if nodes and card.kind not in kinds:
            found.append(
                _accelerator(card, nodes, judge(nodes, node_suffices=card.node_suffices, wanted=""), nodes[0].path)
            )
    return found


def _card_for(device: PciDevice) -> Optional[_Card]:
    card = _BY_ID.get(device.id) or _BY_VENDOR.get(device.vendor)
    if card is None and device.vendor == 0x8086 and device.kind >> 8 == _PROCESSING_ACCELERATOR:
        return _intel(f"Intel NPU ({device.id})")
    return card


def _from_pci(scene: Scene, device: PciDevice, card: _Card, pairs: List[Tuple[PciDevice, _Card]]) -> Accelerator:
    nodes = _own_nodes(scene, device, card, [other for other, its in pairs if its.kind == card.kind])
    wanted = "/" + card.nodes[0].replace("*", "N") if card.nodes else "/dev/accel/accelN"
    verdict = judge(
        nodes,
        loaded=scene.loaded(*card.modules),
        pci=device,
        node_suffices=card.node_suffices,
        wanted=wanted,
        all_needed=card.nodes == _AXCL_NODES,
    )
    if card is _HAILO_8 and not nodes and not scene.loaded("hailo_pci") and scene.loaded("hailo1x_pci"):
        verdict = Verdict(False, "hailo1x_pci does not drive a Hailo-8: install the 4.x driver (hailo_pci)")
    seen = [f"PCI {device.address} is {device.id}"] + [node.path for node in nodes]
    return _accelerator(card, nodes, verdict, ", ".join(seen), driver=device.driver)


def _own_nodes(scene: Scene, device: PciDevice, card: _Card, alike: List[PciDevice]) -> Tuple[DeviceNode, ...]:
    """The nodes of this device among those of its kind: by the link of its class, else by their order."""
    if not card.nodes:
        return accel_nodes(scene, device.address) if card.modules else ()
    nodes = device_nodes(scene.tree, *card.nodes)
    if card.nodes == _AXCL_NODES:
        return nodes
    mine = []
    for node in nodes:
        name = node.path.rpartition("/")[2]
        classes = [
            kind for kind in ("apex", "hailo_chardev", "memx") if scene.tree.exists(f"sys/class/{kind}/{name}/device")
        ]
        if classes and scene.tree.target(f"sys/class/{classes[0]}/{name}/device") == device.address:
            mine.append(node)
    at = alike.index(device)
    return tuple(mine) or nodes[at : at + 1]


def _from_usb(scene: Scene) -> List[Accelerator]:
    found = []
    for device in scene.usb:
        name = _CORAL_USB.get(device.id)
        if name is None and device.id in ("03e7:2485", "03e7:f63b"):  # unsourced
            why = "OpenVINO dropped Myriad devices after 2022.3"
            found.append(Accelerator("other_npu", "Intel Movidius Myriad X", True, None, why, f"USB {device.id}"))
        if name is None:
            continue
        nodes = device_nodes(scene.tree, device.node) if device.node else ()
        refused = judge(nodes, node_suffices=True, wanted="") if nodes else Verdict(None, None)
        verdict = Verdict(True, None)
        if device.id == "1a6e:089a":
            verdict = Verdict(None, "it takes its firmware at first use; libedgetpu then finds it as 18d1:9302")
        if refused.usable is False:
            verdict = refused
        card = _Card("edgetpu_usb", name, (), (), True, True, False)
        found.append(_accelerator(card, nodes, verdict, f"USB {device.port} is {device.id}"))
    return found


def _accelerator(
    card: _Card, nodes: Tuple[DeviceNode, ...], verdict: Verdict, evidence: str, *, driver: Optional[str] = None
) -> Accelerator:
    return Accelerator(
        kind=card.kind,
        name=card.name,
        present=True,
        usable=verdict.usable,
        why_not_usable=verdict.why,
        evidence=evidence,
        int8=card.int8,
        precisions=card.precisions,
        sparsity_2_4=card.sparsity_2_4,
        driver=driver,
        nodes=nodes,
    )
