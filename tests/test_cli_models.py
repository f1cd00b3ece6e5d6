"""`edgekit models`: the catalog as a table, one model in full, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgekit.artifact import ArtifactRecord, save_record
from edgekit.catalog import load_model, load_models
from edgekit.cli.main import main

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(["models", *arguments]) == 0
    return capsys.readouterr().out


def test_every_model_is_in_the_table_with_what_it_does(capsys: Capture, edgekit_home: Path) -> None:
    out = shown(capsys)
    for model in load_models():
        assert model.name in out
        assert model.summary.split()[0] in out
    assert "on first use" in out, "nothing is fetched yet"
    assert not edgekit_home.exists(), "looking must not write"


def test_json_says_what_is_here(capsys: Capture, edgekit_home: Path) -> None:
    rows = {row["name"]: row for row in json.loads(shown(capsys, "--json"))}
    assert rows.keys() == {model.name for model in load_models()}
    assert rows["digits"]["is_fetched"] is True
    assert rows["digits"]["artifact_names"] == ["standard", "int8", "litert", "litert-int8"]
    assert rows["ocr-detector"]["is_fetched"] is False
    assert rows["ocr-detector"]["source"] == "PyPI rapidocr-onnxruntime==1.4.4"
    assert rows["ocr-detector"]["size_bytes"] == 4_745_517


def test_what_was_built_here_is_listed(capsys: Capture, edgekit_home: Path) -> None:
    folder = edgekit_home / "artifacts/digits/flash-int8-static"
    folder.mkdir(parents=True)
    record = ArtifactRecord(
        model="digits",
        name="flash-int8-static",
        file="a.onnx",
        format="onnx",
        precision="int8",
        sha256="0" * 64,
        size_bytes=1,
    )
    save_record(folder, record)
    assert "flash-int8-static" in shown(capsys, "digits")


def test_one_model_in_full(capsys: Capture, edgekit_home: Path) -> None:
    out = shown(capsys, "ocr-recognizer")
    for text in (
        "PyPI rapidocr-onnxruntime==1.4.4, member rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "x: float32 [1, 3, 48, width]",
        "width: 320, 640, 960",
        "decode_image > resize > normalize > layout > MODEL > ctc",
        "licence    Apache-2.0",
    ):
        assert text in out
    value = json.loads(shown(capsys, "ocr-recognizer", "--json"))
    assert value["inputs"][0]["shape"] == [1, 3, 48, "width"]
    assert value["preprocess"][0] == {"step": "decode_image", "color": "bgr"}


def test_a_users_own_file_is_shown_too(capsys: Capture, edgekit_home: Path) -> None:
    out = shown(capsys, str(load_model("digits").folder / "digits.tflite"))
    assert "your own file digits.tflite" in out
    assert "tensors    as the file itself says" in out


def test_an_unknown_name_is_exit_3(capsys: Capture) -> None:
    assert main(["models", "voice"]) == 3
    assert "did you mean voice-activity?" in capsys.readouterr().err
