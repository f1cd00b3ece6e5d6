"""Memory in a device tree: sizes in big-endian cells, whatever the cell counts, and what a damaged property says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.device.devicetree import DeviceTree, _region_sizes, strings
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
BASE = "proc/device-tree"
MIB = 1 << 20


def cells(value: int, count: int) -> bytes:
    return value.to_bytes(4 * count, "big")


def reg(regions: list[tuple[int, int]], address: int, size: int) -> bytes:
    return b"".join(cells(at, address) + cells(length, size) for at, length in regions)


WORD = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(st.lists(st.tuples(WORD, WORD), max_size=6), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_sizes_are_read_by_the_trees_own_cell_counts(regions: list, address: int, size: int) -> None:
    assert _region_sizes(reg(regions, address, size), (address, size)) == [length for _, length in regions]


@given(st.binary(max_size=64), st.sampled_from([None, 1, 2]), st.sampled_from([None, 1, 2]))
def test_any_property_is_a_list_of_sizes_or_none(data: bytes, address: int | None, size: int | None) -> None:
    found = _region_sizes(data, (address, size))
    assert all(0 <= value < 2**64 for value in found)
    step = 8 if None in (address, size) else 4 * ((address or 0) + (size or 0))
    assert bool(found) == (bool(data) and len(data) % step == 0) or len(data) % 12 == 0


def test_an_absent_property_has_no_sizes() -> None:
    assert _region_sizes(None, (2, 2)) == []
    assert _region_sizes(b"", (None, None)) == []


@pytest.mark.parametrize(("address", "size"), [(1, 1), (2, 1), (2, 2), (1, 2)])
def test_installed_memory_is_the_sum_over_every_memory_node(address: int, size: int, plant: Plant) -> None:
    root = plant(
        {
            f"{BASE}/compatible": "a,b\0",
            f"{BASE}/#address-cells": cells(address, 1),
            f"{BASE}/#size-cells": cells(size, 1),
            f"{BASE}/memory@0/reg": reg([(0, 512 * MIB), (0x4000_0000, 256 * MIB)], address, size),
            f"{BASE}/memory@80000000/reg": reg([(0x8000_0000, 1024 * MIB)], address, size),
            f"{BASE}/memory-controller@0/reg": reg([(0, 77 * MIB)], address, size),
        }
    )
    assert DeviceTree(Tree(root)).installed_bytes() == 1792 * MIB


@pytest.mark.parametrize("count", [0, 3, 255])
def test_a_cell_count_that_makes_no_sense_counts_as_unknown(count: int, plant: Plant) -> None:
    root = plant(
        {
            f"{BASE}/compatible": "a,b\0",
            f"{BASE}/#address-cells": cells(count, 1),
            f"{BASE}/#size-cells": cells(count, 1),
            f"{BASE}/memory@0/reg": reg([(0, 512 * MIB)], 2, 2),
        }
    )
    assert DeviceTree(Tree(root)).installed_bytes() == 512 * MIB


def test_a_memory_node_that_the_boot_loader_left_empty_is_unknown(plant: Plant) -> None:
    root = plant({f"{BASE}/compatible": "a,b\0", f"{BASE}/memory@0/reg": reg([(0, 0)], 2, 2)})
    assert DeviceTree(Tree(root)).installed_bytes() is None


@pytest.mark.parametrize(
    ("node", "files", "pool", "carved"),
    [
        ("linux,cma", {"size": cells(64 * MIB, 2)}, 64 * MIB, None),
        ("linux,cma@1", {"size": cells(64 * MIB, 1)}, 64 * MIB, None),
        ("anything", {"reusable": b"", "size": cells(32 * MIB, 1)}, 32 * MIB, None),
        ("vpu@5000", {"reg": reg([(0x5000, 16 * MIB)], 2, 2)}, None, 16 * MIB),
        ("vpu@5000", {"reg": reg([(0x5000, 16 * MIB)], 1, 1)}, None, None),
        ("vpu@5000", {"no-map": b""}, None, None),
    ],
)
def test_the_pool_may_be_used_and_a_carve_out_may_not(
    node: str, files: dict[str, bytes], pool: int | None, carved: int | None, plant: Plant
) -> None:
    folder = f"{BASE}/reserved-memory/{node}"
    root = plant({f"{BASE}/compatible": "a,b\0", **{f"{folder}/{name}": data for name, data in files.items()}})
    found = DeviceTree(Tree(root)).reserved()
    assert found[0] == pool
    if carved is not None or "reg" not in files:
        assert found[1] == carved


@pytest.mark.parametrize(
    ("status", "enabled"), [(None, True), ("okay\0", True), ("ok\0", True), ("disabled\0", False), ("fail\0", False)]
)
def test_a_node_is_on_unless_its_status_says_otherwise(status: str | None, enabled: bool, plant: Plant) -> None:
    files: dict[str, str | bytes] = {f"{BASE}/compatible": "a,b\0", f"{BASE}/npu@1/compatible": "maker,npu\0"}
    if status is not None:
        files[f"{BASE}/npu@1/status"] = status
    (node,) = DeviceTree(Tree(plant(files))).nodes()
    assert (node.name, node.compatible, node.enabled) == ("npu@1", ("maker,npu",), enabled)


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("npu@1", True), ("soc/npu@1", True), ("soc@0/bus@2/npu@1", True), ("bus@0/remoteproc@3/dsp@1", True),
        ("cpus/npu@1", False), ("soc/i2c@1/npu@1", False), ("soc/uart@1", False), ("soc/a/npu@1", False),
    ],
)  # fmt: skip
def test_only_buses_are_entered_to_look_for_accelerators(path: str, is_found: bool, plant: Plant) -> None:
    root = plant({f"{BASE}/compatible": "a,b\0", f"{BASE}/{path}/compatible": "maker,npu\0"})
    names = [node.name for node in DeviceTree(Tree(root)).nodes()]
    assert (path.rpartition("/")[2] in names) == is_found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("maker,npu", 1), ("maker,.*", 2), ("maker", 0), ("other,npu", 1), (".*,npu", 2), ("(?!)", 0)],
)
def test_a_pattern_must_match_a_whole_string(pattern: str, found: int, plant: Plant) -> None:
    root = plant(
        {
            f"{BASE}/compatible": "a,b\0",
            f"{BASE}/npu@1/compatible": "maker,npu\0maker,old\0",
            f"{BASE}/npu@2/compatible": "maker,gpu\0other,npu\0",
        }
    )
    assert len(DeviceTree(Tree(root)).matching(pattern)) == found


@pytest.mark.parametrize("base", ["proc/device-tree", "sys/firmware/devicetree/base", "device-tree"])
def test_the_tree_is_read_wherever_it_is_shown(base: str, plant: Plant) -> None:
    tree = DeviceTree(Tree(plant({f"{base}/compatible": "m,board\0", f"{base}/model": "My \x01Board\0"})))
    assert (tree.base, tree.compatible, tree.model) == (base, ("m,board",), "My Board")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_a_model_text_is_printable_and_short(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "device-tree").mkdir()
        (Path(folder) / "device-tree/compatible").write_bytes(b"a,b\0")
        (Path(folder) / "device-tree/model").write_text(text, encoding="utf-8", newline="")
        found = DeviceTree(Tree(folder)).model
    assert found is None or (found.isprintable() and 0 < len(found) <= 120)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a,b\0c,d\0", ("a,b", "c,d")),
        (b"a,b\nc,d\n", ("a,b", "c,d")),
        (b"raspberrypi,5-model-bbrcm,bcm2712", ("raspberrypi,5-model-b", "brcm,bcm2712")),
        (b"nvidia,p3768-0000+p3767-0003nvidia,tegra234", ("nvidia,p3768-0000+p3767-0003", "nvidia,tegra234")),
        (b"maker,brcm-board", ("maker,brcm-board",)),
        (b"", ()),
        (None, ()),
        (b"\xff\xfe,x\0", ("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER},x",)),
    ],
)
def test_strings_that_lost_their_ends_are_parted_at_their_makers(data: bytes | None, found: tuple[str, ...]) -> None:
    assert strings(data) == found
