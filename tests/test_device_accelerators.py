"""Accelerators: what is there, what can be used, and why not. Kinds of evidence, not single boards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.device.accelerators import Accelerator
from edgekit.device.probe import probe

Plant = Callable[[dict[str, str | bytes]], Path]
Files = dict[str, str | bytes]


def dt(*compatible: str) -> Files:
    return {"proc/device-tree/compatible": "\0".join(compatible) + "\0"}


def node(path: str, *compatible: str, status: str | None = None) -> Files:
    files: Files = {f"proc/device-tree/{path}/compatible": "\0".join(compatible) + "\0"}
    return files | ({f"proc/device-tree/{path}/status": status + "\0"} if status else {})


def pci(address: str, vendor: int, device: int, kind: int, *, described: bool = False) -> Files:
    folder = f"sys/bus/pci/devices/{address}"
    files: Files = {
        f"{folder}/vendor": f"{vendor:#06x}\n",
        f"{folder}/device": f"{device:#06x}\n",
        f"{folder}/class": f"{kind:#08x}\n",
    }
    return files | ({f"{folder}/uevent": "PCI_SLOT_NAME=" + address} if described else {})


def usb(port: str, vendor: str, product: str) -> Files:
    return {f"sys/bus/usb/devices/{port}/idVendor": vendor, f"sys/bus/usb/devices/{port}/idProduct": product}


def found(root: Path) -> list[Accelerator]:
    return [accelerator for accelerator in probe(root).accelerators if accelerator.present]


def only(root: Path) -> Accelerator:
    (accelerator,) = found(root)
    return accelerator


HAILO = pci("0001:01:00.0", 0x1E60, 0x2864, 0x0B4000)


def test_a_card_with_its_node_is_usable(plant: Plant) -> None:
    card = only(plant(HAILO | {"dev/hailo0": ""}))
    assert (card.kind, card.usable, card.why_not_usable) == ("hailo", True, None)
    assert "1e60:2864" in card.evidence
    assert "/dev/hailo0" in card.evidence


def test_a_card_whose_driver_is_loaded_without_a_node_is_not_usable(plant: Plant) -> None:
    card = only(plant(HAILO | {"sys/module/hailo_pci/refcnt": "0"}))
    assert card.usable is False
    assert "hailo_pci" in (card.why_not_usable or "")


def test_a_card_alone_in_a_captured_tree_is_unknown(plant: Plant) -> None:
    assert only(plant(HAILO)).usable is None


def test_a_card_that_the_kernel_shows_without_a_driver_is_not_usable(plant: Plant) -> None:
    card = only(plant(pci("0001:01:00.0", 0x1E60, 0x45C4, 0x0B4000, described=True)))
    assert (card.name, card.usable) == ("Hailo-10H", False)
    assert "no driver is bound" in (card.why_not_usable or "")


def test_a_card_passed_to_a_virtual_machine_is_not_usable(plant: Plant) -> None:
    root = plant(HAILO)
    (root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0001:01:00.0/driver").symlink_to("../../drivers/vfio-pci")
    card = only(root)
    assert card.driver == "vfio-pci"
    assert card.usable is False


def test_the_driver_of_newer_hailos_does_not_drive_a_hailo_8(plant: Plant) -> None:
    card = only(plant(HAILO | {"sys/module/hailo1x_pci/refcnt": "0"}))
    assert card.usable is False
    assert "4.x" in (card.why_not_usable or "")


def test_of_two_cards_with_one_node_the_other_is_not_usable(plant: Plant) -> None:
    two = HAILO | pci("0001:02:00.0", 0x1E60, 0x2864, 0x0B4000)
    cards = found(plant(two | {"dev/hailo0": "", "sys/module/hailo_pci/refcnt": "0"}))
    assert [card.usable for card in cards] == [True, False]


def test_a_node_without_a_bus_as_in_a_container_is_still_the_device(plant: Plant) -> None:
    assert [(a.kind, a.usable) for a in found(plant({"dev/hailo0": "", "dev/apex_0": ""}))] == [
        ("edgetpu_pcie", True),
        ("hailo", True),
    ]


def test_a_coral_stick_before_its_first_use_is_there_and_not_yet_known_to_work(plant: Plant) -> None:
    stick = only(plant(usb("1-1", "1a6e\n", "089a\n")))
    assert (stick.kind, stick.usable) == ("edgetpu_usb", None)
    assert "first use" in (stick.why_not_usable or "")


def test_the_whole_usb_id_counts(plant: Plant) -> None:
    assert found(plant(usb("1-1", "18d1\n", "4ee7\n"))) == []  # a phone of the same maker
    assert only(plant(usb("1-1", "18d1\n", "9302\n"))).usable is True


def test_the_bus_counts_where_usb_and_pci_share_a_product_number(plant: Plant) -> None:
    assert only(plant(pci("0000:04:00.0", 0x1AC1, 0x089A, 0x0880FF))).kind == "edgetpu_pcie"


def test_a_device_number_means_nothing_without_its_vendor(plant: Plant) -> None:
    assert only(plant(pci("0000:01:00.0", 0x10DE, 0x17F0, 0x030000))).kind == "cuda_dgpu"


@pytest.mark.parametrize(
    ("vendor", "device", "kind"),
    [
        (0x1FE9, 0x0100, "memryx"),
        (0x1F9D, 0x11AA, "axelera"),
        (0x1FF4, 0x0102, "deepx"),
        (0x1F0D, 0x0100, "other_npu"),
        (0x1EFF, 0x1110, "other_npu"),
        (0x8086, 0xFD3E, "intel_npu"),
        (0x1022, 0x1502, "amd_xdna"),
    ],
)
def test_cards_are_told_by_maker_and_pc_npus_by_id(plant: Plant, vendor: int, device: int, kind: str) -> None:
    card = only(plant(pci("0000:01:00.0", vendor, device, 0x120000)))
    assert card.kind == kind
    assert card.usable is not True


def test_an_intel_npu_that_is_not_listed_yet_is_told_by_its_class(plant: Plant) -> None:
    assert only(plant(pci("0000:00:0b.0", 0x8086, 0x9999, 0x120000))).kind == "intel_npu"
    assert found(plant(pci("0000:00:0b.0", 0x8086, 0x9999, 0x028000))) == []


def test_amds_sensor_hub_of_the_same_class_is_no_npu(plant: Plant) -> None:
    assert found(plant(pci("0000:04:00.7", 0x1022, 0x164A, 0x118000))) == []


def test_an_accel_node_counts_for_the_device_that_owns_it(plant: Plant) -> None:
    root = plant(pci("0000:00:0b.0", 0x8086, 0x7D1D, 0x120000) | {"dev/accel/accel0": "", "sys/module/intel_vpu/x": ""})
    assert only(root).usable is None
    assert only(root).nodes[0].path == "/dev/accel/accel0"
    (root / "sys/devices/0000:c5:00.1").mkdir(parents=True)
    (root / "sys/class/accel/accel0").mkdir(parents=True)
    (root / "sys/class/accel/accel0/device").symlink_to("../../../devices/0000:c5:00.1")
    stranger = only(root)
    assert stranger.nodes == ()
    assert stranger.usable is False
    assert "intel_vpu" in (stranger.why_not_usable or "")


@pytest.mark.parametrize(
    ("soc", "capability", "int8", "sparsity"),
    [
        ("tegra210", "5.3", False, False),
        ("tegra186", "6.2", False, False),
        ("tegra194", "7.2", True, False),
        ("tegra234", "8.7", True, True),
        ("tegra264", "11.0", True, True),
    ],
)
def test_a_tegra_is_known_by_its_chip(plant: Plant, soc: str, capability: str, int8: bool, sparsity: bool) -> None:
    gpu = only(plant(dt("nvidia,p0000-0000+p9999-0000", f"nvidia,{soc}")))
    assert (gpu.kind, gpu.compute_capability, gpu.int8, gpu.sparsity_2_4) == ("cuda_igpu", capability, int8, sparsity)
    assert gpu.memory_bytes is None


@pytest.mark.parametrize(
    ("modules", "cores"),
    [
        (["p3767-0000"], 2),
        (["p3767-0001-super"], 1),
        (["p3767-0003", "p3767-0005"], 0),
        (["p3767-0000", "p3767-0001"], None),
        ([], None),
    ],
)
def test_dla_cores_follow_the_module_and_are_unknown_when_modules_disagree(
    plant: Plant, modules: list[str], cores: int | None
) -> None:
    strings = [f"nvidia,p3768-0000+{module}" for module in modules]
    assert only(plant(dt(*strings, "nvidia,tegra234", "nvidia,tegra23x"))).dla_cores == cores


def test_a_tegra_in_a_container_is_told_by_its_nodes_or_kernel(plant: Plant) -> None:
    gpu = only(plant({"dev/nvhost-ctrl-gpu": "", "dev/nvmap": ""}))
    assert (gpu.kind, gpu.compute_capability, gpu.int8) == ("cuda_igpu", None, None)
    assert only(plant({"proc/version": "Linux version 5.15.148-tegra (x) #1\n"})).kind == "cuda_igpu"


def test_a_tegra_in_a_container_is_told_by_its_fuses(plant: Plant) -> None:
    facts = probe(plant({"sys/module/tegra_fuse/parameters/tegra_chip_id": "35\n"}))
    assert facts.board.soc == "tegra234"
    assert facts.accelerators[0].compute_capability == "8.7"


def test_nouveau_on_a_jetson_is_no_cuda(plant: Plant) -> None:
    gpu = only(plant(dt("nvidia,jetson-nano", "nvidia,tegra210") | {"sys/module/nouveau/refcnt": "1"}))
    assert gpu.usable is False
    assert "nouveau" in (gpu.why_not_usable or "")


def test_nvidias_bridges_and_sound_are_no_gpu(plant: Plant) -> None:
    assert found(plant(pci("0000:01:00.1", 0x10DE, 0x2288, 0x040300))) == []


def test_a_discrete_gpu_makes_the_machine_discrete(plant: Plant) -> None:
    facts = probe(plant(pci("0000:01:00.0", 0x10DE, 0x2504, 0x030000) | {"sys/module/nouveau/refcnt": "1"}))
    assert facts.memory.model == "discrete"
    assert facts.accelerators[0].usable is False


def test_a_gpu_whose_driver_is_loaded_without_a_node_is_not_usable(plant: Plant) -> None:
    gpu = only(plant(pci("0000:01:00.0", 0x10DE, 0x2504, 0x030000) | {"proc/driver/nvidia/version": "NVRM version"}))
    assert (gpu.kind, gpu.usable) == ("cuda_dgpu", False)
    assert "/dev/nvidia0" in (gpu.why_not_usable or "")


def test_a_card_whose_node_is_named_by_its_address(plant: Plant) -> None:
    card = only(plant(pci("0000:01:00.0", 0x1F9D, 0x1100, 0x120000) | {"dev/metis-0:1:0": ""}))
    assert [node.path for node in card.nodes] == ["/dev/metis-0:1:0"]


def test_a_gpu_that_only_the_drivers_own_list_shows(plant: Plant) -> None:
    information = "Model: \t\t NVIDIA GeForce RTX 3060\nIRQ: 1\n"
    gpu = only(plant({"proc/driver/nvidia/gpus/0000:01:00.0/information": information, "dev/nvidia0": ""}))
    assert (gpu.kind, gpu.name, gpu.usable) == ("cuda_dgpu", "NVIDIA GeForce RTX 3060", None)


def test_the_chips_own_gpu_on_pci_is_not_a_second_one(plant: Plant) -> None:
    thor = dt("nvidia,p4071-0000+p3834-0008", "nvidia,tegra264") | pci("0000:01:00.0", 0x10DE, 0x2B00, 0x030000)
    assert only(plant(thor)).kind == "cuda_igpu"


def test_a_gb10_is_told_by_its_bridges_and_shares_its_memory(plant: Plant) -> None:
    facts = probe(plant(pci("0004:00:00.0", 0x10DE, 0x22CE, 0x060400)))
    assert [a.compute_capability for a in facts.accelerators] == ["12.1"]
    assert facts.memory.model == "unified"


def test_wsl_shows_a_gpu_of_unknown_vendor(plant: Plant) -> None:
    facts = probe(plant(pci("fe50:00:00.0", 0x1414, 0x008E, 0x030200) | {"dev/dxg": ""}))
    assert [(a.kind, a.usable, a.int8) for a in facts.accelerators] == [("gpu_paravirtual", None, None)]
    assert (facts.memory.model, facts.board.virtual) == ("discrete", "wsl")


@pytest.mark.parametrize("soc", ["rk3588", "rk3588s", "rk3588f"])
def test_rockchips_spellings_are_one_npu(plant: Plant, soc: str) -> None:
    npu = only(plant(dt("maker,board", f"rockchip,{soc}")))
    assert (npu.kind, npu.cores, npu.usable) == ("rknpu", 3, None)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8\n"}, True),
        ({"dev/rknpu": ""}, True),
        ({"dev/dri/renderD9": "", "sys/class/drm/renderD9/device/uevent": "OF_COMPATIBLE_0=rockchip,x-rknpu"}, True),
        ({"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/uevent": "DRIVER=panthor\n"}, None),
        ({"sys/module/rknpu/refcnt": "0"}, False),
        ({"proc/version": "Linux version 6.12.1-edge\n"}, False),
        ({"proc/version": "Linux version 6.1.75-vendor-rk35xx\n"}, None),
        ({"proc/version": "Linux version 6.19.0\n"}, None),
    ],
)  # fmt: skip
def test_a_rockchip_npu_is_usable_by_its_drivers_evidence(plant: Plant, files: Files, usable: bool | None) -> None:
    assert only(plant(dt("radxa,rock-5b", "rockchip,rk3588") | files)).usable is usable


def test_a_rockchip_npu_in_a_container_without_device_tree(plant: Plant) -> None:
    facts = probe(plant({"sys/class/devfreq/fdab0000.npu/cur_freq": "1000000000\n"}))
    assert [(a.kind, a.name) for a in facts.accelerators] == [("rknpu", "Rockchip RK3588 NPU")]
    assert facts.memory.model == "unified"


@pytest.mark.parametrize(("status", "usable"), [("okay", None), ("disabled", False)])
def test_a_rockchip_that_no_table_lists_is_told_by_its_npus_node(
    plant: Plant, status: str, usable: bool | None
) -> None:
    board = dt("radxa,e52c", "rockchip,rk3582") | node("npu@fdab0000", "rockchip,rk3588-rknpu", status=status)
    assert (only(plant(board)).kind, only(plant(board)).usable) == ("rknpu", usable)


def test_galcore_proves_no_npu_but_the_npu_node_does(plant: Plant) -> None:
    gpu_only = dt("fsl,imx8mn-evk", "fsl,imx8mn") | node("soc@0/gpu@38000000", "vivante,gc") | {"dev/galcore": ""}
    assert found(plant(gpu_only)) == []


def test_a_vivante_npu_of_another_chip_is_told_by_its_node(plant: Plant) -> None:
    vim3 = dt("khadas,vim3", "amlogic,a311d", "amlogic,g12b") | node("soc/npu@ff100000", "vivante,gc")
    assert (only(plant(vim3)).kind, only(plant(vim3)).usable) == ("vsi_npu", None)
    assert only(plant({"dev/galcore": ""})).usable is True


def test_an_npu_that_the_device_tree_switches_off_is_there_and_not_usable(plant: Plant) -> None:
    off = dt("x,y", "fsl,imx8mp") | node("soc@0/npu@38500000", "vivante,gc", status="disabled") | {"dev/galcore": ""}
    npu = only(plant(off))
    assert (npu.kind, npu.usable) == ("vsi_npu", False)
    assert "device tree" in (npu.why_not_usable or "")


def test_an_ethos_u_is_usable_by_its_node(plant: Plant) -> None:
    board = dt("fsl,imx93-11x11-evk", "fsl,imx93")
    assert (only(plant(board)).kind, only(plant(board)).usable) == ("ethosu", None)
    assert only(plant(board | {"dev/ethosu0": ""})).usable is True


@pytest.mark.parametrize("soc", ["am62a7", "j721e", "j722s", "j784s4", "am68", "am69"])
def test_tis_vision_chips_have_the_dsp(plant: Plant, soc: str) -> None:
    assert only(plant(dt(f"ti,{soc}-evm", f"ti,{soc}"))).kind == "c7x_mma"


def test_tis_plain_am62_has_none(plant: Plant) -> None:
    assert found(plant(dt("beagle,am625-beagleplay", "ti,am625"))) == []


def test_a_dsp_whose_firmware_does_not_run_is_not_usable(plant: Plant) -> None:
    remote = {
        "sys/class/remoteproc/remoteproc0/name": "7e000000.dsp c7x\n",
        "sys/class/remoteproc/remoteproc0/state": "",
    }
    board = dt("ti,am62a7-sk", "ti,am62a7")
    assert only(plant(board | remote | {"sys/class/remoteproc/remoteproc0/state": "offline\n"})).usable is False
    assert only(plant({"sys/class/remoteproc/remoteproc0/state": "running\n"})).usable is None


@pytest.mark.parametrize(
    "names", [("qcom,qcs6490",), ("qcom,qcm6490-addons-idp", "qcom,sc7280"), ("qcom,qrb5165-rb5", "qcom,sm8250")]
)
def test_a_hexagon_is_told_by_the_chip_or_its_relatives(plant: Plant, names: tuple[str, ...]) -> None:
    assert only(plant(dt("maker,board", *names))).kind == "hexagon"


def test_a_compute_dsp_node_shows_a_hexagon_that_no_table_lists(plant: Plant) -> None:
    board = dt("maker,board", "qcom,sm9999")
    assert found(plant(board | {"dev/fastrpc-adsp": ""})) == []
    assert only(plant({"dev/fastrpc-cdsp": ""})).usable is None


def test_a_board_that_lost_the_nuls_of_its_strings_is_still_read(plant: Plant) -> None:
    glued = "nvidia,p3768-0000+p3767-0005-supernvidia,p3767-0005nvidia,tegra234"
    facts = probe(plant({"proc/device-tree/compatible": glued}))
    assert facts.board.soc == "tegra234"
    assert facts.accelerators[0].dla_cores == 0
    spaced = probe(plant({"proc/device-tree/compatible": "radxa,rock-5b\nrockchip,rk3588\n"}))
    assert spaced.board.compatible == ("radxa,rock-5b", "rockchip,rk3588")


def test_a_virtual_machine_with_a_device_tree_says_nothing_of_its_memory(plant: Plant) -> None:
    facts = probe(plant(dt("linux,dummy-virt")))
    assert (facts.memory.model, facts.board.soc, facts.board.virtual) == (None, None, "qemu")


def test_nodes_of_this_machine_tell_who_may_open_them() -> None:
    from edgekit.device.bus import device_nodes
    from edgekit.device.tree import Tree

    (null,) = device_nodes(Tree("/"), "dev/null")
    assert (null.readable, null.writable, null.mode, null.refused) == (True, True, "0666", False)
    assert null.group == "root"


def test_a_node_that_this_user_may_not_open_makes_the_device_unusable() -> None:
    from edgekit.device.accelerators import judge
    from edgekit.device.bus import DeviceNode

    refused = DeviceNode("/dev/apex_0", readable=False, writable=False, group="apex", mode="0660")
    usable, why = judge((refused,), node_suffices=True, wanted="/dev/apex_0")
    assert usable is False
    assert "group apex" in (why or "")
