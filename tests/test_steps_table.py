"""The vocabulary of declared steps: every step by its word, with its defaults, its limits and its slips."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from edgekit import steps
from edgekit.catalog import load_manifest, load_models
from edgekit.errors import CatalogError
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.pipeline.pipeline import Context, open_pipeline
from edgekit.pipeline.stateful import first_state, run_prepared, walk

PRE = {
    "decode_image": {}, "resize": {"height": 8, "width": "side"}, "invert": {}, "normalize": {},
    "layout": {"order": "nchw"}, "decode_wav": {"rate_hz": 16000}, "frames": {"size": 512},
    "byte_features": {"begin": 8, "end": 8, "block": 64, "padding": 256},
}  # fmt: skip
POST = {
    "softmax": {}, "top_k": {"labels": "labels.txt"}, "content_type": {"labels": "labels.txt"}, "db_boxes": {},
    "ctc": {"alphabet": "alphabet.txt"}, "speech_segments": {},
}  # fmt: skip


def decode(table: dict[str, Any], kind: Any) -> Any:
    return msgspec.convert(table, kind)


@pytest.mark.parametrize(("word", "needed"), sorted(PRE.items()))
def test_every_step_before_the_model_is_told_by_its_word(word: str, needed: dict[str, Any]) -> None:
    step = decode({"step": word, **needed}, steps.PreStep)
    assert type(step).__struct_config__.tag == word
    assert msgspec.to_builtins(step)["step"] == word
    assert decode(msgspec.to_builtins(step), steps.PreStep) == step


@pytest.mark.parametrize(("word", "needed"), sorted(POST.items()))
def test_every_step_after_the_model_is_told_by_its_word(word: str, needed: dict[str, Any]) -> None:
    step = decode({"step": word, **needed}, steps.PostStep)
    assert type(step).__struct_config__.tag == word
    assert decode(msgspec.to_builtins(step), steps.PostStep) == step


def test_every_step_of_the_module_stands_in_these_tables() -> None:
    found = {
        kind.__struct_config__.tag
        for _, kind in inspect.getmembers(steps, inspect.isclass)
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag and not kind.__name__.startswith("_")
    }
    assert found == set(PRE) | set(POST)
    assert {kind.__struct_config__.tag for kind in get_args(steps.PreStep)} == set(PRE)
    assert {kind.__struct_config__.tag for kind in get_args(steps.PostStep)} == set(POST)


@pytest.mark.parametrize(("word", "needed"), sorted((PRE | POST).items()))
def test_a_step_knows_no_further_keys_and_needs_its_own(word: str, needed: dict[str, Any]) -> None:
    kind = steps.PreStep if word in PRE else steps.PostStep
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        decode({"step": word, **needed, "colour": 1}, kind)
    for key in needed:
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{key}`"):
            decode({"step": word, **{k: v for k, v in needed.items() if k != key}}, kind)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({"step": "decode_image", "color": "cmyk"}, steps.PreStep),
        ({"step": "resize", "height": 1, "width": 1, "fit": "crop"}, steps.PreStep),
        ({"step": "layout", "order": "chwn"}, steps.PreStep),
        ({"step": "frames", "size": "many"}, steps.PreStep),
        ({"step": "db_boxes", "threshold": "low"}, steps.PostStep),
        ({"step": "softmax"}, steps.PreStep),
        ({"step": "invert"}, steps.PostStep),
        ({"step": "blur"}, steps.PreStep),
        ({}, steps.PreStep),
    ],
)
def test_what_is_no_step_or_no_value_of_one_is_refused(table: dict[str, Any], kind: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(table, kind)


def test_steps_cannot_change_once_read() -> None:
    step = steps.Softmax()
    with pytest.raises(AttributeError):
        step.extra = 1  # type: ignore[attr-defined]
    resize = steps.Resize(height=1, width=1)
    with pytest.raises(AttributeError):
        resize.height = 2  # type: ignore[misc]


MANIFEST = f"""
name = "m"
version = "1"
task = "t"
[source]
file = "m.onnx"
sha256 = "{"a" * 64}"
size_bytes = 1
"""


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[[preprocess]]\nstep = "resize"\nheight = 8\nwidht = 8\n', "preprocess", "width"),
        ('[[preprocess]]\nstep = "blur"\n', "preprocess", "blur"),
        ('[[postprocess]]\nstep = "top_k"\n', "postprocess", "required"),
    ],
)
def test_a_slip_in_a_step_of_a_manifest_names_where_it_stands(text: str, key: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(MANIFEST + text)
    with pytest.raises(CatalogError) as error:
        load_manifest(path)
    assert key in str(error.value.key)
    assert words in str(error.value)


@pytest.mark.parametrize("name", [model.name for model in load_models()])
def test_the_steps_of_every_shipped_model_fit_together(name: str) -> None:
    model = next(found for found in load_models() if found.name == name)
    kinds = [type(step) for step in model.postprocess]
    assert all(kind is steps.Softmax for kind in kinds[:-1]), "only the last step answers"
    if model.is_stateful:
        assert any(isinstance(step, steps.Frames) for step in model.preprocess)
    for step in model.preprocess:
        if isinstance(step, steps.Resize):
            assert all(isinstance(s, int) or s in model.axes for s in (step.width, step.height))


# Constants and state


def stateful(**more: Any) -> Model:
    def spec(name: str, shape: tuple[Any, ...], dtype: str = "float32") -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype, shape=shape)

    blank: dict[str, Any] = {
        "name": "m",
        "version": "1",
        "task": "t",
        "source": Source(file="m", sha256="a" * 64, size_bytes=1),
        "inputs": (spec("x", (1, 2)), spec("sr", (), "int64"), spec("h", ("n", 3))),
        "outputs": (spec("y", (1,)), spec("h2", ("n", 3))),
        "axes": {"n": (4,)},
        "constants": {"sr": 16000},
        "state": {"h": "h2"},
    }
    return Model(**(blank | more))


def test_the_first_state_is_zeros_and_constants_have_their_dtype() -> None:
    constants, state = first_state(stateful())
    assert (constants["sr"].dtype, constants["sr"].shape, int(constants["sr"])) == (np.int64, (), 16000)
    assert (state["h"].dtype, state["h"].shape, state["h"].any()) == (np.float32, (4, 3), np.False_)


def counting(feed: Any) -> dict[str, np.ndarray]:
    """A model whose state counts its frames."""
    return {"y": feed["h"][0, :1] + feed["x"][0, :1], "h2": feed["h"] + 1}


def test_every_frame_sees_the_state_that_the_one_before_left_and_the_answer_leaves_it_out() -> None:
    frames = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    outputs, count = run_prepared(stateful(), counting, {"x": frames})
    assert count == 3
    assert list(outputs) == ["y"]
    assert outputs["y"][:, 0].tolist() == [0 + 0, 2 + 1, 4 + 2]
    feeds = [feed for feed, _ in walk(stateful(), counting, {"x": frames})]
    assert [int(feed["h"][0, 0]) for feed in feeds] == [0, 1, 2]
    assert all(int(feed["sr"]) == 16000 for feed in feeds)


def test_a_model_without_state_runs_once_with_its_constants() -> None:
    model = stateful(state={})
    seen: list[Any] = []
    outputs, count = run_prepared(model, lambda feed: seen.append(dict(feed)) or {"y": feed["x"]}, {"x": np.ones(2)})
    assert (count, sorted(seen[0])) == (1, ["sr", "x"])
    assert outputs["y"].tolist() == [1.0, 1.0]


def test_an_answer_of_a_model_without_steps_is_its_tensors() -> None:
    pipeline = open_pipeline(stateful(postprocess=()))
    answer = pipeline.postprocess({"y": np.array([3.0, 1.0], np.float32), "e": np.empty((0, 2))}, Context())
    y, empty = answer.outputs  # type: ignore[union-attr]
    assert (y.minimum, y.maximum, y.argmax, y.shape) == (1.0, 3.0, 0, (2,))
    assert (empty.minimum, empty.argmax, empty.shape) == (None, None, (0, 2))
