"""Installed runtimes by their metadata alone, and what the metadata already shows to be wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.device.installed import InstalledRuntime, read_runtimes


def install(folder: Path, name: str, version: str, module: str | None) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    if module:
        (folder / module).mkdir()


def found(*folders: Path) -> dict[str, InstalledRuntime]:
    return {runtime.distribution: runtime for runtime in read_runtimes([str(folder) for folder in folders])}


def test_the_python_itself_is_always_told(tmp_path: Path) -> None:
    (python,) = read_runtimes([str(tmp_path)])
    assert (python.name, python.version) == ("python", ".".join(map(str, sys.version_info[:3])))


def test_runtimes_are_named_by_what_they_are_and_where_they_come_from(tmp_path: Path) -> None:
    install(tmp_path, "onnxruntime_gpu", "1.18.0", "onnxruntime")
    install(tmp_path, "ai_edge_litert", "2.3.0", "ai_edge_litert")
    install(tmp_path, "requests", "2.0", "requests")
    runtimes = found(tmp_path)
    assert runtimes["onnxruntime-gpu"].name == "onnxruntime"
    assert runtimes["ai-edge-litert"].version == "2.3.0"
    assert "requests" not in runtimes
    assert all(runtime.problems == () for runtime in runtimes.values())


@pytest.mark.parametrize(("numpy", "broken"), [("2.4.6", True), ("1.26.4", False)])
def test_tflite_runtime_with_numpy_2_is_a_problem_with_its_cure(tmp_path: Path, numpy: str, broken: bool) -> None:
    install(tmp_path, "tflite_runtime", "2.14.0", "tflite_runtime")
    install(tmp_path, "numpy", numpy, "numpy")
    problems = found(tmp_path)["tflite-runtime"].problems
    assert bool(problems) is broken
    assert not broken or 'pip install "numpy<2"' in problems[0]


def test_two_distributions_over_one_module_are_a_problem(tmp_path: Path) -> None:
    install(tmp_path, "onnxruntime", "1.20.0", "onnxruntime")
    install(tmp_path, "onnxruntime_gpu", "1.18.0", None)
    runtimes = found(tmp_path)
    assert "onnxruntime-gpu" in runtimes["onnxruntime"].problems[0]
    assert "onnxruntime" in runtimes["onnxruntime-gpu"].problems[0]


def test_metadata_without_its_module_is_a_problem(tmp_path: Path) -> None:
    install(tmp_path, "openvino", "2026.4.1", None)
    assert "--force-reinstall openvino" in found(tmp_path)["openvino"].problems[0]


def test_the_first_folder_on_the_path_counts(tmp_path: Path) -> None:
    install(tmp_path / "user", "onnxruntime", "1.22.0", "onnxruntime")
    install(tmp_path / "system", "onnxruntime", "1.17.0", "onnxruntime")
    assert found(tmp_path / "user", tmp_path / "system")["onnxruntime"].version == "1.22.0"
    assert found(tmp_path / "system", tmp_path / "user")["onnxruntime"].version == "1.17.0"


def test_eggs_of_distributions_packages_are_read(tmp_path: Path) -> None:
    (tmp_path / "numpy-1.19.5-py3.8.egg-info").mkdir()
    (tmp_path / "numpy").mkdir()
    assert found(tmp_path)["numpy"].version == "1.19.5"


def test_a_folder_that_is_not_there_or_odd_names_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "-info").mkdir()
    (tmp_path / "onnxruntime-.dist-info").mkdir()
    (tmp_path / "numpy.dist-info").mkdir()
    assert [runtime.name for runtime in read_runtimes([str(tmp_path), str(tmp_path / "gone"), "a\0b"])] == ["python"]


def test_nothing_is_imported_to_find_them() -> None:
    code = (
        "import sys; from edgekit.device.installed import read_runtimes; found = read_runtimes();"
        "print(len(found), [m for m in ('numpy', 'onnxruntime', 'openvino', 'ai_edge_litert') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, _, loaded = run.stdout.strip().partition(" ")
    assert int(count) >= 2  # numpy is a dependency of edgekit itself
    assert loaded == "[]"
