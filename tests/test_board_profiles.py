"""The declared boards: every file holds, the promised ones are there, and a slip is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.board import Board
from edgekit.catalog import load_board, load_boards
from edgekit.cli.main import main
from edgekit.errors import CatalogError
from edgekit.profiles import data_folder

PROMISED = (
    "jetson-nano-2gb", "jetson-nano-4gb", "jetson-tx2", "jetson-tx2-nx", "jetson-xavier-nx", "jetson-agx-xavier",
    "jetson-orin-nano-4gb", "jetson-orin-nano-8gb", "jetson-orin-nano-4gb-super", "jetson-orin-nano-8gb-super",
    "jetson-orin-nx-8gb", "jetson-orin-nx-16gb", "jetson-agx-orin-32gb", "jetson-agx-orin-64gb", "jetson-agx-thor",
    "rpi-zero-2w", "rpi-3", "rpi-4", "rpi-5", "rock-5b", "rock-5c", "orange-pi-5", "radxa-zero-3", "imx8m-plus",
    "imx93", "ti-am62a", "beaglebone-ai64", "qualcomm-rb5", "rubik-pi-3", "radxa-dragon-q6a", "generic-x86",
    "intel-n100", "intel-core-ultra", "amd-ryzen-ai", "generic-arm64",
)  # fmt: skip
KINDS = (
    "cuda_igpu", "cuda_dgpu", "gpu_paravirtual", "edgetpu_usb", "edgetpu_pcie", "hailo", "rknpu", "vsi_npu",
    "ethosu", "neutron", "c7x_mma", "hexagon", "intel_npu", "amd_xdna", "memryx", "axelera", "deepx", "axcl",
    "other_npu",
)  # fmt: skip
BOARDS = {board.id: board for board in load_boards()}


def hooks(board: Board) -> list[str]:
    return [entry.provider or entry.delegate or entry.device or "" for entry in board.runtime]


def test_the_promised_boards_are_there() -> None:
    assert [name for name in PROMISED if name not in BOARDS] == []


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
def test_a_profile_matches_something_and_gives_its_reasons(board: Board) -> None:
    assert any(getattr(board.match, rule) for rule in board.match.__struct_fields__)
    assert board.support_reason.endswith((".", ")"))
    assert {entry.kind for entry in board.accelerator} <= set(KINDS)
    assert {entry.needs for entry in board.runtime} - {None} <= set(KINDS)
    assert board.memory_bytes is None or board.memory_reserve_bytes < board.memory_bytes / 2


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
def test_a_board_where_the_daemon_runs_can_fall_back_to_its_cpu(board: Board) -> None:
    if board.support == "probe-only":
        return
    assert any(entry.needs is None for entry in board.runtime)


def test_no_two_profiles_of_one_rule_have_the_same_patterns_and_memory() -> None:
    seen: dict[tuple[object, ...], str] = {}
    for board in BOARDS.values():
        key = (board.match, board.memory_bytes)
        assert seen.setdefault(key, board.id) == board.id


@pytest.mark.parametrize(
    ("name", "support", "python"),
    [
        ("jetson-nano-4gb", "container", "3.6"),
        ("jetson-tx2", "container", "3.6"),
        ("jetson-agx-xavier", "container", "3.8"),
        ("jetson-orin-nano-8gb", "daemon", "3.10"),
    ],
)
def test_old_jetpacks_are_refused_with_their_python(name: str, support: str, python: str) -> None:
    board = BOARDS[name]
    assert (board.support, board.python) == (support, python)
    assert python in board.support_reason


def test_32_bit_arm_gets_the_only_runtime_it_has() -> None:
    assert {entry.runtime for entry in BOARDS["generic-armv7"].runtime} == {"tflite"}


def test_tensorrt_is_asked_for_int8_and_fp16_and_for_sparsity_only_where_the_gpu_has_it() -> None:
    for board in BOARDS.values():
        for entry in board.runtime:
            if entry.provider != "TensorrtExecutionProvider":
                continue
            assert entry.options["trt_fp16_enable"] == "1"
            assert entry.options["trt_engine_cache_enable"] == entry.options["trt_timing_cache_enable"] == "1"
            sparse = any(a.sparsity_2_4 or a.kind == "cuda_dgpu" for a in board.accelerator)
            assert ("trt_sparsity_enable" in entry.options) is sparse


def test_a_dla_core_is_named_exactly_where_there_is_one() -> None:
    for board in BOARDS.values():
        named = any("trt_dla_core" in entry.options for entry in board.runtime)
        assert named is any(entry.dla_cores for entry in board.accelerator), board.id


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("rpi-4", "libedgetpu.so.1"),
        ("imx8m-plus", "libvx_delegate.so"),
        ("imx93", "/usr/lib/libethosu_delegate.so"),
        ("rubik-pi-3", "libQnnTFLiteDelegate.so"),
        ("rubik-pi-3", "QNNExecutionProvider"),
        ("ti-am62a", "libtidl_tfl_delegate.so"),
        ("rock-5b", "libteflon.so"),
        ("intel-core-ultra", "NPU"),
        ("amd-ryzen-ai", "VitisAIExecutionProvider"),
    ],
)
def test_accelerators_are_reached_by_the_libraries_own_words(name: str, hook: str) -> None:
    assert hook in hooks(BOARDS[name])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("jetson-xavier-nx", "peak_int8_tops"),
        ("jetson-agx-xavier", "peak_int8_tops"),
        ("jetson-orin-nano-4gb", "peak_int8_tops"),
        ("jetson-orin-nano-8gb-super", "max_hz"),
        ("jetson-agx-orin-32gb", "peak_int8_tops"),
        ("jetson-thor-t4000", "memory_bytes"),
        ("imx8m-plus", "peak_int8_tops"),
        ("imx93", "peak_int8_tops"),
        ("imx95", "peak_int8_tops"),
        ("ti-am62a", "peak_int8_tops"),
        ("beaglebone-ai64", "peak_int8_tops"),
        ("qualcomm-rb5", "peak_int8_tops"),
    ],
)
def test_a_figure_without_a_source_says_so_beside_it(name: str, key: str) -> None:
    lines = (data_folder("devices") / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{key} =")]
    assert "unsourced" in line


GOOD = """
id = "gizmo"
name = "Gizmo"
maker = "ACME"
support = "daemon"
support_reason = "It is new."

