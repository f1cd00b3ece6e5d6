"""Limits of control groups: every layout people run, and a real one that this test makes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgekit.device.cgroups import cpu_quota, cpuset, memory_limits
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
MIB = 1024**2
SYS = Path("/sys/fs/cgroup")


def limits(root: Path) -> list[int]:
    return sorted(limit.bytes for limit in memory_limits(Tree(root)))


def test_v2_reads_the_whole_path_and_a_tighter_ancestor_counts(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "0::/system.slice/docker.scope/inner\n",
            "sys/fs/cgroup/system.slice/docker.scope/inner/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/docker.scope/memory.max": "1073741824\n",
            "sys/fs/cgroup/system.slice/memory.max": "536870912\n",
            "sys/fs/cgroup/memory.max": "max\n",
        }
    )
    assert limits(root) == [536870912, 1073741824]


def test_v1_reads_the_path_and_the_inherited_limit(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "9:memory:/docker/abc\n8:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/docker/abc/memory.stat": "cache 1\nhierarchical_memory_limit 268435456\n",
        }
    )
    assert limits(root) == [268435456, 9223372036854771712]


def test_hybrid_takes_memory_from_v1_though_a_v2_line_exists(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "10:memory:/user.slice\n1:name=systemd:/user.slice\n0::/user.slice\n",
            "sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes": "3221225472\n",
            "sys/fs/cgroup/unified/cgroup.controllers": "\n",
        }
    )
    assert limits(root) == [3221225472]


def test_a_container_that_shows_the_hosts_path_but_mounts_only_its_own_part(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "9:memory:/docker/abc/child\n",
            "proc/self/mountinfo": (
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "36 31 0:33 /docker/abc /sys/fs/cgroup/memory ro shared:1 - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/memory/child/memory.limit_in_bytes": "134217728\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
        }
    )
    assert limits(root) == [134217728, 268435456]


def test_a_hierarchy_mounted_elsewhere_is_found_by_mountinfo(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": "40 1 0:40 / /mnt/cg rw - cgroup2 cgroup2 rw\n",
            "mnt/cg/a/memory.max": "4096000\n",
        }
    )
    assert limits(root) == [4096000]


def test_a_group_outside_the_namespace_falls_back_to_the_mount_root(plant: Plant) -> None:
    root = plant({"proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/memory.max": "2097152\n"})
    assert limits(root) == [2097152]


@pytest.mark.parametrize("text", ["max\n", "-1\n", "0\n", "", "\0\0", "12 34\n", "lots"])
def test_what_is_no_positive_number_is_no_limit(plant: Plant, text: str) -> None:
    assert limits(plant({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": text})) == []


def test_without_any_group_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_limits(Tree(tmp_path)) == ()
    assert cpu_quota(Tree(tmp_path)) is None
    assert cpuset(Tree(tmp_path)) == ()


def test_the_tightest_cpu_quota_on_the_path_counts(plant: Plant) -> None:
    v2 = plant(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        }
    )
    assert cpu_quota(Tree(v2)) == 1.5


def test_a_v1_quota_of_minus_one_is_none_and_joined_controllers_are_found(plant: Plant) -> None:
    free = {
        "proc/self/cgroup": "8:cpu,cpuacct:/x\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(Tree(plant(free))) is None
    assert cpu_quota(Tree(plant({"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "50000\n"}))) == 0.5


def test_the_nearest_cpuset_counts(plant: Plant) -> None:
    root = plant(
        {
            "proc/self/cgroup": "3:cpuset:/box\n",
            "sys/fs/cgroup/cpuset/box/cpuset.cpus": "2-3\n",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-7\n",
        }
    )
    assert cpuset(Tree(root)) == (2, 3)


@contextlib.contextmanager
def real_group(controller: str, settings: dict[str, str]) -> Iterator[Path]:
    """A control group of this machine, v1 or v2, removed afterwards. Skips where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("making a control group needs root")
    v1 = (SYS / controller).is_dir()
    folder = (SYS / controller if v1 else SYS) / f"edgekit-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no control group can be made here: {e}")
    try:
        for name, value in settings.items():
            if (folder / name).exists():
                (folder / name).write_text(value)
        yield folder
    finally:
        folder.rmdir()


def probe_inside(folder: Path) -> dict[str, Any]:
    """What `edgekit probe --json` says when it runs as a member of the group."""
    command = [sys.executable, "-m", "edgekit.cli.main", "probe", "--json"]
    member = folder / "cgroup.procs"
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        preexec_fn=lambda: member.write_text(str(os.getpid())) and None,
    )
    facts: dict[str, Any] = json.loads(run.stdout)
    return facts


def test_usable_memory_follows_a_real_limit() -> None:
    limit = 256 * MIB
    settings = {"memory.limit_in_bytes": str(limit), "memory.max": str(limit)}
    with real_group("memory", settings) as folder:
        memory = probe_inside(folder)["memory"]
    assert memory["usable_bytes"] == limit
    assert memory["total_bytes"] > limit
    assert memory["available_bytes"] <= limit
    assert memory["limits"][0]["bytes"] == limit


def test_usable_cores_follow_a_real_quota() -> None:
    settings = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000", "cpu.max": "150000 100000"}
    with real_group("cpu", settings) as folder:
        cpu = probe_inside(folder)["cpu"]
    assert cpu["quota_cores"] == 1.5
    assert cpu["cores_usable"] == 1


def test_usable_cores_follow_a_real_cpuset() -> None:
    with real_group("cpuset", {"cpuset.mems": "0", "cpuset.cpus": "0"}) as folder:
        cpu = probe_inside(folder)["cpu"]
    assert cpu["cores_usable"] == 1
    assert cpu["cores_online"] >= 1


def test_usable_cores_follow_taskset() -> None:
    def pin() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    code = "from edgekit.device.cpu import usable_cores; print(usable_cores())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, preexec_fn=pin)
    assert run.stdout.strip() == "1"
