"""The accuracy gate and the honest check of what a file holds."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.artifact import Accuracy
from edgekit.build import accuracy as module
from edgekit.build import pairs
from edgekit.build.accuracy import WORST_DB, Reference, measure, sqnr_db, why_unfit
from edgekit.build.inspect import Contents, check_int8, contents, findings
from edgekit.build.store import find, forget, key_of, refusal, refuse
from edgekit.catalog import data_folder, load_model
from edgekit.errors import ArtifactError, UsageError
from edgekit.pipeline.data import Sample
from edgekit.runtimes.session import SessionSettings

DIGITS = data_folder("models") / "digits"


def accuracy(value, *, standard=1.0, **noise):
    return Accuracy(
        metric="top1",
        value=value,
        standard_value=standard,
        sample_count=10,
        per_output_sqnr_db=noise,
        runtime="onnxruntime",
        isa="x86_64",
    )


def test_signal_to_noise_is_ten_times_the_logarithm_of_the_power_ratio():
    a, b = [{"y": np.ones(100)}], [{"y": np.full(100, 1.1)}]
    assert sqnr_db(a, b, "y") == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"y": np.ones((1, 4))}], None),
        ([{"y": np.ones((4, 1))}], r"its output 'y' has shape \[4, 1\], the standard's \[1, 4\]"),
        ([{"y": np.ones((1, 4, 1))}], "has shape"),
        ([{"z": np.ones((1, 4))}], "gives z, the standard also 'y'"),
    ],
)
def test_outputs_that_no_metric_could_read_are_one_clear_error(monkeypatch, tmp_path, outputs, message):
    reference = Reference(load_model("digits"), [None], [{"y": np.ones((1, 4))}], "agreement", 1.0)
    monkeypatch.setattr(module, "_run", lambda *_: outputs)
    monkeypatch.setattr(module, "judge", lambda *_: "judged")
    if message is None:
        assert measure(reference, tmp_path, SessionSettings(), "isa") == "judged"
        return
    with pytest.raises(ArtifactError, match=message):
        measure(reference, tmp_path, SessionSettings(), "isa")


def test_identical_outputs_have_no_noise_and_broken_ones_the_worst():
    a = [{"y": np.ones(4)}]
    assert sqnr_db(a, a, "y") is None
    assert sqnr_db(a, [{"y": np.ones(5)}], "y") == WORST_DB
    assert sqnr_db(a, [{"y": np.full(4, np.nan)}], "y") == WORST_DB
    assert sqnr_db([{"y": np.zeros(4)}], a, "y") == WORST_DB


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (accuracy(0.99), None),
        (accuracy(0.98), "keeps 98.0 % of the standard's top1, the floor is 99 %"),
        (accuracy(0.9, standard=0.9), None),
        (accuracy(1.0, a=30.0, b=-0.5), "output 'b' is more noise than signal (-0.5 dB)"),
        (accuracy(1.0, a=30.0, b=None), None),
    ],
)
def test_an_artifact_is_unfit_below_the_floor_or_with_one_collapsed_output(measured, why):
    assert why_unfit(measured, 0.99) == why


def test_contents_tell_integers_from_float():
    whole, flash = contents(DIGITS / "digits.onnx"), contents(DIGITS / "digits-int8.onnx")
    assert whole.integer_nodes == 0
    assert flash.integer_nodes >= 2
    assert flash.int8_bytes > flash.float_bytes
    check_int8(DIGITS / "digits-int8.onnx", flash)
    with pytest.raises(ArtifactError, match="holds no INT8 weights"):
        check_int8(DIGITS / "digits.onnx", whole)


def test_int8_weights_without_an_integer_kernel_are_not_int8(tmp_path):
    with pytest.raises(ArtifactError, match="no integer kernel"):
        check_int8(tmp_path, Contents({"Conv": 3, "DequantizeLinear": 3}, 1000, 10))


def test_larger_than_the_standard_and_dynamic_convolutions_are_noted():
    odd = Contents({"ConvInteger": 2}, 1, 1)
    notes = findings(odd, size_bytes=300, standard_bytes=200)
    assert "larger than the standard: 300 against 200 bytes" in notes
    assert any("2 dynamically quantised convolutions" in note for note in notes)
    assert findings(Contents({"Conv": 2}, 0, 1), size_bytes=200, standard_bytes=200) == ()


def test_a_refusal_is_remembered_for_the_same_things_only(tmp_path):
    key = key_of({"a": "1"})
    assert refusal(tmp_path, key) is None
    refuse(tmp_path, key, "too slow")
    assert refusal(tmp_path, key) == "too slow"
    assert refusal(tmp_path, key_of({"a": "2"})) is None
    forget(tmp_path)
    assert refusal(tmp_path, key) is None
    assert find(tmp_path, key) is None


def pair_samples(labels, tokens=3):
    mask = np.array([[1, 1, 0]], np.int64)[:, :tokens]
    return [Sample(inputs={"attention_mask": mask}, label=str(label)) for label in labels for _ in range(2)]


def directions(angles):
    return [{"y": np.array([[np.cos(a), np.sin(a)]])} for angle in angles for a in (0.0, angle)]


def test_spearman_is_one_when_similarities_rank_as_people_do_and_minus_one_when_reversed():
    labels = [5.0, 3.0, 1.0]
    assert pairs.similarity(pair_samples(labels), directions([0.1, 0.5, 1.2])) == pytest.approx(1.0)
    assert pairs.similarity(pair_samples(labels), directions([1.2, 0.5, 0.1])) == pytest.approx(-1.0)


def test_spearman_shares_ranks_among_equal_labels():
    found = pairs.similarity(pair_samples([1, 1, 2, 2]), directions([0.9, 0.8, 0.2, 0.1]))
    assert found == pytest.approx(0.894427, abs=1e-5)  # scipy.stats.spearmanr of the same


def test_token_embeddings_are_averaged_where_the_mask_is_one():
    sample = pair_samples([1.0])[0]
    tokens = np.array([[[1.0, 2.0], [3.0, 4.0], [99.0, 99.0]]])
    np.testing.assert_allclose(pairs.embedding(sample, tokens), [2.0, 3.0])


def test_embeddings_that_collapsed_or_are_nan_score_nothing():
    labels = pair_samples([1, 2, 3])
    assert pairs.similarity(labels, directions([0.0, 0.0, 0.0])) == 0.0
    assert pairs.similarity(labels, directions([0.1, np.nan, 0.3])) == 0.0


@pytest.mark.parametrize(
    ("samples", "outputs", "message"),
    [
        (pair_samples([1, 1]), directions([0.1, 0.2]), "labels that differ"),
        (pair_samples(["a", "b"]), directions([0.1, 0.2]), "is not a score"),
        ([Sample(inputs={}), Sample(inputs={})], directions([0.1]), "one score for each pair"),
        (pair_samples([1]), [{"y": np.zeros((1, 2, 3, 4))}] * 2, "needs an output"),
    ],
)
def test_pairs_that_cannot_be_judged_are_said(samples, outputs, message):
    with pytest.raises(UsageError, match=message):
        pairs.similarity(samples, outputs)
