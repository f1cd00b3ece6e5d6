"""The declared steps carried out in order, with what postprocessing must know kept beside the tensors."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.catalog import load_model
from edgekit.errors import CatalogError, InputError
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.pipeline import open_pipeline, run
from edgekit.pipeline.answers import Boxes, Labels, Tensors
from edgekit.pipeline.pipeline import Context, softmax
from edgekit.steps import DecodeImage, Invert, Layout, PostStep, PreStep, Resize, Softmax, TopK

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")


def png(width: int, height: int, value: int = 255) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (value, value, value)).save(out, "PNG")
    return out.getvalue()


def model(*steps: PreStep, post: tuple[PostStep, ...] = (), dtype: str = "float32", folder: Path = Path()) -> Model:
    return Model(
        name="m",
        version="1",
        task="t",
        source=Source(file="x", sha256="0" * 64, size_bytes=1),
        inputs=(TensorSpec(name="x", dtype=dtype, shape=(1, 4, 4, 1)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(1, 3)),),
        preprocess=steps,
        postprocess=post,
        folder=folder,
    )


STEPS = (DecodeImage(color="gray"), Invert(), Resize(height=4, width=4), Layout(order="nhwc"))


@pytest.mark.parametrize("name", ["ocr-detector", "ocr-recognizer", "ocr-classifier", "digits"])
def test_prepared_images_have_the_declared_shape_and_dtype(name: str) -> None:
    shipped = load_model(name)
    for bound in [{}, {axis: sizes[-1] for axis, sizes in shipped.axes.items()}]:
        prepared = open_pipeline(shipped).preprocess(png(50, 20), axes=shipped.default_axes | bound)
        (spec,) = shipped.inputs
        assert prepared.inputs[spec.name].shape == shipped.bound_shape(spec, bound)
        assert prepared.inputs[spec.name].dtype == spec.dtype
        assert prepared.axes == shipped.default_axes | bound


def test_white_and_padding_are_what_the_detector_was_trained_on() -> None:
    prepared = open_pipeline(load_model("ocr-detector")).preprocess(png(320, 100))
    (x,) = prepared.inputs.values()
    assert x[0, :, 160, 160].tolist() == [1.0, 1.0, 1.0]
    assert np.abs(x[0, :, 5, 160]).max() < 1e-6


def test_an_axis_takes_its_bucket_unless_the_caller_binds_it() -> None:
    pipeline = open_pipeline(load_model("ocr-detector"))
    assert pipeline.preprocess(png(700, 500)).axes == {"side": 960}
    assert pipeline.preprocess(png(700, 500), axes={"side": 320}).axes == {"side": 320}


def test_a_path_is_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(8, 8))
    pipeline = open_pipeline(load_model("digits"))
    assert pipeline.preprocess(tmp_path / "a.png").context.placement is not None
    with pytest.raises(InputError, match=r"input .*absent\.png: cannot be read: No such file"):
        pipeline.preprocess(tmp_path / "absent.png")


def test_integer_inputs_are_rounded_and_kept_in_range() -> None:
    made = open_pipeline(model(*STEPS, dtype="uint8")).preprocess(png(8, 8, 5))
    assert made.inputs["x"].dtype == np.uint8
    assert (made.inputs["x"] == 250).all()
    made = open_pipeline(model(*STEPS, dtype="int8")).preprocess(png(8, 8, 5))
    assert made.inputs["x"].dtype == np.int8


def test_a_model_without_steps_says_what_to_give_it_instead() -> None:
    with pytest.raises(InputError, match=r"m declares no preprocessing: give its tensors as an \.npz"):
        open_pipeline(model()).preprocess(b"x")


def test_outputs_without_postprocessing_are_summed_up() -> None:
    outputs = {"y": np.array([[1.0, 5.0, 2.0]]), "empty": np.zeros((0, 2)), "flag": np.array([True, False])}
    answer = open_pipeline(model()).postprocess(outputs, Context())
    assert isinstance(answer, Tensors)
    assert [(o.name, o.shape, o.minimum, o.maximum, o.argmax) for o in answer.outputs] == [
        ("y", (1, 3), 1.0, 5.0, 1),
        ("empty", (0, 2), None, None, None),
        ("flag", (2,), 0.0, 1.0, 0),
    ]


def test_softmax_then_top_k_gives_probabilities_best_first(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("ant\nbee\ncat\n")
    pipeline = open_pipeline(model(post=(Softmax(), TopK(labels="labels.txt", k=2)), folder=tmp_path))
    answer = pipeline.postprocess({"y": np.array([[0.0, 2.0, 1.0]], np.float32)}, Context())
    assert isinstance(answer, Labels)
    assert [label.name for label in answer.labels] == ["bee", "cat"]
    assert answer.labels[0].score == pytest.approx(np.exp(2) / (1 + np.exp(2) + np.exp(1)))


def test_softmax_is_safe_for_large_logits_and_adds_up_to_one() -> None:
    made = softmax(np.array([[1000.0, 999.0, -1000.0]], np.float32))
    assert made.sum() == pytest.approx(1.0)
    assert made[0, 0] == pytest.approx(1 / (1 + np.exp(-1)))


def test_an_answering_step_in_the_middle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("ant\nbee\ncat\n")
    pipeline = open_pipeline(model(post=(TopK(labels="labels.txt"), Softmax()), folder=tmp_path))
    with pytest.raises(CatalogError, match="only the last step may answer"):
        pipeline.postprocess({"y": np.zeros((1, 3), np.float32)}, Context())


def test_run_reports_its_parts_and_the_answer_prints_as_json() -> None:
    pipeline = open_pipeline(load_model("ocr-detector"))
    result = run(pipeline, lambda inputs: {"sigmoid_0.tmp_0": np.zeros_like(inputs["x"][:, :1])}, png(300, 100))
    assert isinstance(result.answer, Boxes)
    assert msgspec.json.decode(msgspec.json.encode(result.answer)) == {
        "kind": "boxes",
        "width": 300,
        "height": 100,
        "boxes": [],
    }
    assert result.inferences == 1
    assert min(result.preprocess_ms, result.infer_ms, result.postprocess_ms) > 0
