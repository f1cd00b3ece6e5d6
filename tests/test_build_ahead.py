"""Artifacts in onnxruntime's own optimised form: the same answers, bound to this machine, skipped on any other."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edgekit.artifact import Artifact, load_artifacts
from edgekit.bench.candidates import candidates
from edgekit.build import Options, ahead, report
from edgekit.build.quantize import target_of
from edgekit.build.workshop import Refusal, Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.device.cpu import Cpu
from edgekit.errors import ArtifactError
from edgekit.fetch import all_artifacts, standard_artifact
from edgekit.runtimes.ahead import AS_SAVED, binding_here, why_not_here
from edgekit.runtimes.session import SessionSettings, open_session

STATIC = "flash-int8-static"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(home, portable INT8 digits, its saved form); kept whether or not it pays for so small a model."""
    home, model = Home(tmp_path_factory.mktemp("home")), load_model("digits")
    twin = next(a for a in report(model, home=home).artifacts if a.record.name == STATIC)
    with Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop:
        return home, twin, ahead.save_optimized(shop, twin, must_pay=False)


def test_the_saved_form_answers_as_its_twin_does(saved):
    _, twin, own = saved
    feed = {"image": np.random.default_rng(1).random((1, 8, 8, 1), np.float32)}
    answers = []
    for artifact, options in ((twin, {}), (own, AS_SAVED)):
        session = open_session(artifact.path, SessionSettings(session_options=options))
        answers.append(session.run(feed))
        session.close()
    for name, expected in answers[0].items():
        np.testing.assert_allclose(answers[1][name], expected, atol=1e-5)


def test_its_record_says_what_it_is_bound_to_and_whose_twin_it_is(saved):
    home, twin, own = saved
    assert own.record.bound_to == binding_here("onnxruntime")
    assert own.record.twin_of == STATIC
    assert own.record.made_from_sha256 == twin.record.made_from_sha256
    assert own.record.accuracy == twin.record.accuracy
    assert "against" in own.record.recipe["loads in"]
    own.verify()
    assert own in load_artifacts(home.artifacts("digits"))


def test_here_it_takes_its_twins_place_in_onnxruntime_and_nowhere_else(saved):
    home, _, _ = saved
    model = load_model("digits")
    found = candidates(model, all_artifacts(model, home), cores=2, runtimes=["onnxruntime", "openvino"])
    ways = {(c.artifact.record.name, c.settings.runtime) for c in found}
    assert (f"{STATIC}-ort", "onnxruntime") in ways
    assert (STATIC, "onnxruntime") not in ways
    assert (STATIC, "openvino") in ways
    assert (f"{STATIC}-ort", "openvino") not in ways
    own = [c for c in found if c.artifact.record.twin_of]
    assert {c.settings.threads for c in own} == {1, 2}
    assert all(c.settings.session_options == AS_SAVED for c in own)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("version", "1.0.0", "saved by onnxruntime 1.0.0"),
        ("isa", "x86_64 avx", "another kind of CPU"),
    ],
)
def test_on_another_release_or_cpu_its_twin_is_tried_instead(saved, key, value, reason):
    _, twin, own = saved
    bound = {**own.record.bound_to, key: value}
    assert reason in (why_not_here(bound) or "")
    stale = Artifact(record=msgspec.structs.replace(own.record, bound_to=bound), path=own.path)
    found = candidates(load_model("digits"), [twin, stale], cores=1, runtimes=["onnxruntime"])
    assert [c.artifact.record.name for c in found] == [STATIC]


def test_what_is_portable_is_bound_to_nothing():
    assert why_not_here({}) is None
    assert why_not_here(binding_here("onnxruntime")) is None


def test_it_has_another_key_for_another_twin(saved):
    home, twin, own = saved
    model = load_model("digits")
    changed = Artifact(record=msgspec.structs.replace(twin.record, sha256="0" * 64), path=twin.path)
    with Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop:
        assert ahead.key(shop, twin) == own.record.recipe["key"]
        assert ahead.key(shop, changed) != ahead.key(shop, twin)


def test_for_another_cpu_it_is_left_to_that_machine(saved):
    home, twin, _ = saved
    model, arm = load_model("digits"), Cpu("aarch64", None, 4, 4, None, ("asimd", "asimddp"), (), 64, "aarch64")
    assert target_of(arm).isa.startswith("aarch64")
    with (
        Workshop(model, standard_artifact(model, home), home, arm, Options(), None) as shop,
        pytest.raises(Refusal, match="on the device itself"),
    ):
        ahead.save_optimized(shop, twin)


def test_a_twin_that_does_not_load_is_a_refusal_and_leaves_nothing(saved, tmp_path):
    _, twin, _ = saved
    model, home = load_model("digits"), Home(tmp_path)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(twin.path.read_bytes()[:-200])
    with (
        Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop,
        pytest.raises(Refusal, match="cannot load it"),
    ):
        ahead.save_optimized(shop, Artifact(record=twin.record, path=broken))
    assert load_artifacts(home.artifacts("digits")) == []


def test_a_damaged_file_is_noticed(saved, tmp_path):
    _, _, own = saved
    copy = tmp_path / own.record.file
    copy.write_bytes(own.path.read_bytes()[:-1] + b"\0")
    with pytest.raises(ArtifactError, match="sha256 is"):
        Artifact(record=own.record, path=copy).verify()


def test_the_saved_form_goes_when_its_twin_is_no_longer_fit(tmp_path):
    home, model = Home(tmp_path), load_model("digits")
    twin = next(a for a in report(model, home=home).artifacts if a.record.name == STATIC)
    with Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop:
        ahead.save_optimized(shop, twin, must_pay=False)
    strict = msgspec.structs.replace(model, accuracy_floor=1.5)
    report(strict, home=home)
    assert f"{STATIC}-ort" not in {a.record.name for a in load_artifacts(home.artifacts("digits"))}
