"""LSTMs in INT8 on top of the static artifact: smaller, the same within a few percent, for onnxruntime only."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import sha256_of
from edgekit.build import ort, recurrent, store
from edgekit.build.edit import Graph
from edgekit.build.quantize import dynamic_int8
from edgekit.build.recipes import STATIC
from edgekit.build.samples import Options
from edgekit.build.workshop import Refusal, Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import standard_artifact
from tests.exact import exact

RNG = np.random.default_rng(5)
INPUTS, HIDDEN, STEPS = 40, 128, 6


def network(*, hidden=HIDDEN, constant=True):
    """A product, an LSTM over six steps, and its last state."""
    weights = {
        "m": RNG.normal(size=(20, INPUTS)) / 4,
        "w": RNG.normal(size=(1, 4 * hidden, INPUTS)) / 6,
        "r": RNG.normal(size=(1, 4 * hidden, hidden)) / 12,
    }
    inputs = {"x": [STEPS, 1, 20]}
    if not constant:
        inputs["r"] = list(weights.pop("r").shape)
    nodes = [
        helper.make_node("MatMul", ["x", "m"], ["s"], name="s"),
        helper.make_node("LSTM", ["s", "w", "r"], ["", "y"], name="y", hidden_size=hidden),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, hidden])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "found"),
    [(network(), ["y"]), (network(hidden=32), []), (network(constant=False), [])],
    ids=["large", "small", "weights that are inputs"],
)
def test_layers_worth_it_have_large_constant_weights(model, found):
    assert recurrent.recurrent_layers(Graph(model)) == found


def test_an_lstm_in_int8_is_a_quarter_the_size_and_nearly_the_same():
    model = network()
    made = dynamic_int8(model, exact(), ops=recurrent.RECURRENT_OPS)
    assert [node.op_type for node in made.graph.node if "LSTM" in node.op_type] == ["DynamicQuantizeLSTM"]
    assert len(made.SerializeToString()) < 0.3 * len(model.SerializeToString())
    feed = {"x": RNG.normal(size=(STEPS, 1, 20)).astype(np.float32)}
    (before,), (after,) = (ort.run(ort.open_model(m.SerializeToString(), "test"), None, feed) for m in (model, made))
    assert np.abs(before - after).max() < 0.05 * np.abs(before).max()


@pytest.fixture
def open_shop(tmp_path):
    onnx.save(network(), tmp_path / "lstm.onnx")
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(8, STEPS, 1, 20)).astype(np.float32))
    found, home = load_model(str(tmp_path / "lstm.onnx")), Home(tmp_path / "home")
    options = Options(calibration=tmp_path / "x.npz", metric="agreement")
    return lambda: Workshop(found, standard_artifact(found, home), home, None, options, None)


def test_without_the_static_artifact_it_says_what_is_missing(open_shop):
    with open_shop() as shop, pytest.raises(Refusal, match=f"there is no {STATIC} to build on"):
        recurrent.on_top_of(STATIC, shop)


def test_a_model_without_lstm_is_refused(tmp_path):
    model = load_model("digits")
    home = Home(tmp_path)
    with (
        Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop,
        pytest.raises(Refusal, match="no recurrent layer"),
    ):
        recurrent.on_top_of(STATIC, shop)


def test_it_stands_on_the_static_artifact_and_is_bound_to_onnxruntime(open_shop):
    with open_shop() as shop:
        folder, key = shop.folder(STATIC), shop.key(STATIC)
        path = folder / "static.onnx"
        store.write_model(path, shop.graph)
        record = shop.standard.record
        kept = {store.KEY: key, "ranges": "minmax over 8 samples", "speed": "1.00×"}
        size = path.stat().st_size
        store.save(folder, replace(record, file=path.name, sha256=sha256_of(path), size_bytes=size, recipe=kept))
        draft = recurrent.on_top_of(STATIC, shop)
    assert draft.bound_to == {"runtime": "onnxruntime"}
    assert draft.recipe == {"ranges": "minmax over 8 samples", "recurrent layers": "dynamic INT8, 1 of them"}
    assert draft.plan["LSTM y"] == "int8: quantised at run time"
    assert "DynamicQuantizeLSTM" in [node.op_type for node in draft.model.graph.node]
