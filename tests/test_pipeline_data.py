"""Samples: the same each time, whole, and as the model takes them, from generators, .npz files and folders."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.catalog import load_model, load_models
from edgekit.errors import CatalogError
from edgekit.manifest import Data, Model, TensorSpec
from edgekit.pipeline.data import calibration, calibration_feeds, data_sha256, evaluation, example, read_npz

SHIPPED = load_models()


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_samples_fit_the_model_are_labelled_and_come_out_the_same_each_time(model: Model) -> None:
    first, again = (list(islice(evaluation(model), 3)) for _ in range(2))
    assert len(first) == 3
    for sample, same in zip(first, again, strict=True):
        assert sample.label is not None
        assert sample.label == same.label
        for spec in model.inputs:
            if spec.name in {*model.constants, *model.state}:
                continue
            value = sample.inputs[spec.name]
            assert value.dtype == spec.dtype
            assert value.shape[model.is_stateful :] == model.bound_shape(spec)
            assert np.array_equal(value, same.inputs[spec.name])


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_nothing_is_judged_on_what_it_was_calibrated_with(model: Model) -> None:
    name = model.inputs[0].name
    seen = {sample.inputs[name].tobytes() for sample in islice(calibration(model), 8)}
    assert not any(sample.inputs[name].tobytes() in seen for sample in islice(evaluation(model), 8))


def test_axes_reach_the_samples_and_the_hash() -> None:
    model = msgspec.structs.replace(
        load_model("ocr-detector"), data=Data(calibration="generator:pages", calibration_count=2)
    )
    assert next(calibration(model, {"side": 640})).inputs["x"].shape == (1, 3, 640, 640)
    assert data_sha256(model) == data_sha256(model)
    assert data_sha256(model) != data_sha256(model, {"side": 640})
    more = msgspec.structs.replace(model, data=Data(calibration="generator:pages", calibration_count=3))
    assert data_sha256(more) != data_sha256(model)


def test_a_model_without_data_has_no_samples_and_no_hash() -> None:
    bare = load_model(str(load_model("digits").folder / "digits.onnx"))
    assert list(calibration(bare)) == []
    assert list(evaluation(bare)) == []
    assert data_sha256(bare) is None


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_the_example_is_one_whole_feed_of_real_data(model: Model) -> None:
    feed = example(model, model.inputs)
    assert feed.keys() == {spec.name for spec in model.inputs}
    for spec in model.inputs:
        assert feed[spec.name].dtype == spec.dtype
        assert feed[spec.name].shape == model.bound_shape(spec)
        if spec.name not in {*model.state, *model.constants}:
            assert feed[spec.name].std() > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bool"])
def test_a_bare_file_gets_noise_that_is_valid_and_repeatable(dtype: str) -> None:
    bare = load_model(str(load_model("digits").folder / "digits.onnx"))
    specs = [TensorSpec(name="x", dtype=dtype, shape=(2, "n")), TensorSpec(name="ids", dtype="int64", shape=())]
    feed = example(bare, specs, {"n": 5})
    assert feed["x"].shape == (2, 5)
    assert feed["x"].dtype == dtype
    assert 0 <= feed["ids"] < 2  # a table of token types has two rows
    again = example(bare, specs, {"n": 5})
    assert all(np.array_equal(feed[name], again[name]) for name in feed)


def test_an_artifact_with_another_input_than_the_manifest_gets_noise_of_its_own_kind() -> None:
    specs = [TensorSpec(name="image", dtype="uint8", shape=(1, 8, 8, 1))]
    assert example(load_model("digits"), specs)["image"].dtype == np.uint8


def test_feeds_of_a_stateful_model_carry_the_state_that_the_model_left(standard: Callable[[str], Artifact]) -> None:
    from edgekit.runtimes.session import SessionSettings, open_session

    model = load_model("voice-activity")
    axes = {"input[0]": 1, "input[1]": 576, "state[1]": 1}
    session = open_session(standard("voice-activity").path, SessionSettings(axes=axes))
    feeds = list(calibration_feeds(model, session.run, max_frames=20))
    session.close()
    assert 15 <= len(feeds) <= 20
    assert all(feed.keys() == {"input", "state", "sr"} for feed in feeds)
    assert sum(bool(feed["state"].any()) for feed in feeds) >= len(feeds) - 1


def test_feeds_of_other_models_are_their_samples() -> None:
    def never(inputs: object) -> dict[str, np.ndarray]:
        raise AssertionError("nothing needs to run")

    feeds = list(calibration_feeds(load_model("digits"), never))
    assert len(feeds) == 64
    assert feeds[0]["image"].shape == (1, 8, 8, 1)


def with_data(path: Path, count: int = 10) -> Model:
    data = Data(evaluation=str(path), evaluation_count=count)
    return msgspec.structs.replace(load_model("digits"), data=data)


def test_an_npz_of_the_users_own_is_taken_by_input_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", image=np.zeros((5, 8, 8, 1), np.float32), labels=np.arange(5))
    samples = list(evaluation(with_data(tmp_path / "mine.npz", count=3)))
    assert [sample.label for sample in samples] == ["0", "1", "2"]
    assert samples[0].inputs["image"].shape == (1, 8, 8, 1)
    np.savez(tmp_path / "mine.npz", image=np.zeros((5, 1, 8, 8, 1), np.float32))
    samples = list(evaluation(with_data(tmp_path / "mine.npz")))
    assert len(samples) == 5
    assert samples[0].inputs["image"].shape == (1, 8, 8, 1)
    assert samples[0].label is None


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"picture": np.zeros((2, 8))}, "holds picture; the model's inputs are image"),
        ({}, "holds nothing; the model's inputs are image"),
        ({"image": np.zeros((2, 8, 8, 1)), "labels": np.zeros(3)}, "arrays of different lengths: 2, 3"),
    ],
)
def test_an_npz_that_does_not_fit_says_why(tmp_path: Path, arrays: dict[str, np.ndarray], problem: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(CatalogError, match=problem):
        list(evaluation(with_data(tmp_path / "mine.npz")))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 damaged", b"\x93NUMPY\x01\x00"])
def test_what_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(CatalogError, match=r"mine\.npz: not an \.npz of plain arrays"):
        read_npz(tmp_path / "mine.npz")
    with pytest.raises(CatalogError, match="no such file"):
        read_npz(tmp_path / "absent.npz")


def test_an_npz_with_objects_inside_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", image=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CatalogError, match=r"not an \.npz of plain arrays"):
        read_npz(tmp_path / "mine.npz")


def test_a_plain_npy_array_is_not_an_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(CatalogError, match=r"not an \.npz"):
        read_npz(tmp_path / "one.npz")


def test_a_folder_gives_files_labelled_by_their_sub_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")
    for name in ("pictures/3/a.png", "pictures/7/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        image.new("L", (8, 8), 255).save(tmp_path / name)
    (tmp_path / "pictures/.DS_Store").write_bytes(b"x")
    samples = list(evaluation(with_data(tmp_path / "pictures")))
    assert [sample.label for sample in samples] == ["3", "7"]
    with pytest.raises(CatalogError, match="no such folder of data"):
        list(evaluation(with_data(tmp_path / "absent")))


def test_an_unknown_generator_is_named_with_those_there_are() -> None:
    model = msgspec.structs.replace(load_model("digits"), data=Data(evaluation="generator:page"))
    with pytest.raises(CatalogError, match="no generator 'page'; there are pages, text_lines"):
        list(evaluation(model))
