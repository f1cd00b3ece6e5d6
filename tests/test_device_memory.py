"""How much memory there is, and how much this process may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.memory import Memory, available_bytes, read_meminfo, read_memory, total_bytes
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
GIB = 1024**3
MIB = 1024**2


def memory(root: Path, *, declared_bytes: int | None = None) -> Memory:
    return read_memory(Tree(root), declared_bytes=declared_bytes)


def meminfo(total_kib: int, available_kib: int | None = None) -> str:
    rest = "" if available_kib is None else f"MemAvailable:   {available_kib} kB\n"
    return f"MemTotal:       {total_kib} kB\nMemFree:         1024 kB\n{rest}"


def test_without_a_limit_all_of_the_total_is_usable(plant: Plant) -> None:
    found = memory(plant({"proc/meminfo": meminfo(4 * 1024 * 1024, 1024 * 1024)}))
    assert (found.total_bytes, found.usable_bytes, found.available_bytes) == (4 * GIB, 4 * GIB, GIB)
    assert found.limits == ()


def test_a_missing_meminfo_is_unknown_and_not_nominal(tmp_path: Path) -> None:
    found = memory(tmp_path, declared_bytes=8 * GIB)
    assert (found.total_bytes, found.usable_bytes, found.available_bytes) == (None, None, None)
    assert found.declared_bytes == 8 * GIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "MemTotal:       0 kB\n",
        "MemTotal:       lots kB\n",
        "MemTotal:       209",  # cut off in the middle of the number
        "MemTotal:       99999999999999999999 kB\n",
        "memtotal: 12 kB\n",
    ],
)
def test_a_meminfo_that_makes_no_sense_gives_no_total_and_says_so(plant: Plant, text: str) -> None:
    found = memory(plant({"proc/meminfo": text}))
    assert found.total_bytes is None
    assert found.usable_bytes is None
    assert any("MemTotal" in note for note in found.notes)


def test_linux_2_4s_table_is_understood(plant: Plant) -> None:
    text = (
        "        total:    used:    free:  shared: buffers:  cached:\n"
        "Mem:  260579328 136073216 124506112        0  4915200 94064640\n"
        "Swap: 786894848        0 786894848\n"
        "MemTotal:       254472 kB\n"
    )
    assert read_meminfo(Tree(plant({"proc/meminfo": text})))["MemTotal"] == 260579328
    only = text.rpartition("MemTotal")[0]
    assert memory(plant({"proc/meminfo": only})).total_bytes == 260579328


def test_without_mem_available_it_is_estimated_and_marked(plant: Plant) -> None:
    text = "MemTotal:    2097152 kB\nMemFree:   0 kB\nCached:  1600704 kB\nBuffers:   1024 kB\nSlab:"
    found = memory(plant({"proc/meminfo": text}))
    assert found.available_bytes == (1600704 + 1024) * 1024
    assert any("MemAvailable" in note for note in found.notes)


def test_a_zero_mem_available_is_not_believed(plant: Plant) -> None:
    text = "MemTotal: 1048576 kB\nMemFree: 524288 kB\nMemAvailable: 0 kB\n"
    assert memory(plant({"proc/meminfo": text})).available_bytes == 512 * MIB


def test_available_never_exceeds_the_total(plant: Plant) -> None:
    found = memory(plant({"proc/meminfo": meminfo(262144, 9000000)}))
    assert found.available_bytes == found.total_bytes == 256 * MIB
    assert any("mixed" in note for note in found.notes)


def test_swap_and_zram_are_told_and_never_counted(plant: Plant) -> None:
    swaps = (
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/zram0 partition\t1002668\t8960\t75\n/var/swap file\t2097148\t0\t-2\n"
    )
    found = memory(plant({"proc/meminfo": meminfo(1002672), "proc/swaps": swaps}))
    assert found.usable_bytes == 1002672 * 1024
    assert found.swap_bytes == (1002668 + 2097148) * 1024


def test_a_limit_cuts_both_usable_and_available(plant: Plant) -> None:
    root = plant(
        {
            "proc/meminfo": meminfo(4 * 1024 * 1024, 3 * 1024 * 1024),
            "proc/self/cgroup": "0::/app\n",
            "sys/fs/cgroup/app/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/app/memory.current": f"{600 * MIB}\n",
            "sys/fs/cgroup/app/memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
        }
    )
    found = memory(root)
    assert found.usable_bytes == GIB
    assert found.available_bytes == GIB - 500 * MIB
    assert [limit.source for limit in found.limits] == ["sys/fs/cgroup/app/memory.max"]
    assert available_bytes(Tree(root)) == found.available_bytes


def test_a_limit_above_the_total_is_no_limit(plant: Plant) -> None:
    root = plant(
        {
            "proc/meminfo": meminfo(1024 * 1024),
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{64 * GIB}\n",
        }
    )
    found = memory(root)
    assert found.usable_bytes == found.total_bytes == GIB
    assert found.limits == ()


def test_a_declared_size_that_disagrees_is_noted_and_never_used(plant: Plant) -> None:
    less = memory(plant({"proc/meminfo": meminfo(6636144)}), declared_bytes=8 * GIB)
    assert less.total_bytes == 6636144 * 1024
    assert any("6.33 GiB" in note and "8 GiB" in note for note in less.notes)
    more = memory(plant({"proc/meminfo": meminfo(8 * 1024 * 1024 - 100)}), declared_bytes=2 * GIB)
    assert any("declaration is wrong" in note for note in more.notes)
    fine = memory(plant({"proc/meminfo": meminfo(7951872, 1024)}), declared_bytes=8 * GIB)
    assert fine.notes == ()


def test_what_the_boot_loader_reports_is_told_and_never_used(plant: Plant) -> None:
    root = plant({"proc/meminfo": meminfo(2202009, 1024)})
    more = read_memory(Tree(root), firmware_bytes=4 * GIB)
    assert (more.total_bytes, more.firmware_bytes) == (2202009 * 1024, 4 * GIB)
    assert any("4.00 GiB" in note and "2.10 GiB" in note for note in more.notes)
    placeholder = read_memory(Tree(root), firmware_bytes=GIB)
    assert placeholder.notes == ()


def test_a_large_contiguous_pool_is_inside_the_total_and_noted(plant: Plant) -> None:
    found = memory(plant({"proc/meminfo": meminfo(426068, 233696) + "CmaTotal:  262144 kB\nCmaFree: 82800 kB\n"}))
    assert found.total_bytes == 426068 * 1024
    assert found.contiguous_bytes == 256 * MIB
    assert any("CMA" in note for note in found.notes)


def test_the_first_of_equal_lines_counts(plant: Plant) -> None:
    assert total_bytes(Tree(plant({"proc/meminfo": meminfo(1024) + meminfo(2048)}))) == MIB


def test_this_machine_has_a_total_and_something_available() -> None:
    found = read_memory(Tree("/"))
    assert found.total_bytes is not None
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= (found.usable_bytes or 0) <= found.total_bytes