[match]
compatible = ["acme,gizmo"]
"""


def write(folder: Path, text: str, name: str = "gizmo.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_new_board_is_one_file(tmp_path: Path) -> None:
    assert load_board(write(tmp_path, GOOD)).match.compatible == ("acme,gizmo",)


@pytest.mark.parametrize(
    ("change", "key", "hint"),
    [
        (("maker", "makr"), "makr", "'maker'"),
        (("compatible = [", "compatibel = ["), "match.compatibel", "'compatible'"),
        (('support = "daemon"', 'support = "deamon"'), "support", "deamon"),
        (('id = "gizmo"', 'id = "other"'), "id", "file's own name"),
        (('name = "Gizmo"', "name = 3"), "name", "str"),
        (('name = "Gizmo"', ""), "name", "required"),
    ],
)
def test_a_slip_in_a_profile_names_file_key_and_the_nearest_known_key(
    tmp_path: Path, change: tuple[str, str], key: str, hint: str
) -> None:
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(CatalogError) as caught:
        load_board(path)
    assert caught.value.key == key
    assert hint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_toml_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="not TOML"):
        load_board(write(tmp_path, "id = = 1"))


def test_the_boards_verb_lists_every_board_and_this_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boards"]) == 0
    text = capsys.readouterr().out
    assert all(board.name in text for board in BOARDS.values())
    assert "This machine is" in text or "No profile fits" in text


def test_the_boards_verb_tells_why_a_profile_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import json

    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_bytes(b"raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert main(["boards", "--json", "--root", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"][0]["id"] == "rpi-5"
    assert "raspberrypi,5-model-b" in answer["fits"][0]["why"]
    assert len(answer["boards"]) == len(BOARDS)


def test_one_board_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boards", "jetson-orin-nx-16gb"]) == 0
    text = capsys.readouterr().out
    assert "trt_dla_core = 0" in text
    assert "JetPack 6" in text


def test_an_unknown_board_is_a_catalog_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boards", "rpi5"]) == 3
    assert "rpi-5" in capsys.readouterr().err
