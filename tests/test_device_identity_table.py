"""How names are matched and which texts are none: patterns against fnmatch, filler, serials, revision codes."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.config import NAME_PATTERN
from edgekit.device.devicetree import soc_name, strings
from edgekit.device.hardware_id import _as_id, device_id
from edgekit.device.identity import _matches, _size_misfit, dmi, is_filler, pi_revision_bytes
from edgekit.device.probe import probe
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
GIB = 1 << 30
TEXT = st.text(alphabet="ab,-7", max_size=8)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=4))
def test_a_pattern_matches_exactly_what_fnmatch_says(text: str, pieces: list[str]) -> None:
    pattern = "*".join(pieces)
    assert _matches(text, pattern) == fnmatch.fnmatchcase(text, pattern)


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=4, max_size=4))
def test_what_a_pattern_was_made_of_it_matches(pieces: list[str], between: list[str]) -> None:
    filled = "".join(piece + middle for piece, middle in zip(pieces, between, strict=False))
    filled = filled[: len(filled) - len(between[len(pieces) - 1])]
    assert _matches(filled, "*".join(pieces))


@pytest.mark.parametrize(
    "text",
    [
        "To be filled by O.E.M.",
        "to be filled",
        "Default string",
        "System Product Name",
        "system manufacturer",
        "None",
        "N/A",
        "na",
        "Not Specified",
        "not applicable",
        "Unknown",
        "OEM",
        "O.E.M.",
        "Undefined",
        "xxxx",
        "0",
        "0000-0000",
        "- -",
        "0.0",
        "123456789",
        "0123456789ABC",
        "<BAD INDEX>",
        "System Serial Number",
    ],
)
def test_what_makers_leave_in_a_field_is_no_name(text: str) -> None:
    assert is_filler(text)


@pytest.mark.parametrize(
    "text",
    [
        "NUC13ANHi7",
        "Raspberry Pi 5",
        "System76 Lemur",
        "Nonesuch 3",
        "OEMaster",
        "X1 Carbon",
        "1000",
        "0a",
        "ASUS",
        "Unknown Worlds 2",
        "20XW",
    ],
)
def test_a_real_name_is_not_mistaken_for_filler(text: str) -> None:
    assert not is_filler(text)


def test_a_dmi_field_is_shown_without_what_steers_a_terminal(plant: Plant) -> None:
    tree = Tree(plant({"sys/class/dmi/id/product_name": "NUC\x1b[31m13\x07\n"}))
    assert dmi(tree, "product_name") == "NUC[31m13"
    assert dmi(tree, "board_name") is None


def test_a_dmi_field_is_cut_at_a_length_a_screen_holds(plant: Plant) -> None:
    tree = Tree(plant({"sys/class/dmi/id/product_name": "N" + "a" * 500}))
    assert len(dmi(tree, "product_name") or "") == 120


@pytest.mark.parametrize(
    ("code", "size"),
    [
        ("a02082", GIB),
        ("900092", GIB // 2),
        ("c03111", 4 * GIB),
        ("d04170", 8 * GIB),
        ("e04171", 16 * GIB),
        ("b04170", 2 * GIB),
        ("0000", None),
        ("000e", None),
        ("xyz", None),
        ("", None),
    ],
)
def test_a_pis_revision_code_says_its_memory_when_it_is_of_the_new_style(
    code: str, size: int | None, plant: Plant
) -> None:
    assert pi_revision_bytes(Tree(plant({"proc/cpuinfo": f"Revision\t: {code}\n"}))) == size


def test_the_device_trees_revision_counts_before_cpuinfos(plant: Plant) -> None:
    root = plant(
        {"proc/device-tree/system/linux,revision": bytes.fromhex("00d04170"), "proc/cpuinfo": "Revision : a02082\n"}
    )
    assert pi_revision_bytes(Tree(root)) == 8 * GIB


@pytest.mark.parametrize(
    ("declared", "total", "misfit"),
    [
        (8 * GIB, 7 * GIB, GIB),
        (8 * GIB, 8 * GIB, 0),
        (4 * GIB, 7 * GIB, 1 << 61),
        (None, 7 * GIB, 1 << 60),
        (None, None, 1),
        (8 * GIB, None, 2),
    ],
)
def test_the_smallest_declared_size_that_holds_the_measured_one_fits_best(
    declared: int | None, total: int | None, misfit: int
) -> None:
    assert _size_misfit(declared, total) == misfit


def test_of_sizes_the_order_of_fits_is_holding_then_undeclared_then_too_small() -> None:
    fits = sorted([None, 4 * GIB, 16 * GIB, 8 * GIB], key=lambda size: _size_misfit(size, 7 * GIB))
    assert fits == [8 * GIB, 16 * GIB, None, 4 * GIB]


# The id of a unit


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1421622052467", "soc-1421622052467"),
        ("10000000ABCDEF12", "soc-10000000abcdef12"),
        ("ab-cd:ef 12", "soc-abcdef12"),
        ("00000000", None),
        ("ffffffff", None),
        ("12345", None),
        ("", None),
        (None, None),
        ("0123456789", None),
        ("x" * 80, None),
        ("a1" * 60, "soc-" + ("a1" * 60)[:58]),
    ],
)
def test_an_id_is_what_is_unique_in_a_serial_number(text: str | None, found: str | None) -> None:
    assert _as_id("soc", text) == found


@given(st.text(max_size=120))
def test_an_id_always_fits_into_a_topic(text: str) -> None:
    import re

    found = _as_id("soc", text)
    assert found is None or re.match(NAME_PATTERN, found)


PORT = "sys/class/net/eth0"


def port(name: str, address: str, **more: str) -> dict[str, str | bytes]:
    folder = f"sys/class/net/{name}"
    files = {"address": address, "device/uevent": "", "addr_assign_type": "0", **more}
    return {f"{folder}/{key}": value for key, value in files.items()}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (port("eth0", "dc:a6:32:01:02:03"), "mac-dca632010203"),
        (port("wlan0", "dc:a6:32:01:02:04"), "mac-dca632010204"),
        (port("wlan0", "00:00:5e:00:00:01") | port("eth0", "dc:a6:32:01:02:03"), "mac-dca632010203"),
        (port("eth1", "dc:a6:32:00:00:09") | port("eth0", "dc:a6:32:00:00:10"), "mac-dca632000009"),
        (port("eth0", "02:42:ac:11:00:02") | port("eth1", "dc:a6:32:01:02:03"), "mac-dca632010203"),
        (port("eth0", "00:00:00:00:00:00"), None),
        (port("eth0", "dc:a6:32:01:02"), None),
        (port("eth0", "DC:A6:32:01:02:03"), None),
        (port("eth0", "dc:a6:32:01:02:03", addr_assign_type="1"), None),
        ({"sys/class/net/lo/address": "dc:a6:32:01:02:03"}, None),
    ],
)
def test_a_built_in_port_gives_the_id_where_no_serial_does(
    files: dict[str, str | bytes], found: str | None, plant: Plant
) -> None:
    assert device_id(Tree(plant(files))) == found


@pytest.mark.parametrize(
    "name",
    [
        "proc/device-tree/serial-number",
        "sys/firmware/devicetree/base/serial-number",
        "sys/devices/soc0/serial_number",
        "sys/devices/soc0/soc_uid",
    ],
)
def test_a_serial_of_the_chip_wins_over_its_ports(name: str, plant: Plant) -> None:
    root = plant({name: "abc123456\0", **port("eth0", "dc:a6:32:01:02:03")})
    assert device_id(Tree(root)) == "soc-abc123456"


def test_a_machine_id_is_never_the_id_since_cards_are_cloned(plant: Plant) -> None:
    assert device_id(Tree(plant({"etc/machine-id": "0123456789abcdef0123456789abcdef\n"}))) is None


def test_the_boards_uuid_comes_last(plant: Plant) -> None:
    files: dict[str, str | bytes] = {"sys/class/dmi/id/product_uuid": "4c4c4544-0042-3510-8051-b4c04f4d4d32"}
    assert device_id(Tree(plant(files))) == "dmi-4c4c4544004235108051b4c04f4d4d32"
    assert device_id(Tree(plant(files | port("eth0", "dc:a6:32:01:02:03")))) == "mac-dca632010203"


# Strings of a device tree


@given(st.lists(st.from_regex(r"[a-z]{2,5},[a-z0-9-]{1,8}", fullmatch=True), max_size=6))
def test_strings_of_a_property_come_back_as_they_were(names: list[str]) -> None:
    assert strings(b"".join(name.encode() + b"\0" for name in names)) == tuple(names)


@given(st.binary(max_size=200))
def test_any_bytes_are_strings_without_ends_or_spaces(data: bytes) -> None:
    found = strings(data)
    assert len(found) <= 64
    assert all(text and not set("\0\n\t ") & set(text) for text in found)


@pytest.mark.parametrize(
    ("compatible", "chip"),
    [
        (("raspberrypi,5-model-b", "brcm,bcm2712"), "bcm2712"),
        (("nvidia,p3768", "nvidia,tegra234"), "tegra234"),
        (("nvidia,p3768", "nvidia,tegra234", "nvidia,tegra23x"), "tegra234"),
        (("nvidia,tegra23x",), None),
        (("onlyone",), "onlyone"),
        ((), None),
        (("maker,",), None),
    ],
)
def test_the_chip_is_the_last_name_that_is_one(compatible: tuple[str, ...], chip: str | None) -> None:
    assert soc_name(compatible) == chip


# Virtual machines


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({"proc/version": "Linux version 5.15.0-microsoft-standard-WSL2"}, "wsl"),
        ({"dev/dxg": ""}, "wsl"),
        ({"proc/device-tree/compatible": "linux,dummy-virt\0"}, "qemu"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, "kvm"),
        ({"sys/class/dmi/id/product_name": "VirtualBox"}, "virtualbox"),
        ({"sys/class/dmi/id/sys_vendor": "VMware, Inc."}, "vmware"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "kvm"),
        ({"sys/class/dmi/id/product_name": "Google Compute Engine"}, "kvm"),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation",
                "sys/class/dmi/id/product_name": "Virtual Machine",
            },
            "hyperv",
        ),
        ({"sys/class/dmi/id/sys_vendor": "Xen"}, "xen"),
        ({"proc/cpuinfo": "flags\t\t: fpu lm hypervisor avx\n"}, "unknown hypervisor"),
        ({"proc/cpuinfo": "flags\t\t: fpu lm avx\n"}, None),
        ({}, None),
    ],
)
def test_a_guest_says_which_hypervisor_holds_it(files: dict[str, Any], virtual: str | None, plant: Plant) -> None:
    assert probe(plant(files)).board.virtual == virtual
