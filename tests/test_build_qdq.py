"""Q/DQ graphs: what runs on integers, that it does so in onnxruntime, and that the values stay close."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build.calibrate import METHODS, Calibration, Range, fingerprint
from edgekit.build.edit import Graph
from edgekit.build.grids import Types
from edgekit.build.placement import place
from edgekit.build.qdq import tensors_to_observe
from edgekit.build.quantize import StaticInt8
from edgekit.build.upsample import repeat_pixels, whole_factors
from edgekit.errors import InputError, UsageError
from tests.exact import LOST_DB, exact

RNG = np.random.default_rng(11)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)


def make(nodes, constants, *, shape=(1, 8, 10, 10), outputs=("y",)):
    typed = {name: np.asarray(value) for name, value in constants.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(v.astype(np.float32) if v.dtype.kind == "f" else v, name)
            for name, v in typed.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape):
    return RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))


def feeds(count=8, shape=(1, 8, 10, 10)):
    return [{"x": (RNG.normal(size=shape) * 2).astype(np.float32)} for _ in range(count)]


def run(model, feed, *, level="ORT_ENABLE_ALL"):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def runs_as(model, tmp_path):
    """Node kinds after onnxruntime's optimisation."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(n.op_type for n in onnx.load(str(tmp_path / "optimized.onnx")).graph.node)


def sqnr_db(model, quantised, inputs):
    signal = noise = 0.0
    for feed in inputs:
        for a, b in zip(run(model, feed), run(quantised, feed), strict=True):
            signal, noise = signal + float((a**2).sum()), noise + float(((a - b) ** 2).sum())
    return 10 * np.log10(signal / noise)


CONV = node("Conv", ["x", "w1", "b1"], "c")
HEAD = node("Conv", ["h", "w2"], "y")
FEW = {"w1": weights(8, 8, 1, 1), "b1": weights(8, 1)[:, 0], "w2": weights(4, 8, 1, 1)}


