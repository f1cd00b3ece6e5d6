"""Wheels for the target and for nothing else, from a list that is locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.errors import FetchError, ReleaseError
from edgekit.provision.release import Target
from edgekit.provision.wheelhouse import collect, lock, needs_of_edgekit, why_unfit

BOARD = Target(machine="aarch64", python="3.11")


@pytest.mark.parametrize(
    "name",
    [
        "edgekit_deploy-0.1.0-py3-none-any.whl",
        "numpy-2.2.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "cryptography-44.0.0-cp37-abi3-manylinux_2_28_aarch64.whl",
        "six-1.16.0-py2.py3-none-any.whl",
        "x-1.0-1-py3-none-any.whl",
    ],
)
def test_wheels_that_run_on_the_board_are_taken(name: str):
    assert why_unfit(name, BOARD) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("numpy-2.2.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "the target is aarch64"),
        ("numpy-2.2.0-cp312-cp312-manylinux_2_17_aarch64.whl", "the target has Python 3.11"),
        ("x-1.0-cp312-abi3-manylinux_2_17_aarch64.whl", "the target has Python 3.11"),
        ("numpy-2.2.0-cp311-cp311-macosx_14_0_arm64.whl", "the target is aarch64"),
        ("old-1.0-py2-none-any.whl", "the target has Python 3.11"),
        ("numpy-2.2.0.tar.gz", "not the file name of a wheel"),
    ],
)
def test_a_wheel_of_another_platform_or_python_is_refused(name: str, problem: str):
    assert problem in (why_unfit(name, BOARD) or "")


@pytest.mark.parametrize("text", ["numpy==2.2.0\n", "numpy\n", "numpy==2.2.0 --hash=md5:1\n"])
def test_a_list_without_hashes_is_refused_before_anything_is_downloaded(tmp_path: Path, text: str):
    (tmp_path / "r.txt").write_text(f"# wheels\n\n{text}")
    with pytest.raises(ReleaseError, match="has no --hash=sha256"):
        collect(tmp_path / "r.txt", BOARD, tmp_path)


def test_an_unknown_machine_and_a_missing_list_are_said(tmp_path: Path):
    with pytest.raises(ReleaseError, match="mips: no wheels are known"):
        collect(tmp_path / "r.txt", Target(machine="mips", python="3.11"), tmp_path)
    with pytest.raises(ReleaseError, match="cannot be read: No such file"):
        collect(tmp_path / "r.txt", BOARD, tmp_path)


def test_what_edgekit_needs_is_read_from_its_own_metadata():
    core = needs_of_edgekit([])
    served = needs_of_edgekit(["serve", "onnx"])
    assert any(need.startswith("numpy") for need in core)
    assert not any("onnxruntime" in need for need in core)
    assert any(need.startswith("onnxruntime") and "extra" not in need for need in served)
    assert any(need.startswith("uvloop") and "win32" in need for need in served)


@pytest.mark.network
def test_a_lock_names_one_wheel_of_the_target_with_its_hash_and_can_be_collected(tmp_path: Path):
    try:
        text = lock(["msgspec==0.19.0"], BOARD)
        (tmp_path / "requirements.lock").write_text(text)
        wheels = collect(tmp_path / "requirements.lock", BOARD, tmp_path)
    except FetchError as e:
        pytest.skip(f"the package index is not reachable: {e}")
    assert text.count("--hash=sha256:") == 1
    assert [wheel.name for wheel in wheels if "aarch64" in wheel.name] == [wheels[0].name]
    (tmp_path / "requirements.lock").write_text(text.replace("sha256:", "sha256:0000")[:-5] + "\n")
    with pytest.raises(FetchError):
        collect(tmp_path / "requirements.lock", BOARD, tmp_path / "other")
