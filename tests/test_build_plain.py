"""INT8 for OpenVINO: integers around what multiplies, judged in OpenVINO, offered to no other runtime."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.bench.candidates import candidates
from edgekit.build import Options, plain, report
from edgekit.build.calibrate import Calibration
from edgekit.build.edit import Graph
from edgekit.build.recipes import OPENVINO
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import all_artifacts, standard_artifact
from edgekit.runtimes.ahead import why_not_here
from edgekit.runtimes.session import SessionSettings, open_session
from tests.exact import WEIGHT_BITS

RNG = np.random.default_rng(7)


def network():
    """A convolution, a spelled-out hard-swish, and a product with weights; both inputs of the last are computed."""
    weights = {
        "w": RNG.normal(size=(8, 3, 3, 3)) / 5,
        "v": RNG.normal(size=(8, 8, 1, 1)) / 3,
        "three": np.array(3.0),
        "low": np.array(0.0),
        "six": np.array(6.0),
    }
    steps = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["a", "three"], ["b"]),
        helper.make_node("Clip", ["b", "low", "six"], ["c"]),
        helper.make_node("Mul", ["a", "c"], ["d"]),
        helper.make_node("Div", ["d", "six"], ["e"]),
        helper.make_node("Conv", ["e", "v"], ["f"]),
        helper.make_node("MatMul", ["f", "e"], ["y"]),
    ]
    graph = helper.make_graph(
        steps,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 6, 6])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(model, feeds):
    names = plain.multiplied(Graph(model))
    ranges = Calibration(model, plain.inputs_of(Graph(model), names), feeds).ranges()
    made = onnx.ModelProto.FromString(model.SerializeToString())
    plain.quantize_plainly(Graph(made), names, ranges, weight_bits=WEIGHT_BITS)
    onnx.checker.check_model(made)
    return made


def test_only_products_with_constant_weights_become_integers():
    assert plain.multiplied(Graph(network())) == ["a", "f"]


def test_what_lies_between_stays_as_it_was():
    made = quantized(network(), [{"x": RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)}])
    graph = Graph(made)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("QuantizeLinear") == 2
    assert kinds.count("DequantizeLinear") == 4
    assert list(graph.producer["e"].input) == ["d", "six"]
    assert list(graph.producer["y"].input) == ["f", "e"]
    assert {array.dtype for array in map(numpy_helper.to_array, made.graph.initializer)} >= {np.dtype(np.int8)}


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_it_computes_nearly_the_same_in_both_runtimes(tmp_path, runtime):
    model, feed = network(), {"x": RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)}
    answers = []
    for name, made in (("float", model), ("int8", quantized(model, [feed]))):
        onnx.save(made, str(tmp_path / f"{name}.onnx"))
        session = open_session(tmp_path / f"{name}.onnx", SessionSettings(runtime=runtime))
        answers.append(session.run(feed)["y"].ravel())
        session.close()
    noise = np.linalg.norm(answers[1] - answers[0]) / np.linalg.norm(answers[0])
    assert 0 < noise < 0.05


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(home, artifact) of the digits, kept although so small a model is faster in onnxruntime."""
    home, model = Home(tmp_path_factory.mktemp("home")), load_model("digits")
    with Workshop(model, standard_artifact(model, home), home, None, Options(), None) as shop:
        return home, shop.finish(OPENVINO, "int8", plain.for_openvino(shop, must_pay=False), shop.key(OPENVINO))


def test_the_artifact_is_for_openvino_and_judged_there(built):
    record = built[1].record
    assert record.bound_to == {"runtime": "openvino"}
    assert why_not_here(record.bound_to) is None
    assert record.accuracy is not None
    assert record.accuracy.runtime == "openvino"
    assert record.fit
    assert record.size_bytes < 0.6 * load_model("digits").source.size_bytes


def test_no_other_runtime_is_offered_it(built):
    home, _ = built
    model = load_model("digits")
    found = candidates(model, all_artifacts(model, home), cores=1, runtimes=["onnxruntime", "openvino"])
    assert {c.settings.runtime for c in found if c.artifact.record.name == OPENVINO} == {"openvino"}
    assert all(not c.settings.session_options for c in found if c.artifact.record.name == OPENVINO)


def test_without_calibration_data_it_says_what_to_give(tmp_path):
    model = load_model("digits")
    bare = msgspec.structs.replace(model, data=msgspec.structs.replace(model.data, calibration=None))
    made = report(bare, home=Home(tmp_path))
    assert "no calibration data: give --calibration FILE.npz" in made.refused[OPENVINO]
