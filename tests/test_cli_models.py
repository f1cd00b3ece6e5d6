"""`edgekit models`: the catalog as a table, one model in full, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgekit.artifact import ArtifactRecord, save_record
from edgekit.catalog import load_model, load_models
from edgekit.cli.main import main
from edgekit.manifest import Model

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


# The table where it is narrow and wide


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_every_model_is_there_whole_whatever_the_width(
    columns: str, capsys: Capture, edgekit_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = shown(capsys).splitlines()
    assert max(map(len, lines)) <= max(80, int(columns))
    assert "…" not in "".join(lines), "names are for copying"
    for model in load_models():
        assert any(model.name in line.split() for line in lines)


def test_what_is_fetched_is_here(capsys: Capture, edgekit_home: Path) -> None:
    from edgekit.config import home
    from edgekit.fetch import cached_path

    model = load_model("voice-activity")
    path = cached_path(model.source, home())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    rows = {row["name"]: row for row in json.loads(shown(capsys, "--json"))}
    assert rows["voice-activity"]["is_fetched"] is True
    assert rows["file-type"]["is_fetched"] is False
    assert "  here       yes\n" in shown(capsys, "voice-activity")


@pytest.mark.parametrize("model", load_models(), ids=lambda model: model.name)
def test_every_model_in_full_says_where_it_comes_from_and_what_it_takes(
    model: Model, capsys: Capture, edgekit_home: Path
) -> None:
    out = shown(capsys, model.name)
    assert out.startswith(f"{model.name} {model.version}: {model.summary}\n")
    assert f"sha256 {model.source.sha256[:16]}" in out
    assert f"licence    {model.source.licence}" in out
    assert out.count("\n  input ") == len(model.inputs)
    assert out.count("\n  output ") == len(model.outputs)
    assert out.count("\n  axis ") == len(model.axes)
    assert f"judged by {model.metric}" in out
    value = json.loads(shown(capsys, model.name, "--json"))
    assert (value["name"], value["source"]["sha256"]) == (model.name, model.source.sha256)
    assert {"is_fetched", "artifact_names"} <= value.keys()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("digit", 3, "no such model; did you mean digits? Your own model:"),
        ("zzzz", 3, "edgekit knows digits, file-type, "),
        ("zzzz", 3, "voice-activity. Your own model: give its .onnx or .tflite file"),
        ("/nowhere/a.onnx", 5, "/nowhere/a.onnx: no such file"),
        ("../digits", 3, "no such model"),
    ],
)
def test_a_name_that_is_none_is_one_line(name: str, code: int, words: str, capsys: Capture, edgekit_home: Path) -> None:
    for form in ((), ("--json",)):
        assert main(["models", name, *form]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert words in err
