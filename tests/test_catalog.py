"""The catalog's models: what ships is sound, and what a user gives is found or refused with help."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from edgekit.artifact import verify_file
from edgekit.catalog import data_folder, load_manifest, load_model, load_models
from edgekit.errors import ArtifactError, CatalogError
from edgekit.manifest import Model
from edgekit.pipeline import open_pipeline
from edgekit.pipeline.pipeline import read_lines
from edgekit.steps import ContentType, Ctc, TopK

SHIPPED = load_models()


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_every_shipped_model_is_whole(model: Model) -> None:
    assert model.folder == data_folder("models") / model.name
    assert model.summary
    assert model.metric
    assert model.data.calibration
    assert model.data.evaluation
    card = (model.folder / "README.md").read_text(encoding="utf-8")
    assert model.source.licence in card
    assert model.source.wheel is None or model.source.wheel.replace("==", " ") in card
    open_pipeline(model)


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_labels_are_as_many_as_the_output_has_classes(model: Model) -> None:
    step = model.postprocess[-1]
    if isinstance(step, TopK | ContentType):
        assert len(read_lines(model.folder / step.labels)) == model.outputs[0].shape[-1]
    elif isinstance(step, Ctc):
        alphabet = read_lines(model.folder / step.alphabet)
        assert len(alphabet) + 1 == model.outputs[0].shape[-1]  # and the blank
        assert all(len(character) == 1 for character in alphabet)
    else:
        assert model.metric in ("boxes", "auc")


def test_the_main_job_needs_no_download() -> None:
    digits = load_model("digits")
    assert digits.source.file == "digits.onnx"
    files = [(digits.source.file, digits.source), *((a.file, a) for a in digits.artifacts)]
    for name, said in files:
        verify_file(digits.folder / name, sha256=said.sha256, size_bytes=said.size_bytes)
    assert {(a.format, a.precision) for a in digits.artifacts} == {
        ("onnx", "int8"),
        ("tflite", "float32"),
        ("tflite", "int8"),
    }
    weights = sum(path.stat().st_size for path in digits.folder.glob("digits*"))
    assert weights <= 200_000
    assert sum(path.stat().st_size for path in digits.folder.glob("*.npz")) <= 60_000


def test_an_unknown_name_gets_the_nearest_known_ones() -> None:
    with pytest.raises(CatalogError, match="ocr-detectr: no such model; did you mean ocr-detector"):
        load_model("ocr-detectr")
    with pytest.raises(CatalogError, match="edgekit knows digits, file-type, "):
        load_model("qqqq")


@pytest.mark.parametrize("name", ["../digits", "", "/", "DIGITS", "digits\n"])
def test_a_name_never_reaches_outside_the_catalog(name: str) -> None:
    with pytest.raises(CatalogError, match="no such model"):
        load_model(name)


@pytest.mark.parametrize(("suffix", "format_"), [(".onnx", "onnx"), (".tflite", "tflite"), (".ONNX", "onnx")])
def test_a_users_own_file_is_a_model(tmp_path: Path, suffix: str, format_: str) -> None:
    path = tmp_path / f"My Model v2{suffix}"
    path.write_bytes(b"weights")
    model = load_model(str(path))
    assert model.name == "my-model-v2"
    assert model.source.format == format_
    assert model.source.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert model.source.size_bytes == 7
    assert Path(model.source.file or "") == path
    assert model.inputs == ()


def test_a_missing_file_of_the_user_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"absent\.onnx: no such file"):
        load_model(str(tmp_path / "absent.onnx"))


def test_a_users_own_manifest_is_read_from_its_folder(tmp_path: Path) -> None:
    shutil.copytree(load_model("digits").folder, tmp_path / "mine")
    model = load_model(str(tmp_path / "mine"))
    assert model.folder == tmp_path / "mine"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = (load_model("digits").folder / "model.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "model.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("summary", "sumary", "sumary: unknown key; did you mean 'summary'"),
        ("size_bytes", "size_byte", "source.size_byte: unknown key; did you mean 'size_bytes'"),
        ('step = "resize"', 'step = "rezise"', r"preprocess\[2\].*rezise"),
        ('name = "digits"', 'name = "Digits!"', "name: 'Digits!' must be 1 to 63 of"),
        ('metric = "top1"', 'metric = "top2"', "metric: 'top2' is unknown"),
        ("[data]", "[dat", "not TOML"),
    ],
)
def test_a_slip_in_a_manifest_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        load_manifest(changed(tmp_path, old, new))
    assert caught.value.path == tmp_path / "model.toml"


def test_a_manifest_whose_labels_are_gone_says_so(tmp_path: Path) -> None:
    model = load_manifest(changed(tmp_path, "labels.txt", "gone.txt"))
    with pytest.raises(CatalogError, match=r"gone\.txt: the label file cannot be read"):
        open_pipeline(model)
