"""What every session checks before it runs, and how files and noise are handled on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import ArtifactError, InputError
from edgekit.manifest import TensorSpec
from edgekit.runtimes.flatbuffer import check_tflite
from edgekit.runtimes.quiet import captured_stderr
from edgekit.runtimes.session import Placement, SessionSettings, check_inputs
from edgekit.runtimes.sniff import looks_like, read_head

ROOT = Path(__file__).resolve().parent.parent
SPECS = (
    TensorSpec(name="x", dtype="float32", shape=("batch", 3)),
    TensorSpec(name="sr", dtype="int64", shape=()),
)


def _inputs(**changes):
    return {"x": np.zeros((2, 3), np.float32), "sr": np.array(16000)} | changes


def test_inputs_that_fit_pass_whatever_the_open_axis():
    check_inputs(SPECS, _inputs())
    check_inputs(SPECS, _inputs(x=np.zeros((7, 3), np.float32)))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, "the model takes x, sr"),
        (_inputs(extra=np.zeros(1)), "the model takes x, sr"),
        (_inputs(x=np.zeros((2, 4), np.float32)), r"input x: has shape \[2, 4\], the model takes \['batch', 3\]"),
        (_inputs(x=np.zeros((2, 3, 1), np.float32)), "input x: has shape"),
        (_inputs(x=np.zeros((2, 3), np.float16)), "input x: is float16, the model takes float32"),
        (_inputs(sr=np.array([16000])), r"input sr: has shape \[1\], the model takes \[\]"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs, words):
    with pytest.raises(InputError, match=words):
        check_inputs(SPECS, inputs)


def test_placement_tells_what_was_asked_for_and_ran_nothing():
    placement = Placement(ops_by_provider={"CPU": 3, "GPU": 0}, partitions=1, asked_for=("GPU", "NPU", "CPU"))
    assert placement.unused == ("GPU", "NPU")


def test_settings_are_values_that_cannot_change():
    with pytest.raises(AttributeError):
        SessionSettings().threads = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "empty"),
        (b"\x1c\0\0\0TFL3rest", "a LiteRT model"),
        (b"PK\x03\x04zip", "a zip archive"),
        (b"\x1f\x8b\x08gz", "a gzip file"),
        (b"<html><body>Not found", "a web page"),
        (b"  <!DOCTYPE html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"plain words\nand lines\n", "a text file"),
        (b"\x08\x07\x12\x07edgekit", "unknown"),
    ],
)
def test_a_file_is_told_by_its_first_bytes(head, kind):
    assert looks_like(head).startswith(kind)


def test_real_models_are_not_mistaken_for_something_else():
    assert looks_like(read_head(ROOT / "models/digits/digits.onnx")) == "unknown"
    assert looks_like(read_head(ROOT / "models/digits/digits.tflite")) == "a LiteRT model"


def test_a_file_that_may_not_be_read_says_so(tmp_path):
    path = tmp_path / "locked.onnx"
    path.write_bytes(b"x")
    path.chmod(0)
    # root may read everything, so a child without its rights asks
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from edgekit.errors import ArtifactError\n"
        "from edgekit.runtimes.sniff import read_head\n"
        "os.chdir(sys.argv[1])\n"
        "if os.getuid() == 0:\n    os.setuid(65534)\n"
        "try:\n    read_head(Path('locked.onnx'))\n"
        "except ArtifactError as e:\n    print(e)"
    )
    tmp_path.chmod(0o755)
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=ROOT)
    assert "cannot be read: Permission denied" in run.stdout, run.stderr


@settings(max_examples=200, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_the_flatbuffer_check_survives_any_damage(flips, tmp_path_factory):
    data = bytearray((ROOT / "models/digits/digits.tflite").read_bytes())
    for at, byte in flips:
        data[at % len(data)] = byte
    path = tmp_path_factory.mktemp("damage") / "m.tflite"
    path.write_bytes(bytes(data))
    try:
        check_tflite(path)
    except ArtifactError as error:
        assert "m.tflite" in str(error)  # noqa: PT017 - both outcomes are right


def test_captured_text_is_for_who_explains_a_failure(capfd):
    def fail() -> None:
        with captured_stderr() as said:
            os.write(2, b"the reason\n")
            raise ValueError(said().strip())

    with pytest.raises(ValueError, match="the reason"):
        fail()
    assert capfd.readouterr().err == "", "it is in the error; twice would be noise"


def test_capturing_works_where_stderr_is_closed():
    code = (
        "import os; os.close(2)\n"
        "from edgekit.runtimes.quiet import captured_stderr\n"
        "with captured_stderr() as said: print('ran', repr(said()))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "ran ''"


def test_capturing_can_be_nested(capfd):
    with captured_stderr() as outer, captured_stderr() as inner:
        os.write(2, b"inner words\n")
        assert inner() == "inner words\n"
        assert outer() == ""
    assert capfd.readouterr().err == "inner words\n"
