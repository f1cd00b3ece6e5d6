"""The doctor's checks one by one: what makes each ok, missing or broken, and the command it then names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from edgekit.device.accelerators import Accelerator
from edgekit.device.bus import DeviceNode
from edgekit.device.installed import InstalledRuntime
from edgekit.runtimes import checkup
from edgekit.runtimes.available import Provider, Runtime
from edgekit.runtimes.checkup import BROKEN, MISSING, OK

CPU = Provider(name="CPUExecutionProvider", runs=True)


def runtime(name: str = "onnxruntime", **more: Any) -> Runtime:
    return Runtime(**({"name": name, "version": "1.20.0", "loads": True, "providers": (CPU,)} | more))


def states(*runtimes: Runtime) -> dict[str, str]:
    return {check.name: check.state for check in checkup._runtimes(runtimes)}


def test_a_runtime_that_ran_names_its_version_and_where() -> None:
    (check,) = checkup._runtimes([runtime()])
    assert (check.state, check.detail) == (OK, "1.20.0: ran a model on CPUExecutionProvider")


def test_a_provider_that_did_not_run_makes_the_runtime_broken_but_still_usable() -> None:
    cuda = Provider(name="CUDAExecutionProvider", runs=False, problem="libcublas.so.12 is missing")
    (check,) = checkup._runtimes([runtime(providers=(CPU, cuda))])
    assert check.state == BROKEN
    assert check.detail == (
        "1.20.0: CPUExecutionProvider, CUDAExecutionProvider does not run (libcublas.so.12 is missing)"
    )


@pytest.mark.parametrize(
    ("mend", "words"),
    [(None, "-m pip install onnxruntime --force-reinstall"), ("pip install 'numpy<2'", "pip install 'numpy<2'")],
)
def test_a_runtime_that_does_not_load_has_its_own_mending_or_a_new_installation(mend: str | None, words: str) -> None:
    checks = checkup._runtimes([runtime(loads=False, providers=(), problem="dies with SIGILL", mend=mend)])
    assert checks[0].detail == "1.20.0 is installed but does not run: dies with SIGILL"
    assert str(checks[0].mend).endswith(words)
    assert checks[-1].name == "any runtime"


def test_any_runtime_is_a_fault_only_while_none_runs() -> None:
    absent = runtime(version=None, loads=False, providers=())
    assert states(absent) == {"onnxruntime": MISSING, "any runtime": BROKEN}
    assert states(absent, runtime("openvino")) == {"onnxruntime": MISSING, "openvino": OK}


@pytest.mark.parametrize("successor_runs", [True, False])
def test_the_older_tflite_runtime_is_asked_for_where_it_can_be_and_is_needed(successor_runs: bool) -> None:
    litert = runtime("litert", loads=successor_runs)
    absent = runtime("tflite", version=None, loads=False, providers=())
    expected = sys.version_info < (3, 12) and not successor_runs
    assert ("tflite" in states(litert, absent)) == expected
    assert "tflite" in states(litert, runtime("tflite")), "what is installed is always told"


# Installations


def installed(distribution: str, *problems: str) -> InstalledRuntime:
    return InstalledRuntime(distribution, "1.0", distribution, distribution, problems)


def test_every_problem_of_an_installation_is_a_fault_unless_its_runtime_has_said_so() -> None:
    packages = [installed("onnxruntime", "two write one module"), installed("numpy"), installed("openvino", "a", "b")]
    assert [(c.name, c.detail) for c in checkup._metadata(packages, set())] == [
        ("onnxruntime", "two write one module"),
        ("openvino", "a"),
        ("openvino", "b"),
    ]
    assert [c.name for c in checkup._metadata(packages, {"onnxruntime"})] == ["openvino", "openvino"]


# Accelerators


def node(path: str = "/dev/x0", *, readable: bool = True, group: str | None = "render") -> DeviceNode:
    return DeviceNode(path, readable, True, group, "0660")


def accelerator(**more: Any) -> Accelerator:
    blank = {
        "kind": "hailo", "name": "Hailo-8", "present": True, "usable": True, "why_not_usable": None, "evidence": "PCI",
    }  # fmt: skip
    return Accelerator(**(blank | more))


@pytest.mark.parametrize(
    ("more", "state", "detail", "mend"),
    [
        ({}, OK, "PCI", None),
        ({"usable": None, "why_not_usable": "only its runtime can tell"}, OK, "PCI", None),
        ({"usable": False, "why_not_usable": "no driver"}, BROKEN, "no driver", None),
        (
            {"nodes": (node(readable=False),)},
            BROKEN,
            "no permission for /dev/x0",
            "sudo usermod -aG render $USER, then log in again",
        ),
        (
            {"nodes": (node(readable=False), node("/dev/x1", readable=False, group="apex"))},
            BROKEN,
            "no permission for /dev/x0, /dev/x1",
            "sudo usermod -aG apex,render $USER, then log in again",
        ),
        ({"nodes": (node(readable=False, group=None),)}, BROKEN, "no permission for /dev/x0", None),
    ],
)
def test_an_accelerator_is_fine_unusable_or_not_ours_to_open(
    more: dict[str, Any], state: str, detail: str, mend: str | None
) -> None:
    (check,) = checkup._accelerator(accelerator(**more))
    assert (check.name, check.state, check.detail, check.mend) == ("Hailo-8", state, detail, mend)


def test_an_absent_accelerator_is_no_fault() -> None:
    assert checkup._accelerator(accelerator(present=False, usable=False)) == []


@pytest.mark.parametrize(
    ("name", "present", "library", "state"),
    [
        ("Coral Edge TPU", True, "libedgetpu.so.1", OK),
        ("Coral Edge TPU", True, None, BROKEN),
        ("Coral Edge TPU", False, None, None),
        ("Hailo-8", True, None, None),
    ],
)
def test_an_edge_tpu_needs_its_library(
    name: str, present: bool, library: str | None, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda _: library)
    checks = checkup._delegates([accelerator(name=name, present=present)])
    assert [check.state for check in checks] == ([] if state is None else [state])
    assert all((check.mend == "sudo apt install libedgetpu1-std") == (state == BROKEN) for check in checks)


# The place


def test_a_state_folder_is_tried_by_writing_and_left_as_it_was(tmp_path: Path) -> None:
    check = checkup._home(tmp_path / "not" / "yet")
    assert (check.state, check.detail) == (OK, str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_below_a_file_uses_the_next_folder_above(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert checkup._home(tmp_path / "file" / "home").state == OK


@pytest.mark.parametrize(
    ("is_virtual", "is_managed", "states_"), [(True, True, [OK]), (False, True, [MISSING]), (False, False, [])]
)
def test_a_python_that_belongs_to_the_system_is_told_before_pip_refuses(
    is_virtual: bool, is_managed: bool, states_: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checkup.sys, "prefix", "/v" if is_virtual else "/usr")
    monkeypatch.setattr(checkup.sys, "base_prefix", "/usr")
    monkeypatch.setattr(checkup.os, "__file__", str(tmp_path / "os.py"))
    if is_managed:
        (tmp_path / "EXTERNALLY-MANAGED").write_text("x")
    checks = checkup._environment()
    assert [check.state for check in checks] == states_
    assert all("-m venv" in str(check.mend) for check in checks if check.state == MISSING)


@pytest.mark.parametrize("path", [None, "/usr/sbin/mosquitto"])
def test_mosquitto_is_looked_for_where_debian_puts_it_and_is_optional(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(checkup.shutil, "which", lambda name, path: asked.append(path) or found)
    found = path
    check = checkup._broker()
    assert check.state == (OK if path else MISSING)
    assert "/usr/sbin" in asked[0]


def test_every_extra_that_is_missing_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    checks = checkup._extras()
    assert {check.state for check in checks} == {MISSING}
    assert all(str(check.mend).startswith(f"{sys.executable} -m pip install '") for check in checks)
