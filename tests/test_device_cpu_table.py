"""CPU features, core names and limits of a process, table by table and against plain models of the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.device.cgroups import Limit, cpu_quota, cpuset, memory_limits, memory_used, stat_value
from edgekit.device.cpu import _ARM_PARTS, _NEEDS, _architecture, _features, read_cpu, usable_cores
from edgekit.device.tree import Tree, span, to_int

Plant = Callable[[dict[str, str | bytes]], Path]


def ground(name: str) -> set[str]:
    """Everything that a feature stands on."""
    needs = set(_NEEDS.get(name, ()))
    return needs.union(*(ground(need) for need in needs)) if needs else set()


@given(st.sets(st.sampled_from([*sorted(_NEEDS), "xsave"])))
def test_a_feature_counts_exactly_when_all_that_it_stands_on_is_there(listed: set[str]) -> None:
    features, notes = _features([{"flags": " ".join(sorted(listed))}])
    wanted = {name for name in listed & set(_NEEDS) if ground(name) <= listed}
    assert set(features or ()) == wanted
    assert len(notes) == len(listed & set(_NEEDS)) - len(wanted), "each that does not count says why"


@given(st.lists(st.sets(st.sampled_from(["asimd", "asimddp", "i8mm", "sve"])), min_size=1, max_size=5))
def test_only_what_every_core_has_counts_and_the_rest_is_told(cores: list[set[str]]) -> None:
    features, notes = _features([{"Features": " ".join(core)} for core in cores])
    assert set(features or ()) <= set.intersection(*cores)
    partial = set.union(*cores) - set.intersection(*cores)
    assert any("only some cores have" in note for note in notes) == bool(partial)


def test_features_stand_in_the_tables_order_whatever_the_files() -> None:
    features, _ = _features([{"flags": "avx512_vnni avx2 xsave avx512f avx"}])
    assert features == ("avx", "avx2", "avx512f", "avx512_vnni")


@pytest.mark.parametrize(("part", "name"), sorted(_ARM_PARTS.items()))
def test_every_arm_core_has_its_name(part: int, name: str, plant: Plant) -> None:
    text = f"processor : 0\nCPU implementer : 0x41\nCPU part : {part:#05x}\n"
    (cluster,) = read_cpu(Tree(plant({"proc/cpuinfo": text}))).clusters
    assert (cluster.name, cluster.cores) == (name, (0,))


@pytest.mark.parametrize(
    ("maker", "part", "name"),
    [
        ("0x4e", "0x004", "Carmel"),
        ("0x4e", "0x003", "Denver 2"),
        ("0x51", "0x804", "Kryo 4xx Gold"),
        ("0x41", "0xfff", "core 0x41/0xfff"),
        ("0x61", "0x022", "core 0x61/0x022"),
    ],
)
def test_a_core_of_another_maker_is_named_or_numbered(maker: str, part: str, name: str, plant: Plant) -> None:
    text = f"processor : 3\nCPU implementer : {maker}\nCPU part : {part}\n"
    assert read_cpu(Tree(plant({"proc/cpuinfo": text}))).clusters[0].name == name


@pytest.mark.parametrize(
    ("machine", "bits", "architecture"),
    [
        ("aarch64", 64, "aarch64"),
        ("aarch64", 32, "armv7l"),
        ("x86_64", 32, "i686"),
        ("x86_64", 64, "x86_64"),
        ("armv7l", 32, "armv7l"),
        ("riscv64", 64, "riscv64"),
        ("aarch64", None, "aarch64"),
        (None, 32, None),
        (None, None, None),
    ],
)
def test_wheels_are_for_the_programs_and_not_for_the_kernel(
    machine: str | None, bits: int | None, architecture: str | None
) -> None:
    assert _architecture(machine, bits) == architecture


@pytest.mark.parametrize(
    ("cpuinfo", "machine"),
    [
        ("flags : fpu lm\n", "x86_64"),
        ("flags : fpu\n", "i686"),
        ("isa : rv64imafdcv\n", "riscv64"),
        ("isa : rv32imac\n", None),
        ("Features : fp asimd\n", "aarch64"),
        ("Features : neon\nCPU architecture: 7\n", "armv7l"),
        ("Features : vfp\nCPU architecture: 6\n", "armv6l"),
        ("CPU architecture: 7\n", None),
        ("", None),
    ],
)
def test_of_a_captured_tree_the_machine_is_what_its_cpu_gives_away(
    cpuinfo: str, machine: str | None, plant: Plant
) -> None:
    assert read_cpu(Tree(plant({"proc/cpuinfo": cpuinfo}))).kernel_machine == machine


def test_a_kernel_that_names_its_machine_is_believed(plant: Plant) -> None:
    root = plant({"proc/cpuinfo": "flags : fpu\n", "proc/sys/kernel/arch": "x86_64\n"})
    assert read_cpu(Tree(root)).kernel_machine == "x86_64"


# Cores that may be used


@pytest.mark.parametrize(
    ("online", "allowed", "quota", "usable"),
    [
        ("0-7", "0-7", None, 8),
        ("0-7", "0-3", None, 4),
        ("0-7", "2", None, 1),
        ("0-3", "0-7", None, 4),
        ("0-7", "0-7", "250000 100000", 2),
        ("0-7", "0-7", "50000 100000", 1),
        ("0-7", "0-1", "800000 100000", 2),
        ("0-7", "0-7", "max 100000", 8),
        ("0-7", "9-12", None, 8),
        ("0-3", "", None, 4),
    ],
)
def test_threads_worth_starting_follow_from_affinity_and_quota(
    online: str, allowed: str, quota: str | None, usable: int, plant: Plant
) -> None:
    files: dict[str, str | bytes] = {"sys/devices/system/cpu/online": online + "\n"}
    if allowed:
        files["proc/self/status"] = f"Name:\tx\nCpus_allowed_list:\t{allowed}\n"
    if quota:
        files["proc/self/cgroup"] = "0::/job\n"
        files["sys/fs/cgroup/job/cpu.max"] = quota + "\n"
    assert usable_cores(plant(files)) == usable


@given(st.sets(st.integers(0, 300), max_size=40))
def test_the_kernels_lists_round_trip(numbers: set[int]) -> None:
    assert span(",".join(map(str, sorted(numbers)))) == tuple(sorted(numbers))


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_range_holds_both_its_ends_or_is_nonsense(low: int, high: int) -> None:
    assert span(f"{low}-{high}") == (tuple(range(low, high + 1)) if low <= high else ())


@given(st.text(max_size=30))
def test_any_text_is_numbers_or_none(text: str) -> None:
    assert all(isinstance(number, int) and number >= 0 for number in span(text))
    assert to_int(text) is None or int(text.strip()) == to_int(text)


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("12\n", 10, 12),
        ("0x1e60", 16, 0x1E60),
        ("1e60", 16, 0x1E60),
        ("-3", 10, -3),
        ("1e3", 10, None),
        ("", 10, None),
        (None, 10, None),
        ("9" * 25, 10, None),
        ("18446744073709551615", 10, 2**64 - 1),
        ("1 2", 10, None),
    ],
)
def test_a_number_is_one_or_none(text: str | None, base: int, value: int | None) -> None:
    assert to_int(text, base) == value


# Limits of the control group


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({"memory.max": "max"}, []),
        ({"memory.max": "1000000"}, [1_000_000]),
        ({"memory.max": "0"}, []),
        ({"memory.max": "-1"}, []),
        ({"memory.max": "rubbish"}, []),
        ({"job/memory.max": "5", "memory.max": "7"}, [5, 7]),
        ({"job/memory.max": "max", "memory.max": "7"}, [7]),
    ],
)
def test_limits_are_those_of_the_whole_path_nearest_first(
    files: dict[str, str], limits: list[int], plant: Plant
) -> None:
    root = plant({"proc/self/cgroup": "0::/job\n", **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}})
    assert [limit.bytes for limit in memory_limits(Tree(root))] == limits


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"job/cpu.max": "150000 100000"}, 1.5),
        ({"job/cpu.max": "max 100000"}, None),
        ({"job/cpu.max": "200000"}, 2.0),
        ({"job/cpu.max": "0 100000"}, None),
        ({"job/cpu.max": "100000 0"}, None),
        ({"job/cpu.max": "400000 100000", "cpu.max": "100000 100000"}, 1.0),
        ({"job/cpu.max": ""}, None),
    ],
)
def test_the_tightest_quota_counts(files: dict[str, str], quota: float | None, plant: Plant) -> None:
    root = plant({"proc/self/cgroup": "0::/job\n", **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}})
    assert cpu_quota(Tree(root)) == quota


def test_the_nearest_cpuset_that_says_something_counts(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpuset.cpus.effective": "\n",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "1-2\n",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
        }
    )
    assert cpuset(Tree(root)) == (1, 2)


@pytest.mark.parametrize(
    ("version", "current", "stat", "used"),
    [
        ("v2", "1000", "anon 1\ninactive_file 400\n", 600),
        ("v2", "1000", "", 1000),
        ("v2", "100", "inactive_file 400\n", 0),
        ("v2", None, "inactive_file 400\n", None),
        ("v1", "1000", "total_inactive_file 300\ninactive_file 900\n", 700),
        ("v1", "1000", "inactive_file 900\n", 1000),
    ],
)
def test_what_a_group_uses_is_less_its_inactive_page_cache(
    version: str, current: str | None, stat: str, used: int | None, plant: Plant
) -> None:
    names = ("memory.max", "memory.current") if version == "v2" else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    files: dict[str, str | bytes] = {"g/memory.stat": stat}
    if current is not None:
        files[f"g/{names[1]}"] = current
    assert memory_used(Tree(plant(files)), Limit(f"g/{names[0]}", 5000)) == used


@pytest.mark.parametrize(
    ("text", "value"),
    [("a 1\nb 2\n", 2), ("ab 1\n", None), ("b\n", None), ("b x\n", None), (None, None), ("b 3\nb 4\n", 3)],
)
def test_a_value_of_a_statistics_file_is_the_first_of_that_very_name(text: str | None, value: int | None) -> None:
    assert stat_value(text, "b") == value
