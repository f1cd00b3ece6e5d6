"""Every chip with an NPU or GPU of its own, by the names that device trees give it, and what its generation can do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device import npu_socs
from edgekit.device.accelerators import Accelerator
from edgekit.device.nvidia import _abilities
from edgekit.device.probe import probe

Plant = Callable[[dict[str, str | bytes]], Path]


def tree(*compatible: str, **files: str) -> dict[str, str | bytes]:
    return {"proc/device-tree/compatible": "\0".join(compatible).encode() + b"\0", **files}


def of_kind(root: Path, kind: str) -> list[Accelerator]:
    return [accelerator for accelerator in probe(root).accelerators if accelerator.kind == kind]


SOCS = [
    ("rockchip,rk3588", "rknpu", "Rockchip RK3588 NPU", 3),
    ("rockchip,rk3588s", "rknpu", "Rockchip RK3588 NPU", 3),
    ("rockchip,rk3576", "rknpu", "Rockchip RK3576 NPU", 2),
    ("rockchip,rk3566", "rknpu", "Rockchip RK3566 NPU", 1),
    ("rockchip,rk3568", "rknpu", "Rockchip RK3568 NPU", 1),
    ("rockchip,rk3568b", "rknpu", "Rockchip RK3568 NPU", 1),
    ("rockchip,rk3562", "rknpu", "Rockchip RK3562 NPU", 1),
    ("fsl,imx8mp", "vsi_npu", "VeriSilicon VIP NPU", None),
    ("fsl,imx93", "ethosu", "Arm Ethos-U65", None),
    ("fsl,imx95", "neutron", "NXP eIQ Neutron NPU", None),
    ("fsl,imx943", "neutron", "NXP eIQ Neutron NPU", None),
    ("fsl,imx94", "neutron", "NXP eIQ Neutron NPU", None),
    ("ti,am62a7", "c7x_mma", "TI C7x DSP with MMA", None),
    ("ti,am67a", "c7x_mma", "TI C7x DSP with MMA", None),
    ("ti,j721e", "c7x_mma", "TI C7x DSP with MMA", None),
    ("ti,j784s4", "c7x_mma", "TI C7x DSP with MMA", None),
    ("qcom,qcs6490", "hexagon", "Qualcomm Hexagon v68", None),
    ("qcom,qcm6490", "hexagon", "Qualcomm Hexagon v68", None),
    ("qcom,sm8250", "hexagon", "Qualcomm Hexagon v66", None),
    ("qcom,sm8450", "hexagon", "Qualcomm Hexagon v69", None),
    ("qcom,qcs9075", "hexagon", "Qualcomm Hexagon v73", None),
    ("qcom,x1e80100", "hexagon", "Qualcomm Hexagon v73", None),
    ("qcom,sm8650", "hexagon", "Qualcomm Hexagon v75", None),
]


@pytest.mark.parametrize(("compatible", "kind", "name", "cores"), SOCS)
def test_a_chip_has_its_npu(compatible: str, kind: str, name: str, cores: int | None, plant: Plant) -> None:
    root = plant(tree("maker,board", compatible))
    (npu,) = of_kind(root, kind)
    assert (npu.name, npu.cores, npu.present, npu.int8, npu.sparsity_2_4) == (name, cores, True, True, False)
    assert npu.evidence.startswith(f"SoC {compatible.split(',')[1]}")
    assert npu.usable is not True, "a chip's name proves no driver"
    assert "int8" in npu.precisions


@pytest.mark.parametrize(
    "compatible",
    [
        "rockchip,rk3399",
        "rockchip,rk3588sx",
        "fsl,imx8mm",
        "fsl,imx8mq",
        "ti,am625",
        "ti,am64",
        "qcom,sdm845",
        "brcm,bcm2712",
        "allwinner,sun50i-h6",
        "amlogic,s905x3",
        "fsl,imx9",
        "rockchip,rk35889",
    ],
)
def test_a_chip_without_one_is_not_given_one(compatible: str, plant: Plant) -> None:
    kinds = {"rknpu", "vsi_npu", "ethosu", "neutron", "c7x_mma", "hexagon"}
    root = plant(tree("maker,board", compatible))
    assert [a.name for a in probe(root).accelerators if a.kind in kinds] == []


@pytest.mark.parametrize(
    ("soc", "precisions"),
    [
        ("rockchip,rk3588", ("int8", "int16", "fp16")),
        ("rockchip,rk3562", ("int8",)),
        ("fsl,imx93", ("int8",)),
        ("fsl,imx8mp", ("int8", "int16", "fp16")),
    ],
)
def test_precisions_are_the_chips_own(soc: str, precisions: tuple[str, ...], plant: Plant) -> None:
    (npu,) = [a for a in probe(plant(tree("b,b", soc))).accelerators if a.kind != "cuda_igpu"]
    assert npu.precisions == precisions


@pytest.mark.parametrize(
    ("kernel", "usable", "why"),
    [
        ("Linux version 5.15.0-rk", False, "kernel 5.15 has no driver for it: rknpu is in the vendor's kernels"),
        ("Linux version 6.12.3", False, "kernel 6.12 has no driver for it"),
        ("Linux version 5.10.160", None, "neither /dev/rknpu or its render node nor its driver shows here"),
        ("Linux version 6.1.75", None, "neither /dev/rknpu"),
        ("Linux version 6.18.0", None, "neither /dev/rknpu"),
        ("", None, "neither /dev/rknpu"),
    ],
)
def test_a_kernel_that_cannot_have_the_driver_says_so(kernel: str, usable: bool | None, why: str, plant: Plant) -> None:
    (npu,) = of_kind(plant(tree("b,b", "rockchip,rk3588", **{"proc/version": kernel})), "rknpu")
    assert npu.usable is usable
    assert npu.why_not_usable is not None
    assert why in npu.why_not_usable


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"dev/rknpu": ""}, True),
        ({"dev/dri/renderD129": "", "sys/class/drm/renderD129/device/uevent": "DRIVER=RKNPU\n"}, True),
        ({"dev/dri/renderD129": "", "sys/class/drm/renderD129/device/uevent": "DRIVER=panthor\n"}, None),
        ({"sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8\n"}, True),
        ({"proc/rknpu/version": "RKNPU driver: v0.9.6\n"}, True),
    ],
)
def test_a_rockchip_npu_is_proved_by_its_node_or_its_drivers_version(
    files: dict[str, str], usable: bool | None, plant: Plant
) -> None:
    (npu,) = of_kind(plant(tree("b,b", "rockchip,rk3588", **files)), "rknpu")
    assert npu.usable is usable
    version = next((text.strip() for text in files.values() if text.startswith("RKNPU")), None)
    assert version is None or version in npu.evidence


@pytest.mark.parametrize(
    ("address", "name"),
    [("fdab0000.npu", "RK3588"), ("27700000.npu", "RK3576"), ("fde40000.npu", "RK3568")],
)
def test_without_a_device_tree_the_clocks_address_names_the_chip(address: str, name: str, plant: Plant) -> None:
    (npu,) = of_kind(plant({f"sys/class/devfreq/{address}/cur_freq": "1\n", "dev/rknpu": ""}), "rknpu")
    assert name in npu.name
    assert npu.evidence == f"{address}, /dev/rknpu"


@pytest.mark.parametrize(
    ("state", "firmware", "usable", "why"),
    [
        ("running", "am62a-c71_0-fw", None, "only TI's TIDL runtime can tell"),
        ("offline", "am62a-c71_0-fw", False, "remote processor remoteproc0 is offline: its firmware does not run"),
        ("offline", "am62a-mcu-r5f0_0-fw", None, "only TI's TIDL runtime can tell"),
    ],
)
def test_tis_dsp_needs_its_firmware_running(
    state: str, firmware: str, usable: bool | None, why: str, plant: Plant
) -> None:
    folder = "sys/class/remoteproc/remoteproc0"
    files = {f"{folder}/state": state, f"{folder}/firmware": firmware, f"{folder}/name": "x"}
    (dsp,) = of_kind(plant(tree("b,b", "ti,am62a7", **files)), "c7x_mma")
    assert (dsp.usable, dsp.why_not_usable) == (usable, why)


def test_no_name_of_a_chip_fits_two_entries_of_one_kind() -> None:
    for compatible, kind, name, _ in SOCS:
        chip = compatible.split(",")[1]
        first = next(npu for npu in npu_socs._NPUS if re.fullmatch(npu.soc, chip))
        assert (first.kind, first.name) == (kind, name), chip


@pytest.mark.parametrize(
    ("capability", "int8", "sparse", "precisions"),
    [
        ("5.3", False, False, ("fp32", "fp16")),
        ("6.1", True, False, ("fp32", "fp16", "int8")),
        ("6.2", False, False, ("fp32", "fp16")),
        ("7.2", True, False, ("fp32", "fp16", "int8")),
        ("7.5", True, False, ("fp32", "fp16", "int8")),
        ("8.0", True, True, ("fp32", "fp16", "int8", "bf16")),
        ("8.7", True, True, ("fp32", "fp16", "int8", "bf16")),
        ("8.9", True, True, ("fp32", "fp16", "int8", "bf16", "fp8")),
        ("11.0", True, True, ("fp32", "fp16", "int8", "bf16", "fp8")),
        ("12.1", True, True, ("fp32", "fp16", "int8", "bf16", "fp8")),
    ],
)
def test_what_a_gpu_can_do_follows_from_its_compute_capability(
    capability: str, int8: bool, sparse: bool, precisions: tuple[str, ...]
) -> None:
    able = _abilities(capability)
    assert (able["int8"], able["sparsity_2_4"], able["precisions"]) == (int8, sparse, precisions)
    assert able["compute_capability"] == capability


def test_of_an_unknown_gpu_nothing_is_claimed() -> None:
    assert _abilities(None) == {}


TEGRAS = [
    ("nvidia,tegra210", "Maxwell, TX1/Nano", "5.3", 0),
    ("nvidia,tegra186", "Pascal, TX2", "6.2", 0),
    ("nvidia,tegra194", "Volta, Xavier", "7.2", 2),
    ("nvidia,tegra264", "Blackwell, Thor", "11.0", 0),
]


@pytest.mark.parametrize(("compatible", "generation", "capability", "dla"), TEGRAS)
def test_a_jetson_has_the_gpu_of_its_generation(
    compatible: str, generation: str, capability: str, dla: int, plant: Plant
) -> None:
    (gpu,) = of_kind(plant(tree("nvidia,devkit", compatible)), "cuda_igpu")
    assert generation in gpu.name
    assert (gpu.compute_capability, gpu.dla_cores) == (capability, dla)


@pytest.mark.parametrize(
    ("module", "dla"),
    [
        ("p3767-0000", 2),
        ("p3767-0001", 1),
        ("p3767-0003", 0),
        ("p3767-0005", 0),
        ("p3701-0004", 2),
        ("p3701-9999", None),
    ],
)
def test_an_orins_dla_cores_follow_its_module(module: str, dla: int | None, plant: Plant) -> None:
    root = plant(tree(f"nvidia,p3768-0000+{module}", "nvidia,tegra234"))
    (gpu,) = of_kind(root, "cuda_igpu")
    assert gpu.dla_cores == dla
