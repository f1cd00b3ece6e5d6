"""The operating system, its storage and what is installed: one row a spelling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.installed import _METADATA, _major, read_runtimes
from edgekit.device.system import read_os, read_power, read_storage
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]


@pytest.mark.parametrize(
    ("device", "medium"),
    [
        ("/dev/mmcblk0p2", "sd or emmc"),
        ("/dev/nvme0n1p1", "nvme"),
        ("/dev/sda2", "usb or sata disk"),
        ("/dev/vda1", "virtual disk"),
        ("/dev/xvda1", "virtual disk"),
        ("/dev/mtdblock3", "flash chip"),
        ("ubi0:rootfs", "flash chip"),
        ("overlay", None),
        ("/dev/root", None),
        ("192.168.1.4:/nfs", None),
    ],
)
def test_the_medium_is_told_by_the_devices_name(device: str, medium: str | None, plant: Plant) -> None:
    storage = read_storage(Tree(plant({"proc/mounts": f"{device} / ext4 rw,relatime 0 0\n"})))
    assert (storage.device, storage.medium, storage.filesystem) == (device, medium, "ext4")


@pytest.mark.parametrize(
    ("mounts", "filesystem", "writeback"),
    [
        ("rootfs / rootfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n", "ext4", False),
        ("/dev/sda1 / ext4 rw,data=writeback 0 0\n", "ext4", True),
        ("/dev/sda1 / ext4 rw,data=ordered 0 0\n", "ext4", False),
        ("/dev/sda1 / ext4 rw 0 0\noverlay / overlay rw 0 0\n", "overlay", False),
        ("/dev/sda1 /boot vfat rw 0 0\n", None, False),
        ("/dev/sda1 /\n", None, False),
        ("", None, False),
    ],
)
def test_of_what_is_mounted_at_the_root_the_last_counts(
    mounts: str, filesystem: str | None, writeback: bool, plant: Plant
) -> None:
    storage = read_storage(Tree(plant({"proc/mounts": mounts})))
    assert (storage.filesystem, storage.writeback) == (filesystem, writeback)


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/environ": b"PATH=/bin\0container=lxc\0"}, "lxc"),
        ({"proc/1/environ": b"PATH=/bin\0mycontainer=lxc\0"}, None),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, "kubernetes"),
        ({"proc/1/cgroup": "12:cpu:/docker/abc\n"}, "docker"),
        ({"proc/self/cgroup": "0::/machine.slice/libpod-abc.scope\n"}, "podman"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, None),
        ({}, None),
    ],
)
def test_a_container_is_told_by_what_its_engine_leaves(
    files: dict[str, str | bytes], container: str | None, plant: Plant
) -> None:
    assert read_os(Tree(plant({"x": "", **files}))).container == container


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic", "36.4.3"),
        ("# R32 (release), REVISION: 7.1, GCID: 1, BOARD: t210ref", "32.7.1"),
        ("R36 (release), REVISION: 4.3", None),
        ("# R36 (release)", None),
        ("", None),
    ],
)
def test_the_release_of_jetson_linux(text: str, release: str | None, plant: Plant) -> None:
    assert read_os(Tree(plant({"etc/nv_tegra_release": text}))).l4t == release


@pytest.mark.parametrize(
    ("files", "name", "kernel"),
    [
        (
            {"etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'},
            "Debian GNU/Linux 12 (bookworm)",
            None,
        ),
        ({"etc/os-release": "PRETTY_NAME=Alpine\n"}, "Alpine", None),
        ({"usr/lib/os-release": 'PRETTY_NAME="Yocto"\n'}, "Yocto", None),
        ({"etc/os-release": "NAME=x\n"}, None, None),
        ({"proc/sys/kernel/osrelease": "6.6.31+rpt\n"}, None, "6.6.31+rpt"),
        ({"proc/version": "Linux version 5.10.104-tegra (buildbrain@x)\n"}, None, "5.10.104-tegra"),
        ({"proc/version": "FreeBSD 14\n"}, None, None),
    ],
)
def test_the_system_and_its_kernel_by_name(
    files: dict[str, str | bytes], name: str | None, kernel: str | None, plant: Plant
) -> None:
    facts = read_os(Tree(plant(files)))
    assert (facts.name, facts.kernel) == (name, kernel)


MODES = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=01 NAME=15W >\n<POWER_MODEL ID=2 NAME=7W >\n"


@pytest.mark.parametrize(
    ("status", "mode"),
    [
        ("pmode:0000", "MAXN"),
        ("pmode:0001", "15W"),
        ("pmode:0002", "7W"),
        ("pmode:9", None),
        ("", None),
        ("mode 1", None),
    ],
)
def test_the_power_mode_is_the_one_chosen(status: str, mode: str | None, plant: Plant) -> None:
    power = read_power(Tree(plant({"etc/nvpmodel.conf": MODES, "var/lib/nvpmodel/status": status})))
    assert power.mode == mode
    assert power.modes == ("MAXN", "15W", "7W")


@pytest.mark.parametrize(
    ("name", "distribution", "version"),
    [
        ("onnxruntime-1.20.1.dist-info", "onnxruntime", "1.20.1"),
        ("onnxruntime_gpu-1.18.0.dist-info", "onnxruntime_gpu", "1.18.0"),
        ("ai_edge_litert-2.0.2.dist-info", "ai_edge_litert", "2.0.2"),
        ("tflite_runtime-2.14.0-py3.11.egg-info", "tflite_runtime", "2.14.0"),
        ("numpy-1.21.5-py3.10-linux_aarch64.egg-info", "numpy", "1.21.5"),
        ("pycoral-2.0.0-py3.9-linux.egg-info", "pycoral", "2.0.0"),
        ("edgekit.egg-info", None, None),
        ("numpy-x.dist-info", None, None),
    ],
)
def test_a_metadata_folder_is_a_name_and_a_version(name: str, distribution: str | None, version: str | None) -> None:
    match = _METADATA.match(name)
    assert (match and (match["name"], match["version"])) == (distribution and (distribution, version))


@pytest.mark.parametrize(("version", "major"), [("2.1.0", 2), ("1.26", 1), ("0", 0), ("", 0), ("rc1", 0), ("10", 10)])
def test_the_first_number_of_a_version(version: str, major: int) -> None:
    assert _major(version) == major


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


@pytest.mark.parametrize(
    ("names", "problems"),
    [
        (["onnxruntime-1.20.1.dist-info", "onnxruntime"], {"onnxruntime": ()}),
        (
            ["onnxruntime-1.20.1.dist-info"],
            {"onnxruntime": ("its metadata is there, its module onnxruntime is not",)},
        ),
        (
            ["tflite_runtime-2.14.0.dist-info", "tflite_runtime", "numpy-2.1.0.dist-info", "numpy"],
            {"tflite-runtime": ("built against numpy 1 and numpy 2.1.0 is installed",), "numpy": ()},
        ),
        (
            ["tflite_runtime-2.14.0.dist-info", "tflite_runtime", "numpy-1.26.0.dist-info", "numpy"],
            {"tflite-runtime": (), "numpy": ()},
        ),
        (
            ["onnxruntime-1.20.1.dist-info", "onnxruntime_gpu-1.20.1.dist-info", "onnxruntime"],
            {
                "onnxruntime": ("onnxruntime-gpu installs the same module",),
                "onnxruntime-gpu": ("onnxruntime installs the same module",),
            },
        ),
    ],
)
def test_what_metadata_shows_to_be_wrong_is_told_with_its_cure(
    names: list[str], problems: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    install(tmp_path, *names)
    found = {runtime.distribution: runtime.problems for runtime in read_runtimes([str(tmp_path)])[1:]}
    assert found.keys() == problems.keys()
    for name, wanted in problems.items():
        assert len(found[name]) == len(wanted)
        assert all(problem.startswith(start) for problem, start in zip(found[name], wanted, strict=True))
