"""The pruned artifact: made only when asked for or of use, as sparse as the floor lets it be, for TensorRT alone."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import load_artifacts
from edgekit.bench.candidates import candidates
from edgekit.build import Options, further, prune_pattern, prune_recipe, store
from edgekit.build.prune_recipe import NAME
from edgekit.build.workshop import Refusal, Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.errors import ArtifactError
from edgekit.fetch import standard_artifact
from edgekit.runtimes import ahead

RNG = np.random.default_rng(23)
WIDE, CLASSES = 96, 4
RECIPES = (prune_recipe.recipe(),)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with a classifier of two wide layers, and samples of four clear classes with labels."""
    folder = tmp_path_factory.mktemp("own")
    centres = RNG.normal(size=(CLASSES, WIDE)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "a", "ab"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "b", "bb"], ["y"], transB=1),
    ]
    first = np.eye(WIDE, dtype=np.float32) + 0.02 * RNG.normal(size=(WIDE, WIDE))
    constants = {"a": first, "ab": np.ones(WIDE), "b": centres, "bb": -0.5 * np.sum(centres**2, axis=1)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(folder / "own.onnx"))
    labels = np.arange(120) % CLASSES
    np.savez(folder / "samples.npz", x=(centres[labels] + 0.3 * RNG.normal(size=(120, WIDE))).astype(np.float32))
    np.save(folder / "labels.npy", labels)
    return folder


def workshop(own, home, *, prune=True, floor=0.98):
    options = Options(
        calibration=own / "samples.npz", labels=own / "labels.npy", metric="top1", prune=prune, search_s=0.0
    )
    model = msgspec.structs.replace(load_model(str(own / "own.onnx")), accuracy_floor=floor)
    return Workshop(model, standard_artifact(model, home), home, None, options, None)


@pytest.fixture(scope="module")
def built(own, tmp_path_factory):
    """(home, model, artifact)."""
    home = Home(tmp_path_factory.mktemp("home"))
    with workshop(own, home) as shop:
        (artifact,), is_new = further.make_all(shop, RECIPES, refused := {})
        assert is_new
        assert refused == {}
        return home, shop.model, artifact


def test_the_record_proves_two_of_four_and_says_what_was_done(built):
    record = built[2].record
    assert record.fit
    assert set(record.sparsity) == {"Gemm h", "Gemm y"}
    assert all(layer.two_of_four and layer.zeros >= 0.5 for layer in record.sparsity.values())
    assert record.recipe["holds"].startswith("2:4 in 2 of 2 eligible layers (of 2), 5")
    assert "no labels" in record.recipe["pruned"]
    assert record.recipe["sparse in LiteRT"].startswith("not made: it is no convolutional network")
    assert "unpruned twin" in record.recipe["sparse kernels"]
    assert record.accuracy is not None
    assert record.accuracy.metric == "top1"
    assert record.accuracy.ratio >= 0.98
    assert record.calibration_sha256
    assert "nothing here gains from its zeros" in record.notes[0]
    assert load_artifacts(built[0].artifacts(built[1].name))[0].record == record


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 3, 4, 6), 3), ((1, 1, 4, 6), 3), ((1, 4, 6, 3), 2), ((1, 8, 4, 6), None), ((1, 16), None)],
)
def test_pictures_also_teach_by_their_mirror_images(shape, axis):
    value = RNG.normal(size=shape).astype(np.float32)
    found = prune_recipe.with_mirrors([{"x": value}])
    assert len(found) == (1 if axis is None else 2)
    assert axis is None or (found[1]["x"] == np.flip(value, axis)).all()


@pytest.mark.parametrize(("count", "fitted", "held"), [(128, 120, 8), (24, 16, 8), (23, 23, 23)])
def test_which_layers_hurt_is_asked_of_samples_held_out(count, fitted, held):
    shop = SimpleNamespace(samples=SimpleNamespace(pruning=tuple(range(count))))
    first, second = prune_recipe._parts(shop)
    assert (len(first), len(second)) == (fitted, held)
    assert count < 24 or not set(first) & set(second)


def test_its_accuracy_is_not_that_of_a_cpu_whose_sums_saturate(tmp_path):
    weights = RNG.uniform(0.9, 1.0, (CLASSES, WIDE)).astype(np.float32)  # two products of about 127 × 127 leave 16 bits
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(tmp_path / "m.onnx"))
    np.savez(tmp_path / "s.npz", x=RNG.uniform(0.9, 1.0, (40, WIDE)).astype(np.float32))
    model, home = load_model(str(tmp_path / "m.onnx")), Home(tmp_path)
    options = Options(calibration=tmp_path / "s.npz", search_s=0.0)
    with Workshop(model, standard_artifact(model, home), home, None, options, None) as shop:
        made = prune_recipe.quantizer(shop, shop.spelled_out)(shop.spelled_out)
        measured = prune_recipe._trial(shop, made).accuracy
    assert measured.per_output_sqnr_db["y"] > 40