@pytest.mark.parametrize("activation", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_convolutions_run_on_integers_and_keep_their_values(tmp_path, activation, per_channel):
    model = make([CONV, node("Relu", ["c"], "h"), HEAD], FEW)
    samples = feeds()
    made = StaticInt8(model, samples, exact(activation=activation, per_channel=per_channel)).make()
    assert runs_as(made, tmp_path) == {"QuantizeLinear": 1, "QLinearConv": 2, "DequantizeLinear": 1, "Transpose": 2}
    assert sqnr_db(model, made, samples) > 28 - LOST_DB


def test_seven_bit_weights_stay_within_sixty_three():
    made = StaticInt8(make([CONV, node("Relu", ["c"], "h"), HEAD], FEW), feeds(), Types(weight_bits=7)).make()
    stored = [numpy_helper.to_array(t) for t in made.graph.initializer if t.data_type == TensorProto.INT8]
    stored = [array for array in stored if array.ndim == 4]
    assert len(stored) == 2
    assert max(np.abs(array.astype(int)).max() for array in stored) == 63


HARD_SWISH = [node("HardSigmoid", ["c"], "g", alpha=1 / 6, beta=0.5), node("Mul", ["c", "g"], "h")]


def test_hard_swish_on_signed_activations_keeps_its_values():
    # Which kernels run is not asked here: on x86 onnxruntime turns signed activations into unsigned ones first.
    model = make([CONV, *HARD_SWISH, HEAD], {**FEW, "w1": FEW["w1"] * 4})
    samples = feeds()
    assert sqnr_db(model, StaticInt8(model, samples, exact(activation=np.int8)).make(), samples) > 28 - LOST_DB


def test_hard_swish_runs_on_integers_alone(tmp_path):
    model = make([CONV, *HARD_SWISH, HEAD], {**FEW, "w1": FEW["w1"] * 4})
    samples = feeds()
    made = StaticInt8(model, samples, exact()).make()
    found = runs_as(made, tmp_path)
    assert found["QLinearMul"] == 2
    assert found["QLinearConv"] == 2
    assert not {"HardSigmoid", "Mul", "Clip"} & found.keys()
    assert found["DequantizeLinear"] == found["QuantizeLinear"] == 1
    assert sqnr_db(model, made, samples) > 28 - LOST_DB


def test_a_gate_that_alone_reads_a_convolution_costs_nothing(tmp_path):
    nodes = [
        CONV,
        node("GlobalAveragePool", ["c"], "p"),
        node("Conv", ["p", "w1"], "q"),
        node("HardSigmoid", ["q"], "g", alpha=0.2, beta=0.5),
        node("Mul", ["c", "g"], "h"),
        HEAD,
    ]
    model = make(nodes, FEW)
    samples = feeds()
    made = StaticInt8(model, samples, exact()).make()
    assert runs_as(made, tmp_path)["QLinearMul"] == 1
    assert sqnr_db(model, made, samples) > 28 - LOST_DB


@pytest.mark.parametrize("shift", [-0.9, -0.01, 0.004, 0.5, 7.0])
def test_a_constant_shift_is_a_second_reading_even_before_padding(tmp_path, shift):
    nodes = [
        CONV,
        node("HardSigmoid", ["c"], "g", alpha=1 / 6, beta=0.5),
        node("Mul", ["c", "g"], "m"),
        node("Add", ["m", "d"], "h"),
        node("Conv", ["h", "w2"], "y", pads=[1, 1, 1, 1]),
    ]
    model = make(nodes, {**FEW, "d": np.array([shift]), "w2": weights(4, 8, 3, 3)})
    samples = feeds()
    made = StaticInt8(model, samples, exact()).make()
    found = runs_as(made, tmp_path)
    assert not {"QLinearAdd", "Add"} & found.keys()
    assert sqnr_db(model, made, samples) > 25 - LOST_DB


def test_both_levels_of_optimisation_compute_the_same():
    made = StaticInt8(make([CONV, *HARD_SWISH, HEAD], FEW), samples := feeds(), exact()).make()
    plain, fused = run(made, samples[0], level="ORT_DISABLE_ALL")[0], run(made, samples[0])[0]
    step = np.abs(plain).max() / 127
    assert np.abs(plain - fused).max() <= 4 * step


@pytest.mark.parametrize(("down", "across"), [(2, 2), (4, 4), (1, 3), (3, 2)])
def test_repeated_pixels_are_what_resize_computes(down, across):
    resize = node("Resize", ["x", "", "s"], "y", mode="nearest", nearest_mode="floor")
    resize.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    model = make([resize], {"s": np.array([1, 1, down, across], np.float32)}, shape=(1, 3, 4, 5))
    graph = Graph(model)
    assert whole_factors(graph) == {"y": (3, down, across)}
    x = {"x": RNG.normal(size=(1, 3, 4, 5)).astype(np.float32)}
    expected = run(model, x)[0]
    graph.replace_nodes(list(graph.nodes), repeat_pixels(graph, "x", "y", 3, down, across))
    np.testing.assert_array_equal(run(model, x)[0], expected)


@pytest.mark.parametrize(
    ("mode", "rule", "rounding", "scale"),
    [
        ("linear", "asymmetric", "floor", 2.0),
        ("nearest", "align_corners", "floor", 2.0),
        ("nearest", "asymmetric", "ceil", 2.0),
        ("nearest", "asymmetric", "floor", 1.5),
    ],
)
def test_other_resizes_are_not_repetition(mode, rule, rounding, scale):
    resize = node("Resize", ["x", "", "s"], "y", mode=mode, nearest_mode=rounding, coordinate_transformation_mode=rule)
    model = make([resize], {"s": np.array([1, 1, scale, scale], np.float32)})
    assert whole_factors(Graph(model)) == {}


def test_upsampled_branches_join_on_one_grid(tmp_path):
    nodes = [
        CONV,
        node("Resize", ["c", "", "s"], "r", mode="nearest", nearest_mode="floor"),
        node("Conv", ["r", "w3"], "d"),
        node("Concat", ["r2", "d"], "h", axis=1),
        node("Conv", ["h", "w4"], "y"),
    ]
    nodes[1].attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    nodes.insert(3, node("Conv", ["r", "w3b"], "r2"))
    constants = {
        **FEW,
        "s": np.array([1, 1, 2, 2], np.float32),
        "w3": weights(8, 8, 1, 1),
        "w3b": weights(8, 8, 1, 1) * 5,
        "w4": weights(4, 16, 1, 1),
    }
    model = make(nodes, constants)
    samples = feeds()
    made = StaticInt8(model, samples, exact()).make()
    assert "Resize" not in runs_as(made, tmp_path)
    concat = next(n for n in made.graph.node if n.op_type == "Concat" and n.output[0] == "h.float")
    producers = {o: n for n in made.graph.node for o in n.output}
    values = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert len({float(values[producers[i].input[1]]) for i in concat.input}) == 1
    assert sqnr_db(model, made, samples) > 25 - LOST_DB


def test_a_matrix_product_read_by_float_goes_straight_back_to_float(tmp_path):
    nodes = [node("MatMul", ["x", "w"], "m"), node("Softmax", ["m"], "y")]
    model = make(nodes, {"w": weights(16, 12).astype(np.float32)}, shape=(1, 16))
    made = StaticInt8(model, feeds(shape=(1, 16)), exact()).make()
    found = runs_as(made, tmp_path)
    assert found["MatMulIntegerToFloat"] == 1
    assert "DequantizeLinear" not in found


@pytest.mark.parametrize("bias_shape", [(12,), (1, 12)])
def test_gemm_takes_a_bias_of_either_shape(bias_shape):
    constants = {"w": weights(12, 16), "b": RNG.normal(size=bias_shape)}
    model = make([node("Gemm", ["x", "w", "b"], "y", transB=1)], constants, shape=(1, 16))
    samples = feeds(shape=(1, 16))
    assert sqnr_db(model, StaticInt8(model, samples, exact()).make(), samples) > 30 - LOST_DB


def test_a_dead_channel_with_a_large_bias_keeps_its_bias():
    constants = {"w1": FEW["w1"].copy(), "b1": FEW["b1"].copy(), "w2": FEW["w2"]}
    constants["w1"][3] *= 1e-9
    constants["b1"][3] = 5.0
    model = make([CONV, node("Relu", ["c"], "h"), HEAD], constants)
    samples = feeds()
    assert sqnr_db(model, StaticInt8(model, samples, exact()).make(), samples) > 28 - LOST_DB


def test_reasons_are_given_for_what_stays_in_float():
    nodes = [CONV, node("Softmax", ["c"], "s"), node("Conv", ["s", "w2"], "y"), node("MatMul", ["c", "c2"], "z")]
    nodes.insert(3, node("Transpose", ["c"], "c2", perm=[0, 1, 3, 2]))
    plan = place(Graph(make(nodes, FEW, outputs=("y", "z"))), skip=["y"])
    assert plan.integer == {"c"}
    assert plan.floats == {
        "s": "no integer kernel",
        "y": "does not pay in INT8",
        "c2": "read by float only",
        "z": "both operands are computed",
    }


def test_what_an_if_reads_stays_in_float_and_the_model_still_runs():
    inner = [
        helper.make_graph([node(k, ["r"], "o")], k, [], [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])
        for k in ("Relu", "Neg")
    ]
    choice = node("If", ["flag"], "y", then_branch=inner[0], else_branch=inner[1])
    model = make([CONV, node("Relu", ["c"], "r"), choice], {**FEW, "flag": np.array(True)})
    samples = feeds()
    quantizer = StaticInt8(model, samples, exact())
    assert quantizer.plan.floats["r"] == "read inside If or Loop"
    assert sqnr_db(model, quantizer.make(), samples) > 28 - LOST_DB


def test_every_method_gives_ranges_within_the_values_seen():
    model = make([CONV, node("Relu", ["c"], "h"), HEAD], FEW)
    graph = Graph(model)
    names = tensors_to_observe(graph, place(graph))
    assert set(names) == {"x", "c", "h", "y"}
    samples = feeds()
    calibration = Calibration(model, names, samples)
    full = calibration.ranges()
    assert full["x"] == Range(min(s["x"].min() for s in samples), max(s["x"].max() for s in samples))
    for method in METHODS[1:]:
        narrow = calibration.ranges(method)
        for name in names:
            assert full[name].low <= narrow[name].low < narrow[name].high <= full[name].high + 1e-5


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_a_single_outlier_is_clipped_away(method):
    samples = feeds(count=40)
    samples[0]["x"][0, 0, 0, 0] = 500.0
    model = make([node("Conv", ["x", "w1"], "y")], {"w1": FEW["w1"]})
    calibration = Calibration(model, ["x"], samples)
    assert calibration.ranges()["x"].high == 500
    assert calibration.ranges(method)["x"].high < 100


def test_calibration_refuses_unknown_methods_unfit_feeds_and_nan():
    model = make([CONV], FEW, outputs=("c",))
    with pytest.raises(UsageError, match="'best' is not one of minmax"):
        Calibration(model, ["c"], feeds()).ranges("best")
    with pytest.raises(InputError, match=r"x \[1, 3, 10, 10\] float32: does not fit"):
        Calibration(model, ["c"], feeds(shape=(1, 3, 10, 10))).ranges()
    poisoned = feeds()
    poisoned[0]["x"][:] = np.inf
    with pytest.raises(UsageError, match="NaN or infinite"):
        Calibration(model, ["c"], poisoned).ranges()


def test_the_fingerprint_of_samples_depends_on_every_value_and_on_order():
    samples = feeds(count=2)
    assert fingerprint(samples) == fingerprint([dict(s) for s in samples])
    assert fingerprint(samples) != fingerprint(samples[::-1])
    changed = [{"x": s["x"].copy()} for s in samples]
    changed[1]["x"][0, 0, 0, 0] += 1
    assert fingerprint(samples) != fingerprint(changed)
