"""The device tree: strings and their lost ends, nodes below buses, memory cells, and what is set aside."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.devicetree import DeviceTree, soc_name, strings
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
GIB = 1024**3
MIB = 1024**2
DT = "proc/device-tree/"


def tree(root: Path) -> DeviceTree:
    return DeviceTree(Tree(root))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"radxa,rock-5b\0rockchip,rk3588\0", ("radxa,rock-5b", "rockchip,rk3588")),
        (b"radxa,rock-5brockchip,rk3588", ("radxa,rock-5b", "rockchip,rk3588")),
        (b"fsl,imx8mp-evk\nfsl,imx8mp\n", ("fsl,imx8mp-evk", "fsl,imx8mp")),
        (b"ti,am62a7-skti,am62a7", ("ti,am62a7-sk", "ti,am62a7")),
        (b"\0\0\0", ()),
        (b"", ()),
        (None, ()),
        (b"plain", ("plain",)),
    ],
)
def test_strings_find_the_ends_that_a_copy_lost(data: bytes | None, found: tuple[str, ...]) -> None:
    assert strings(data) == found


def test_a_string_with_one_comma_is_never_split() -> None:
    assert strings(b"acme,nvidia-clone\0") == ("acme,nvidia-clone",)


@pytest.mark.parametrize(
    ("compatible", "soc"),
    [
        (("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234", "nvidia,tegra23x"), "tegra234"),
        (("radxa,rock-5c", "rockchip,rk3588f"), "rk3588f"),
        (("raspberrypi,model-zero-2-w", "brcm,bcm2837"), "bcm2837"),
        ((), None),
        (("",), None),
    ],
)
def test_the_soc_is_the_last_string_that_names_a_chip(compatible: tuple[str, ...], soc: str | None) -> None:
    assert soc_name(compatible) == soc


@pytest.mark.parametrize("base", ["proc/device-tree", "sys/firmware/devicetree/base", "device-tree"])
def test_the_tree_is_found_wherever_a_kernel_or_container_puts_it(plant: Plant, base: str) -> None:
    found = tree(plant({f"{base}/compatible": "acme,board\0", f"{base}/model": "ACME Board\0"}))
    assert (found.compatible, found.model) == (("acme,board",), "ACME Board")


def test_nodes_are_found_below_buses_with_their_status(plant: Plant) -> None:
    root = plant(
        {
            DT + "compatible": "x,y\0",
            DT + "soc@0/bus@30800000/npu@38500000/compatible": "vivante,gc\0",
            DT + "soc@0/npu@4a900000/compatible": "fsl,imx93-npu\0arm,ethos-u65\0",
            DT + "soc@0/npu@4a900000/status": "disabled\0",
            DT + "soc@0/serial@1/compatible": "vivante,gc\0",
            DT + "chosen/npu@9/compatible": "vivante,gc\0",
        }
    )
    found = tree(root)
    assert [node.name for node in found.matching("vivante,gc")] == ["npu@38500000"]
    (ethos,) = found.matching("arm,ethos-u\\d+")
    assert not ethos.enabled
    assert found.matching("arm,ethos") == ()


def test_a_tree_of_many_nodes_is_walked_within_bounds(plant: Plant) -> None:
    files: dict[str, str | bytes] = {DT + "compatible": "x,y\0"}
    files |= {
        f"{DT}soc@{a}/bus@{b}/npu@{c}/compatible": "n,p\0" for a in range(6) for b in range(20) for c in range(20)
    }
    assert 0 < len(tree(plant(files)).nodes()) <= 2000


def regions(*pairs: tuple[int, int], form: str = ">QQ") -> bytes:
    return b"".join(struct.pack(form, *pair) for pair in pairs)


def test_memory_nodes_are_summed_by_the_trees_own_cells(plant: Plant) -> None:
    reg = regions((0, 0x3FC00000), (0x40000000, 0xC0000000), (0x100000000, 0x80000000), form=">QI")
    cells: dict[str, str | bytes] = {
        DT + "#address-cells": struct.pack(">I", 2),
        DT + "#size-cells": struct.pack(">I", 1),
    }
    found = tree(plant({DT + "compatible": "x,y\0", DT + "memory@0/reg": reg, **cells}))
    assert found.installed_bytes() == 0x3FC00000 + 0xC0000000 + 0x80000000


def test_memory_nodes_without_cells_are_read_by_what_divides_their_length(plant: Plant) -> None:
    found = tree(
        plant({DT + "compatible": "x,y\0", DT + "memory@40000000/reg": regions((1 << 30, 3 * GIB), (1 << 32, 3 * GIB))})
    )
    assert found.installed_bytes() == 6 * GIB


@pytest.mark.parametrize("reg", [b"", b"\1\2\3", b"\0" * 16])
def test_a_memory_node_that_says_nothing_is_unknown(plant: Plant, reg: bytes) -> None:
    assert tree(plant({DT + "compatible": "x,y\0", DT + "memory@0/reg": reg})).installed_bytes() is None


def test_the_contiguous_pool_and_carve_outs_are_kept_apart(plant: Plant) -> None:
    folder = DT + "reserved-memory/"
    root = plant(
        {
            DT + "compatible": "x,y\0",
            folder + "linux,cma/size": struct.pack(">Q", 576 * MIB),
            folder + "c7x-memory@99900000/reg": regions((0x99900000, 15 * MIB)),
            folder + "c7x-dma-memory@99800000/reg": regions((0x99800000, 1 * MIB)),
        }
    )
    assert tree(root).reserved() == (576 * MIB, 16 * MIB)
    assert tree(plant({})).reserved() == (576 * MIB, 16 * MIB)


def test_a_pc_has_no_device_tree(tmp_path: Path) -> None:
    found = tree(tmp_path)
    assert (found.compatible, found.model, found.nodes(), found.installed_bytes(), found.reserved()) == (
        (), None, (), None, (None, None),
    )  # fmt: skip
