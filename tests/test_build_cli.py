"""`edgekit build` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit.catalog import data_folder
from edgekit.cli.main import main

DIGITS = data_folder("models") / "digits"


def test_the_table_names_size_accuracy_and_fit(edgekit_home, capsys):
    assert main(["build", "digits"]) == 0
    out, err = capsys.readouterr()
    line = next(line for line in out.splitlines() if line.startswith("flash-int8-static"))
    assert "int8" in line
    assert "×" in line
    assert line.rstrip().endswith("yes")
    assert "flash-int8-dynamic: not built: " in err


def test_explain_prints_the_recipe_and_the_kernels(edgekit_home, capsys):
    assert main(["build", "digits", "--explain"]) == 0
    out, _ = capsys.readouterr()
    assert "ranges: minmax over" in out
    assert "runs as: QLinearConv" in out
    assert "key" not in out


def test_json_holds_the_records(edgekit_home, capsys):
    assert main(["build", "digits", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    names = [artifact["name"] for artifact in value["artifacts"]]
    assert names[0] == "standard"
    assert "flash-int8-static" in names
    assert value["refused"].keys() >= {"standard-optimized", "flash-int8-dynamic"}


def test_a_litert_model_is_a_truthful_no(edgekit_home, capsys):
    assert main(["build", str(DIGITS / "digits.tflite")]) == 1
    assert "builds from ONNX only" in capsys.readouterr().out


def test_bad_files_give_one_line_and_no_traceback(edgekit_home, tmp_path, capsys):
    raw = (DIGITS / "digits.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "text.onnx").write_text("no model at all\n" * 9)
    model = onnx.load(str(DIGITS / "digits.onnx"))
    weight = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    weight.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(weight), np.nan), weight.name))
    onnx.save(model, str(tmp_path / "nan.onnx"))
    for name in ("cut", "text", "nan", "absent"):
        assert main(["build", str(tmp_path / f"{name}.onnx")]) == 5
        err = capsys.readouterr().err
        assert err.startswith("edgekit build: ")
        assert name in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["digits", "--axis", "side"],
        ["digits", "--axis", "side=3"],
        ["digits", "--labels", "x.npy"],
        ["digits", "--calibration", "absent.npz"],
        ["digits", "--search-s", "-1"],
        ["digits", "--search-s", "nan"],
    ],
)
def test_options_that_do_not_go_together_exit_with_two(edgekit_home, capsys, arguments):
    assert main(["build", *arguments]) == 2
    assert capsys.readouterr().err.startswith("edgekit build: ")


def _bad_calibration(path, kind):
    good = np.zeros((3, 8, 8, 1), np.float32)
    if kind == "text":
        path.write_bytes(b"no archive")
    elif kind == "cut short":
        np.savez(path, image=good)
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "a single array":
        with path.open("wb") as file:
            np.save(file, good)
    elif kind == "objects":
        np.savez(path, image=np.array([{}, {}], dtype=object))
    elif kind == "no arrays":
        np.savez(path)
    elif kind == "another name":
        np.savez(path, picture=good)
    elif kind == "another shape":
        np.savez(path, image=np.zeros((3, 9, 8, 1), np.float32))
    elif kind == "another type":
        np.savez(path, image=np.zeros((3, 8, 8, 1), np.int64))
    elif kind == "NaN":
        np.savez(path, image=good * np.nan)


@pytest.mark.parametrize(
    "kind",
    [
        "text",
        "cut short",
        "a single array",
        "objects",
        "no arrays",
        "another name",
        "another shape",
        "another type",
        "NaN",
        "absent",
    ],
)
def test_calibration_data_that_is_no_use_exits_with_two_and_one_line(edgekit_home, capsys, tmp_path, kind):
    _bad_calibration(tmp_path / "c.npz", kind)
    assert main(["build", "digits", "--calibration", str(tmp_path / "c.npz")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("edgekit build: ")
    assert "c.npz" in err
    assert len(err.strip().splitlines()) == 1


def test_without_the_onnx_package_the_command_that_mends_it_is_said(tmp_path):
    code = (
        "import sys; sys.modules['onnx'] = None\nfrom edgekit.cli.main import main\nsys.exit(main(['build', 'digits']))"
    )
    environ = {**os.environ, "EDGEKIT_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "pip install 'edgekit-deploy[build]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
