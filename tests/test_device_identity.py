"""Which board this is, which profile fits and why, and an id that stays the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit.device.hardware_id import device_id
from edgekit.device.identity import dmi, pi_revision_bytes
from edgekit.device.probe import fitting, probe
from edgekit.device.tree import Tree
from edgekit.profiles import board_tables

Plant = Callable[[dict[str, str | bytes]], Path]
GIB = 1024**3


def profile(id: str, *, memory_bytes: int | None = None, **match: list[str]) -> dict[str, Any]:
    size = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
    return {"id": id, "name": f"The {id}", "match": match, **size}


def dt(*compatible: str, model: str = "") -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {"proc/device-tree/compatible": "\0".join(compatible) + "\0"}
    return files | ({"proc/device-tree/model": model + "\0"} if model else {})


def meminfo(gib: float) -> dict[str, str | bytes]:
    return {"proc/meminfo": f"MemTotal: {int(gib * 1024 * 1024)} kB\n"}


def best(root: Path, *profiles: dict[str, Any]) -> str | None:
    return probe(root, profiles).board.profile


def test_the_earlier_compatible_string_wins(plant: Plant) -> None:
    root = plant(dt("nvidia,p3541-0000", "nvidia,p3450-0000", "nvidia,tegra210"))
    four, two = profile("four", compatible=["nvidia,p3450-*"]), profile("two", compatible=["nvidia,p3541-*"])
    assert best(root, four, two) == best(root, two, four) == "two"


def test_the_longer_pattern_wins_on_the_same_string(plant: Plant) -> None:
    root = plant(dt("nvidia,p3768-0000+p3767-0005-super"))
    plain = profile("plain", compatible=["nvidia,*p3767-0005*"])
    extra = profile("super", compatible=["nvidia,*p3767-0005-super*"])
    assert best(root, plain, extra) == best(root, extra, plain) == "super"
    assert best(plant(dt("nvidia,p3768-0000+p3767-0005")), plain, extra) == "plain"


@pytest.mark.parametrize(("gib", "winner"), [(29.9, "32"), (61.3, "64"), (32.0, "32"), (90.0, "any"), (None, "any")])
def test_profiles_that_differ_in_memory_are_told_apart_by_the_measured_total(
    plant: Plant, gib: float | None, winner: str
) -> None:
    sized = [profile(str(n), memory_bytes=n * GIB, compatible=["nvidia,*p3701-0000"]) for n in (64, 32)]
    root = plant(dt("nvidia,p3737-0000+p3701-0000") | (meminfo(gib) if gib else {}))
    assert best(root, *sized, profile("any", compatible=["nvidia,*p3701-0000"])) == winner


def test_a_board_rule_beats_a_chip_rule_beats_an_architecture(plant: Plant) -> None:
    files = dt("radxa,rock-5b", "rockchip,rk3588") | {"proc/sys/kernel/arch": "aarch64\n"}
    chip = profile("chip", soc_compatible=["rockchip,rk3588*"])
    board = profile("board", compatible=["radxa,rock-5b"])
    machine = profile("machine", machine=["aarch64"])
    root = plant(files)
    assert best(root, machine, chip, board) == "board"
    assert best(root, machine, chip) == "chip"
    assert best(root, machine) == "machine"
    assert [match.profile["id"] for match in fitting(root, [machine, chip, board])] == ["board", "chip", "machine"]


def test_an_image_without_the_boards_string_is_told_by_its_model_text(plant: Plant) -> None:
    root = plant(dt("qcom,qcm6490-addons-idp", "qcom,sc7280", model="Thundercomm, Inc. Rubik Pi C6490P"))
    facts = probe(root, [profile("rubik", compatible=["thundercomm,rubikpi3"], model=["*Rubik Pi*"])])
    assert facts.board.profile == "rubik"
    assert "model" in (facts.board.matched_by or "")


def test_marketing_text_is_shown_only_where_the_profile_trusts_it(plant: Plant) -> None:
    root = plant(dt("nvidia,p3737-0000+p3701-0000", model="NVIDIA Orin Jetson-Small Developer Kit"))
    trusted = profile("agx", compatible=["nvidia,*"])
    board = probe(root, [trusted | {"trust_model_text": False}]).board
    assert (board.name, board.model_text) == ("The agx", "NVIDIA Orin Jetson-Small Developer Kit")
    assert probe(root, [trusted]).board.name == "NVIDIA Orin Jetson-Small Developer Kit"


def test_without_a_profile_the_machine_names_itself(plant: Plant) -> None:
    board = probe(plant(dt("acme,gizmo", "acme,chip9", model="ACME Gizmo"))).board
    assert (board.id, board.name, board.soc, board.profile) == ("acme,gizmo", "ACME Gizmo", "chip9", None)


def test_a_pc_is_named_by_dmi(plant: Plant) -> None:
    files: dict[str, str | bytes] = {"sys/class/dmi/id/sys_vendor": "Radxa\n", "sys/class/dmi/id/product_name": "X4\n"}
    board = probe(plant(files)).board
    assert (board.id, board.name) == ("Radxa X4", "Radxa X4")


@pytest.mark.parametrize(
    "text", ["<BAD INDEX>", "To Be Filled By O.E.M.", "Default string", "System Product Name", "None", "0000000", "  "]
)
def test_filler_text_of_firmware_is_no_name(plant: Plant, text: str) -> None:
    root = plant({"sys/class/dmi/id/product_name": text + "\n"})
    assert dmi(Tree(root), "product_name") is None
    assert probe(root).board.name is None


def test_blank_files_give_an_unknown_board_not_a_default_one(plant: Plant) -> None:
    board = probe(plant({"proc/device-tree/compatible": b"", "proc/device-tree/model": b"\0"}), board_tables()).board
    assert (board.id, board.name, board.soc, board.profile) == (None, None, None, None)


@pytest.mark.parametrize(
    ("code", "size"),
    [
        ("9020e1", GIB // 2),
        ("a02082", GIB),
        ("b03115", 2 * GIB),
        ("d03114", 8 * GIB),
        ("e04171", 16 * GIB),
        ("0010", None),
    ],
)
def test_a_pis_revision_code_declares_its_memory(plant: Plant, code: str, size: int | None) -> None:
    assert pi_revision_bytes(Tree(plant({"proc/cpuinfo": f"processor\t: 0\n\nRevision\t: {code}\n"}))) == size


def test_a_pis_declared_memory_is_shown_beside_the_measured(plant: Plant) -> None:
    root = plant(
        dt("raspberrypi,5-model-b", "brcm,bcm2712")
        | meminfo(7.9)
        | {"proc/cpuinfo": "processor\t: 0\n\nRevision\t: b04170\n"}
    )
    memory = probe(root, board_tables()).memory
    assert memory.declared_bytes == 2 * GIB
    assert memory.total_bytes == int(7.9 * 1024 * 1024) * 1024
    assert any("declaration is wrong" in note for note in memory.notes)


ID = re.compile(r"[a-z0-9_-]{1,63}")
ETH = "sys/class/net/eth0/"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/device-tree/serial-number": b"1423224123456\0"}, "soc-1423224123456"),
        ({"proc/cpuinfo": "processor: 0\n\nSerial\t\t: 10000000ABCDEF01\n"}, "soc-10000000abcdef01"),
        ({"sys/devices/soc0/serial_number": "4A5B6C7D\n"}, "soc-4a5b6c7d"),
        ({ETH + "address": "dc:a6:32:01:02:03\n", ETH + "device/x": ""}, "mac-dca632010203"),
        ({ETH + "address": "dc:a6:32:01:02:03\n"}, None),  # no hardware behind it: a bridge
        ({ETH + "address": "dc:a6:32:01:02:03\n", ETH + "device/x": "", ETH + "addr_assign_type": "1\n"}, None),
        ({ETH + "address": "00:00:00:00:00:00\n", ETH + "device/x": ""}, None),
        ({"sys/class/dmi/id/product_uuid": "4C4C4544-0042-3510\n"}, "dmi-4c4c454400423510"),
        ({"proc/device-tree/serial-number": b"0000000000000000\0"}, None),
        ({"proc/device-tree/serial-number": b"\xff\xff\xff\0"}, None),
        ({"sys/devices/soc0/serial_number": "none\n"}, None),
        ({}, None),
    ],
)
def test_the_device_id_comes_from_hardware_alone(
    plant: Plant, files: dict[str, str | bytes], expected: str | None
) -> None:
    found = device_id(Tree(plant(files)))
    assert found == expected
    assert found is None or ID.fullmatch(found)


def test_a_network_port_on_usb_moves_between_boards_and_gives_no_id(plant: Plant) -> None:
    root = plant({ETH + "address": "dc:a6:32:01:02:03\n", "sys/devices/usb1/x": "", "sys/bus/usb/x": ""})
    (root / "sys/devices/usb1/subsystem").symlink_to("../../bus/usb")
    (root / "sys/class/net/eth0/device").symlink_to("../../../devices/usb1")
    assert device_id(Tree(root)) is None


def test_the_makers_address_is_preferred_to_one_that_software_gave(plant: Plant) -> None:
    files: dict[str, str | bytes] = {
        "sys/class/net/eth0/address": "02:00:00:00:00:09\n",
        "sys/class/net/eth0/device/x": "",
        "sys/class/net/wlan0/address": "dc:a6:32:01:02:03\n",
        "sys/class/net/wlan0/device/x": "",
    }
    assert device_id(Tree(plant(files))) == "mac-dca632010203"


def test_the_id_of_this_machine_is_stable() -> None:
    assert device_id(Tree("/")) == device_id(Tree("/"))


def test_a_profile_that_declares_what_does_not_show_is_reported(plant: Plant) -> None:
    declared = profile("ultra", compatible=["x,*"]) | {
        "accelerator": [{"kind": "intel_npu"}, {"kind": "hailo", "optional": True}]
    }
    notes = " ".join(probe(plant(dt("x,y")), [declared]).notes)
    assert "intel_npu" in notes
    assert "hailo" not in notes


def test_a_clock_table_below_the_declared_clock_is_reported(plant: Plant) -> None:
    gpu = "sys/class/devfreq/17000000.gpu/available_frequencies"
    root = plant(dt("nvidia,p3768-0000+p3767-0005-super", "nvidia,tegra234") | {gpu: "306000000 624750000\n"})
    assert any("624.75 MHz" in note for note in probe(root, board_tables()).notes)
    fast = plant({gpu: "306000000 1020000000\n"})
    assert not any("MHz" in note for note in probe(fast, board_tables()).notes)