def test_no_runtime_here_is_offered_it(built):
    _, model, artifact = built
    assert "does not have" in ahead.why_not_here(artifact.record.bound_to)
    assert candidates(model, [artifact], cores=2) == []


@pytest.mark.parametrize(
    ("hooks", "offered"), [((), 0), ((ahead.SPARSE_PROVIDER,), 1), (("CUDAExecutionProvider",), 0)]
)
def test_where_tensorrt_runs_it_is_offered_with_sparsity_switched_on(built, monkeypatch, hooks, offered):
    monkeypatch.setattr(ahead, "_providers_here", lambda: (ahead.SPARSE_PROVIDER, "CPUExecutionProvider"))
    _, model, artifact = built
    found = candidates(model, [artifact], cores=2, runtimes=["onnxruntime", "openvino"], hooks={"onnxruntime": hooks})
    assert len(found) == offered
    for candidate in found:
        (name, options), *rest = candidate.settings.providers
        assert name == ahead.SPARSE_PROVIDER
        assert options["trt_sparsity_enable"] == options["trt_int8_enable"] == "1"
        assert [provider for provider, _ in rest] == ["CPUExecutionProvider"]


def test_it_is_not_made_twice(built, own):
    home, _, artifact = built
    with workshop(own, home, prune=False) as shop:  # and once it is there it is found without being asked for
        (again,), is_new = further.make_all(shop, RECIPES, {})
    assert not is_new
    assert again.record == artifact.record


def test_unasked_it_is_not_made_where_nothing_gains(own, tmp_path):
    with workshop(own, Home(tmp_path), prune=False) as shop:
        found, is_new = further.make_all(shop, RECIPES, refused := {})
    assert (found, is_new) == ([], False)
    assert "no runtime here has a kernel that gains" in refused[NAME]
    assert "--prune" in refused[NAME]


def test_below_the_floor_only_some_layers_go(own, tmp_path, monkeypatch):
    """The first trial of both fails, of one it holds: the other stays as it was and is not called pruned."""
    trial = prune_recipe._trial
    fails = iter([False])
    monkeypatch.setattr(prune_recipe, "_trial", lambda s, m: trial(s, m)._replace(fit=next(fails, True)))
    with workshop(own, Home(tmp_path)) as shop:
        (artifact,), _ = further.make_all(shop, RECIPES, {})
    assert sorted(layer.two_of_four for layer in artifact.record.sparsity.values()) == [False, True]
    assert "1 of 2" in artifact.record.recipe["pruned"]


def test_when_no_layer_can_go_it_is_refused_and_remembered(own, tmp_path):
    home = Home(tmp_path)
    for _ in range(2):
        with workshop(own, home, floor=1.5) as shop:
            found, is_new = further.make_all(shop, RECIPES, refused := {})
        assert found == []
        assert refused[NAME] == "no layer can be 2:4 within 150 % of the standard"
    assert not is_new


def test_a_file_that_does_not_hold_what_was_promised_is_no_artifact(own, tmp_path, monkeypatch):
    monkeypatch.setattr(prune_recipe, "broken", lambda found: sorted(found))
    home = Home(tmp_path)
    with workshop(own, home) as shop, pytest.raises(ArtifactError, match="2 pruned layers are not 2:4 in the file"):
        further.make_all(shop, RECIPES, {})
    assert load_artifacts(home.artifacts("own")) == []


def test_models_without_wide_layers_are_refused(own, tmp_path, monkeypatch):
    monkeypatch.setattr(prune_pattern, "MORE_THAN", 1000)
    home = Home(tmp_path)
    with workshop(own, home) as shop:
        further.make_all(shop, RECIPES, refused := {})
    assert refused[NAME] == "no layer of it has weights that a sparse kernel takes"
    assert store.refusal(home.artifacts("own") / NAME, shop.key(NAME)) == refused[NAME]


def test_without_calibration_data_it_says_what_to_give(own, tmp_path):
    model, home = load_model(str(own / "own.onnx")), Home(tmp_path)
    with Workshop(model, standard_artifact(model, home), home, None, Options(prune=True), None) as shop:
        further.make_all(shop, RECIPES, refused := {})
    assert "give --calibration FILE.npz" in refused[NAME]


def test_a_maker_may_refuse_and_others_still_come(own, tmp_path):
    def refuse(shop, key):
        raise Refusal("not today")

    broken = further.Recipe("never", refuse, lambda shop: "k", lambda shop: None)
    absent = further.Recipe("absent", refuse, lambda shop: "k", lambda shop: "its tool is not here")
    with workshop(own, Home(tmp_path)) as shop:
        found, _ = further.make_all(shop, (broken, absent, *RECIPES), refused := {})
    assert refused == {"never": "not today", "absent": "its tool is not here"}
    assert [artifact.record.name for artifact in found] == [NAME]
