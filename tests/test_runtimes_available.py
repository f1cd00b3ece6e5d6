"""What is installed, and what really runs: proved in children, so that a broken one breaks nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from edgekit.runtimes.available import Runtime, installed_runtimes, installed_version, prove, survey


def test_every_installed_runtime_is_proved_by_a_model_that_ran():
    found = {runtime.name: runtime for runtime in survey()}
    assert list(found) == ["onnxruntime", "openvino", "litert", "tflite"]
    for name in installed_runtimes():
        runtime = found[name]
        assert runtime.loads, runtime
        assert runtime.version
        assert all(provider.runs for provider in runtime.providers)
        assert runtime.problem is None


def test_what_is_not_installed_has_no_version():
    found = {runtime.name: runtime for runtime in survey()}
    absent = [name for name in found if installed_version(name) is None]
    if not absent:
        pytest.skip("every runtime is installed here")
    assert found[absent[0]] == Runtime(name=absent[0], version=None)


def test_the_proof_in_this_process_is_the_same():
    name = installed_runtimes()[0]
    assert prove(name).loads


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Installs a fake tflite-runtime for child processes; the argument is what its import does."""

    def install(body: str) -> None:
        info = tmp_path / "tflite_runtime-2.99.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tflite-runtime\nVersion: 2.99.0\n")
        (tmp_path / "tflite_runtime").mkdir()
        (tmp_path / "tflite_runtime/__init__.py").touch()
        (tmp_path / "tflite_runtime/interpreter.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))

    if installed_version("tflite"):
        pytest.skip("a real tflite-runtime is installed here")
    return install


def test_a_runtime_that_crashes_on_import_is_reported_and_survived(broken, monkeypatch):
    import numpy as np

    broken("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (runtime,) = survey(["tflite"])
    assert runtime.version == "2.99.0"
    assert not runtime.loads
    expected = "built for numpy 1" if np.__version__ >= "2" else "dies with SIGSEGV"
    assert expected in (runtime.problem or "")


def test_nothing_is_imported_to_tell_what_is_installed():
    code = (
        "import sys; from edgekit.runtimes.available import installed_runtimes; installed_runtimes(); "
        "print([m for m in ('onnxruntime', 'openvino', 'ai_edge_litert', 'numpy') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert child.stdout.strip() == "[]"


def test_a_proof_prints_exactly_one_value():
    name = installed_runtimes()[0]
    command = [sys.executable, "-m", "edgekit.runtimes.available", name]
    child = subprocess.run(command, capture_output=True, check=True)
    assert msgspec.json.decode(child.stdout, type=Runtime).loads
