"""GELU in any of its spellings becomes the one that onnxruntime fuses, and computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build import ort
from edgekit.build.edit import Graph
from edgekit.build.gelu import restore_gelu

ROOT = 2**0.5


def model(*steps, **constants):
    """Nodes as (kind, inputs, output); x (2, 8) -> y."""
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output]) for kind, inputs, output in steps],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def half_first(**changed):
    return model(
        ("Mul", ["x", "half"], "h"),
        ("Mul", ["x", "k"], "s"),
        ("Erf", ["s"], "e"),
        ("Add", ["e", "one"], "a"),
        ("Mul", ["h", "a"], "y"),
        **{"half": 0.5, "k": 1 / ROOT, "one": 1.0, **changed},
    )


def half_last(kind="Mul", k=1 / ROOT):
    return model(
        (kind, ["x", "k"], "s"),
        ("Erf", ["s"], "e"),
        ("Add", ["one", "e"], "a"),
        ("Mul", ["x", "a"], "p"),
        ("Mul", ["p", "half"], "y"),
        half=[0.5],
        k=k,
        one=1.0,
    )


def answers(made):
    feed = {"x": np.linspace(-4, 4, 16, dtype=np.float32).reshape(2, 8)}
    return ort.run(ort.open_model(made.SerializeToString(), "test"), None, feed)[0]


@pytest.mark.parametrize("before", [half_first(), half_last()], ids=["half first", "root as a factor"])
def test_other_spellings_become_the_one_that_is_fused(before):
    after = onnx.ModelProto.FromString(before.SerializeToString())
    assert restore_gelu(Graph(after)) == 1
    np.testing.assert_allclose(answers(after), answers(before), atol=1e-6)
    assert [n.op_type for n in ort.optimized(after, "test", "ORT_ENABLE_ALL").graph.node] == ["Gelu"]


@pytest.mark.parametrize(
    "before",
    [half_last("Div", ROOT), half_first(half=0.4), half_first(k=0.5), half_first(one=2.0)],
    ids=["as it should be", "other factor", "other width", "other shift"],
)
def test_what_is_well_spelled_or_another_function_stays(before):
    after = onnx.ModelProto.FromString(before.SerializeToString())
    assert restore_gelu(Graph(after)) == 0
    assert after.SerializeToString() == before.SerializeToString()
