"""NPUs that are part of a system on chip: known by the chip, proven by their nodes in the device tree and in /dev."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Set, Tuple

from edgekit.device.accelerators import Accelerator, Scene, Verdict, accel_nodes, judge
from edgekit.device.bus import DeviceNode, device_nodes


class _Npu(NamedTuple):
    kind: str
    name: str
    soc: str
    "Regular expression for the whole name of the SoC."
    node: str
    "Regular expression for a compatible string of the NPU's own device-tree node."
    dev: Tuple[str, ...]
    modules: Tuple[str, ...]
    accel_words: Tuple[str, ...]
    "What the uevent of its /dev/accel node says."
    node_suffices: bool
    cores: Optional[int] = None
    precisions: Tuple[str, ...] = ("int8",)


def _hexagon(version: str, soc: str) -> _Npu:
    dev = ("dev/fastrpc-cdsp", "dev/fastrpc-cdsp-secure", "dev/adsprpc-smd")
    return _Npu("hexagon", f"Qualcomm Hexagon {version}".strip(), soc, "(?!)", dev, ("fastrpc",), (), False)


_RKNPU_DEV = ("dev/rknpu",)
_RKNPU_PRECISIONS = ("int8", "int16", "fp16")
_RKNPU = "rockchip,rk[0-9a-z]+-(?:rknpu|rknn-core)"
_NPUS: Tuple[_Npu, ...] = (
    _Npu("rknpu", "Rockchip RK3588 NPU", "rk3588[a-z]?", _RKNPU, _RKNPU_DEV, (), (), True, 3, _RKNPU_PRECISIONS),
    _Npu("rknpu", "Rockchip RK3576 NPU", "rk3576[a-z]?", _RKNPU, _RKNPU_DEV, (), (), True, 2, _RKNPU_PRECISIONS),
    _Npu("rknpu", "Rockchip RK3566 NPU", "rk3566[a-z]?", _RKNPU, _RKNPU_DEV, (), (), True, 1, _RKNPU_PRECISIONS),
    _Npu("rknpu", "Rockchip RK3568 NPU", "rk3568[a-z]?", _RKNPU, _RKNPU_DEV, (), (), True, 1, _RKNPU_PRECISIONS),
    _Npu("rknpu", "Rockchip RK3562 NPU", "rk3562[a-z]?", _RKNPU, _RKNPU_DEV, (), (), True, 1, ("int8",)),
    _Npu("vsi_npu", "VeriSilicon VIP NPU", "imx8mp", "vivante,gc|amlogic,.*-npu", ("dev/galcore",), (), (), True,
         None, ("int8", "int16", "fp16")),
    _Npu("ethosu", "Arm Ethos-U65", "imx93", "arm,ethos-u\\d+|fsl,imx93-npu", ("dev/ethosu*",), ("ethosu",),
         ("ethos",), True, None, ("int8",)),
    _Npu("neutron", "NXP eIQ Neutron NPU", "imx95|imx943?", "(?:fsl|nxp),.*neutron.*", ("dev/neutron*",), ("neutron",),
         (), False),
    _Npu("c7x_mma", "TI C7x DSP with MMA", "am62a\\d?|am6[789]a?|j721e|j721s2|j784s4|j742s2|j722s|tda4\\w*",
         "ti,[a-z0-9-]*c7x?[0-9]*v?-dsp", (), (), (), False),
    _hexagon("v68", "qc[ms]6490.*|sc7280.*|qcs5430.*"),
    _hexagon("v66", "qrb5165.*|sm8250.*|kona.*"),
    _hexagon("v68", "sm8350.*|sc8280xp.*|lahaina.*"),
    _hexagon("v69", "sm8450.*|qcs8450.*"),
    _hexagon("v73", "sm8550.*|qc[ms]8550.*|x1e\\w*|x1p\\w*|sa8775p.*|qcs9\\d+.*|qcs8300.*|sa8255p.*"),
    _hexagon("v75", "sm8650.*|qcs8650.*"),
)  # fmt: skip
"""The Hexagon versions have no public table behind them (unsourced)."""
_ANY_RKNPU = _Npu("rknpu", "Rockchip NPU", "(?!)", "(?!)", _RKNPU_DEV, (), (), True, None, _RKNPU_PRECISIONS)
_RKNPU_ADDRESSES = {"fdab0000.npu": "rk3588", "27700000.npu": "rk3576", "fde40000.npu": "rk3568"}
"Unsourced for the RK3576."
_RKNPU_VERSIONS = ("sys/kernel/debug/rknpu/version", "proc/rknpu/version")
_OFF = "switched off in the device tree"
_ROCKET_SINCE = (6, 18)
"First mainline kernel with the rocket driver (unsourced)."
_RKNPU_KERNELS = ((4, 4), (4, 19), (5, 10), (6, 1))
"Series of the vendor's kernels, which carry rknpu; a mainline kernel of the same series has none."


def find(scene: Scene) -> List[Accelerator]:
    """The NPUs of this machine's chip."""
    found: List[Accelerator] = []
    for npu in _NPUS:
        by_soc = any(re.fullmatch(npu.soc, name) for name in _chips(scene))
        nodes_dt = [node for node in scene.dt.matching(npu.node) if _names_npu(npu, node.name)]
        if not by_soc and (not nodes_dt or npu.kind in ("rknpu", "hexagon")):
            continue
        if npu.kind in [accelerator.kind for accelerator in found]:
            continue
        seen = [f"SoC {scene.soc}"] if by_soc else []
        seen += [f"device tree {node.name}" for node in nodes_dt]
        verdict, nodes = _verdict(scene, npu, nodes_dt=[node.enabled for node in nodes_dt])
        seen += [scene.tree.line(name) or "" for name in _RKNPU_VERSIONS if npu.kind == "rknpu"]
        seen += [node.path for node in nodes]
        found.append(_accelerator(npu, verdict, nodes, ", ".join(filter(None, seen))))
    return found + _without_chip(scene, {accelerator.kind for accelerator in found})


