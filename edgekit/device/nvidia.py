"""NVIDIA's GPUs: on the chip (Jetson, GB10), on a card, or behind a hypervisor's door."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from edgekit.device.accelerators import Accelerator, Scene, Verdict, judge
from edgekit.device.bus import DeviceNode, PciDevice, device_nodes
from edgekit.device.nvml import read_gpus
from edgekit.device.tree import to_int

_VENDOR = 0x10DE
_DISPLAY = (0x0300, 0x0302)
"PCI classes of a GPU; NVIDIA also makes bridges, audio and network functions."
_MODULE = re.compile(r"p(\d{4})-(\d{4})")


class _Generation(NamedTuple):
    name: str
    compute_capability: str


_GENERATIONS = {
    "tegra210": _Generation("Maxwell, TX1/Nano", "5.3"),
    "tegra186": _Generation("Pascal, TX2", "6.2"),
    "tegra194": _Generation("Volta, Xavier", "7.2"),
    "tegra234": _Generation("Ampere, Orin", "8.7"),
    "tegra264": _Generation("Blackwell, Thor", "11.0"),
}
"Source: jetson_stats' jetson_variables.py."
_DLA_BY_SOC = {"tegra210": 0, "tegra186": 0, "tegra194": 2, "tegra264": 0}
_DLA_BY_MODULE = {
    "3767-0000": 2, "3767-0001": 1, "3767-0003": 0, "3767-0004": 0, "3767-0005": 0,
    "3701-0000": 2, "3701-0004": 2, "3701-0005": 2, "3701-0008": 2,
}  # fmt: skip
"Deep-learning accelerator cores differ between modules of one SoC. Source: NVIDIA Deep-Learning-Accelerator-SW."
_IGPU_NODES = ("dev/nvhost-gpu", "dev/nvhost-ctrl-gpu", "dev/nvmap", "dev/nvgpu/igpu0/ctrl")
_GB10_PARTS = {0xD85, 0xD87}
_GB10_BRIDGES = {"10de:22ce", "10de:22d0"}


def is_gb10(scene: Scene) -> bool:
    """A DGX Spark class machine: its PCIe bridges, or its two kinds of core together with an NVIDIA device."""
    ids = {device.id for device in scene.pci}
    nvidia = any(device.vendor == _VENDOR for device in scene.pci)
    return bool(ids & _GB10_BRIDGES) or (scene.arm_parts >= _GB10_PARTS and nvidia)


def find(scene: Scene) -> List[Accelerator]:
    """The NVIDIA GPUs of this machine."""
    displays = [d for d in scene.pci if d.vendor == _VENDOR and d.kind >> 8 in _DISPLAY]
    if scene.soc == "tegra264" or is_gb10(scene):
        displays = displays[1:]  # the chip's own GPU shows itself on PCI
    integrated = _gb10(scene) if is_gb10(scene) else _tegra(scene)
    found = [integrated] if integrated is not None else []
    found += _discrete(scene, displays)
    if not found:
        found += _paravirtual(scene)
    return found


def _gb10(scene: Scene) -> Accelerator:
    nodes = device_nodes(scene.tree, "dev/nvidia*")
    usable, why = judge(nodes, loaded=scene.loaded("nvidia"), node_suffices=False, wanted="/dev/nvidia0")
    return Accelerator(
        kind="cuda_igpu",
        name="NVIDIA GB10 integrated GPU (Blackwell)",
        present=True,
        usable=usable,
        why_not_usable=why,
        evidence="NVIDIA's PCIe bridges of a GB10",
        dla_cores=0,
        nodes=nodes,
        **_abilities("12.1"),
    )


def _tegra(scene: Scene) -> Optional[Accelerator]:
    generation = _GENERATIONS.get(scene.soc or "")
    nodes = device_nodes(scene.tree, *_IGPU_NODES)
    tegra_kernel = "-tegra" in scene.kernel
    if generation is None and not nodes and not tegra_kernel:
        return None
    if scene.soc == "tegra264":
        nodes += device_nodes(scene.tree, "dev/nvidia*")
    seen = [f"SoC {scene.soc}"] if generation else []
    seen += [node.path for node in nodes] + (["a -tegra kernel"] if tegra_kernel else [])
    usable, why = _igpu_verdict(scene, nodes)
    return Accelerator(
        kind="cuda_igpu",
        name=f"NVIDIA Tegra integrated GPU ({generation.name})" if generation else "NVIDIA Tegra integrated GPU",
        present=True,
        usable=usable,
        why_not_usable=why,
        evidence=", ".join(seen),
        dla_cores=_dla_cores(scene),
        max_hz=_max_hz(scene),
        driver=next(iter(scene.loaded("nvgpu", "nouveau")), None),
        nodes=nodes,
        **_abilities(generation.compute_capability if generation else None),
    )


def _igpu_verdict(scene: Scene, nodes: Tuple[DeviceNode, ...]) -> Verdict:
    if not nodes and scene.loaded("nouveau") and not scene.loaded("nvgpu"):
        return Verdict(False, "nouveau drives the GPU: CUDA needs NVIDIA's own driver (L4T)")
    loaded = scene.loaded("nvgpu")
    return judge(nodes, loaded=loaded, node_suffices=False, wanted="/dev/nvhost-gpu", all_needed=True)


def _dla_cores(scene: Scene) -> Optional[int]:
    """By module where modules differ; None when the listed modules disagree or none is known."""
    if scene.soc in _DLA_BY_SOC:
        return _DLA_BY_SOC[scene.soc]
    modules = {"-".join(pair) for text in scene.dt.compatible for pair in _MODULE.findall(text)}
    counts = {_DLA_BY_MODULE[module] for module in modules if module in _DLA_BY_MODULE}
    return counts.pop() if len(counts) == 1 else None


def _max_hz(scene: Scene) -> Optional[int]:
    """Top of the integrated GPU's clock table: a "Super" device tree does not prove the higher clock."""
    for name in scene.tree.names("sys/class/devfreq"):
        if re.search(r"\.(gpu|ga10b|gv11b|gp10b|gm20b|57000000)|gpu-gpc", name):
            folder = f"sys/class/devfreq/{name}"
            steps = [to_int(step) for step in (scene.tree.line(folder + "/available_frequencies") or "").split()]
            known = [step for step in [*steps, scene.tree.integer(folder + "/max_freq")] if step and step > 0]
            return max(known, default=None)
    return None


