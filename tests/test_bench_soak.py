"""What is left after a while, against batch size, and beside other models."""

from __future__ import annotations

import json

import pytest

from edgekit.bench.soak import Window, summarise
from edgekit.cli.main import main

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
FLAGS = ["--runtime", "onnxruntime", "--threads", "1"]


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))


def _windows(temperatures, throttled=False):
    return [Window(at_s=i, query_count=1, p50_ms=1, temperature_c=t, throttled=throttled) for i, t in enumerate(temperatures)]  # fmt: skip  # noqa: E501


def test_a_chip_that_gets_slow_when_warm_is_named_with_its_heat():
    rounds = [[196.0] * 400] * 3 + [[400.0] * 400] * 7
    found = summarise("c", _windows([45.0] * 3 + [85.0] * 7, throttled=True), rounds)
    assert found.first_p50_ms == 196
    assert found.sustained_p50_ms == 400
    assert found.sustained_p99_ms == 400
    assert found.finding == "104% slower once warm, 45 to 85 °C, throttled"


def test_a_steady_chip_without_a_sensor_and_with_few_samples_claims_no_p99():
    found = summarise("c", _windows([None] * 10), [[10.0] * 20] * 10)
    assert found.sustained_p99_ms is None
    assert found.finding == "as fast at the end as at the start"


def test_soak_as_typed(capsys):
    assert main(["bench", "digits", "--artifact", "standard", *FLAGS, "--soak", "0.01", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["windows"]) == 6
    assert result["sustained_p50_ms"] > 0
    assert main(["bench", "digits", "--artifact", "standard", *FLAGS, "--soak", "0.01"]) == 0
    assert "sustained (second half): p50" in capsys.readouterr().out


def test_latency_against_batch_as_typed(tmp_path, capsys):
    make = onnx.helper
    x, y = (make.make_tensor_value_info(name, 1, ("batch", 16)) for name in ("x", "y"))
    graph = make.make_graph([make.make_node("Sigmoid", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "mine.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    assert main(["bench", str(path), *FLAGS, "--batch", "1", "64", "--seconds", "0.1", "--json"]) == 0
    one, many = json.loads(capsys.readouterr().out)
    assert (one["settings"]["batch"], one["settings"]["axes"]) == (1, {"x[0]": 1})
    assert (many["settings"]["batch"], many["settings"]["axes"]) == (64, {"x[0]": 64})
    assert one["usage"]["cpu_ms"] > 0
    assert main(["bench", str(path), *FLAGS, "--batch", "1", "--seconds", "0.1"]) == 0
    assert "ms an item" in capsys.readouterr().out


def test_models_of_a_mix_are_measured_alone_and_together(capsys):
    twin = ["bench", "digits", "--artifact", "standard", *FLAGS]
    assert main([*twin, "--mix", "digits", "--seconds", "0.1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == ["digits"]
    assert rows[0]["alone_p50_ms"] > 0
    assert rows[0]["slowdown"] > 0
