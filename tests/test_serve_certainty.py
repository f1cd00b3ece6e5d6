"""When a compressed artifact's answer is believed: margins, and the threshold that keeps a promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.catalog import load_model
from edgekit.config import Home, ModelConfig
from edgekit.errors import ConfigError
from edgekit.fetch import all_artifacts
from edgekit.serve.alternatives import careful_plan
from edgekit.serve.certainty import Certainty, compare, margin, measured, samples_needed, threshold_for, why_no_cascade
from edgekit.serve.plan import Plan, pinned_plan

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([[0.7, 0.2, 0.1]], 0.5),
        ([[0.5, 0.5]], 0.0),
        ([[1.0, 0.0, 0.0]], 1.0),
        ([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], 0.05),
        ([0.1, 0.9], 0.8),
        (np.log([[0.7, 0.2, 0.1]]), 0.5),
        (np.log([[0.7, 0.2, 0.1]]) + 30, 0.5),
        ([[800.0, 0.0]], 1.0),
        (np.array([[100, 100, -128]], np.int8), 0.0),
    ],
    ids=[
        "probabilities",
        "a tie",
        "certain",
        "rows",
        "one row",
        "logits",
        "shifted logits",
        "large logits",
        "integers",
    ],
)
def test_a_margin_is_between_the_likeliest_classes(values, wanted):
    assert margin(np.asarray(values)) == pytest.approx(wanted, abs=1e-6)


def certainty(*pairs: tuple[float, bool]) -> Certainty:
    margins, agreed = zip(*pairs, strict=True)
    return Certainty(margins=margins, agreed=agreed)


def test_the_threshold_lies_just_above_the_first_wrong_answer_too_many():
    found = certainty(*[(0.9, True)] * 96, (0.8, False), (0.6, False), (0.3, False))
    for agreement, allowed in ((0.99, 0), (0.98, 1), (0.97, 2), (0.96, 3)):
        threshold = found.threshold(agreement)
        wrong = [m for m, same in zip(found.margins, found.agreed, strict=True) if not same and m >= threshold]
        assert len(wrong) == allowed
    assert found.threshold(0.96) == 0.0, "what it differs in is within what is allowed"
    assert 0.8 < found.threshold(0.99) < 0.8001
    assert found.unsure_share(found.threshold(0.99)) == pytest.approx(3 / 99)
    assert found.threshold(0.995) is None
    assert samples_needed(0.995) == 199


def test_one_that_is_wrong_where_it_is_sure_is_never_believed():
    assert certainty((1.0, False), *[(0.5, True)] * 99).threshold(0.99) > 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99]),
)
def test_no_more_wrong_answers_are_believed_than_the_agreement_allows_and_none_less(pairs, agreement):
    found = certainty(*pairs)
    threshold = found.threshold(agreement)
    if threshold is None:
        assert len(pairs) < samples_needed(agreement)
        return
    wrong = sum(not same and m >= threshold for m, same in pairs)
    assert (wrong + 1) / (len(pairs) + 1) <= 1 - agreement + 1e-9
    below = max((m for m, same in pairs if not same and m < threshold), default=None)
    if below is not None:
        more = sum(not same and m >= below for m, same in pairs)
        assert (more + 1) / (len(pairs) + 1) > 1 - agreement - 1e-9, "a lower threshold would break the promise"


def test_the_promise_holds_for_inputs_that_were_not_seen():
    """Drawn 300 times: on other inputs of the same kind the mean share of differences is within 1 - agreement."""
    rng = np.random.default_rng(0)
    differing = []
    for _ in range(300):
        margins = rng.random(400)
        agreed = rng.random(400) < 0.6 + 0.4 * margins
        known = Certainty(margins=tuple(margins[:200]), agreed=tuple(map(bool, agreed[:200])))
        threshold = known.threshold(0.95)
        differing.append(np.mean(~agreed[200:] & (margins[200:] >= threshold)))
    assert np.mean(differing) < 0.05
    assert np.mean(differing) > 0.03, "and no more is given away than that takes"


def test_agreement_is_of_classes_in_every_row():
    a, b = {"y": np.array([[0.6, 0.4], [0.9, 0.1]])}, {"y": np.array([[0.7, 0.3], [0.2, 0.8]])}
    assert compare([a, a], [a, b]) == Certainty(margins=(pytest.approx(0.2), pytest.approx(0.2)), agreed=(True, False))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("digits", None),
        ("ocr-classifier", "no evaluation data"),
        ("ocr-detector", "no choice between classes"),
        ("ocr-recognizer", "no choice between classes"),
        ("voice-activity", "keeps state"),
    ],
)
def test_only_a_choice_between_classes_has_a_certainty(name, why):
    model = load_model(name)
    found = why_no_cascade(model)
    if name == "ocr-classifier" and model.data.evaluation is not None:
        why = None
    assert found is why if why is None else why in found


def plans(home: Home, **wanted: object) -> tuple[Plan, Plan]:
    model = load_model("digits")
    config = ModelConfig(name="digits", artifact="int8", **wanted)
    flash = pinned_plan(model, config, all_artifacts(model, home), threads=1)
    return flash, careful_plan(flash, home=home)


def test_it_is_measured_once_and_kept(tmp_path: Path):
    home, said = Home(tmp_path), []
    flash, standard = plans(home)
    assert (standard.lane, standard.artifact.record.name) == ("careful", "standard")
    first = measured(flash, standard, home=home, progress=said.append)
    assert len(first.margins) == 360
    assert np.mean(first.agreed) > 0.95
    assert len(said) == 1
    assert measured(flash, standard, home=home, progress=said.append) == first
    assert len(said) == 1, "read from the disk"
    (path,) = (tmp_path / "cascades/digits").iterdir()
    path.write_text('{"margins": [0.1')
    assert measured(flash, standard, home=home, progress=said.append) == first
    assert "damaged" in said[1]


def test_an_agreement_that_the_data_cannot_support_is_refused_with_the_number(tmp_path: Path):
    flash, standard = plans(Home(tmp_path), agreement=0.999)
    with pytest.raises(ConfigError, match=r"360 evaluation samples, an agreement of 0.999 takes 999") as caught:
        threshold_for(flash, standard, home=Home(tmp_path), progress=lambda _: None)
    assert "agreement" in str(caught.value)
    flash, standard = plans(Home(tmp_path), agreement=0.99)
    threshold, unsure = threshold_for(flash, standard, home=Home(tmp_path), progress=lambda _: None)
    assert 0 <= threshold < 1
    assert 0 <= unsure < 0.5
