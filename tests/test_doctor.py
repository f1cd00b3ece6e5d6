"""The doctor: what works is proved, what does not has the command that mends it, and the exit code tells."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.device.accelerators import Accelerator
from edgekit.device.bus import DeviceNode
from edgekit.device.installed import InstalledRuntime
from edgekit.device.probe import probe
from edgekit.runtimes.available import Provider, Runtime
from edgekit.runtimes.checkup import BROKEN, MISSING, OK, checkup

GOOD = Runtime(
    name="onnxruntime", version="1.32.0", loads=True, providers=(Provider(name="CPUExecutionProvider", runs=True),)
)
ABSENT = Runtime(name="openvino", version=None)


@pytest.fixture(scope="module")
def facts():
    return dataclasses.replace(probe(), accelerators=(), runtimes=())


def _checks(facts, runtimes, home):
    return {check.name: check for check in checkup(facts, runtimes, home)}


def test_a_runtime_that_ran_a_model_is_ok_and_says_where(facts, tmp_path):
    check = _checks(facts, [GOOD], tmp_path)["onnxruntime"]
    assert check.state == OK
    assert "CPUExecutionProvider" in check.detail


def test_an_absent_runtime_is_no_fault_while_another_runs(facts, tmp_path):
    checks = _checks(facts, [GOOD, ABSENT], tmp_path)
    assert checks["openvino"].state == MISSING
    assert "pip install openvino" in (checks["openvino"].mend or "")
    assert "any runtime" not in checks


def test_no_runtime_at_all_is_a_fault_with_its_command(facts, tmp_path):
    check = _checks(facts, [ABSENT], tmp_path)["any runtime"]
    assert check.state == BROKEN
    assert (check.mend or "").endswith("-m pip install onnxruntime")


def test_a_runtime_that_does_not_load_has_its_reason_and_the_command(facts, tmp_path):
    dead = Runtime(name="tflite", version="2.14.0", problem="dies with numpy 2", mend="pip install 'numpy<2'")
    crashing = Runtime(name="litert", version="2.3.0", problem="dies with SIGSEGV")
    checks = _checks(facts, [GOOD, dead, crashing], tmp_path)
    assert checks["tflite"].state == BROKEN
    assert "2.14.0 is installed but does not run: dies with numpy 2" in checks["tflite"].detail
    assert checks["tflite"].mend == "pip install 'numpy<2'"
    assert "--force-reinstall" in (checks["litert"].mend or "")


def test_a_provider_that_does_not_run_is_a_fault_although_the_cpu_does(facts, tmp_path):
    providers = (*GOOD.providers, Provider(name="CUDAExecutionProvider", runs=False, problem="no libcublas"))
    half = Runtime(name="onnxruntime", version="1", loads=True, providers=providers)
    check = _checks(facts, [half], tmp_path)["onnxruntime"]
    assert check.state == BROKEN
    assert "CUDAExecutionProvider does not run (no libcublas)" in check.detail


def test_two_packages_that_write_one_module_are_a_fault(facts, tmp_path):
    twin = InstalledRuntime(
        name="onnxruntime", version="1", distribution="onnxruntime-gpu", module="onnxruntime", problems=("over it",)
    )
    checks = _checks(dataclasses.replace(facts, runtimes=(twin,)), [GOOD], tmp_path)
    assert checks["onnxruntime-gpu"].detail == "over it"
    assert checks["onnxruntime-gpu"].state == BROKEN


def test_a_fault_is_told_once(facts, tmp_path):
    package = InstalledRuntime(
        name="tflite", version="2", distribution="tflite-runtime", module="tflite_runtime", problems=("numpy 2",)
    )
    dead = Runtime(name="tflite", version="2", problem="numpy 2")
    checks = _checks(dataclasses.replace(facts, runtimes=(package,)), [GOOD, dead], tmp_path)
    assert "tflite" in checks
    assert "tflite-runtime" not in checks


def _accelerator(**changes) -> Accelerator:
    values = {
        "kind": "gpu",
        "name": "Orin GPU",
        "present": True,
        "usable": False,
        "why_not_usable": "no permission for /dev/nvmap",
        "evidence": "device tree",
        "nodes": (DeviceNode(path="/dev/nvmap", readable=False, writable=False, group="video", mode="0660"),),
    }
    return Accelerator(**(values | changes))


def test_a_device_node_that_this_user_may_not_open_names_the_group_to_join(facts, tmp_path):
    checks = _checks(dataclasses.replace(facts, accelerators=(_accelerator(),)), [GOOD], tmp_path)
    assert checks["Orin GPU"].state == BROKEN
    assert checks["Orin GPU"].detail == "no permission for /dev/nvmap"
    assert "usermod -aG video" in (checks["Orin GPU"].mend or "")


def test_an_accelerator_that_works_or_is_absent_is_no_fault(facts, tmp_path):
    working = _accelerator(name="A", usable=True, why_not_usable=None, nodes=())
    absent = _accelerator(name="B", present=False)
    checks = _checks(dataclasses.replace(facts, accelerators=(working, absent)), [GOOD], tmp_path)
    assert checks["A"].state == OK
    assert "B" not in checks


def test_a_coral_without_its_library_is_a_fault(facts, tmp_path):
    import ctypes.util

    if ctypes.util.find_library("edgetpu"):
        pytest.skip("libedgetpu is installed here")
    coral = _accelerator(name="Coral Edge TPU", usable=True, why_not_usable=None, nodes=())
    checks = _checks(dataclasses.replace(facts, accelerators=(coral,)), [GOOD], tmp_path)
    assert checks["Edge TPU delegate"].state == BROKEN
    assert checks["Edge TPU delegate"].mend == "sudo apt install libedgetpu1-std"


def test_a_state_folder_that_cannot_be_written_is_a_fault(facts, tmp_path):
    if os.geteuid() == 0:
        blocked = Path("/proc/edgekit")  # root may write anywhere else
    else:
        blocked = tmp_path / "locked" / "home"
        blocked.parent.mkdir(mode=0o500)
    check = _checks(facts, [GOOD], blocked)["state folder"]
    assert check.state == BROKEN
    assert "EDGEKIT_HOME" in (check.mend or "")


def test_looking_leaves_nothing_behind(facts, tmp_path):
    checks = _checks(facts, [GOOD], tmp_path / "not/there/yet")
    assert checks["state folder"].state == OK
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_every_check_and_its_exit_code_tells(edgekit_home, capsys):
    code = main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert {check["state"] for check in checks} <= {OK, MISSING, BROKEN}
    assert code == (1 if any(check["state"] == BROKEN for check in checks) else 0)
    names = [check["name"] for check in checks]
    assert {"python", "onnxruntime", "openvino", "litert", "state folder"} <= set(names)


def test_tflite_runtime_is_not_asked_for_where_its_successor_runs(facts, tmp_path):
    successor = Runtime(name="litert", version="2.3.0", loads=True, providers=(Provider(name="XNNPACK", runs=True),))
    assert "tflite" not in _checks(facts, [successor, Runtime(name="tflite", version=None)], tmp_path)
    both = [successor, Runtime(name="tflite", version="2.14.0", problem="dies")]
    assert _checks(facts, both, tmp_path)["tflite"].state == BROKEN


def test_for_people_a_fault_stands_beside_its_command(edgekit_home, capsys):
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok  python") for line in lines)
    assert lines[-1] == "nothing is broken" or lines[-1].endswith("the commands above mend them")
