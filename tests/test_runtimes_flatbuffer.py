"""A damaged LiteRT file is refused before the runtime reads it: each try in a child, because a miss is a crash."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.errors import ArtifactError
from edgekit.runtimes.flatbuffer import check_tflite

ROOT = Path(__file__).resolve().parent.parent
WHOLE = ROOT / "models/digits/digits.tflite"

_TRY_ALL = """
import sys
from pathlib import Path
import numpy as np
from edgekit.errors import EdgekitError
from edgekit.runtimes.available import installed_runtimes
from edgekit.runtimes.session import SessionSettings, open_session

runtime = next(name for name in ("litert", "tflite") if name in installed_runtimes())
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        session = open_session(path, SessionSettings(runtime=runtime))
        session.run({spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs})
    except EdgekitError as error:
        assert "Traceback" not in str(error) and chr(10) not in str(error), error
print("survived")
"""


@pytest.fixture(scope="module")
def whole() -> bytes:
    return WHOLE.read_bytes()


def _survives(folder: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _TRY_ALL, str(folder)], capture_output=True, text=True, timeout=100, check=False
    )
    assert child.returncode == 0, f"died with {child.returncode}: {child.stderr[-500:]}"
    assert child.stdout.strip() == "survived"
    assert child.stderr == ""


def test_a_whole_file_passes():
    check_tflite(WHOLE)


def test_every_truncation_is_refused(whole, tmp_path):
    path = tmp_path / "cut.tflite"
    accepted = []
    for length in {*range(64), *range(64, len(whole), 211), *range(len(whole) - 40, len(whole) - 3)}:
        path.write_bytes(whole[:length])
        with contextlib.suppress(ArtifactError):
            check_tflite(path)
            accepted.append(length)
    assert accepted == []


@pytest.mark.parametrize("runtime_package", ["ai_edge_litert", "tflite_runtime"])
def test_truncated_files_never_take_the_process_with_them(whole, tmp_path, runtime_package):
    if importlib.util.find_spec(runtime_package) is None:
        pytest.skip(f"elsewhere: {runtime_package} has an environment of its own")
    for length in range(8, len(whole), len(whole) // 40):
        (tmp_path / f"{length:06}.tflite").write_bytes(whole[:length])
    _survives(tmp_path)


def test_offsets_that_lead_outside_are_refused(whole, tmp_path):
    path = tmp_path / "bad.tflite"
    root = int.from_bytes(whole[:4], "little")
    for at, value in ((0, 2**31), (0, len(whole)), (root, 2**31 - 1), (root, len(whole))):
        path.write_bytes(whole[:at] + value.to_bytes(4, "little") + whole[at + 4 :])
        with pytest.raises(ArtifactError, match="damaged or cut short"):
            check_tflite(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is not a model at all\n" * 4, "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"PK\x03\x04" + b"\0" * 60, "is a zip archive"),
        (b"<!DOCTYPE html><html></html>", "is a web page"),
        (b"\0" * 64, "is not a LiteRT model"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_kind(content, words, tmp_path):
    path = tmp_path / "other.tflite"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=words):
        check_tflite(path)


def test_a_missing_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(ArtifactError, match="no such file"):
        check_tflite(tmp_path / "none.tflite")
    with pytest.raises(ArtifactError, match="is a folder"):
        check_tflite(tmp_path)


@pytest.mark.data
def test_every_real_model_passes(data_dir):
    files = sorted(data_dir.glob("*/*.tflite"))
    assert len(files) > 15
    for path in files:
        check_tflite(path)
