"""Where the time goes: profiles and counters become the sentences that an engineer would say."""

from __future__ import annotations

import json
import struct

import pytest

from edgekit.bench import protocol as say
from edgekit.bench.counters import Counters, Counts, between
from edgekit.bench.why import NO_COUNTERS, against, explain
from edgekit.cli.main import main
from edgekit.errors import ArtifactError, RuntimeUnavailable
from edgekit.runtimes.profile import Operator, Profile, from_litert, from_onnx, from_openvino


def _op(kind: str, time_ms: float, *, is_float: bool = True, count: int = 1) -> Operator:
    return Operator(kind=kind, is_float=is_float, count=count, time_ms=time_ms)


def _why(*operators: Operator, precision: str = "int8", counts: Counts | None = None, faults: int = 0):
    ordered = tuple(sorted(operators, key=lambda o: -o.time_ms))
    told = say.Explained(
        profile=Profile(runtime="onnxruntime", operators=ordered),
        times_ms=(10.0,) * 10,
        usage=(0.1, faults * 10, 0),
        counts=counts,
    )
    return explain("c", precision, told)


def test_elementwise_operators_left_in_float_around_a_spelt_out_hard_swish():
    ops = [_op("QLinearConv", 6.2, is_float=False), _op("Add", 1), _op("Clip", 0.8), _op("Mul", 1), _op("Div", 1)]
    sentences = _why(*ops).sentences
    assert "62% of the time is QLinearConv in integers (1 of them, 6.20 ms)" in sentences
    assert any(s.startswith("38% of Flash's time is element-wise operators that stayed in float around hard-swish") for s in sentences)  # fmt: skip  # noqa: E501


def test_the_standard_in_float_is_not_blamed_for_being_float():
    sentences = _why(_op("Conv", 8), _op("Add", 2), precision="float32").sentences
    assert not any("stayed in float" in s for s in sentences)
    assert any("which fusing would save" in s for s in sentences)


def test_converting_and_layout_are_shares_that_compute_nothing():
    found = _why(_op("Conv", 7), _op("QuantizeLinear", 1), _op("DequantizeLinear", 1), _op("Transpose", 1))
    assert found.converting_share == pytest.approx(0.2)
    assert found.layout_share == pytest.approx(0.1)
    assert "20% is quantising, dequantising and casting: work that computes nothing" in found.sentences
    assert "10% is reordering and changing layout: work that computes nothing" in found.sentences


def test_dynamic_quantisation_is_named():
    sentences = _why(_op("ConvInteger", 9, is_float=False), _op("DynamicQuantizeLinear", 1)).sentences
    assert any(s.startswith("100% is dynamically quantised (ConvInteger, DynamicQuantizeLinear)") for s in sentences)


def test_page_faults_of_each_query_are_said_only_when_they_are_many():
    assert any("300 page faults a query" in s for s in _why(_op("Conv", 1), faults=300).sentences)
    assert not any("page faults" in s for s in _why(_op("Conv", 1), faults=3).sentences)


def _counter(count: int, enabled: int = 100, running: int = 100) -> bytes:
    return struct.pack("=QQQ", count, enabled, running)


def test_counters_in_the_kernels_layout_become_ratios_and_sentences():
    """In the kernel's layout (value, time enabled, time running); the branch ones had the hardware for a quarter."""
    before = {name: _counter(0, 0, 0) for name in ("cycles", "instructions", "branches", "branch_misses", "cache_references", "cache_misses")}  # fmt: skip  # noqa: E501
    after = {
        "cycles": _counter(4_000_000),
        "instructions": _counter(3_000_000),
        "branches": _counter(100_000, 100, 25),
        "branch_misses": _counter(5_000, 100, 25),
        "cache_references": _counter(80_000),
        "cache_misses": _counter(20_000),
    }
    counts = between(before, after)
    assert counts.branches == 400_000
    assert counts.instructions_per_cycle == 0.75
    assert counts.branch_miss_ratio == pytest.approx(0.05)
    assert counts.cache_miss_ratio == pytest.approx(0.25)
    sentences = _why(_op("Conv", 1), counts=counts).sentences
    assert "0.8 instructions a cycle: the CPU mostly waits for memory" in sentences
    assert "5.0% of the branches are mispredicted" in sentences
    assert "25% of the last-level cache accesses go to memory" in sentences


def test_a_counter_that_never_ran_tells_nothing():
    counts = between({"cycles": _counter(0, 0, 0)}, {"cycles": _counter(0, 100, 0)})
    assert counts == Counts()
    assert counts.instructions_per_cycle is None


def test_where_the_kernel_grants_no_counters_it_is_said():
    assert NO_COUNTERS in _why(_op("Conv", 1)).sentences


