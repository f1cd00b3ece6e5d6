"""`edgekit build`: its flags, and how it tells what was built, what was not, and why; from hand-made reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.artifact import Accuracy, Artifact, ArtifactRecord
from edgekit.catalog import load_model
from edgekit.cli import build as verb
from edgekit.cli.main import main

pytest.importorskip("onnx", reason="elsewhere: building needs the onnx package")
from edgekit.build import Report

Capture = pytest.CaptureFixture[str]
DIGITS = load_model("digits")
BARE = str(DIGITS.folder / "digits.onnx")


def artifact(name: str, **changes: Any) -> Artifact:
    values: dict[str, Any] = {
        "model": "digits",
        "name": name,
        "file": "a.onnx",
        "format": "onnx",
        "precision": "float32" if name == "standard" else "int8",
        "sha256": name,
        "size_bytes": 2 * 2**20 if name == "standard" else 2**19,
        "recipe": {}
        if name == "standard"
        else {"ranges": "minmax over 100 samples", "speed": "1.75× (of 5)", "key": "k"},
        "node_counts": {"QLinearConv": 3, "Softmax": 1},
        "accuracy": accuracy(0.90 if name == "standard" else 0.891),
    }
    return Artifact(record=ArtifactRecord(**(values | changes)), path=Path("/somewhere/a.onnx"))


def accuracy(value: float, **noise: float | None) -> Accuracy:
    return Accuracy(
        metric="top1",
        value=value,
        standard_value=0.90,
        sample_count=300,
        per_output_sqnr_db=noise,
        runtime="onnxruntime 1",
        isa="x86_64",
    )


STANDARD, FLASH = artifact("standard"), artifact("flash-int8-static")


def told(capsys: Capture, *made: Artifact, is_cached: bool = False) -> tuple[list[str], str]:
    verb._print_table(DIGITS, Report([STANDARD, *made], {}, is_cached))
    out, err = capsys.readouterr()
    return out.splitlines(), err


# The table


def test_a_row_has_size_ratio_speed_accuracy_and_fitness(capsys: Capture) -> None:
    lines, err = told(capsys, FLASH)
    assert lines[0].strip() == f"digits {DIGITS.version}"
    assert lines[1].split() == ["artifact", "precision", "size", "ratio", "speed", "top1", "kept", "fit"]
    assert lines[2].split() == ["standard", "float32", "2,048", "KiB", "1.00×", "1.00×", "0.9000", "100.0", "%", "yes"]
    assert lines[3].split() == [
        "flash-int8-static", "int8", "512", "KiB", "0.25×", "1.75×", "0.8910", "99.0", "%", "yes",
    ]  # fmt: skip
    assert err == ""


def test_what_was_not_measured_is_a_dash_and_never_a_zero(capsys: Capture) -> None:
    lines, _ = told(capsys, artifact("flash", accuracy=None, recipe={}))
    assert lines[3].split()[-4:] == ["1.00×", "-", "-", "yes"]


def test_an_artifact_that_is_unfit_says_no_and_why_below(capsys: Capture) -> None:
    unfit = artifact("flash", fit=False, why_unfit="keeps 80.0 % of top1, 99 % required", notes=("resized in float",))
    lines, _ = told(capsys, unfit)
    assert lines[3].split()[-1] == "no"
    assert lines[4:] == ["flash: keeps 80.0 % of top1, 99 % required", "flash: resized in float"]


def test_that_nothing_had_to_be_built_is_talk_and_not_answer(capsys: Capture) -> None:
    lines, err = told(capsys, FLASH, is_cached=True)
    assert err == "nothing had to be built: all of it is as before\n"
    assert not any("as before" in line for line in lines)


def test_a_pipe_gets_whole_lines_whatever_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = artifact("flash-int8-static-with-a-very-long-name-of-its-own")
    lines, _ = told(capsys, long)
    assert lines[3].startswith("flash-int8-static-with-a-very-long-name-of-its-own  int8 ")


def test_explained_each_has_its_recipe_kernels_and_noise(capsys: Capture) -> None:
    made = artifact("flash", accuracy=accuracy(0.89, logits=31.26, boxes=None))
    verb._explain(Report([STANDARD, made], {}, False))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "flash",
        "  ranges: minmax over 100 samples",
        "  speed: 1.75× (of 5)",
        "  runs as: QLinearConv 3, Softmax 1",
        "  output logits: 31.3 dB above its noise",
        "  output boxes: identical",
    ]


def test_json_is_the_records_with_their_paths_and_the_refusals(capsys: Capture) -> None:
    verb._print_json(Report([STANDARD, FLASH], {"flash-int8-dynamic": "slower"}, False))
    value = json.loads(capsys.readouterr().out)
    assert value.keys() == {"artifacts", "refused"}
    assert value["refused"] == {"flash-int8-dynamic": "slower"}
    standard, flash = value["artifacts"]
    assert (standard["path"], standard["accuracy"]["value"]) == ("/somewhere/a.onnx", 0.9)
    assert (flash["name"], flash["recipe"]["speed"], flash["fit"]) == ("flash-int8-static", "1.75× (of 5)", True)


# What cannot be built


def test_a_model_that_is_not_onnx_is_a_truthful_no_that_names_what_lies_ready(
    edgekit_home: Path, capsys: Capture
) -> None:
    assert main(["build", str(DIGITS.folder / "digits.tflite"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "digits: its standard artifact is tflite; this version builds from ONNX only",
        "there are: standard",
    ]
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["digit"], 3, "did you mean digits?"),
        (["/nowhere/model.onnx"], 5, "no such file"),
        (["digits", "--axis", "side"], 2, "--axis side: expected NAME=SIZE"),
        (["digits", "--axis", "side=²"], 2, "--axis side=²: expected NAME=SIZE"),
        (["digits", "--axis", "side=3"], 2, "digits has no dynamic axes"),
        (["digits", "--labels", "absent.npy"], 2, "--labels goes with --calibration"),
        (["digits", "--calibration", "absent.npz"], 2, "absent.npz"),
        (["digits", "--calibration", "TEXT"], 2, "not an .npz of plain arrays"),
        (["digits", "--calibration", "OTHER"], 2, "holds picture; the model's inputs are image"),
        (["digits", "--calibration", "SAMPLES", "--labels", "absent.npy"], 2, "absent.npy: no such file"),
        (
            [BARE, "--calibration", "SAMPLES", "--labels", "FEWER"],
            2,
            "has shape [3], expected one label for each of 20",
        ),
        ([BARE, "--calibration", "NAN"], 2, "holds NaN or infinite values"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    arguments: list[str], code: int, words: str, edgekit_home: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = {name: tmp_path / f"{name.lower()}.npz" for name in ("TEXT", "OTHER", "SAMPLES", "NAN")}
    files["FEWER"] = tmp_path / "fewer.npy"
    files["TEXT"].write_text("just some words\n")
    np.savez(files["OTHER"], picture=np.zeros((4, 8, 8, 1), np.float32))
    np.savez(files["SAMPLES"], image=np.zeros((20, 8, 8, 1), np.float32))
    np.savez(files["NAN"], image=np.full((20, 8, 8, 1), np.nan, np.float32))
    np.save(files["FEWER"], np.zeros(3, np.int64))
    assert main(["build", *(str(files.get(word, word)) for word in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("edgekit build: ")
    assert words in err
    assert "pickle" not in err, "numpy's advice is no help here"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metric", "top2"], "argument --metric: invalid choice: 'top2'"),
        (["--ranges", "max"], "argument --ranges: invalid choice: 'max'"),
        ([], "the following arguments are required: model"),
    ],
)
def test_a_flag_that_does_not_parse_says_what_it_takes(arguments: list[str], words: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["build", *arguments])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
