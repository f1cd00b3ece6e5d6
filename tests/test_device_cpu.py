"""What all cores can do, and how many of them this process may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.cpu import arm_parts, read_cpu, usable_cores
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]


def x86(flags: str, cores: int = 1, model: str = "Intel(R) N100") -> str:
    return "".join(
        f"processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: {model}\nflags\t\t: {flags}\n\n"
        for n in range(cores)
    )


def arm(parts: list[int], features: str = "fp asimd asimdhp asimddp") -> str:
    core = "processor\t: {}\nFeatures\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {:#x}\n\n"
    return "".join(core.format(number, features, part) for number, part in enumerate(parts))


def features(plant: Plant, cpuinfo: str) -> tuple[str, ...] | None:
    return read_cpu(Tree(plant({"proc/cpuinfo": cpuinfo}))).features


def test_without_cpuinfo_features_are_unknown_and_not_empty(tmp_path: Path) -> None:
    cpu = read_cpu(Tree(tmp_path))
    assert cpu.features is None
    assert cpu.cores_online is None
    assert cpu.cores_usable is None
    assert cpu.architecture is None


def test_avx2_without_avx_and_xsave_is_no_avx2(plant: Plant) -> None:
    cpu = read_cpu(Tree(plant({"proc/cpuinfo": x86("fpu sse2 lm avx2 fma avx512f avx512_vnni hypervisor")})))
    assert cpu.features == ()
    assert any("avx2" in note for note in cpu.notes)


def test_avx_needs_the_system_to_save_its_registers(plant: Plant) -> None:
    assert features(plant, x86("lm avx avx2")) == ()
    assert features(plant, x86("lm xsave avx avx2")) == ("avx", "avx2")


def test_vnni_without_avx512_is_kept_apart_from_vnni_with_it(plant: Plant) -> None:
    assert features(plant, x86("lm xsave avx avx2 avx_vnni")) == ("avx", "avx2", "avx_vnni")
    amx = features(plant, x86("lm xsave avx avx2 avx512f avx512_vnni amx_tile amx_int8"))
    assert amx is not None
    assert {"avx512_vnni", "amx_int8"} <= set(amx)
    assert features(plant, x86("lm xsave amx_int8")) == ()


def test_a_feature_that_one_core_lacks_does_not_count(plant: Plant) -> None:
    text = arm([0xD05], "fp asimd") + arm([0xD0B]).replace("processor\t: 0", "processor\t: 1")
    cpu = read_cpu(Tree(plant({"proc/cpuinfo": text})))
    assert cpu.features == ("asimd",)
    assert any("asimddp" in note and "some cores" in note for note in cpu.notes)


def test_asimdhp_is_not_asimddp(plant: Plant) -> None:
    carmel = arm([0x004], "fp asimd evtstrm aes asimdhp").replace("0x41", "0x4e")
    cpu = read_cpu(Tree(plant({"proc/cpuinfo": carmel})))
    assert cpu.features == ("asimd", "asimdhp")
    assert cpu.clusters[0].name == "Carmel"


def test_old_arm_text_with_one_features_line_for_all_cores(plant: Plant) -> None:
    text = (
        "Processor\t: ARMv7 Processor rev 4 (v7l)\nprocessor\t: 0\nBogoMIPS\t: 38\n\nprocessor\t: 1\nBogoMIPS\t: 38\n\n"
        "Features\t: half thumb neon vfpv4\nCPU implementer\t: 0x41\nCPU architecture: 7\nCPU part\t: 0xc07\n\n"
        "Hardware\t: BCM2709\nRevision\t: a01041\n"
    )
    cpu = read_cpu(Tree(plant({"proc/cpuinfo": text})))
    assert cpu.features == ("neon",)
    assert cpu.cores_online == 2
    assert cpu.kernel_machine == "armv7l"


def test_riscv_vectors_come_from_the_isa_line(plant: Plant) -> None:
    text = "processor\t: 0\nhart\t: 0\nisa\t\t: rv64imafdcv_zicsr_zvl128b\nmmu\t: sv39\n"
    cpu = read_cpu(Tree(plant({"proc/cpuinfo": text})))
    assert cpu.features == ("v",)
    assert cpu.architecture == "riscv64"


def test_big_and_little_cores_are_told_apart_with_their_clocks(plant: Plant) -> None:
    files: dict[str, str | bytes] = {"proc/cpuinfo": arm([0xD05] * 4 + [0xD0B] * 4)}
    for n in range(8):
        khz = 1800000 if n < 4 else 2400000
        files[f"sys/devices/system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq"] = f"{khz}\n"
    clusters = read_cpu(Tree(plant(files))).clusters
    assert [(c.name, c.cores, c.max_hz) for c in clusters] == [
        ("Cortex-A55", (0, 1, 2, 3), 1_800_000_000),
        ("Cortex-A76", (4, 5, 6, 7), 2_400_000_000),
    ]


def test_intels_two_kinds_of_core_are_told_apart(plant: Plant) -> None:
    root = plant(
        {
            "proc/cpuinfo": x86("lm xsave avx", 4, "Intel(R) Core(TM) Ultra 9 185H"),
            "sys/devices/cpu_core/cpus": "0-1\n",
            "sys/devices/cpu_atom/cpus": "2-3\n",
        }
    )
    assert [c.name for c in read_cpu(Tree(root)).clusters] == ["performance", "efficiency"]


@pytest.mark.parametrize(
    ("quota", "usable"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("800000 100000", 4)]
)
def test_usable_cores_are_whole_cores_of_the_quota(plant: Plant, quota: str, usable: int) -> None:
    root = plant(
        {"proc/cpuinfo": x86("lm", 4), "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota + "\n"},
    )
    assert read_cpu(Tree(root)).cores_usable == usable
    assert usable_cores(root) == usable


def test_usable_cores_are_those_allowed_by_affinity_and_cpuset(plant: Plant) -> None:
    root = plant(
        {
            "sys/devices/system/cpu/online": "0-7\n",
            "proc/self/status": "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpuset.cpus.effective": "2-5\n",
        }
    )
    cpu = read_cpu(Tree(root))
    assert (cpu.cores_online, cpu.cores_usable) == (8, 2)


def test_a_machine_that_says_nothing_still_gets_one_thread(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 1


def test_a_32_bit_userland_under_a_64_bit_kernel(plant: Plant) -> None:
    by_loader = read_cpu(Tree(plant({"proc/cpuinfo": arm([0xD08], "fp asimd crc32"), "lib/ld-linux-armhf.so.3": ""})))
    assert (by_loader.userland_bits, by_loader.kernel_machine, by_loader.architecture) == (32, "aarch64", "armv7l")


@pytest.mark.parametrize(("kind", "bits"), [(b"\x01", 32), (b"\x02", 64)])
def test_userland_bits_come_from_a_programs_header(plant: Plant, kind: bytes, bits: int) -> None:
    root = plant({"bin/sh": b"\x7fELF" + kind + b"\x01\x01", "proc/cpuinfo": x86("lm")})
    assert read_cpu(Tree(root)).userland_bits == bits


def test_arm_parts_are_those_of_arm_alone(plant: Plant) -> None:
    text = arm([0xD85, 0xD87]) + "processor\t: 9\nCPU implementer\t: 0x51\nCPU part\t: 0x802\n"
    assert arm_parts(Tree(plant({"proc/cpuinfo": text}))) == {0xD85, 0xD87}


def test_this_machine_has_cores_and_features() -> None:
    cpu = read_cpu(Tree("/"))
    assert cpu.cores_usable is not None
    assert 1 <= cpu.cores_usable <= (cpu.cores_online or 0)
    assert cpu.features is not None
    assert usable_cores() == cpu.cores_usable
