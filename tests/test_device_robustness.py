"""Whatever lies in the files, the probe and the sensors answer: no exception, no wait, no unbounded read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekit.device import sensors
from edgekit.device.hardware_id import device_id
from edgekit.device.probe import as_json, probe
from edgekit.device.tree import Tree
from edgekit.profiles import board_tables

PROFILES = board_tables()
FILES = (
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/swaps",
    "proc/mounts",
    "proc/version",
    "proc/loadavg",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/status",
    "proc/self/smaps",
    "proc/1/environ",
    "proc/sys/kernel/arch",
    "proc/device-tree/compatible",
    "proc/device-tree/model",
    "proc/device-tree/serial-number",
    "proc/device-tree/#address-cells",
    "proc/device-tree/memory@0/reg",
    "proc/device-tree/npu@1/compatible",
    "proc/device-tree/npu@1/status",
    "proc/device-tree/reserved-memory/linux,cma/size",
    "proc/device-tree/reserved-memory/dsp@2/reg",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
    "etc/os-release",
    "etc/nv_tegra_release",
    "etc/nvpmodel.conf",
    "var/lib/nvpmodel/status",
    "bin/sh",
    "dev/hailo0",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    "sys/devices/gpu.0/load",
    "sys/devices/soc0/soc_id",
    "sys/devices/soc0/family",
    "sys/module/tegra_fuse/parameters/tegra_chip_id",
    "sys/bus/pci/devices/0000:01:00.0/vendor",
    "sys/bus/pci/devices/0000:01:00.0/device",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "sys/bus/usb/devices/1-1/idVendor",
    "sys/bus/usb/devices/1-1/idProduct",
    "sys/bus/usb/devices/1-1/busnum",
    "sys/class/dmi/id/product_name",
    "sys/class/dmi/id/product_uuid",
    "sys/class/net/eth0/address",
    "sys/class/remoteproc/remoteproc0/name",
    "sys/class/thermal/thermal_zone0/type",
    "sys/class/thermal/thermal_zone0/temp",
    "sys/class/thermal/cooling_device0/type",
    "sys/class/thermal/cooling_device0/cur_state",
    "sys/class/hwmon/hwmon0/name",
    "sys/class/hwmon/hwmon0/in1_input",
    "sys/class/hwmon/hwmon0/curr1_input",
    "sys/class/devfreq/17000000.gpu/available_frequencies",
    "sys/class/powercap/intel-rapl:0/energy_uj",
    "sys/kernel/debug/rknpu/version",
)
SEEDS = (
    b"MemTotal:       123 kB\nMemFree: 7 kB\nMemAvailable: 99999999999999999999 kB\n",
    b"Mem:  1\nMem: 2 3 4 5\nMem:\n",
    b"processor\t: 0\nflags\t: lm xsave avx avx2\nFeatures\t: asimd asimddp\nCPU part\t: 0xd85\nRevision : e04171\n\n",
    b"0::/a/../../..//b\n9:memory:/x\n3:cpuset,cpu:/\n",
    b"36 31 0:33 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n1 2 - cgroup cgroup memory,cpu\n - - -\n",
    b"nvidia,p3768-0000+p3767-0005-supernvidia,tegra234\0,\0,,\0rockchip,rk3588\0fsl,imx8mp\0qcom,sc7280\0ti,j721e\0",
    b"max 100000\n", b"-1\n", b"0-99999999999\n", b"0x10de\n", b"0x030000\n", b"18d1\n", b"9302\n", b"35\n",
    b"ina3221\n",
    b"Tegra\n", b"pmode:99999\n", b"< POWER_MODEL ID=0 NAME=A >\n", b"disabled\0", b"vivante,gc\0", b"\x7fELF\x01",
    b"Linux version 6.7.0-tegra\n", b"dc:a6:32:01:02:03\n", b"MemTotal", b"\0" * 64, b"-273150000\n", b"1e999\n",
    b"\xd9\xa3\n",
)  # fmt: skip
contents = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(SEEDS),
    st.lists(st.sampled_from(SEEDS), max_size=3).map(b"".join),
    st.tuples(st.sampled_from(SEEDS), st.integers(0, 80)).map(lambda pair: pair[0][: pair[1]]),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
)
odd = st.sampled_from(["folder", "loop", "up", "huge", "pipe", "unreadable"])


@contextlib.contextmanager
def machine(files: dict[str, bytes | str]) -> Iterator[Path]:
    """A tree of these files; a text stands for a kind of oddity in place of the file."""
    root = Path(tempfile.mkdtemp(prefix="edgekit-"))
    try:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _place(path, content)
        yield root
    finally:
        shutil.rmtree(root)


def _place(path: Path, content: bytes | str) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)
    elif content == "up":
        path.symlink_to("../" * 50)
    elif content == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 36)
    elif content == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"secret")
        path.chmod(0)


def check(root: Path) -> None:
    started_s = time.monotonic()
    facts = probe(root, PROFILES)
    reading = sensors.read(root)
    assert time.monotonic() - started_s < 5.0
    json.dumps(as_json(facts), allow_nan=False)
    for value in (facts.memory.total_bytes, facts.memory.usable_bytes, facts.memory.available_bytes):
        assert value is None or value >= 0
    assert facts.cpu.cores_usable is None or facts.cpu.cores_usable >= 1
    assert reading.temperature_c is None or -40 < reading.temperature_c < 150
    name = device_id(Tree(root))
    assert name is None or (len(name) <= 63 and name.isascii() and name == name.lower())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.dictionaries(st.sampled_from(FILES), contents, min_size=1, max_size=14))
def test_any_bytes_in_any_file_give_an_answer(files: dict[str, bytes | str]) -> None:
    with machine(files) as root:
        check(root)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.dictionaries(st.sampled_from(FILES), st.one_of(odd, contents), min_size=1, max_size=10))
def test_folders_loops_pipes_and_huge_files_give_an_answer(files: dict[str, bytes | str]) -> None:
    with machine(files) as root:
        check(root)


@pytest.mark.parametrize("kind", ["loop", "up", "huge", "pipe", "unreadable", "folder"])
def test_every_file_being_odd_in_the_same_way_gives_an_answer(kind: str) -> None:
    with machine(dict.fromkeys(FILES, kind)) as root:
        check(root)


@pytest.mark.parametrize(
    "text", [b"a" * 300_000, b",nvidia" * 40_000, b"Serial:" + b" " * 250_000, b"MemTotal: 1" * 20_000, b"\n" * 260_000]
)
def test_long_texts_cost_no_more_than_their_length(text: bytes) -> None:
    names = (
        "proc/meminfo",
        "proc/cpuinfo",
        "proc/device-tree/compatible",
        "proc/mounts",
        "proc/version",
    )
    with machine(dict.fromkeys(names, text)) as root:
        check(root)


def test_folders_as_entries_everywhere_give_an_answer() -> None:
    names = (
        "sys/class/thermal",
        "sys/class/hwmon",
        "sys/bus/pci/devices",
        "sys/class/net",
        "proc/device-tree",
        "dev/dri",
    )
    with machine({f"{folder}/{n}x{n}@{n}/y": b"" for folder in names for n in range(200)}) as root:
        check(root)


def test_reading_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file costs more than a mebibyte, however long it is."""
    read_bytes = 0
    original = os.read

    def counting(handle: int, count: int) -> bytes:
        nonlocal read_bytes
        data = original(handle, count)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "read", counting)
    with machine({"proc/cpuinfo": "huge"}) as root:
        Tree(root).text("proc/cpuinfo", 1024 * 1024)
        assert read_bytes == 1024 * 1024
