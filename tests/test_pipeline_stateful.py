"""Models that carry state: every frame is fed with what the one before left, and the real one hears real speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.pipeline import open_pipeline, run
from edgekit.pipeline.answers import Segments
from edgekit.pipeline.metrics import auc
from edgekit.pipeline.stateful import first_state, run_prepared, walk

SUMMING = Model(
    name="sum",
    version="1",
    task="t",
    source=Source(file="x", sha256="0" * 64, size_bytes=1),
    inputs=(
        TensorSpec(name="x", dtype="float32", shape=(1, 2)),
        TensorSpec(name="total", dtype="float32", shape=(1,)),
        TensorSpec(name="gain", dtype="int64", shape=()),
    ),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(1,)), TensorSpec(name="next", dtype="float32", shape=(1,))),
    constants={"gain": 10},
    state={"total": "next"},
)


def summing(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A running sum, as a session would compute it."""
    assert {name: (value.dtype.name, value.shape) for name, value in inputs.items()} == {
        "x": ("float32", (1, 2)),
        "total": ("float32", (1,)),
        "gain": ("int64", ()),
    }
    total = inputs["total"] + inputs["x"].sum() * inputs["gain"].astype(np.float32)
    return {"y": total * 2, "next": total}


def test_each_frame_gets_the_state_that_the_one_before_left() -> None:
    frames = np.array([[[1, 0]], [[2, 0]], [[3, 1]]], np.float32)
    outputs, count = run_prepared(SUMMING, summing, {"x": frames})
    assert count == 3
    assert outputs.keys() == {"y"}, "the state is not an answer"
    assert outputs["y"].tolist() == [[20.0], [60.0], [140.0]]


def test_every_run_starts_from_a_fresh_state() -> None:
    frames = np.ones((2, 1, 2), np.float32)
    first, _ = run_prepared(SUMMING, summing, {"x": frames})
    again, _ = run_prepared(SUMMING, summing, {"x": frames})
    assert np.array_equal(first["y"], again["y"])


def test_walk_gives_the_feeds_as_the_session_got_them() -> None:
    feeds = [feed for feed, _ in walk(SUMMING, summing, {"x": np.ones((3, 1, 2), np.float32)})]
    assert [float(feed["total"][0]) for feed in feeds] == [0.0, 20.0, 40.0]
    assert all(feed["gain"] == 10 for feed in feeds)


def test_constants_and_the_first_state_have_the_declared_dtypes() -> None:
    constants, state = first_state(load_model("voice-activity"))
    assert constants["sr"].dtype == np.int64
    assert constants["sr"].shape == ()
    assert constants["sr"] == 16000
    assert state["state"].shape == (2, 1, 128)
    assert not state["state"].any()


def spoken(path: Path, frames: int, frame_s: float) -> np.ndarray:
    """Per frame: does its middle lie in a stretch that is labelled as speech (start, end, 1)?"""
    values = path.with_suffix(".scv").read_text().strip().split(",")[1:]
    middles = (np.arange(frames) + 0.5) * frame_s
    truth = np.zeros(frames, bool)
    for start, end, label in zip(values[::3], values[1::3], values[2::3], strict=True):
        truth |= (float(start) <= middles) & (middles < float(end)) & (label == "1")
    return truth


def test_real_speech_is_heard(data_dir: Path, standard: Callable[[str], Artifact]) -> None:
    """All 30 recordings score 0.956; every third one keeps the test short."""
    from edgekit.runtimes.session import SessionSettings, open_session

    model = load_model("voice-activity")
    axes = {"input[0]": 1, "input[1]": 576, "state[1]": 1}
    session = open_session(standard("voice-activity").path, SessionSettings(axes=axes))
    pipeline = open_pipeline(model)
    scores, truth = [], []
    for path in sorted((data_dir / "ten_vad_testset").glob("*.wav"))[::3]:
        result = run(pipeline, session.run, path)
        values = result.outputs["output"].reshape(-1)
        assert result.inferences == len(values)
        assert isinstance(result.answer, Segments)
        assert result.answer.segments
        scores.append(values)
        truth.append(spoken(path, len(values), 512 / 16000))
    session.close()
    assert auc(np.concatenate(scores), np.concatenate(truth)) == pytest.approx(0.955, abs=0.015)
