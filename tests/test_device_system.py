"""Operating system, power modes and storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.system import read_os, read_power, read_storage
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]


def test_nothing_is_known_of_an_empty_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert set(vars(read_os(tree)).values()) == {None}
    power, storage = read_power(tree), read_storage(tree)
    assert (power.mode, power.modes, power.governor) == (None, (), None)
    assert (storage.filesystem, storage.medium, storage.total_bytes, storage.writeback) == (None, None, None, False)


def test_a_jetsons_release_is_read_and_its_wrong_board_word_is_not(plant: Plant) -> None:
    release = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: t186ref, EABI: aarch64, DATE: x\n"
    facts = read_os(
        Tree(plant({"etc/nv_tegra_release": release, "etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\n'}))
    )
    assert (facts.l4t, facts.name) == ("36.4.3", "Ubuntu 22.04.5 LTS")
    assert "t186ref" not in str(vars(facts))


def test_os_release_is_found_where_a_link_or_usr_lib_has_it(plant: Plant) -> None:
    root = plant({"usr/lib/os-release": "NAME=x\nPRETTY_NAME=Yocto 5.0\n"})
    assert read_os(Tree(root)).name == "Yocto 5.0"


def test_the_kernel_comes_from_its_version_text(plant: Plant) -> None:
    assert read_os(Tree(plant({"proc/version": "Linux version 6.7.0-edge (x) #3\n"}))).kernel == "6.7.0-edge"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/environ": b"PATH=/bin\0container=lxc\0"}, "lxc"),
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, "kubernetes"),
        ({"proc/self/cgroup": "9:memory:/docker/abc\n"}, "docker"),
        ({"proc/self/cgroup": "0::/\n"}, None),
    ],
)
def test_a_container_is_told_by_its_marks(plant: Plant, files: dict[str, str | bytes], kind: str | None) -> None:
    assert read_os(Tree(plant(files))).container == kind


def test_page_size_of_a_captured_tree(plant: Plant) -> None:
    smaps = "5566-5577 r-xp 0 0:0 0\nSize: 16 kB\nKernelPageSize:       16 kB\nMMUPageSize: 16 kB\n"
    assert read_os(Tree(plant({"proc/self/smaps": smaps}))).page_size_bytes == 16384


def test_nvpmodels_modes_and_the_chosen_one(plant: Plant) -> None:
    conf = "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=15W >\n"
    power = read_power(Tree(plant({"etc/nvpmodel.conf": conf, "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet\n"})))
    assert (power.mode, power.modes) == ("15W", ("MAXN", "15W"))


def test_the_governor(plant: Plant) -> None:
    name = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    assert read_power(Tree(plant({name: "schedutil\n"}))).governor == "schedutil"


@pytest.mark.parametrize(
    ("device", "medium"),
    [
        ("/dev/mmcblk0p2", "sd or emmc"),
        ("/dev/nvme0n1p1", "nvme"),
        ("/dev/sda2", "usb or sata disk"),
        ("overlay", None),
    ],
)
def test_the_medium_that_the_root_is_on(plant: Plant, device: str, medium: str | None) -> None:
    mounts = f"proc /proc proc rw 0 0\n{device} / ext4 rw,noatime 0 0\ntmpfs /run tmpfs rw 0 0\n"
    storage = read_storage(Tree(plant({"proc/mounts": mounts})))
    assert (storage.device, storage.filesystem, storage.medium) == (device, "ext4", medium)


def test_a_writeback_journal_is_told(plant: Plant) -> None:
    assert read_storage(Tree(plant({"proc/mounts": "/dev/sda1 / ext4 rw,data=writeback 0 0\n"}))).writeback
    assert not read_storage(Tree(plant({"proc/mounts": "/dev/sda1 / ext4 rw,data=ordered 0 0\n"}))).writeback


def test_this_machine_has_a_root_file_system_and_a_page_size() -> None:
    assert (read_storage(Tree("/")).total_bytes or 0) > 0
    assert (read_os(Tree("/")).page_size_bytes or 0) >= 4096
