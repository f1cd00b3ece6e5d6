"""Metrics, checked by hand and against slow definitions."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.catalog import load_model
from edgekit.errors import CatalogError
from edgekit.pipeline.answers import Box, Boxes, Label, Labels, Text
from edgekit.pipeline.data import Sample, evaluation
from edgekit.pipeline.metrics import agreement, auc, boxes_f1, iou, score, text_accuracy, top1
from edgekit.pipeline.pipeline import Context


def labels(*names: str) -> Labels:
    return Labels(labels=tuple(Label(name=name, score=0.5) for name in names))


def boxes(*rectangles: tuple[float, float, float, float]) -> Boxes:
    corners = (((a, b), (c, b), (c, d), (a, d)) for a, b, c, d in rectangles)
    return Boxes(width=100, height=100, boxes=tuple(Box(polygon=polygon, score=1.0) for polygon in corners))


def test_top1_counts_only_the_first_label() -> None:
    assert top1([labels("a", "b"), labels("b", "a"), labels("a")], ["a", "a", "a"]) == pytest.approx(2 / 3)


def test_text_accuracy_is_one_minus_the_error_rate_over_all_characters() -> None:
    answers = [Text(text="hallo", score=1.0), Text(text="ab cd", score=1.0), Text(text="", score=0.0)]
    assert text_accuracy(answers, ["hello", "abcd", "x"]) == pytest.approx(1 - 2 / 10)
    assert text_accuracy([Text(text="a" * 50, score=1.0)], ["b"]) == 0.0


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        ((0, 0, 10, 10), (0, 0, 10, 10), 1.0),
        ((0, 0, 10, 10), (5, 0, 15, 10), 1 / 3),
        ((0, 0, 10, 10), (10, 0, 20, 10), 0.0),
        ((0, 0, 10, 10), (2, 2, 4, 4), 0.04),
    ],
)
def test_iou_of_known_rectangles(a: tuple[float, ...], b: tuple[float, ...], value: float) -> None:
    assert iou(a, b) == pytest.approx(value)
    assert iou(b, a) == pytest.approx(value)


def test_boxes_count_once_and_both_misses_and_ghosts_cost() -> None:
    truth = [(0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0)]
    assert boxes_f1([boxes(*truth)], [truth]) == 1.0
    assert boxes_f1([boxes(truth[0])], [truth]) == pytest.approx(2 / 3)
    assert boxes_f1([boxes(*truth, (50, 50, 60, 60))], [truth]) == pytest.approx(4 / 5)
    assert boxes_f1([boxes(truth[0], truth[0])], [truth[:1]]) == pytest.approx(2 / 3), "a double is a ghost"
    assert boxes_f1([boxes((0, 0, 10, 4))], [truth[:1]]) == 0.0, "an overlap under the floor is a miss"
    assert boxes_f1([boxes()], [[]]) == 1.0


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_chance_that_a_true_one_scores_higher(pairs: list[tuple[int, bool]]) -> None:
    scores, truth = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if truth.all() or not truth.any():
        with pytest.raises(ValueError, match="both kinds"):
            auc(scores, truth)
        return
    wins = [float(a > b) + 0.5 * float(a == b) for a, b in product(scores[truth], scores[~truth])]
    assert auc(scores, truth) == pytest.approx(np.mean(wins))


def test_scores_that_are_not_numbers_are_worth_nothing() -> None:
    assert auc(np.array([np.nan, 0.1]), np.array([True, False])) == 0.0


def test_agreement_of_one_vector_of_scores_is_the_share_of_equal_best_classes() -> None:
    reference = [{"y": np.array([[0.1, 0.9]])}, {"y": np.array([[0.8, 0.2]])}]
    scaled = [{"y": np.array([[1.0, 2.0]])}, {"y": np.array([[0.1, 0.2]])}]
    assert agreement(reference, scaled) == 0.5
    assert agreement(reference, reference) == 1.0


def test_agreement_is_that_of_the_worst_output() -> None:
    whole = [{"scores": np.array([[1.0, 2.0, 3.0]]), "boxes": np.array([[1.0, 1.0]])}]
    turned = [{"scores": np.array([[1.0, 2.0, 3.0]]), "boxes": np.array([[1.0, -1.0]])}]
    assert agreement(whole, turned) == pytest.approx(0.0)
    assert agreement(whole, whole) == pytest.approx(1.0)


@pytest.mark.parametrize("collapsed", [np.array([[np.nan, 1.0]]), np.zeros((1, 2)), np.ones((1, 3))])
def test_a_collapsed_output_agrees_with_nothing(collapsed: np.ndarray) -> None:
    reference = [{"a": np.array([[3.0, 1.0]]), "b": np.ones(1)}]
    assert agreement(reference, [{"a": collapsed, "b": np.ones(1)}]) == 0.0


def test_outputs_by_other_names_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="other names"):
        agreement([{"a": np.ones(1)}], [{"b": np.ones(1)}])


def test_score_of_perfect_and_of_useless_outputs() -> None:
    model = load_model("digits")
    samples = list(evaluation(model))[:50]
    right = [{"logits": np.eye(10, dtype=np.float32)[[int(s.label)]] * 9} for s in samples]
    wrong = [{"logits": -outputs["logits"]} for outputs in right]
    assert score(model, samples, right) == 1.0
    assert score(model, samples, wrong) == 0.0


def test_score_by_frames_uses_the_spans_of_the_label() -> None:
    model = load_model("voice-activity")
    context = Context(frame_s=0.5, duration_s=2.0)
    sample = Sample(inputs={}, label=((0.5, 1.5),), context=context)
    assert score(model, [sample], [{"output": np.array([[0.1], [0.9], [0.8], [0.2]])}]) == 1.0
    assert score(model, [sample], [{"output": np.array([[0.9], [0.1], [0.2], [0.8]])}]) == 0.0


def test_score_says_what_it_lacks() -> None:
    model = load_model("digits")
    unlabelled = Sample(inputs={})
    outputs = {"logits": np.zeros((1, 10), np.float32)}
    with pytest.raises(CatalogError, match="metric: 'top1' needs evaluation data with labels"):
        score(model, [unlabelled], [outputs])
    with pytest.raises(ValueError, match="as many outputs as samples"):
        score(model, [], [])
    bare = load_model(str(model.folder / "digits.onnx"))
    with pytest.raises(ValueError, match="needs the standard's outputs"):
        score(bare, [unlabelled], [outputs])
    assert score(bare, [unlabelled], [outputs], reference=[outputs]) == 1.0


def test_a_metric_that_cannot_judge_the_models_answers_is_refused_by_name() -> None:
    model = msgspec.structs.replace(load_model("ocr-detector"), metric="top1")
    sample = next(evaluation(model))
    height, width = next(iter(sample.inputs.values())).shape[-2:]
    blank = {model.outputs[0].name: np.zeros((1, 1, height, width), np.float32)}
    with pytest.raises(CatalogError, match="'top1' cannot judge boxes"):
        score(model, [sample], [blank])
