"""What generators make is what they say it is: the real models judge it."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.pipeline.audio import decode_wav
from edgekit.pipeline.data import evaluation
from edgekit.pipeline.generators import GENERATORS
from edgekit.pipeline.metrics import run_samples, score
from edgekit.runtimes.axes import session_axes
from edgekit.runtimes.session import SessionSettings, open_session

Image = pytest.importorskip("PIL.Image", reason="elsewhere: images need Pillow")

FLOORS = {
    "ocr-detector": 0.97,
    "ocr-recognizer": 0.98,
    "ocr-classifier": 0.92,
    "file-type": 0.97,
    "voice-activity": 0.96,
    "digits": 0.99,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_makes_the_same_files_and_another_seed_others(name: str) -> None:
    first, again, other = (list(GENERATORS[name](3, seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert len({made.raw for made in first}) == 3


@pytest.mark.parametrize("name", GENERATORS)
def test_more_files_begin_with_the_same_ones(name: str) -> None:
    assert list(GENERATORS[name](2, 1)) == list(GENERATORS[name](4, 1))[:2]


def test_page_labels_lie_on_the_page_and_hold_its_ink() -> None:
    for made in GENERATORS["pages"](4, 3):
        pixels = np.asarray(Image.open(io.BytesIO(made.raw)).convert("L")).astype(float)
        paper = float(np.median(pixels))
        ink = np.abs(pixels - paper) > 90
        inside = np.zeros_like(ink)
        assert len(made.label) >= 3
        for left, top, right, bottom in made.label:
            assert 0 <= left < right
            assert 0 <= top < bottom
            inside[int(top) : int(bottom) + 1, int(left) : int(right) + 1] = True
        assert ink[inside].mean() > 0.05
        assert ink[~inside].mean() < 0.001


def test_speech_is_loud_where_it_is_said_to_be() -> None:
    for made in GENERATORS["speech"](3, 1):
        sound = decode_wav(made.raw, 16000)
        spoken = np.zeros(len(sound), bool)
        for start, end in made.label:
            spoken[int(start * 16000) : int(end * 16000)] = True
        assert 0.2 < spoken.mean() < 0.9
        assert np.sqrt((sound[spoken] ** 2).mean()) > 3 * np.sqrt((sound[~spoken] ** 2).mean())


@pytest.mark.parametrize("name", FLOORS)
def test_the_standard_artifact_does_well_on_its_evaluation_data(name: str, standard: Callable[[str], Artifact]) -> None:
    model = load_model(name)
    axes = session_axes(model, {})
    session = open_session(standard(name).path, SessionSettings(threads=2, axes=axes))
    samples = list(islice(evaluation(model), 4 if name == "voice-activity" else 40))
    outputs = run_samples(model, session.run, samples)
    session.close()
    assert score(model, samples, outputs) >= FLOORS[name]
