"""Files that others compiled join a model's artifacts, or are refused with the reason."""

from __future__ import annotations

import json

import pytest

from edgekit.bench.candidates import candidates
from edgekit.build.adopt import adopt
from edgekit.catalog import data_folder, load_model
from edgekit.cli.main import main
from edgekit.config import Home
from edgekit.errors import ArtifactError, UsageError
from edgekit.fetch import all_artifacts

DIGITS = data_folder("models") / "digits"


def test_an_added_file_is_a_candidate_for_its_delegate_and_for_nothing_else(tmp_path):
    model, home = load_model("digits"), Home(tmp_path / "home")
    file = tmp_path / "digits_edgetpu.tflite"
    file.write_bytes((DIGITS / "digits-int8.tflite").read_bytes())
    added = adopt(model, file, home=home, requires=["libedgetpu.so.1"])
    added.verify()
    assert added.record.name == "digits_edgetpu"
    found = candidates(model, all_artifacts(model, home), cores=2, runtimes=["onnxruntime", "litert"])
    mine = [c.settings for c in found if c.artifact.record.name == "digits_edgetpu"]
    assert [(s.runtime, s.delegate) for s in mine] == [("litert", "libedgetpu.so.1")]


def test_adding_again_replaces(tmp_path):
    model, home = load_model("digits"), Home(tmp_path)
    for source in ("digits.onnx", "digits-int8.onnx"):
        added = adopt(model, DIGITS / source, home=home, name="mine")
    assert [a.record.sha256 for a in all_artifacts(model, home) if a.record.name == "mine"] == [added.record.sha256]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.hef", b"\x01HEF", "Hailo.*HailoRT only"),
        ("a.rknn", b"RKNN", "Rockchip"),
        ("a.engine", b"ftrt", "TensorRT engine"),
        ("a.bin", b"\x00\x01", "is neither .onnx nor .tflite"),
        ("a.tflite", b"<html><body>not found", "is a web page"),
        ("a.tflite", b"\x08\x07\x12\x00\x00\x00\x00\x00", "something else"),
        ("a.onnx", b"\x1c\x00\x00\x00TFL3", "is a LiteRT model"),
        ("a.onnx", b"", "is empty"),
    ],
)
def test_what_no_runtime_here_opens_is_refused_with_the_reason(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        adopt(load_model("digits"), tmp_path / name, home=Home(tmp_path / "home"))
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["standard", "litert", "Ä"])
def test_a_name_that_is_taken_or_unfit_is_a_usage_error(tmp_path, name):
    with pytest.raises(UsageError, match="--name"):
        adopt(load_model("digits"), DIGITS / "digits.onnx", home=Home(tmp_path), name=name)


def test_the_command_adds_and_lists(edgekit_home, capsys):
    file = DIGITS / "digits-int8.onnx"
    assert main(["models", "add", "digits", "--artifact", str(file), "--name", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == file.stat().st_size
    assert main(["models", "digits"]) == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["add"], ["add", "digits"], ["digits", "--artifact", "x.onnx"], ["digits", "--requires", "lib.so"]]
)
def test_half_a_command_exits_with_two_and_says_the_whole(edgekit_home, capsys, arguments):
    assert main(["models", *arguments]) == 2
    assert "edgekit models add MODEL --artifact FILE" in capsys.readouterr().err
