"""The pipeline's arithmetic against the plainest program that says the same: metrics, reading, segments, softmax."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.pipeline.answers import Box, Boxes, Label, Labels, Tensors, TensorSummary, Text
from edgekit.pipeline.audio import frames, resample, speech_segments
from edgekit.pipeline.metrics import agreement, auc, boxes_f1, iou, text_accuracy, top1
from edgekit.pipeline.pipeline import softmax
from edgekit.pipeline.text import ctc, edit_distance
from edgekit.steps import Frames, SpeechSegments

WORDS = st.text(alphabet="abc", max_size=6)
SIDE = st.integers(0, 20)
RECTANGLES = st.tuples(SIDE, SIDE, SIDE, SIDE).map(
    lambda r: (min(r[0], r[2]), min(r[1], r[3]), max(r[0], r[2]) + 1, max(r[1], r[3]) + 1)
)


# Text


@given(WORDS, WORDS)
def test_edit_distance_is_the_recursive_definition(a: str, b: str) -> None:
    @cache
    def plain(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(plain(i - 1, j) + 1, plain(i, j - 1) + 1, plain(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert edit_distance(a, b) == plain(len(a), len(b))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_greedy_reading_merges_repeats_and_drops_blanks(classes: list[int]) -> None:
    probabilities = np.full((len(classes), 4), 0.1, np.float32)
    probabilities[np.arange(len(classes)), classes] = 0.7
    wanted = "".join("xyz"[kind - 1] for kind, _ in groupby(classes) if kind)
    text, score = ctc(probabilities, "xyz")
    assert text == wanted
    assert score == pytest.approx(0.7 if wanted else 0.0)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5))
def test_text_accuracy_is_one_minus_errors_over_characters(pairs: list[tuple[str, str]]) -> None:
    answers = [Text(text=" ".join(read), score=1.0) for read, _ in pairs]
    labels = [label for _, label in pairs]
    total = sum(map(len, labels))
    wrong = sum(edit_distance(read, label) for read, label in pairs)
    assert text_accuracy(answers, labels) == pytest.approx(max(0.0, 1 - wrong / max(total, 1)))


# Classes


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=8))
def test_top1_is_the_share_of_equal_names(pairs: list[tuple[str, str]]) -> None:
    answers = [Labels(labels=(Label(name=said, score=0.9), Label(name=true, score=0.1))) for said, true in pairs]
    assert top1(answers, [true for _, true in pairs]) == sum(a == b for a, b in pairs) / len(pairs)


def test_without_names_the_number_of_the_best_class_counts() -> None:
    answer = Tensors(
        outputs=(TensorSummary(name="y", dtype="float32", shape=(1, 5), minimum=0.0, maximum=1.0, argmax=3),)
    )
    assert top1([answer, answer], ["3", "4"]) == 0.5


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=8), st.floats(-1000, 1000, width=32))
def test_softmax_adds_up_to_one_and_knows_no_offset(logits: list[float], shift: float) -> None:
    values = np.array(logits, np.float64)
    found = softmax(values)
    assert found.sum() == pytest.approx(1.0)
    assert np.allclose(found, softmax(values + shift), atol=1e-6)
    assert found[values.argmax()] == found.max()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=20).filter(
        lambda rows: len({truth for _, truth in rows}) == 2
    )
)
def test_auc_is_the_share_of_pairs_in_order_with_ties_half(rows: list[tuple[int, bool]]) -> None:
    true = [score for score, truth in rows if truth]
    false = [score for score, truth in rows if not truth]
    wins = sum((a > b) + 0.5 * (a == b) for a in true for b in false)
    found = auc(np.array([s for s, _ in rows], float), np.array([t for _, t in rows]))
    assert found == pytest.approx(wins / (len(true) * len(false)))


# Boxes


@given(RECTANGLES, RECTANGLES)
def test_iou_counts_pixels(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    def cells(r: tuple[int, ...]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(r[0], r[2]) for y in range(r[1], r[3])}

    both, either = len(cells(a) & cells(b)), len(cells(a) | cells(b))
    assert iou(a, b) == pytest.approx(both / either)
    assert iou(a, b) == iou(b, a)
    assert iou(a, a) == 1.0


def found_boxes(*rectangles: tuple[int, ...]) -> Boxes:
    corners = (((r[0], r[1]), (r[2], r[1]), (r[2], r[3]), (r[0], r[3])) for r in rectangles)
    return Boxes(width=100, height=100, boxes=tuple(Box(polygon=polygon, score=1.0) for polygon in corners))


@given(st.lists(RECTANGLES, max_size=4), st.lists(RECTANGLES, max_size=4))
def test_f1_lies_between_nothing_and_all_and_is_symmetric(found: list, true: list) -> None:
    score = boxes_f1([found_boxes(*found)], [true])
    assert 0.0 <= score <= 1.0
    assert score == boxes_f1([found_boxes(*true)], [found])
    assert boxes_f1([found_boxes(*true)], [true]) == 1.0


@given(st.lists(RECTANGLES, min_size=1, max_size=4, unique=True))
def test_a_ghost_and_a_miss_cost_the_same(true: list) -> None:
    ghost = boxes_f1([found_boxes(*true, (60, 60, 61, 61))], [true])
    miss = boxes_f1([found_boxes(*true)], [[*true, (60, 60, 61, 61)]])
    assert ghost == miss == pytest.approx(2 * len(true) / (2 * len(true) + 1))


# Agreement


@given(st.integers(1, 6), st.integers(0, 5))
def test_agreement_of_scores_counts_equal_best_classes(samples: int, wrong: int) -> None:
    wrong = min(wrong, samples)
    reference = [{"y": np.eye(4, dtype=np.float32)[i % 4][None]} for i in range(samples)]
    outputs = [{"y": np.roll(r["y"], 1) if i < wrong else r["y"] * 3} for i, r in enumerate(reference)]
    assert agreement(reference, outputs) == pytest.approx(1 - wrong / samples)


@pytest.mark.parametrize(
    ("left", "right", "value"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]], 1.0),
        ([[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]], 0.0),
        ([[1.0, 0.0], [0.0, 0.0]], [[-1.0, 0.0], [0.0, 0.0]], 0.0),
        ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], 1.0),
        ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]], 0.0),
        ([[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], 0.5**0.5),
        ([[1.0, 1.0], [0.0, 0.0]], [[np.nan, 0.0], [0.0, 0.0]], 0.0),
        ([[1.0, 1.0], [0.0, 0.0]], [[np.inf, 0.0], [0.0, 0.0]], 0.0),
    ],
)
def test_agreement_of_maps_is_their_cosine_never_below_zero(left: list, right: list, value: float) -> None:
    assert agreement([{"m": np.array(left)}], [{"m": np.array(right)}]) == pytest.approx(value)


def test_a_map_of_another_shape_agrees_with_nothing() -> None:
    assert agreement([{"m": np.ones((2, 2))}], [{"m": np.ones((4, 1))}]) == 0.0


# Sound


@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 20))
def test_frames_hold_every_sample_once_and_the_context_before_them(count: int, size: int, context: int) -> None:
    samples = np.arange(1, count + 1, dtype=np.float32)
    found = frames(samples, Frames(size=size, context=context))
    assert found.shape == (-(-count // size), 1, context + size)
    body = found[:, 0, context:].reshape(-1)
    assert np.array_equal(body[:count], samples)
    assert not body[count:].any()
    whole = np.concatenate([np.zeros(context, np.float32), body])
    for i, frame in enumerate(found[:, 0]):
        assert np.array_equal(frame, whole[i * size : i * size + context + size])


@settings(max_examples=25)
@given(st.integers(1, 300), st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]))
def test_resampling_gives_as_many_samples_as_the_time_holds(count: int, source_hz: int) -> None:
    found = resample(np.ones(count, np.float32), source_hz, 16_000)
    assert len(found) == int(np.ceil(count * 16_000 / source_hz))
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


@pytest.mark.parametrize("source_hz", [8000, 22050, 48000])
def test_a_constant_stays_what_it_is_away_from_the_ends(source_hz: int) -> None:
    found = resample(np.full(2000, 0.5, np.float32), source_hz, 16_000)
    assert np.allclose(found[200:-200], 0.5, atol=0.01)


STEP = SpeechSegments(enter=0.5, leave=0.35, min_speech_ms=0, min_silence_ms=0, pad_ms=0)


@given(st.lists(st.sampled_from([0.0, 0.3, 0.4, 0.6, 1.0]), max_size=30))
def test_hysteresis_is_a_machine_of_two_states(scores: list[float]) -> None:
    speaking, marks = False, []
    for score in scores:
        speaking = score >= STEP.enter if not speaking else score >= STEP.leave
        marks.append(speaking)
    wanted, at = [], 0
    for mark, run in groupby(marks):
        length = len(list(run))
        if mark:
            wanted.append((at, at + length))
        at += length
    found = speech_segments(scores, STEP, frame_s=1.0, duration_s=float(len(scores)))
    assert [(s.start_s, s.end_s) for s in found] == wanted


@given(st.lists(st.sampled_from([0.0, 1.0]), max_size=40), st.integers(0, 5), st.integers(0, 5), st.integers(0, 3))
def test_segments_are_apart_in_order_inside_and_long_enough(
    scores: list[float], speech: int, gap: int, pad: int
) -> None:
    step = SpeechSegments(min_speech_ms=speech * 100, min_silence_ms=gap * 100, pad_ms=pad * 10)
    found = speech_segments(scores, step, frame_s=0.1, duration_s=len(scores) * 0.1)
    times = [time for segment in found for time in (segment.start_s, segment.end_s)]
    assert times == sorted(times) or pad * 0.02 > gap * 0.1
    assert all(0 <= time <= len(scores) * 0.1 + 1e-9 for time in times)
    assert all(segment.end_s - segment.start_s >= speech * 0.1 - 1e-9 for segment in found)
