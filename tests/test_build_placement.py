"""Which nodes run on integers and why the others do not, case by case."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.edit import Graph
from edgekit.build.placement import EXCLUDED, output_axis, place

F = np.float32


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


CONV = node("Conv", ["x", "w"], "c")
CONSTANTS = {
    "w": np.ones((4, 4, 1, 1), F),
    "w64": np.ones((4, 4, 1, 1), np.float64),
    "bias": np.zeros(4, F),
    "one_bias": np.zeros(1, F),
    "m": np.ones((6, 3), F),
    "stack": np.ones((2, 6, 3), F),
    "half": np.array(0.5, F),
    "low": np.array(0.0, F),
    "many": np.ones((1, 4, 1, 1), F),
    "scales": np.array([1, 1, 2, 2], F),
    "axes": np.array([2], np.int64),
    "shape": np.array([1, 4, 36], np.int64),
}


def graph(*nodes, outputs=("y",), inputs=None):
    shapes = {"x": [1, 4, 6, 6], "z": [1, 4, 6, 6], **(inputs or {})}
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()],
    )
    return Graph(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    ("computing", "why"),
    [
        (node("Conv", ["x", "w"], "y"), None),
        (node("Conv", ["x", "w", "bias"], "y"), None),
        (node("Conv", ["x", "z"], "y"), "both operands are computed"),
        (node("Conv", ["x", "w64"], "y"), "not float32"),
        (node("Conv", ["x", "w", "z"], "y"), "the bias is computed"),
        (node("Conv", ["x", "w", "one_bias"], "y"), "one bias for several channels"),
        (node("MatMul", ["x", "m"], "y"), None),
        (node("MatMul", ["x", "stack"], "y"), "batched weights"),
        (node("MatMul", ["x", "z"], "y"), "both operands are computed"),
        (node("Gemm", ["x", "m"], "y"), None),
        (node("Gemm", ["x", "m"], "y", alpha=0.5), "scaled or transposed Gemm"),
        (node("Gemm", ["x", "m"], "y", transA=1), "scaled or transposed Gemm"),
    ],
)
def test_what_multiplies_runs_on_integers_or_says_why_not(computing, why):
    plan = place(graph(computing))
    assert plan.floats.get("y") == why
    assert ("y" in plan.integer) is (why is None)


LAST = node("Conv", ["f", "w"], "y")


@pytest.mark.parametrize(
    ("follower", "role"),
    [
        (node("MaxPool", ["c"], "f", kernel_shape=[2, 2]), "integer"),
        (node("Relu", ["c"], "f"), "absorbed"),
        (node("Clip", ["c", "low", "half"], "f"), "absorbed"),
        (node("HardSigmoid", ["c"], "f"), "gates"),
        (node("Add", ["c", "half"], "f"), "shifts"),
        (node("Sub", ["c", "half"], "f"), "shifts"),
        (node("Mul", ["c", "half"], "f"), "integer"),
        (node("Sigmoid", ["c"], "f"), "integer"),
        (node("Concat", ["c", "c"], "f", axis=2), "integer"),
        (node("Resize", ["c", "", "scales"], "f", mode="nearest"), "integer"),
    ],
)
def test_what_lies_between_two_that_multiply_has_its_role(follower, role):
    plan = place(graph(CONV, follower, LAST))
    assert "f" in getattr(plan, role)
    assert {"c", "y"} <= plan.integer


@pytest.mark.parametrize(
    ("follower", "why"),
    [
        (node("Tanh", ["c"], "f"), "no integer kernel"),
        (node("Mul", ["c", "many"], "f"), "no integer kernel"),
        (node("Resize", ["c", "", "scales"], "f", mode="linear"), "no integer kernel"),
        (node("Add", ["c", "x"], "f"), "reads float"),
        (node("Concat", ["c", "many"], "f", axis=0), "no integer kernel"),
    ],
)
def test_what_has_no_integer_form_says_so(follower, why):
    assert place(graph(CONV, follower, LAST)).floats["f"] == why


def test_what_only_float_reads_goes_back_to_float_in_a_row():
    chain = [
        CONV,
        node("MaxPool", ["c"], "p", kernel_shape=[2, 2]),
        node("Sigmoid", ["p"], "s"),
        node("Tanh", ["s"], "y"),
    ]
    plan = place(graph(*chain))
    assert plan.integer == {"c"}
    assert plan.floats == {"y": "no integer kernel", "s": "read by float only", "p": "read by float only"}


def test_what_is_skipped_and_all_that_follows_it_is_float():
    plan = place(graph(CONV, node("Relu", ["c"], "f"), LAST), skip={"c"})
    assert plan.floats == {"c": EXCLUDED, "f": "reads float"}
    assert plan.integer == {"y"}


def test_a_relu_of_something_read_elsewhere_is_not_absorbed():
    plan = place(graph(CONV, node("Relu", ["c"], "f"), LAST, node("Conv", ["c", "w"], "z2"), outputs=("y", "z2")))
    assert "f" not in plan.absorbed


def test_a_clip_with_computed_bounds_is_not_absorbed():
    nodes = [CONV, node("ReduceMin", ["x"], "l"), node("Clip", ["c", "l"], "f"), LAST]
    assert "f" in place(graph(*nodes)).floats


def test_what_an_if_reads_is_float():
    branch = helper.make_graph(
        [node("Relu", ["c"], "r")], "b", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
    )
    nodes = [CONV, helper.make_node("If", ["cond"], ["y"], then_branch=branch, else_branch=branch)]
    found = place(graph(*nodes, inputs={"cond": []}))
    assert found.floats["c"] == "read inside If or Loop"


@pytest.mark.parametrize(
    ("made", "axis"),
    [
        (node("Conv", ["x", "w"], "y"), 0),
        (node("Gemm", ["x", "m"], "y"), 1),
        (node("Gemm", ["x", "m"], "y", transB=1), 0),
        (node("MatMul", ["x", "m"], "y"), 1),
    ],
)
def test_output_channels_lie_along(made, axis):
    assert output_axis(made) == axis
