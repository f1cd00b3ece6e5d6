"""Which control groups hold this process, and the tightest limits on their whole path: v1, v2 and hybrid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Tuple

from edgekit.device.tree import Tree, span, to_int

_DEPTH_LIMIT = 64


@dataclass(frozen=True)
class Limit:
    """One memory limit found on the path; `source` is the file that says so."""

    source: str
    bytes: int


class _Mount(NamedTuple):
    point: str
    root: str


def memory_limits(tree: Tree) -> Tuple[Limit, ...]:
    """Every memory limit from the process's group up to the root of the mount, sentinels for "none" included.

    A v1 parent outside the mount shows only in `hierarchical_memory_limit` of the group's memory.stat.
    Source: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the kernel.
    Check by hand: cat /proc/self/cgroup; cat /sys/fs/cgroup/memory.max
    """
    found: List[Limit] = []
    for folder in groups(tree, "memory"):
        name = folder + "/memory.limit_in_bytes"
        value = tree.integer(name)
        if value is not None and value > 0:
            found.append(Limit(name, value))
        inherited = stat_value(tree.text(folder + "/memory.stat"), "hierarchical_memory_limit")
        if inherited is not None and inherited > 0:
            found.append(Limit(folder + "/memory.stat", inherited))
    for folder in groups(tree, ""):
        name = folder + "/memory.max"
        value = tree.integer(name)  # the word "max" is no number and no limit
        if value is not None and value > 0:
            found.append(Limit(name, value))
    return tuple(found)


def memory_used(tree: Tree, limit: Limit) -> Optional[int]:
    """Bytes that the group of `limit` uses and cannot drop: its usage less the inactive page cache."""
    folder = limit.source.rpartition("/")[0]
    v1 = not limit.source.endswith("memory.max")
    used = tree.integer(folder + ("/memory.usage_in_bytes" if v1 else "/memory.current"))
    if used is None:
        return None
    cache = stat_value(tree.text(folder + "/memory.stat"), "total_inactive_file" if v1 else "inactive_file")
    return max(0, used - (cache or 0))


def cpu_quota(tree: Tree) -> Optional[float]:
    """Cores' worth of time that the tightest CFS quota on the path grants; None without one.

    Check by hand: cat /sys/fs/cgroup/cpu.max
    """
    found: List[float] = []
    for folder in groups(tree, "cpu"):
        quota = tree.integer(folder + "/cpu.cfs_quota_us")
        period = tree.integer(folder + "/cpu.cfs_period_us")
        found += _cores(quota, period)
    for folder in groups(tree, ""):
        quota_text, _, period_text = (tree.line(folder + "/cpu.max") or "").partition(" ")
        found += _cores(to_int(quota_text), to_int(period_text or "100000"))
    return min(found) if found else None


def cpuset(tree: Tree) -> Tuple[int, ...]:
    """CPU numbers that the process's cpuset allows; empty when none is set."""
    files = [folder + name for folder in groups(tree, "cpuset") for name in ("/cpuset.effective_cpus", "/cpuset.cpus")]
    files += [folder + name for folder in groups(tree, "") for name in ("/cpuset.cpus.effective", "/cpuset.cpus")]
    for name in files:
        cpus = span(tree.line(name))
        if cpus:
            return cpus
    return ()


def groups(tree: Tree, controller: str) -> List[str]:
    """Folders of the process's group and its ancestors, nearest first; `controller` "" is the v2 hierarchy.

    Inside a container the path in /proc/self/cgroup may be the host's while the mount shows only the container's
    part, so the path is tried both whole and relative to the mount's root.
    """
    path = _own_path(tree, controller)
    if path is None:
        return []
    found: List[str] = []
    for mount in _mounts(tree, controller):
        tails = [path]
        if mount.root != "/" and (path + "/").startswith(mount.root.rstrip("/") + "/"):
            tails.append(path[len(mount.root.rstrip("/")) :] or "/")
        for tail in tails:
            for folder in _upwards(mount.point, tail):
                if folder not in found:
                    found.append(folder)
    return found


def _own_path(tree: Tree, controller: str) -> Optional[str]:
    text = tree.text("proc/self/cgroup")
    if text is None:
        return "/"  # the tree does not say: what the mount's root limits still holds
    for line in text.splitlines()[:256]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        hit = (number == "0" and not controllers) if not controller else controller in controllers.split(",")
        if hit and path.startswith("/"):
            # A group outside the own namespace shows as "/../x": nothing above the mount can be read.
            return "/" if "/.." in path else path
    return None


def _mounts(tree: Tree, controller: str) -> List[_Mount]:
    """Where the hierarchy is mounted: as mountinfo says, then at the usual places."""
    found: List[_Mount] = []
    for line in (tree.text("proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kinds) < 3:
            continue
        v2 = kinds[0] == "cgroup2" and not controller
        v1 = kinds[0] == "cgroup" and bool(controller) and controller in kinds[2].split(",")
        if v1 or v2:
            found.append(_Mount(fields[4].lstrip("/"), fields[3]))
    base = "sys/fs/cgroup"
    usual = [base, base + "/unified"]
    if controller:
        usual = [base + "/" + name for name in tree.names(base) if controller in name.split(",")]
    return found + [_Mount(point, "/") for point in usual if point not in [mount.point for mount in found]]


def _upwards(point: str, path: str) -> List[str]:
    parts = [part for part in path.split("/") if part][:_DEPTH_LIMIT]
    return ["/".join([point, *parts[:count]]) for count in range(len(parts), -1, -1)]


def _cores(quota_us: Optional[int], period_us: Optional[int]) -> List[float]:
    """Nothing for "-1" and "max": no quota."""
    return [quota_us / period_us] if quota_us and period_us and quota_us > 0 and period_us > 0 else []


def stat_value(text: Optional[str], key: str) -> Optional[int]:
    """The number after `key` in a file of "key number" lines."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return to_int(value)
    return None