def _chips(scene: Scene) -> List[str]:
    """The SoC's name and its relatives: images list qcm6490 for a qcs6490, or only the phone chip it came from."""
    names = [text.rpartition(",")[2] for text in scene.dt.compatible[1:]] or [scene.soc or ""]
    return names + ([scene.soc] if scene.soc else [])


def _names_npu(npu: _Npu, node: str) -> bool:
    """Vivante's 2D, 3D and neural cores share one compatible string; the node's name tells them apart."""
    return npu.kind != "vsi_npu" or node.startswith(("npu", "vipnano"))


def _verdict(scene: Scene, npu: _Npu, *, nodes_dt: List[bool]) -> Tuple[Verdict, Tuple[DeviceNode, ...]]:
    if nodes_dt and not any(nodes_dt):
        return Verdict(False, _OFF), ()
    if npu.kind == "rknpu":
        verdict, nodes, _ = _rknpu(scene)
        return verdict, nodes
    if npu.kind == "c7x_mma":
        return _c7x(scene), ()
    nodes = device_nodes(scene.tree, *npu.dev)
    suffices = npu.node_suffices and not (npu.kind == "vsi_npu" and not nodes_dt)  # galcore serves GPUs as well
    if not nodes and npu.accel_words:
        nodes, suffices = accel_nodes(scene, *npu.accel_words), False  # Mesa's delegate must know the chip as well
    wanted = "/" + npu.dev[0].replace("*", "N")
    return judge(nodes, loaded=scene.loaded(*npu.modules), node_suffices=suffices, wanted=wanted), nodes


