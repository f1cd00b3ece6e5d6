"""Embedding tables as INT8: the same rows within half a step, a quarter of the bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.tables import LEAST_VALUES, quantize_tables
from edgekit.runtimes.session import SessionSettings, open_session

ROWS, COLUMNS = 1024, 64


def lookup(table, *, axis=0, further=(), opset=17):
    """indices (1, 5) -> rows of `table`."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"], axis=axis), *further],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, COLUMNS])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model, path, runtime):
    onnx.save(model, str(path))
    session = open_session(path, SessionSettings(runtime=runtime))
    try:
        return session.run({"ids": np.array([[0, 1, 7, 500, ROWS - 1]])})["y"]
    finally:
        session.close()


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(ROWS, COLUMNS)) * np.linspace(0.01, 10, COLUMNS)
    columns[:, 3] = 0
    return columns.astype(np.float32)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_rows_come_back_within_half_a_step_of_their_columns_own_scale(table, tmp_path, runtime):
    model = lookup(table)
    before, size = run(model, tmp_path / "a.onnx", runtime), model.ByteSize()
    assert quantize_tables(model) == 1
    onnx.checker.check_model(model)
    after = run(model, tmp_path / "b.onnx", runtime)
    step = np.abs(table).max(axis=0) / 127
    assert np.all(np.abs(after - before) <= 0.5 * step + 1e-6)
    assert model.ByteSize() < 0.3 * size


@pytest.mark.parametrize(
    "model",
    [
        lookup(np.ones((8, 8), np.float32)),
        lookup(np.ones((ROWS, COLUMNS), np.float32), axis=1),
        lookup(np.ones((ROWS, COLUMNS), np.float16)),
        lookup(np.ones((ROWS, COLUMNS), np.float32), opset=11),
        lookup(np.ones((ROWS, COLUMNS), np.float32), further=[helper.make_node("Neg", ["table"], ["z"])]),
    ],
    ids=["small", "columns", "half", "old", "read elsewhere"],
)
def test_what_is_no_large_float_table_of_rows_stays(model):
    before = model.SerializeToString()
    assert ROWS * COLUMNS >= LEAST_VALUES
    assert quantize_tables(model) == 0
    assert model.SerializeToString() == before
