"""The facts of one machine, read from files only: what `edgekit probe` prints and everything else decides by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from edgekit.device import npu_cards, npu_socs, nvidia
from edgekit.device.accelerators import Accelerator, Scene
from edgekit.device.bus import PciDevice, UsbDevice, pci_devices, usb_devices
from edgekit.device.cpu import Cpu, arm_parts, read_cpu
from edgekit.device.devicetree import DeviceTree
from edgekit.device.hardware_id import device_id
from edgekit.device.identity import (
    BoardFacts,
    Identity,
    Match,
    Profile,
    board_facts,
    identify,
    pi_revision_bytes,
    rank,
    soc,
)  # fmt: skip
from edgekit.device.installed import InstalledRuntime, read_runtimes
from edgekit.device.memory import Memory, read_memory, total_bytes
from edgekit.device.system import OsFacts, PowerFacts, StorageFacts, read_os, read_power, read_storage
from edgekit.device.tree import Tree

_SHARES_MEMORY = {
    "cuda_igpu", "rknpu", "vsi_npu", "ethosu", "neutron", "c7x_mma", "hexagon", "intel_npu", "amd_xdna",
}  # fmt: skip
"Kinds that are part of the chip."
_MIB = 1024 * 1024
_CLOCK_RATIO = 0.95


@dataclass(frozen=True)
class Facts:
    """What this machine is, at boot. None anywhere below: cannot tell; never a guess."""

    device_id: Optional[str]
    "Stable, from hardware; matches [a-z0-9_-]{1,63}."
    board: BoardFacts
    memory: Memory
    cpu: Cpu
    accelerators: Tuple[Accelerator, ...]
    runtimes: Tuple[InstalledRuntime, ...]
    os: OsFacts
    power: PowerFacts
    storage: StorageFacts
    notes: Tuple[str, ...] = ()
    "What is odd about this unit, and what it means."


def probe(root: Union[str, Path] = "/", profiles: Iterable[Profile] = ()) -> Facts:
    """The facts of the machine whose files lie below `root`; never raises on what the files hold.

    Args:
        root: "/" for this machine, else a captured file tree: then nothing of this machine is mixed in, so there are
            no runtimes and no permissions.
        profiles: the declared boards, as `edgekit.profiles.board_tables` gives them.
    """
    tree = Tree(root)
    dt = DeviceTree(tree)
    cpu = read_cpu(tree)
    pci, usb = pci_devices(tree), usb_devices(tree)
    chip = soc(tree, dt, cpu.model)
    scene = Scene(tree, dt, chip, pci, usb, tree.line("proc/version") or "", arm_parts(tree))
    if chip is None and nvidia.is_gb10(scene):
        scene = scene._replace(soc="GB10")
    identity = _identity(tree, dt, cpu, (pci, usb))
    accelerators = tuple(nvidia.find(scene) + npu_socs.find(scene) + npu_cards.find(scene))
    matches = rank(identity, profiles, total_bytes(tree))
    board = board_facts(tree, identity, matches, scene.soc)
    memory = read_memory(
        tree,
        model=_memory_model(scene, accelerators),
        declared_bytes=_declared(tree, board, matches),
        firmware_bytes=dt.installed_bytes(),
        reserved=dt.reserved(),
    )
    return Facts(
        device_id=device_id(tree),
        board=board,
        memory=memory,
        cpu=cpu,
        accelerators=accelerators,
        runtimes=read_runtimes() if tree.live else (),
        os=read_os(tree),
        power=read_power(tree),
        storage=read_storage(tree),
        notes=tuple(_notes(memory, cpu, accelerators, matches)),
    )


def fitting(root: Union[str, Path], profiles: Iterable[Profile]) -> List[Match]:
    """Every profile that fits the machine below `root`, best first, each with the rule by which it does."""
    tree = Tree(root)
    cpu = read_cpu(tree)
    identity = _identity(tree, DeviceTree(tree), cpu, (pci_devices(tree), usb_devices(tree)))
    return rank(identity, profiles, total_bytes(tree))


def _identity(
    tree: Tree, dt: DeviceTree, cpu: Cpu, buses: Tuple[Tuple[PciDevice, ...], Tuple[UsbDevice, ...]]
) -> Identity:
    ids = (tuple(device.id for device in buses[0]), tuple(device.id for device in buses[1]))
    return identify(tree, dt, cpu_model=cpu.model, machine=cpu.kernel_machine, ids=ids)


def as_json(facts: Facts) -> Dict[str, Any]:
    """The facts as plain values, keys as the fields are named."""
    return asdict(facts)


def _memory_model(scene: Scene, accelerators: Tuple[Accelerator, ...]) -> Optional[str]:
    """Of the whole machine. An add-in NPU and the name of an x86 CPU say nothing about the host's memory."""
    kinds = {accelerator.kind for accelerator in accelerators}
    if kinds & {"cuda_dgpu", "gpu_paravirtual"}:
        return "discrete"
    virtual = "linux,dummy-virt" in scene.dt.compatible
    if kinds & _SHARES_MEMORY or (scene.dt.compatible and not virtual) or (scene.soc or "").startswith("bcm2"):
        return "unified"
    return None


def _declared(tree: Tree, board: BoardFacts, matches: List[Match]) -> Optional[int]:
    is_pi = "raspberrypi," in " ".join(board.compatible) or (board.model_text or "").startswith("Raspberry Pi")
    by_code = pi_revision_bytes(tree) if is_pi else None
    by_profile = matches[0].profile.get("memory_bytes") if matches else None
    return by_code or (by_profile if isinstance(by_profile, int) else None)


def _notes(memory: Memory, cpu: Cpu, accelerators: Tuple[Accelerator, ...], matches: List[Match]) -> List[str]:
    notes = []
    if cpu.userland_bits == 32:
        notes.append("32-bit userland: one process maps 3 GiB at most, and onnxruntime has no wheels for it")
    if cpu.userland_bits == 32 and cpu.kernel_machine in ("aarch64", "x86_64"):
        notes.append(f"the kernel is 64-bit ({cpu.kernel_machine}), the programs are 32-bit: wheels must be too")
    if memory.swap_bytes and memory.total_bytes:
        notes.append(f"{memory.swap_bytes // _MIB} MiB of swap are not counted as memory")
    if matches:
        notes += _mismatches(matches[0].profile, accelerators)
    return notes


def _mismatches(profile: Profile, accelerators: Tuple[Accelerator, ...]) -> List[str]:
    """The profile never answers what is here; where it and the machine disagree, that is worth a line."""
    found = {accelerator.kind: accelerator for accelerator in accelerators}
    declared = [entry for entry in profile.get("accelerator", ()) if not entry.get("optional")]
    notes = [
        f"{profile.get('name')} is declared with {entry['kind']}, which does not show: off in firmware, or hidden here"
        for entry in declared
        if entry["kind"] not in found
    ]
    for entry in declared:
        actual = found[entry["kind"]].max_hz if entry["kind"] in found else None
        if actual and entry.get("max_hz") and actual < entry["max_hz"] * _CLOCK_RATIO:
            notes.append(
                f"{profile.get('name')} is declared with {entry['max_hz'] / 1e6:.0f} MHz, the clock table of this unit "
                f"ends at {actual / 1e6:.2f} MHz: expect less than the maker's figures"
            )
    return notes


def without_momentary(facts: Facts) -> Facts:
    """The facts less what changes between two runs or Pythons: for comparing."""
    return replace(facts, runtimes=(), memory=replace(facts.memory, available_bytes=None))
