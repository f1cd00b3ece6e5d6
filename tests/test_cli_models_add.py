"""`edgekit models add` and the page of a model: what is adopted, what is refused, what is shown of an own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgekit.catalog import data_folder, load_model
from edgekit.cli import models as verb
from edgekit.cli.main import main
from edgekit.config import home
from edgekit.fetch import all_artifacts
from edgekit.manifest import Model, Source, TensorSpec

Capture = pytest.CaptureFixture[str]
DIGITS = data_folder("models") / "digits"
USAGE = "edgekit models: to add an artifact: edgekit models add MODEL --artifact FILE [--requires LIB]\n"


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    path = tmp_path / "Digits (EdgeTPU).tflite"
    path.write_bytes((DIGITS / "digits-int8.tflite").read_bytes())
    return path


def names() -> list[str]:
    return [artifact.record.name for artifact in all_artifacts(load_model("digits"), home())]


def test_a_file_joins_the_models_artifacts_and_says_what_to_do_next(
    compiled: Path, edgekit_home: Path, capsys: Capture
) -> None:
    assert main(["models", "add", "digits", "--artifact", str(compiled), "--requires", "libedgetpu.so.1"]) == 0
    out, err = capsys.readouterr()
    assert out == "digits: digits-edgetpu added; `edgekit bench digits` measures it here\n"
    assert err == ""
    assert names()[-1] == "digits-edgetpu"


def test_as_json_it_is_the_record_and_where_it_lies(compiled: Path, edgekit_home: Path, capsys: Capture) -> None:
    words = ["--artifact", str(compiled), "--requires", "a.so", "--requires", "b.so", "--name", "mine", "--json"]
    assert main(["models", "add", "digits", *words, "--precision", "int16"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["precision"], told["requires"]) == ("mine", "int16", ["a.so", "b.so"])
    assert Path(told["path"]).is_relative_to(edgekit_home)
    assert Path(told["path"]).stat().st_size == told["size_bytes"]


def test_what_was_added_is_listed_and_nothing_is_hashed_to_list_it(
    compiled: Path, edgekit_home: Path, capsys: Capture
) -> None:
    assert main(["models", "add", "digits", "--artifact", str(compiled), "--name", "mine"]) == 0
    capsys.readouterr()
    assert main(["models", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["artifact_names"][-1] == "mine"
    assert main(["models", "digits"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  artifacts"))
    assert line.endswith(", mine")


@pytest.mark.parametrize(
    "words",
    [
        ["add"],
        ["add", "digits"],
        ["add", "--artifact", "x.onnx"],
        ["digits", "extra"],
        ["digits", "--artifact", "x.onnx"],
        ["digits", "--requires", "x.so"],
        ["--name", "x"],
    ],
)
def test_half_of_an_addition_shows_the_whole_command(words: list[str], capsys: Capture) -> None:
    assert main(["models", *words]) == 2
    assert capsys.readouterr().err == USAGE


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("none.onnx", None, 5, "no such file"),
        ("a.hef", b"x", 5, "runs through HailoRT only"),
        ("a.rknn", b"x", 5, "runs through RKNN only"),
        ("a.plan", b"x", 5, "is a TensorRT engine"),
        ("a.txt", b"hello", 5, "is neither .onnx nor .tflite"),
        ("a.onnx", b"hello, world", 5, "is a text file, not what its name says"),
        ("a.tflite", b"\x08\x07\x12\x01\x00\x00\x00\x00", 5, "is something else, not what its name says"),
    ],
)
def test_a_file_that_nothing_here_opens_is_refused_in_one_line(
    name: str, content: bytes | None, code: int, words: str, tmp_path: Path, edgekit_home: Path, capsys: Capture
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["models", "add", "digits", "--artifact", str(tmp_path / name)]) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not edgekit_home.exists()


@pytest.mark.parametrize("name", ["standard", "Mine", "a b", "ä"])
def test_a_name_that_is_taken_or_none_is_a_usage_error(
    name: str, compiled: Path, edgekit_home: Path, capsys: Capture
) -> None:
    assert main(["models", "add", "digits", "--artifact", str(compiled), "--name", name]) == 2
    assert f"--name {name}: must be of a-z, 0-9, '_' and '-', and none of " in capsys.readouterr().err


def test_an_unknown_model_is_exit_3_with_the_nearest(compiled: Path, capsys: Capture) -> None:
    assert main(["models", "add", "digist", "--artifact", str(compiled)]) == 3
    assert "did you mean digits?" in capsys.readouterr().err


# The page


def model(**more: Any) -> Model:
    blank: dict[str, Any] = {
        "name": "m",
        "version": "2",
        "task": "labels",
        "summary": "says what it is",
        "source": Source(url="https://h/m.onnx", sha256="ab" * 32, size_bytes=3 << 20),
    }
    return Model(**(blank | more))


def test_a_page_says_all_that_the_manifest_declares(edgekit_home: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(1, "side"))
    page = verb._page(
        model(inputs=(spec,), axes={"side": (640, 320)}, metric="top1", outputs=(spec,)), home()
    ).splitlines()
    assert page == [
        "m 2: says what it is",
        "  task       labels, judged by top1",
        "  source     https://h/m.onnx",
        "  file       onnx, 3.0 MiB, sha256 abababababababab…",
        "  licence    not stated",
        "  here       no; fetched on first use",
        "  artifacts  standard",
        "  input      x: float32 [1, side]",
        "  output     x: float32 [1, side]",
        "  axis       side: 640, 320",
    ]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"url": "https://h/m.onnx"}, "https://h/m.onnx"),
        ({"wheel": "pkg==1.0", "member": "pkg/m.onnx"}, "PyPI pkg==1.0"),
        ({"file": "m.onnx"}, "m.onnx"),
    ],
)
def test_where_a_model_comes_from_in_one_word(source: dict[str, str], text: str) -> None:
    assert verb._source(model(source=Source(**source, sha256="a" * 64, size_bytes=1))) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 KiB"), (1536, "2 KiB"), (2**20 - 1, "1024 KiB"), (2**20, "1.0 MiB"), (10**9, "953.7 MiB")],
)
def test_a_size_is_binary(size_bytes: int, text: str) -> None:
    assert verb._mib(size_bytes) == text


def test_steps_stand_around_the_model(edgekit_home: Path) -> None:
    page = verb._page(load_model("digits"), home())
    line = next(line for line in page.splitlines() if line.startswith("  steps"))
    assert "decode_image > " in line
    assert " > MODEL > " in line


def test_a_file_of_ones_own_says_that_nothing_is_declared(edgekit_home: Path, capsys: Capture) -> None:
    assert main(["models", str(DIGITS / "digits.onnx")]) == 0
    assert "  tensors    as the file itself says; nothing is declared" in capsys.readouterr().out