def _rknpu(scene: Scene) -> Tuple[Verdict, Tuple[DeviceNode, ...], Optional[str]]:
    """(verdict, nodes, the driver's own version text).

    Three worlds: the vendor's driver (DRM or /dev/rknpu), mainline's rocket, and kernels that have neither.
    """
    tree = scene.tree
    nodes = device_nodes(tree, "dev/rknpu")
    for node in device_nodes(tree, "dev/dri/renderD*"):
        uevent = tree.text(f"sys/class/drm/{node.path.rpartition('/')[2]}/device/uevent", 4096) or ""
        nodes += (node,) if "rknpu" in uevent.lower() else ()
    version = next(filter(None, map(tree.line, _RKNPU_VERSIONS)), None)
    if nodes:
        return judge(nodes, node_suffices=True, wanted=""), nodes, version
    if version:
        return Verdict(True, None), (), version
    rocket = accel_nodes(scene, "rknn-core", "rocket") if scene.dt.matching("rockchip,.*-rknn-core") else ()
    if rocket:
        return judge(rocket, node_suffices=False, wanted=""), rocket, None
    match = re.search(r"Linux version (\d{1,3})\.(\d{1,4})", scene.kernel)
    series = (int(match.group(1)), int(match.group(2))) if match else None
    loaded = scene.loaded("rknpu", "rocket")
    if not loaded and series and series not in _RKNPU_KERNELS and series < _ROCKET_SINCE:
        why = f"kernel {series[0]}.{series[1]} has no driver for it: rknpu is in the vendor's kernels"
        return Verdict(False, why), (), None
    return judge((), loaded=loaded, node_suffices=True, wanted="/dev/rknpu or its render node"), (), None


def _c7x(scene: Scene) -> Verdict:
    """The DSP is a remote processor: TI's runtime needs its firmware running."""
    states = {}
    for name in scene.tree.names("sys/class/remoteproc"):
        folder = f"sys/class/remoteproc/{name}"
        text = f"{scene.tree.line(folder + '/name')} {scene.tree.line(folder + '/firmware')}"
        if "c7" in text:
            states[name] = scene.tree.line(folder + "/state")
    if states and "running" not in states.values():
        name, state = next(iter(states.items()))
        return Verdict(False, f"remote processor {name} is {state}: its firmware does not run")
    return Verdict(None, "only TI's TIDL runtime can tell")


def _without_chip(scene: Scene, found: Set[str]) -> List[Accelerator]:
    """What drivers show when the chip is not in the table, or a container hides the device tree.

    The audio DSP alone (fastrpc-adsp) is no NPU.
    """
    extra: List[Accelerator] = []
    nodes = device_nodes(scene.tree, "dev/fastrpc-cdsp")
    if nodes and "hexagon" not in found:
        npu = _hexagon("(version unknown)", "")
        extra.append(_accelerator(npu, judge(nodes, node_suffices=False, wanted=""), nodes, nodes[0].path))
    if "rknpu" not in found:
        extra += _rknpu_without_chip(scene)
    return extra


def _rknpu_without_chip(scene: Scene) -> List[Accelerator]:
    """A Rockchip NPU by its driver's marks or its node, named by the address of its clock where there is one."""
    busy = [name for name in scene.tree.names("sys/class/devfreq") if name in _RKNPU_ADDRESSES]
    nodes_dt = scene.dt.matching(_RKNPU)
    verdict, nodes, version = _rknpu(scene)
    if not (version or busy or nodes or nodes_dt):
        return []
    if nodes_dt and not any(node.enabled for node in nodes_dt):
        verdict = Verdict(False, _OFF)
    chip = _RKNPU_ADDRESSES.get(busy[0], "") if busy else ""
    npu = next((npu for npu in _NPUS if chip and re.fullmatch(npu.soc, chip)), _ANY_RKNPU)
    seen = [version, *busy[:1], *(f"device tree {node.name}" for node in nodes_dt), *(node.path for node in nodes)]
    return [_accelerator(npu, verdict, nodes, ", ".join(filter(None, seen)))]


def _accelerator(npu: _Npu, verdict: Verdict, nodes: Tuple[DeviceNode, ...], evidence: str) -> Accelerator:
    return Accelerator(
        kind=npu.kind,
        name=npu.name,
        present=True,
        usable=verdict.usable,
        why_not_usable=verdict.why,
        evidence=evidence,
        int8=True,
        precisions=npu.precisions,
        sparsity_2_4=False,
        cores=npu.cores,
        nodes=nodes,
    )
