"""PCI, USB and device nodes as sysfs and /dev show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.bus import DeviceNode, device_nodes, pci_devices, usb_devices
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
PCI = "sys/bus/pci/devices/0001:01:00.0/"
USB = "sys/bus/usb/devices/2-1/"


def test_a_pci_function_with_ids_class_and_driver(plant: Plant) -> None:
    root = plant(
        {PCI + "vendor": "0x1e60\n", PCI + "device": "0x2864\n", PCI + "class": "0x0b4000\n", PCI + "uevent": ""}
    )
    (root / "sys/bus/pci/drivers/hailo").mkdir(parents=True)
    (root / PCI / "driver").symlink_to("../../drivers/hailo")
    (device,) = pci_devices(Tree(root))
    assert (device.id, device.kind, device.driver, device.described) == ("1e60:2864", 0x0B4000, "hailo", True)


@pytest.mark.parametrize("missing", ["vendor", "device"])
def test_a_function_without_an_id_is_no_device(plant: Plant, missing: str) -> None:
    files: dict[str, str | bytes] = {PCI + "vendor": "0x1e60\n", PCI + "device": "0x2864\n"}
    del files[PCI + missing]
    assert pci_devices(Tree(plant(files))) == ()


def test_an_id_that_is_no_number_is_no_device(plant: Plant) -> None:
    assert pci_devices(Tree(plant({PCI + "vendor": "oops\n", PCI + "device": "0x2864\n"}))) == ()


def test_a_usb_device_with_the_node_that_opens_it(plant: Plant) -> None:
    files: dict[str, str | bytes] = {USB + "idVendor": "18d1\n", USB + "idProduct": "9302\n"}
    assert usb_devices(Tree(plant(files)))[0].node is None
    numbered = usb_devices(Tree(plant({USB + "busnum": "2\n", USB + "devnum": "14\n"})))[0]
    assert (numbered.id, numbered.node) == ("18d1:9302", "dev/bus/usb/002/014")


def test_a_usb_interface_is_no_device(plant: Plant) -> None:
    assert usb_devices(Tree(plant({"sys/bus/usb/devices/2-1:1.0/bInterfaceClass": "ff\n"}))) == ()


def test_nodes_by_number_and_by_address(plant: Plant) -> None:
    root = plant(dict.fromkeys(("dev/hailo0", "dev/hailo12", "dev/hailo_ctl", "dev/metis-0:1:0", "dev/hailo"), ""))
    assert [node.path for node in device_nodes(Tree(root), "dev/hailo*")] == ["/dev/hailo0", "/dev/hailo12"]
    assert [node.path for node in device_nodes(Tree(root), "dev/metis-*")] == ["/dev/metis-0:1:0"]
    assert device_nodes(Tree(root), "dev/apex_*", "dev/nothing") == ()


def test_permissions_of_a_captured_tree_are_not_judged(plant: Plant) -> None:
    (node,) = device_nodes(Tree(plant({"dev/dxg": ""})), "dev/dxg")
    assert node == DeviceNode("/dev/dxg", readable=None, writable=None, group=None, mode=None)
    assert not node.refused
