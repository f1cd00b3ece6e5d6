"""The rewrites of the float graph are exact, and stay away where they would not be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.edit import Graph, names_read, rename_reads, topological
from edgekit.build.rewrite import rewrite, shifts_as_depthwise

RNG = np.random.default_rng(7)


def make(nodes, constants, *, channels=4, side=6, outputs=("y",)):
    """A float model over x (1, channels, side, side)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, side, side])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, x):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def kinds(model):
    return Counter(node.op_type for node in model.graph.node)


def weights(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def rewritten(model, *, side=6, channels=4, tolerance=1e-4):
    """(kinds, done) after rewriting, once it is proven that the outputs are the same."""
    x = RNG.normal(size=(1, channels, side, side)).astype(np.float32) * 3
    before = run(model, x)
    done = rewrite(model)
    shifts_as_depthwise(model)
    for left, right in zip(before, run(model, x), strict=True):
        np.testing.assert_allclose(left, right, atol=tolerance)
    return kinds(model), done


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)


SPELLED_OUT = [
    node("Add", ["c", "three"], "a"),
    node("Clip", ["a", "zero", "six"], "k"),
    node("Mul", ["c", "k"], "m"),
    node("Div", ["m", "six"], "y"),
]
CONSTANTS = {"three": 3.0, "zero": 0.0, "six": 6.0}


def test_a_spelled_out_hard_swish_becomes_a_gate_and_a_product():
    conv = node("Conv", ["x", "w"], "c")
    found, done = rewritten(make([conv, *SPELLED_OUT], {**CONSTANTS, "w": weights(4, 4, 1, 1)}))
    assert found == {"Conv": 1, "HardSigmoid": 1, "Mul": 1}
    assert done == {"hard-swish": 1}


def test_a_division_before_the_product_is_the_same_hard_swish():
    nodes = [
        node("Add", ["three", "x"], "a"),
        node("Clip", ["a", "zero", "six"], "k"),
        node("Div", ["k", "six"], "d"),
        node("Mul", ["d", "x"], "y"),
    ]
    found, done = rewritten(make(nodes, CONSTANTS))
    assert found == {"HardSigmoid": 1, "Mul": 1}
    assert done == {"hard-swish": 1}


def test_a_hard_sigmoid_alone_is_not_called_a_hard_swish():
    nodes = [node("Add", ["x", "three"], "a"), node("Clip", ["a", "zero", "six"], "k"), node("Div", ["k", "six"], "y")]
    found, done = rewritten(make(nodes, CONSTANTS))
    assert found == {"HardSigmoid": 1}
    assert done == {"hard-sigmoid": 1}


@pytest.mark.parametrize(("three", "six", "divisor"), [(2.0, 6.0, 6.0), (3.0, 5.0, 6.0), (3.0, 6.0, 5.0)])
def test_other_numbers_are_not_a_hard_swish(three, six, divisor):
    nodes = [*SPELLED_OUT[:3], node("Div", ["m", "divisor"], "y")]
    nodes[0].input[0] = nodes[2].input[0] = "x"
    found, _ = rewritten(make(nodes, {"three": three, "zero": 0.0, "six": six, "divisor": divisor}))
    assert "HardSigmoid" not in found


def test_a_hard_swish_whose_inside_is_also_an_output_is_left_alone():
    model = make([node("Relu", ["x"], "c"), *SPELLED_OUT], CONSTANTS, outputs=("y", "k"))
    found, _ = rewritten(model)
    assert "HardSigmoid" not in found


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["Mul", "Add", "Sub", "Div"]), min_size=1, max_size=4),
    per_channel=st.booleans(),
    padded=st.booleans(),
    group=st.sampled_from([1, 2, 4]),
    before=st.booleans(),
)
def test_scales_and_shifts_fold_into_convolutions_without_changing_the_output(
    steps, per_channel, padded, group, before
):
    shape = (1, 4, 1, 1) if per_channel else (1,)
    constants = {f"k{i}": RNG.uniform(0.5, 2, shape) * RNG.choice([-1, 1]) for i in range(len(steps))}
    constants |= {"w": weights(4, 4 // group, 3, 3), "b": weights(4)}
    pads = [1, 1, 1, 1] if padded else [0, 0, 0, 0]
    nodes, name = [], "x"
    chain = [("Conv", "c")] if not before else []
    chain += [(kind, f"t{i}") for i, kind in enumerate(steps)]
    chain += [("Conv", "c")] if before else []
    for i, (kind, output) in enumerate(chain):
        output = "y" if i == len(chain) - 1 else output
        if kind == "Conv":
            nodes.append(node("Conv", [name, "w", "b"], output, pads=pads, group=group))
        else:
            nodes.append(node(kind, [name, f"k{[o for k, o in chain if k != 'Conv'].index(chain[i][1])}"], output))
        name = output
    found, _ = rewritten(make(nodes, constants), tolerance=2e-3)
    if not before:
        assert found == {"Conv": 1}


def test_a_shift_before_a_padded_convolution_stays_but_its_scale_goes():
    nodes = [
        node("Relu", ["x"], "r"),
        node("Mul", ["r", "s"], "m"),
        node("Add", ["m", "d"], "a"),
        node("Conv", ["a", "w"], "y", pads=[1, 1, 1, 1]),
    ]
    model = make(nodes, {"s": [2.0], "d": [0.5], "w": weights(3, 4, 3, 3)})
    done = rewrite(model)
    assert kinds(model) == {"Relu": 1, "Add": 1, "Conv": 1}
    assert done == {"scale or shift into next convolution": 2}
    assert shifts_as_depthwise(model) == 1
    assert kinds(model) == {"Relu": 1, "Conv": 2}


def test_weights_shared_by_two_convolutions_are_not_changed_under_the_other():
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("Mul", ["c", "s"], "y"),
        node("Conv", ["x", "w"], "z"),
    ]
    found, _ = rewritten(make(nodes, {"s": [3.0], "w": weights(4, 4, 1, 1)}, outputs=("y", "z")))
    assert found == {"Conv": 2}


def test_a_convolution_read_twice_keeps_its_scale_outside():
    nodes = [node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "y"), node("Relu", ["c"], "z")]
    found, _ = rewritten(make(nodes, {"s": [3.0], "w": weights(4, 4, 1, 1)}, outputs=("y", "z")))
    assert found["Mul"] == 1


