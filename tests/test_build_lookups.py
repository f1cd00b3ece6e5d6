"""Products of one-hot rows become lookups, for every index alike; moves step aside; a long GELU becomes a short one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.edit import Graph
from edgekit.build.gelu_tanh import CUBIC, ROOT, shorten_tanh_gelu
from edgekit.build.lookups import one_hot_as_lookup
from edgekit.build.moves import drop_whole_slices, scale_before_squeeze
from edgekit.build.rewrite import rewrite

RNG = np.random.default_rng(3)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)


def make(nodes, constants, shape, kind=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, x):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def kinds(model):
    return Counter(node.op_type for node in model.graph.node)


def one_hot(*, steps=None, shape=(1, 6, 1), operands=("i", "steps"), to=TensorProto.FLOAT, extra=()):
    """x (1, 6) int32, one-hot over five kinds, times a table of 5 by 3."""
    nodes = [
        node("Reshape", ["x", "shape"], "i"),
        node("Equal", list(operands), "e"),
        node("Cast", ["e"], "c", to=to),
        node("MatMul", ["c", "table"], "y" if not extra else "m"),
        *extra,
    ]
    constants = {
        "shape": np.array(shape, np.int64),
        "steps": np.arange(5, dtype=np.int32) if steps is None else steps,
        "table": RNG.normal(size=(5, 3)).astype(np.float32),
    }
    return make(nodes, constants, [1, 6], TensorProto.INT32)


@pytest.mark.parametrize("operands", [("i", "steps"), ("steps", "i")])
@pytest.mark.parametrize("values", [[0, 1, 2, 3, 4, 0], [-1, 5, -7, 1000, 2, 4]])
def test_a_one_hot_product_is_a_lookup_and_unknown_kinds_stay_zero(operands, values):
    model = one_hot(operands=operands)
    x = np.array([values], np.int32)
    before = run(model, x)
    assert one_hot_as_lookup(Graph(model))
    assert kinds(model) == {"Reshape": 1, "Squeeze": 1, "Clip": 1, "Gather": 1}
    np.testing.assert_array_equal(run(model, x), before)
    assert not one_hot_as_lookup(Graph(model))


@pytest.mark.parametrize(
    ("why", "model"),
    [
        ("steps out of order", lambda: one_hot(steps=np.array([0, 2, 1, 3, 4], np.int32))),
        ("steps that do not start at nought", lambda: one_hot(steps=np.arange(1, 6, dtype=np.int32))),
        ("another type", lambda: one_hot(to=TensorProto.DOUBLE)),
        (
            "the comparison is used elsewhere",
            lambda: one_hot(extra=[node("ReduceSum", ["c"], "s"), node("Add", ["m", "s"], "y")]),
        ),
    ],
)
def test_what_only_looks_like_one_hot_is_left(why, model):
    assert not one_hot_as_lookup(Graph(model())), why


def sliced(starts, ends, axes, steps=None):
    constants = {"s": np.array(starts, np.int64), "e": np.array(ends, np.int64), "a": np.array(axes, np.int64)}
    inputs = ["x", "s", "e", "a"]
    if steps is not None:
        constants["p"] = np.array(steps, np.int64)
        inputs.append("p")
    return make([node("Slice", inputs, "k"), node("Relu", ["k"], "y")], constants, [2, 4])


@pytest.mark.parametrize(
    ("model", "dropped"),
    [
        (sliced([0, 0], [2, 4], [0, 1]), 1),
        (sliced([0], [9], [1], [1]), 1),
        (sliced([0], [3], [1]), 0),
        (sliced([-1], [-9], [1], [-1]), 0),
    ],
    ids=["all of both axes", "past the end", "a part", "backwards"],
)
def test_a_slice_of_everything_is_dropped_and_no_other(model, dropped):
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    before = run(model, x)
    assert drop_whole_slices(Graph(model)) == dropped
    np.testing.assert_array_equal(run(model, x), before)


def squeezed(kind, value, *, first=False):
    """Convolution over (1, 3, 8, 1), the last axis squeezed away, then a constant for each of four channels."""
    operands = ["c", "q"] if first else ["q", "c"]
    nodes = [
        node("Conv", ["x", "w"], "v"),
        node("Squeeze", ["v", "axes"], "q"),
        node(kind, operands, "r"),
        node("Relu", ["r"], "y"),
    ]
    weight = RNG.normal(size=(4, 3, 3, 1)).astype(np.float32)
    constants = {"w": weight, "axes": np.array([3], np.int64), "c": np.asarray(value, np.float32)}
    return make(nodes, constants, [1, 3, 8, 1])


@pytest.mark.parametrize("kind", ["Add", "Mul"])
@pytest.mark.parametrize(
    "value", [RNG.normal(size=(1, 4, 1)), RNG.normal(size=(4, 1)), 0.5], ids=["1,4,1", "4,1", "()"]
)
def test_a_scale_behind_a_squeeze_goes_into_the_convolution(kind, value):
    model = squeezed(kind, value)
    x = RNG.normal(size=(1, 3, 8, 1)).astype(np.float32)
    before = run(model, x)
    done = rewrite(model)
    assert done == {"scale or shift before squeeze": 1, "scale or shift into convolution": 1}
    assert kinds(model) == {"Conv": 1, "Squeeze": 1, "Relu": 1}
    np.testing.assert_allclose(run(model, x), before, atol=1e-5)


def test_a_constant_minus_the_channels_keeps_its_order():
    model = squeezed("Sub", RNG.normal(size=(1, 4, 1)), first=True)
    x = RNG.normal(size=(1, 3, 8, 1)).astype(np.float32)
    before = run(model, x)
    rewrite(model)
    np.testing.assert_allclose(run(model, x), before, atol=1e-5)


def test_a_constant_along_another_axis_stays_behind_the_squeeze():
    assert scale_before_squeeze(Graph(squeezed("Add", RNG.normal(size=(1, 1, 6))))) == 0


LONG = {
    "nested products": [
        ("Mul", ["c", "x"], "1"), ("Mul", ["x", "1"], "2"), ("Mul", ["x", "2"], "3"), ("Add", ["x", "3"], "4"),
        ("Mul", ["r", "4"], "5"), ("Tanh", ["5"], "6"), ("Add", ["one", "6"], "7"), ("Mul", ["half", "7"], "8"),
        ("Mul", ["x", "8"], "y"),
    ],
    "a power": [
        ("Pow", ["x", "three"], "1"), ("Mul", ["1", "c"], "2"), ("Add", ["2", "x"], "3"), ("Mul", ["3", "r"], "4"),
        ("Tanh", ["4"], "5"), ("Add", ["5", "one"], "6"), ("Mul", ["x", "half"], "7"), ("Mul", ["7", "6"], "y"),
    ],
}  # fmt: skip
NUMBERS = {"c": CUBIC, "r": ROOT, "one": 1.0, "half": 0.5, "three": 3.0}


def gelu(nodes, **changed):
    constants = {name: np.float32(value) for name, value in {**NUMBERS, **changed}.items()}
    return make([node(*step) for step in nodes], constants, [3, 50])


@pytest.mark.parametrize("spelling", LONG)
def test_a_tanh_gelu_is_the_same_in_six_operators(spelling):
    model = gelu(LONG[spelling])
    x = np.linspace(-8, 8, 150, dtype=np.float32).reshape(3, 50)
    before = run(model, x)
    assert shorten_tanh_gelu(Graph(model)) == 1
    assert kinds(model) == {"Mul": 4, "Add": 1, "Sigmoid": 1}
    np.testing.assert_allclose(run(model, x), before, atol=2e-6)


@pytest.mark.parametrize("changed", [{"c": 0.05}, {"r": 1.0}, {"one": 2.0}, {"half": 1.0}])
@pytest.mark.parametrize("spelling", LONG)
def test_another_function_of_tanh_is_left(spelling, changed):
    assert shorten_tanh_gelu(Graph(gelu(LONG[spelling], **changed))) == 0


def test_openvino_gets_the_long_form_which_it_fuses():
    model = gelu(LONG["a power"])
    assert rewrite(model, gates=False) == {}
    assert kinds(model)["Tanh"] == 1