def test_asking_for_counters_never_fails():
    with Counters() as counters:
        first, second = counters.read(), counters.read()
    assert counters.granted is False  # closed
    assert between(first, second) is not None


def test_what_flash_takes_longer_for_is_listed_the_worst_first():
    standard = _why(_op("Conv", 5), _op("Mul", 1), precision="float32")
    flash = _why(_op("QLinearConv", 3, is_float=False), _op("QuantizeLinear", 4), _op("QLinearMul", 2, is_float=False))
    assert against(standard, flash) == [
        "converting takes 4.00 ms in Flash and the standard has none",
        "Mul takes 2.00 ms in Flash instead of 1.00",
    ]


ORT = [
    {"cat": "Session", "name": "model_run", "dur": 9000, "args": {}},
    {"cat": "Node", "name": "c_kernel_time", "dur": 4000, "args": {"op_name": "Conv", "provider": "CPUExecutionProvider", "input_type_shape": [{"float": [1]}], "output_type_shape": [{"float": [1]}]}},  # noqa: E501
    {"cat": "Node", "name": "c_kernel_time", "dur": 2000, "args": {"op_name": "Conv", "provider": "CPUExecutionProvider", "input_type_shape": [{"float": [1]}], "output_type_shape": [{"float": [1]}]}},  # noqa: E501
    {"cat": "Node", "name": "q_kernel_time", "dur": 1000, "args": {"op_name": "QLinearMul", "provider": "CPUExecutionProvider", "input_type_shape": [{"uint8": [1]}], "output_type_shape": [{"uint8": [1]}]}},  # noqa: E501
]  # fmt: skip


def test_onnxruntimes_profile_is_the_mean_of_its_runs_by_kind_and_precision():
    found = from_onnx(json.dumps(ORT), 2)
    assert [(o.kind, o.is_float, o.count, o.time_ms) for o in found.operators] == [
        ("Conv", True, 1, 3.0),
        ("QLinearMul", False, 0, 0.5),
    ]
    assert found.total_ms == 3.5


def test_openvinos_precision_is_in_the_kernels_name():
    info = [("Convolution", "brgconv_avx512_amx_I8", 2.0), ("Reorder", "jit_uni_FP32", 1.0)]
    found = from_openvino([info, info])
    assert [(o.kind, o.is_float, o.time_ms) for o in found.operators] == [
        ("Convolution", False, 2.0),
        ("Reorder", True, 1.0),
    ]


def test_litert_has_operators_without_times_and_says_so():
    found = from_litert({"CONV_2D": 3}, "litert")
    assert not found.has_times
    told = say.Explained(profile=found, times_ms=(1.0,) * 10, usage=None, counts=None)
    why = explain("c", "int8", told)
    assert why.converting_share is None
    told, how = why.sentences[0].split("; ")
    assert told == "litert tells Python which operators there are (3 CONV_2D), but not their time"
    assert how.startswith("LiteRT's own benchmark_model does")
    with pytest.raises(RuntimeUnavailable):
        from_litert({}, "tflite")


@pytest.fixture
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path))


@pytest.mark.usefixtures("_state")
@pytest.mark.parametrize(("runtime", "kind"), [("onnxruntime", "Conv"), ("openvino", "Convolution")])
def test_a_real_model_is_profiled_as_typed(runtime, kind, capsys):
    pytest.importorskip(runtime)
    assert main(["bench", "digits", "--why", "--runtime", runtime, "--artifact", "standard", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert any(kind in operator["kind"] for operator in one["profile"]["operators"])
    assert one["query_ms"] > 0
    assert one["sentences"]


@pytest.mark.usefixtures("_state")
def test_the_words_end_with_flash_against_the_standard(capsys):
    pytest.importorskip("onnxruntime")
    assert main(["bench", "digits", "--why", "--runtime", "onnxruntime"]) == 0
    out = capsys.readouterr().out
    assert "of the time is" in out
    assert out.count("ms a query") == 2


@pytest.mark.usefixtures("_state")
def test_what_cannot_be_run_is_a_line_and_the_others_are_told(monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    from edgekit.cli import bench_why

    real = bench_why.why

    def failing(model, candidate, plan):
        if candidate.artifact.record.name in broken:
            raise ArtifactError(candidate.artifact.path, "has no way to carry out Conv")
        return real(model, candidate, plan)

    monkeypatch.setattr(bench_why, "why", failing)
    words = ["bench", "digits", "--why", "--runtime", "onnxruntime"]
    broken = {"int8"}
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.count("ms a query") == 1
    assert err == "failed: int8 · onnxruntime 1t: has no way to carry out Conv\n"
    broken = {"int8", "standard"}
    assert main(words) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("has no way to carry out Conv") == 1
