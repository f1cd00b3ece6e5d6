"""Files that cannot be used end every verb in one clear line and exit code 5, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
DIGITS, DIGITS_LITE = ROOT / "models/digits/digits.onnx", ROOT / "models/digits/digits.tflite"
OTHERS = {
    "tflm/person_detect.tflite": "quantized_dimension",
    "tflm/audio_preprocessor_float.tflite": "SignalWindow",
    "tflm/audio_preprocessor_int8.tflite": "SignalWindow",
    "coral/mobilenet_v1_0.25_128_quant_edgetpu.tflite": "Edge TPU",
    "efficientnet_lite0/efficientnet_lite0_f32.onnx": "--axis 'N=VALUE'",
}
"""Real files made by others -> what the refusal must name."""
OURS = {
    "truncated.onnx": (DIGITS.read_bytes()[:5000], "cut short"),
    "truncated.tflite": (DIGITS_LITE.read_bytes()[:3000], "cut short"),
    "text.onnx": (b"just some words\n", "text file"),
    "text.tflite": (b"just some words\n", "text file"),
    "empty.onnx": (b"", "empty"),
    "noise.onnx": (bytes(range(256)) * 40, "not an ONNX model"),
    "lite-named.onnx": (DIGITS_LITE.read_bytes(), "LiteRT"),
}
VERBS = {
    "bench": ["--seconds", "0.2", "--threads", "1"],
    "select": ["--seconds", "0.2", "--threads", "1"],
    "infer": ["--input", "in.npz"],
}


@pytest.fixture
def refused(edgekit_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run a verb on a file in a folder that holds some input, and return its one line."""
    np.savez(tmp_path / "in.npz", input=np.zeros((1, 3), np.float32))
    monkeypatch.chdir(tmp_path)

    def run(verb: str, path: Path) -> str:
        code = main([verb, str(path), *VERBS[verb]])
        said = capfd.readouterr()
        assert code == 5, said
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith(f"edgekit {verb}: ")
        return said.err

    return run


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", OURS)
def test_damaged_and_foreign_files_are_refused_in_one_line(name: str, verb: str, refused, tmp_path: Path):
    content, words = OURS[name]
    (tmp_path / name).write_bytes(content)
    assert words in refused(verb, tmp_path / name)


@pytest.mark.data
@pytest.mark.parametrize("verb", ["bench", "select"])
@pytest.mark.parametrize("name", OTHERS)
def test_real_files_that_no_runtime_here_can_run_are_refused(name: str, verb: str, refused, data_dir: Path):
    assert OTHERS[name] in refused(verb, data_dir / name)


@pytest.mark.data
@pytest.mark.parametrize("name", ["tflm/person_detect.tflite", "efficientnet_lite0/efficientnet_lite0_f32.onnx"])
def test_the_daemon_does_not_start_on_them(name: str, data_dir: Path, edgekit_home: Path):
    argv = [sys.executable, "-m", "edgekit.cli.main", "run", str(data_dir / name), "--port", "0"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 5
    assert OTHERS[name] in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
