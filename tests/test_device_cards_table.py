"""Every accelerator card and stick that edgekit knows, by the id that the bus shows, with what decides its use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device import npu_cards
from edgekit.device.accelerators import Accelerator, judge
from edgekit.device.bus import DeviceNode, PciDevice
from edgekit.device.probe import probe

Plant = Callable[[dict[str, str | bytes]], Path]
ADDRESS = "0000:01:00.0"


def pci(vendor: str, device: str, kind: str = "0x120000", address: str = ADDRESS) -> dict[str, str | bytes]:
    folder = f"sys/bus/pci/devices/{address}"
    return {
        f"{folder}/vendor": f"0x{vendor}\n",
        f"{folder}/device": f"0x{device}\n",
        f"{folder}/class": f"{kind}\n",
        f"{folder}/uevent": "DRIVER=\n",
    }


def usb(vendor: str, product: str, port: str = "1-1") -> dict[str, str | bytes]:
    folder = f"sys/bus/usb/devices/{port}"
    return {
        f"{folder}/idVendor": f"{vendor}\n",
        f"{folder}/idProduct": f"{product}\n",
        f"{folder}/busnum": "1\n",
        f"{folder}/devnum": "5\n",
    }


def found(root: Path) -> tuple[Accelerator, ...]:
    return probe(root).accelerators


CARDS = [
    ("1ac1", "089a", "edgetpu_pcie", "Coral Edge TPU", "dev/apex_0", "apex", True),
    ("1e60", "2864", "hailo", "Hailo-8 or Hailo-8L (one PCI id for both)", "dev/hailo0", "hailo_pci", True),
    ("1e60", "45c4", "hailo", "Hailo-10H", "dev/hailo0", "hailo1x_pci", True),
    ("1e60", "43a2", "hailo", "Hailo-15L", "dev/hailo0", "hailo1x_pci", True),
    ("1e60", "26a2", "hailo", "Hailo Mars", "dev/hailo0", "hailo1x_pci", True),
    ("1e60", "ffff", "hailo", "Hailo accelerator", "dev/hailo0", "hailo1x_pci", True),
    ("1fe9", "0100", "memryx", "MemryX MX3", "dev/memx0", "memx_cascade_plus_pcie", True),
    ("1f9d", "1100", "axelera", "Axelera Metis AIPU", "dev/metis-0:1:0", "metis", None),
    ("1ff4", "0000", "deepx", "DEEPX NPU", "dev/dxrt0", "dxrt_driver", None),
]
"""Vendor, device, kind, name, a node of it, its module, and what an open node proves."""


@pytest.mark.parametrize(("vendor", "device", "kind", "name", "node", "module", "proof"), CARDS)
def test_a_card_is_told_by_its_id_and_judged_by_its_node(
    vendor: str, device: str, kind: str, name: str, node: str, module: str, proof: bool | None, plant: Plant
) -> None:
    (card,) = found(plant({**pci(vendor, device), node: ""}))
    assert (card.kind, card.name, card.present, card.usable) == (kind, name, True, proof)
    assert card.evidence == f"PCI {ADDRESS} is {vendor}:{device}, /{node}"
    assert [n.path for n in card.nodes] == [f"/{node}"]


@pytest.mark.parametrize(("vendor", "device", "kind", "name", "node", "module", "proof"), CARDS)
def test_a_card_with_its_driver_but_no_node_says_which_node_is_missing(
    vendor: str, device: str, kind: str, name: str, node: str, module: str, proof: bool | None, plant: Plant
) -> None:
    (card,) = found(plant({**pci(vendor, device), f"sys/module/{module}/uevent": ""}))
    wanted = "/" + node.rstrip("0123456789:") + "N"
    assert card.usable is False
    assert card.why_not_usable == f"driver {module} is loaded but {wanted} is missing"


@pytest.mark.parametrize(("vendor", "device", "kind", "name", "node", "module", "proof"), CARDS)
def test_a_card_that_no_driver_took_says_so(
    vendor: str, device: str, kind: str, name: str, node: str, module: str, proof: bool | None, plant: Plant
) -> None:
    (card,) = found(plant(pci(vendor, device)))
    assert card.usable is False
    assert card.why_not_usable is not None
    assert card.why_not_usable.startswith(f"no driver is bound to {ADDRESS}, so /dev/")


OTHERS = [
    ("1ac1", "abcd", "Google Airbrush IPU"),
    ("1f0d", "0001", "DeGirum ORCA"),
    ("209f", "0001", "Mobilint NPU"),
    ("1ed2", "0001", "FuriosaAI NPU"),
    ("1eff", "0001", "Rebellions NPU"),
    ("1e52", "0001", "Tenstorrent accelerator"),
]


@pytest.mark.parametrize(("vendor", "device", "name"), OTHERS)
def test_a_maker_of_accelerators_that_edgekit_cannot_use_is_still_named(
    vendor: str, device: str, name: str, plant: Plant
) -> None:
    (card,) = found(plant({**pci(vendor, device), "dev/accel/accel0": ""}))
    assert (card.kind, card.name, card.usable) == ("other_npu", name, False)
    assert (card.int8, card.precisions, card.nodes) == (None, (), ())


INTEL = [
    ("7d1d", "Intel NPU (Meteor Lake)"),
    ("ad1d", "Intel NPU (Arrow Lake)"),
    ("643e", "Intel NPU (Lunar Lake)"),
    ("b03e", "Intel NPU (Panther Lake)"),
    ("fd3e", "Intel NPU (Wildcat Lake)"),
    ("9999", "Intel NPU (8086:9999)"),
]


@pytest.mark.parametrize(("device", "name"), INTEL)
def test_intels_npus_have_their_names_and_only_their_runtime_can_tell(device: str, name: str, plant: Plant) -> None:
    (npu,) = found(plant({**pci("8086", device), "dev/accel/accel0": ""}))
    assert (npu.kind, npu.name, npu.usable, npu.int8) == ("intel_npu", name, None, True)
    assert npu.precisions == ("int8", "fp16")
    assert npu.why_not_usable == "the node is there; only its runtime can tell"


@pytest.mark.parametrize("kind", ["0x088000", "0x030000", "0x118000"])
def test_an_intel_function_of_another_class_is_no_npu(kind: str, plant: Plant) -> None:
    assert found(plant(pci("8086", "9999", kind))) == ()


@pytest.mark.parametrize(("device", "name"), [("1502", "AMD XDNA NPU"), ("17f0", "AMD XDNA 2 NPU")])
def test_amds_npus_compute_bf16_too(device: str, name: str, plant: Plant) -> None:
    (npu,) = found(plant({**pci("1022", device), "dev/accel/accel0": ""}))
    assert (npu.kind, npu.name, npu.precisions) == ("amd_xdna", name, ("int8", "bf16"))


@pytest.mark.parametrize(
    ("vendor", "product", "name", "usable"),
    [
        ("1a6e", "089a", "Coral USB Accelerator (not opened yet)", None),
        ("18d1", "9302", "Coral USB Accelerator (initialised)", True),
    ],
)
def test_a_coral_stick_has_two_ids_and_int8_alone(
    vendor: str, product: str, name: str, usable: bool | None, plant: Plant
) -> None:
    (stick,) = found(plant({**usb(vendor, product), "dev/bus/usb/001/005": ""}))
    assert (stick.kind, stick.name, stick.usable) == ("edgetpu_usb", name, usable)
    assert (stick.precisions, stick.sparsity_2_4) == (("int8",), False)
    assert [node.path for node in stick.nodes] == ["/dev/bus/usb/001/005"]


@pytest.mark.parametrize("product", ["2485", "f63b"])
def test_a_myriad_stick_is_named_with_the_reason_why_nothing_runs_on_it(product: str, plant: Plant) -> None:
    (stick,) = found(plant(usb("03e7", product)))
    assert (stick.kind, stick.name, stick.usable) == ("other_npu", "Intel Movidius Myriad X", None)
    assert stick.why_not_usable == "OpenVINO dropped Myriad devices after 2022.3"


@pytest.mark.parametrize("product", ["0002", "089b", "9302"])
def test_another_usb_device_is_no_accelerator(product: str, plant: Plant) -> None:
    assert found(plant(usb("1a6e", product))) == ()


@pytest.mark.parametrize(
    ("node", "kind", "name", "usable"),
    [
        ("dev/apex_0", "edgetpu_pcie", "Coral Edge TPU", True),
        ("dev/hailo0", "hailo", "Hailo accelerator", True),
        ("dev/memx0", "memryx", "MemryX MX3", True),
        ("dev/axcl_host", "axcl", "Axera AXCL card", None),
    ],
)
def test_a_node_alone_is_the_device_in_a_container(
    node: str, kind: str, name: str, usable: bool | None, plant: Plant
) -> None:
    (card,) = found(plant({node: ""}))
    assert (card.kind, card.name, card.usable, card.evidence) == (kind, name, usable, f"/{node}")


def test_a_node_is_not_a_second_device_beside_its_card(plant: Plant) -> None:
    cards = found(plant({**pci("1e60", "2864"), "dev/hailo0": ""}))
    assert [card.name for card in cards] == ["Hailo-8 or Hailo-8L (one PCI id for both)"]


def test_two_cards_of_a_kind_take_their_nodes_in_order(plant: Plant) -> None:
    other = "0000:02:00.0"
    root = plant({**pci("1ac1", "089a"), **pci("1ac1", "089a", address=other), "dev/apex_0": "", "dev/apex_1": ""})
    assert [[node.path for node in card.nodes] for card in found(root)] == [["/dev/apex_0"], ["/dev/apex_1"]]


def test_every_table_entry_is_reached_by_a_lower_case_id() -> None:
    assert all(key == key.lower() and len(key) == 9 for key in npu_cards._BY_ID)
    kinds = {card.kind for card in (*npu_cards._BY_ID.values(), *npu_cards._BY_VENDOR.values())}
    assert kinds == {
        "edgetpu_pcie",
        "hailo",
        "intel_npu",
        "amd_xdna",
        "other_npu",
        "memryx",
        "axelera",
        "deepx",
        "axcl",
    }


def node(path: str = "/dev/x0", *, readable: bool | None = None, writable: bool | None = None) -> DeviceNode:
    return DeviceNode(path, readable, writable, "render", "0660")


FUNCTION = PciDevice(ADDRESS, 0x1E60, 0x2864, 0x120000, None, described=False)


@pytest.mark.parametrize(
    ("nodes", "more", "usable", "why"),
    [
        ([node(readable=True, writable=True)], {"node_suffices": True}, True, None),
        ([node(readable=True, writable=True)], {"node_suffices": False}, None, "only its runtime can tell"),
        ([node(readable=None, writable=None)], {"node_suffices": True}, True, None),
        ([node(readable=False, writable=True)], {"node_suffices": True}, False, "group render (mode 0660)"),
        ([node(readable=True, writable=False)], {"node_suffices": True}, False, "no permission: /dev/x0"),
        ([node(readable=False), node("/dev/x1", readable=True)], {"node_suffices": True}, True, None),
        (
            [node(readable=False), node("/dev/x1", readable=True)],
            {"node_suffices": True, "all_needed": True},
            False,
            "no permission: /dev/x0",
        ),
        ([], {"node_suffices": True}, None, "neither /dev/xN nor its driver shows here"),
        ([], {"node_suffices": True, "loaded": ("xdrv",)}, False, "driver xdrv is loaded but /dev/xN is missing"),
        ([], {"node_suffices": True, "pci": FUNCTION}, None, "neither /dev/xN"),
    ],
)
def test_the_verdict_follows_from_nodes_and_drivers(
    nodes: list[DeviceNode], more: dict[str, object], usable: bool | None, why: str | None
) -> None:
    verdict = judge(nodes, wanted="/dev/xN", **more)  # type: ignore[arg-type]
    assert verdict.usable is usable
    assert verdict.why is None if why is None else why in str(verdict.why)
