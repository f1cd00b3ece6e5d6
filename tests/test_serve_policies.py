"""`bench --policy`: what a cascade keeps and costs, judged on data that did not set its threshold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit.catalog import load_model
from edgekit.cli.main import main
from edgekit.config import Home, ModelConfig
from edgekit.errors import ConfigError
from edgekit.fetch import all_artifacts
from edgekit.serve.alternatives import careful_plan
from edgekit.serve.plan import Plan, pinned_plan
from edgekit.serve.policies import compare_policies

onnx = pytest.importorskip("onnx", reason="the spoilt artifact of these tests is made with onnx")
pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """(standard, one whose weights are so noisy that it errs now and then)"""
    home = Home(tmp_path_factory.mktemp("home"))
    model = load_model("digits")
    flash = pinned_plan(model, ModelConfig(name="digits", artifact="int8"), all_artifacts(model, home), threads=1)
    standard = careful_plan(flash, home=home)
    spoilt = onnx.load(standard.artifact.path)
    rng = np.random.default_rng(3)
    for weights in spoilt.graph.initializer:
        values = onnx.numpy_helper.to_array(weights)
        if values.dtype == np.float32 and values.ndim > 1:
            noisy = values + rng.normal(0, 0.8 * values.std(), values.shape).astype(np.float32)
            weights.CopyFrom(onnx.numpy_helper.from_array(noisy, weights.name))
    path = home.root / "spoilt.onnx"
    onnx.save(spoilt, path)
    return standard, replace(flash, artifact=msgspec.structs.replace(flash.artifact, path=path))


def test_a_cascade_is_nearly_as_good_as_the_standard_and_asks_it_seldom(plans):
    standard, flash, cascade = compare_policies(plans[0], [plans[1]], agreement=0.97)
    assert [one.policy for one in (standard, flash, cascade)] == ["standard", "flash", "cascade"]
    assert (standard.accuracy, standard.asked_standard, flash.asked_standard) == (standard.accuracy, 1.0, 0.0)
    assert flash.agreement < 0.97, "else there is nothing to mend"
    assert cascade.agreement > max(flash.agreement, 0.94), "0.97 in the mean; 180 samples scatter by 0.013"
    assert cascade.accuracy >= flash.accuracy
    assert 0 < cascade.asked_standard < 0.9
    assert flash.mean_ms < cascade.mean_ms < flash.mean_ms + standard.mean_ms
    assert {one.samples for one in (standard, flash, cascade)} == {180}


def test_what_is_asked_of_the_standard_grows_with_the_agreement(plans):
    shares = [
        compare_policies(plans[0], [plans[1]], agreement=a, repeats=1)[2].asked_standard for a in (0.5, 0.9, 0.99)
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[2] > shares[1] > 0


def test_too_few_samples_are_said_with_their_number(plans):
    with pytest.raises(ConfigError, match=r"180 samples set the threshold, an agreement of 0.999 takes 999"):
        compare_policies(plans[0], [plans[1]], agreement=0.999)


def test_the_verb_prints_a_table_or_its_values(edgekit_home: Path, capsys):
    assert main(["bench", "digits", "--policy", "--artifact", "int8", "--agreement", "0.95"]) == 0
    table = capsys.readouterr().out
    assert "the others set the threshold for 95 %" in table
    told = [line.split() for line in table.splitlines()[2:]]
    assert [(cells[0], cells[1]) for cells in told] == [
        ("standard", "standard"),
        ("flash", "int8"),
        ("cascade", "int8"),
    ]
    assert "baseline" in told[0]
    assert all(cells[-4:-2] == ["the", "same"] or cells[-3] in ("faster", "slower") for cells in told[1:])
    assert main(["bench", "digits", "--policy", "--artifact", "int8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["artifact"]) for row in rows] == [
        ("standard", "standard"),
        ("flash", "int8"),
        ("cascade", "int8"),
    ]
    assert all(row["mean_ms"] > 0 and row["accuracy"] > 0.9 for row in rows)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["digits", "--agreement", "1"], 2, "must be from 0 to below 1"),
        (["digits", "--artifact", "litert"], 1, "nothing fits: litert: is not compressed"),
        (["digits", "--artifact", "flash-int4"], 3, "there is no 'flash-int4' here"),
        (["digits", "--agreement", "0.999"], 3, "takes 999"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(edgekit_home: Path, capsys, words, code, says):
    assert main(["bench", "--policy", *words]) == code
    assert says in capsys.readouterr().err


def test_a_result_survives_its_json(plans):
    found = compare_policies(plans[0], [plans[1]], agreement=0.9, repeats=1)
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[type(found[0])]) == found