def test_a_batch_normalisation_folds_into_a_transposed_convolution():
    names = ("gamma", "beta", "mean")
    constants = {name: weights(5) for name in names} | {"var": RNG.uniform(0.5, 2, 5), "w": weights(4, 5, 3, 3)}
    nodes = [node("ConvTranspose", ["x", "w"], "c"), node("BatchNormalization", ["c", *names, "var"], "y")]
    found, _ = rewritten(make(nodes, constants))
    assert found == {"ConvTranspose": 1}


def test_a_gated_residual_multiplies_once():
    nodes = [
        node("GlobalAveragePool", ["x"], "p"),
        node("Sigmoid", ["p"], "g"),
        node("Mul", ["x", "g"], "m"),
        node("Add", ["x", "m"], "y"),
    ]
    model = make(nodes, {})
    found, done = rewritten(model)
    assert done == {"gate": 1}
    large = [n.op_type for n in model.graph.node if "x" in n.input]
    assert sorted(large) == ["GlobalAveragePool", "Mul"]
    assert found["Add"] == 1


def test_a_residual_over_a_full_size_product_is_left_alone():
    nodes = [node("Sigmoid", ["x"], "g"), node("Mul", ["x", "g"], "m"), node("Add", ["x", "m"], "y")]
    _, done = rewritten(make(nodes, {}))
    assert done == {}


@pytest.mark.parametrize("relu", [True, False])
def test_upsampling_convolutions_become_pointwise_and_the_last_one_works_on_the_small_picture(relu):
    nodes = [
        node("ConvTranspose", ["x", "w1", "b1"], "c", strides=[2, 2]),
        *([node("Relu", ["c"], "r")] if relu else []),
        node("ConvTranspose", ["r" if relu else "c", "w2"], "y", strides=[2, 2]),
    ]
    model = make(nodes, {"w1": weights(4, 16, 2, 2), "b1": weights(16), "w2": weights(16, 1, 2, 2)})
    found, done = rewritten(model)
    assert found == {"Conv": 2, "DepthToSpace": 2} | ({"Relu": 1} if relu else {})
    assert done["pointwise before depth-to-space"] == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [1, 1]},
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "output_padding": [1, 1]},
        {"strides": [2, 2], "group": 2},
    ],
)
def test_transposed_convolutions_that_overlap_or_pad_are_left_alone(attributes):
    grouped = attributes.get("group", 1)
    model = make([node("ConvTranspose", ["x", "w"], "y", **attributes)], {"w": weights(4, 4 // grouped, 2, 2)})
    found, done = rewritten(model)
    assert found == {"ConvTranspose": 1}
    assert done == {}


def test_topological_order_is_restored_and_a_cycle_is_an_error():
    first, second = node("Relu", ["x"], "a"), node("Relu", ["a"], "b")
    assert [n.output[0] for n in topological([second, first], {"x"})] == ["a", "b"]
    loop = node("Add", ["x", "c"], "c")
    with pytest.raises(ValueError, match="cycle at 'c'"):
        list(topological([loop], {"x"}))


def branch(name):
    return helper.make_graph(
        [node("Relu", ["t"], "inner")], name, [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    )


def test_what_a_subgraph_captures_counts_as_read_and_is_renamed():
    choice = helper.make_node("If", ["flag"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    assert "t" in names_read(choice)
    graph = Graph(make([node("Relu", ["x"], "t"), choice], {}))
    assert graph.captured() == {"t", "inner"}
    rename_reads(choice, {"t": "other"})
    assert "other" in names_read(choice)
    assert "t" not in names_read(choice)
