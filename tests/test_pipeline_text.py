"""Reading: CTC decoding, edit distance, and the real recogniser on rendered lines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.pipeline.data import evaluation
from edgekit.pipeline.metrics import run_samples, score
from edgekit.pipeline.text import ctc, edit_distance


def steps(*classes: int, count: int = 4, sure: float = 0.9) -> np.ndarray:
    probabilities = np.full((len(classes), count), (1 - sure) / (count - 1))
    probabilities[np.arange(len(classes)), classes] = sure
    return probabilities


@pytest.mark.parametrize(
    ("classes", "read"),
    [
        ((1, 2, 3), "abc"),
        ((1, 1, 1, 2), "ab"),
        ((1, 0, 1), "aa"),
        ((0, 0, 0), ""),
        ((0, 2, 2, 0, 0, 2, 3), "bbc"),
    ],
)
def test_repeats_merge_unless_a_blank_parts_them(classes: tuple[int, ...], read: str) -> None:
    assert ctc(steps(*classes), "abc")[0] == read


def test_the_score_is_the_mean_over_the_characters_that_were_read() -> None:
    probabilities = np.concatenate([steps(1, sure=0.8), steps(0, sure=0.99), steps(2, sure=0.6)])
    assert ctc(probabilities, "abc") == ("ab", pytest.approx(0.7))
    assert ctc(steps(0), "abc") == ("", 0.0)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("ab", "ba", 2)],
)
def test_edit_distances_of_known_pairs(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


def test_the_recogniser_reads_rendered_lines(standard: Callable[[str], Artifact]) -> None:
    from edgekit.runtimes.session import SessionSettings, open_session

    model = load_model("ocr-recognizer")
    axes = {"x[0]": 1, "x[2]": 48, "x[3]": 320}
    session = open_session(standard("ocr-recognizer").path, SessionSettings(threads=2, axes=axes))
    samples = list(islice(evaluation(model), 24))
    outputs = run_samples(model, session.run, samples)
    session.close()
    assert score(model, samples, outputs) >= 0.99
