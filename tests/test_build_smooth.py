"""Smoothing: the same in float, folded where it can be, and better in INT8 where channels stick out."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import Accuracy
from edgekit.build import Options, further, smooth
from edgekit.build.edit import Graph
from edgekit.build.quantize import StaticInt8
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import standard_artifact
from tests.exact import exact

RNG = np.random.default_rng(31)
TOKENS, WIDTH = 6, 16


def block(*, residual=False):
    """Layer norm with outlying channels, two products, an activation, and a product that nothing can be folded into."""
    gamma = np.ones(WIDTH)
    gamma[[2, 9]] = 60
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "q"], ["nq"]),
        helper.make_node("MatMul", ["n", "k"], ["nk"]),
        helper.make_node("Add", ["nq", "nk"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "o"], ["out"]),
        helper.make_node("Add", ["out", "n" if residual else "bias"], ["y"]),
    ]
    shrunk = RNG.normal(size=(WIDTH, WIDTH)) / 4
    shrunk[[2, 9]] /= 60
    constants = {
        "gamma": gamma,
        "beta": RNG.normal(size=WIDTH),
        "q": shrunk,
        "k": shrunk[:, ::-1],
        "o": RNG.normal(size=(WIDTH, WIDTH)) / 4,
        "bias": np.zeros(WIDTH),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, TOKENS, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(count=12):
    return [{"x": RNG.normal(size=(1, TOKENS, WIDTH)).astype(np.float32)} for _ in range(count)]


def run(model, feed):
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]


def noise(model, other, data):
    pairs = [(run(model, feed), run(other, feed)) for feed in data]
    return sum(float(((a - b) ** 2).sum()) for a, b in pairs) / sum(float((a**2).sum()) for a, _ in pairs)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_it_computes_the_same_in_float(residual, strength):
    model, data = block(residual=residual), feeds()
    made, count = smooth.smoothed(model, data, strength)
    assert count == 2
    assert noise(model, made, data) < 1e-10


@pytest.mark.parametrize(
    ("residual", "divisions"),
    [(False, ["r"]), (True, ["n", "r"])],  # a residual sum must go on reading the layer norm as it was
)
def test_the_division_goes_into_the_norm_where_nothing_else_reads_it(residual, divisions):
    made, _ = smooth.smoothed(block(residual=residual), feeds())
    assert sorted(node.input[0] for node in made.graph.node if node.op_type == "Mul") == divisions


def test_outlying_channels_no_longer_spoil_the_grid():
    model, data = block(), feeds()
    made, _ = smooth.smoothed(model, data)
    plain = StaticInt8(model, data, exact()).make()
    better = StaticInt8(made, data, exact()).make()
    assert noise(model, better, data) < 0.2 * noise(model, plain, data)


def test_the_model_that_was_given_stays_as_it_is():
    model = block()
    before = model.SerializeToString()
    smooth.smoothed(model, feeds(2))
    assert model.SerializeToString() == before


def test_channels_that_are_always_zero_are_left_alone():
    factors = smooth._factors(np.array([0.0, 4.0, 9.0]), np.array([1.0, 0.0, 4.0]), 0.5)
    assert factors.tolist() == [1.0, 1.0, 1.5]


def test_products_of_the_models_own_input_are_left_alone():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    assert smooth._groups(Graph(helper.make_model(graph))) == {}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    onnx.save(block(), str(folder / "block.onnx"))
    np.savez(folder / "samples.npz", x=np.concatenate([feed["x"] for feed in feeds(20)]))
    return folder


def workshop(own, home):
    model = load_model(str(own / "block.onnx"))
    options = Options(calibration=own / "samples.npz", search_s=0.0)
    return Workshop(model, standard_artifact(model, home), home, None, options, None)


def test_as_an_artifact_it_says_how_much_was_smoothed(own, tmp_path):
    with workshop(own, Home(tmp_path)) as shop:
        (artifact,), _ = further.make_all(shop, (smooth.recipe(),), refused := {})
    assert refused == {}
    assert artifact.record.name == smooth.NAME
    assert artifact.record.recipe["smoothed"].endswith("of products, strength 0.5")
    assert artifact.record.accuracy is not None
    assert artifact.record.precision == "int8"


@pytest.mark.parametrize(("plain", "helps"), [(1.0, False), (-1.0, True)])
def test_it_is_offered_only_where_it_helps(own, tmp_path, monkeypatch, plain, helps):
    class Record:
        fit = True
        accuracy = Accuracy(metric="agreement", value=plain, sample_count=1, runtime="onnxruntime", isa="here")

    class Static:
        record = Record

    with workshop(own, Home(tmp_path)) as shop:
        static = shop.folder(smooth.STATIC)
        find = smooth.store.find
        monkeypatch.setattr(smooth.store, "find", lambda folder, key: Static if folder == static else find(folder, key))
        found, _ = further.make_all(shop, (smooth.recipe(),), refused := {})
    assert bool(found) == helps
    assert helps or refused[smooth.NAME].startswith("does not help: flash-int8-static has 1.0000 agreement, smoothed")


def test_convolutional_models_are_not_even_tried(tmp_path):
    home, model = Home(tmp_path), load_model("digits")
    with Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop:
        further.make_all(shop, (smooth.recipe(),), refused := {})
    assert refused == {smooth.NAME: "smoothing is for transformers; it has no layer norms"}