def _abilities(compute_capability: Optional[str]) -> Dict[str, Any]:
    """What follows from the compute capability: INT8 dot products since 7.2 on these chips, 2:4 since 8.0."""
    if compute_capability is None:
        return {}
    version = float(compute_capability)
    precisions = ["fp32", "fp16"]
    precisions += ["int8"] if version >= 6.1 and version != 6.2 else []
    precisions += ["bf16"] if version >= 8.0 else []
    precisions += ["fp8"] if version >= 8.9 else []
    return {
        "compute_capability": compute_capability,
        "int8": "int8" in precisions,
        "precisions": tuple(precisions),
        "sparsity_2_4": version >= 8.0,
    }


def _discrete(scene: Scene, displays: List[PciDevice]) -> List[Accelerator]:
    gpus = read_gpus() if scene.tree.live and (displays or scene.tree.exists("dev/nvidiactl")) else {}
    nodes = device_nodes(scene.tree, "dev/nvidia*")
    loaded = scene.loaded("nvidia") or (("nvidia",) if scene.tree.exists("proc/driver/nvidia/version") else ())
    found = []
    for device in displays:
        gpu = gpus.get(device.address.lower())
        usable, why = judge(nodes, loaded=loaded, pci=device, node_suffices=False, wanted="/dev/nvidia0")
        if device.driver == "nouveau" or (not nodes and not loaded and scene.loaded("nouveau")):
            usable, why = False, "nouveau drives the GPU: CUDA needs NVIDIA's own driver"
        found.append(
            Accelerator(
                kind="cuda_dgpu",
                name=gpu.name if gpu else f"NVIDIA GPU {device.id}",
                present=True,
                usable=usable,
                why_not_usable=why,
                evidence=f"PCI {device.address} is {device.id}, class {device.kind >> 8:04x}",
                memory_bytes=gpu.memory_bytes if gpu else None,
                driver=device.driver,
                nodes=nodes,
                **_abilities(gpu.compute_capability if gpu else None),
            )
        )
    return found or _hidden(scene, nodes)


def _hidden(scene: Scene, nodes: Tuple[DeviceNode, ...]) -> List[Accelerator]:
    """A container may show the driver's own list of GPUs, but no PCI."""
    if scene.soc in _GENERATIONS or is_gb10(scene):
        return []
    found = []
    for address in scene.tree.names("proc/driver/nvidia/gpus")[:16]:
        text = scene.tree.text(f"proc/driver/nvidia/gpus/{address}/information", 4096) or ""
        model = re.search(r"^Model:\s*([^\n]{1,80})", text, re.MULTILINE)
        usable, why = judge(nodes, loaded=("nvidia",), node_suffices=False, wanted="/dev/nvidia0")
        found.append(
            Accelerator("cuda_dgpu", model.group(1).strip() if model else "NVIDIA GPU", True, usable, why,
                        f"/proc/driver/nvidia/gpus/{address}", driver="nvidia", nodes=nodes)
        )  # fmt: skip
    return found


def _paravirtual(scene: Scene) -> List[Accelerator]:
    nodes = device_nodes(scene.tree, "dev/dxg")
    adapters = [device for device in scene.pci if device.id == "1414:008e" and device.kind >> 16 == 0x03]
    if not nodes and not adapters:
        return []
    seen = [node.path for node in nodes] + [f"PCI {device.address} is {device.id}" for device in adapters]
    usable, why = judge(nodes, node_suffices=False, wanted="/dev/dxg")
    return [
        Accelerator("gpu_paravirtual", "GPU of the Windows host (vendor unknown from here)", True, usable, why,
                    ", ".join(seen), nodes=nodes)
    ]  # fmt: skip
