"""Mixed precision: the node that costs accuracy is found and goes back to float; biases make up for rounded weights."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.build import bias, search, sensitivity
from edgekit.build.edit import Graph
from edgekit.build.grids import Types
from edgekit.build.mixed import Search, by_noise
from edgekit.build.quantize import StaticInt8
from edgekit.build.samples import Options
from edgekit.build.sensitivity import Cost, costs, worst_db
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.fetch import standard_artifact

RNG = np.random.default_rng(11)
LOUD = 2000.0


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


def make(nodes, constants, inputs, outputs):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loud_network():
    """Two products that are easy in INT8, and between them one whose input has a channel that drowns the others."""
    scale = np.ones((1, 32))
    scale[0, 5] = LOUD
    middle = RNG.normal(size=(32, 32)) / 5
    middle[5] /= LOUD
    constants = {
        "w1": RNG.normal(size=(16, 32)) / 4,
        "loud": scale,
        "w2": middle,
        "w3": RNG.normal(size=(32, 10)) / 5,
    }
    nodes = [
        node("MatMul", ["x", "w1"], "a"),
        node("Relu", ["a"], "b"),
        node("Mul", ["b", "loud"], "c"),
        node("MatMul", ["c", "w2"], "d"),
        node("Relu", ["d"], "e"),
        node("MatMul", ["e", "w3"], "y"),
    ]
    return make(nodes, constants, {"x": [1, 16]}, {"y": [1, 10]})


@pytest.fixture
def open_shop(tmp_path):
    """A Workshop for `loud_network`, judged by the classes that the float network finds itself."""
    model = loud_network()
    onnx.save(model, tmp_path / "loud.onnx")
    many = RNG.normal(size=(960, 16)).astype(np.float32)
    scores = np.concatenate([y for (y,) in sensitivity._outputs(model, [{"x": row[None]} for row in many])])
    ordered = np.sort(scores, axis=1)
    clear = np.argsort(ordered[:, -2] - ordered[:, -1])[:240]  # whose first class is well before the second
    np.savez(tmp_path / "x.npz", x=many[clear])
    classes = np.argmax(scores[clear], axis=1)
    np.save(tmp_path / "classes.npy", classes)

    def shop(**more):
        options = Options(calibration=tmp_path / "x.npz", labels=tmp_path / "classes.npy", metric="top1", **more)
        found, home = load_model(str(tmp_path / "loud.onnx")), Home(tmp_path / "home")
        return Workshop(found, standard_artifact(found, home), home, None, options, None)

    return shop


def test_what_misses_the_floor_is_mended_by_the_one_node_that_costs_it(open_shop):
    with open_shop(method="minmax") as shop:
        draft = search.static(shop)
    assert draft.accuracy.ratio >= 0.99
    kinds = {name: text.split(":")[0].split(" ")[0] for name, text in draft.plan.items()}
    assert kinds["MatMul d"] == "float"
    assert "int8" in kinds.values()  # how many others follow it for speed is the machine's to say
    assert "its noise for what it saves is the most" in draft.plan["MatMul d"]
    assert all("dB above its noise" in draft.plan[f"MatMul {name}"] for name in "ady")
    assert "went back to float" in draft.recipe["search"]


def test_without_time_to_search_what_misses_the_floor_stays_as_it_is(open_shop):
    with open_shop(method="minmax", search_s=0.0) as shop:
        draft = search.static(shop)
    assert draft.accuracy.ratio < 0.99
    assert "search" not in draft.recipe


def test_a_search_whose_time_is_up_keeps_what_it_began_with(open_shop):
    with open_shop() as shop:
        quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, flexible=True)
        model = quantizer.make()
        measured = shop.measure(shop.on_disk(model, "m"))
        found = Search(shop, quantizer, "minmax", corrected=False, seconds=0.0).run(model, measured)
    assert found.model is model
    assert found.accuracy == measured
    assert found.skip == ()
    assert "0 of 3 nodes measured one by one, 0 mixes tried" in found.text


def test_each_node_alone_tells_which_is_noisy_and_how_long_it_takes(open_shop):
    with open_shop() as shop:
        quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, flexible=True)
        found = costs(shop, quantizer, "minmax", time.monotonic() + 60)
    assert list(found) == ["a", "d", "y"]
    assert found["d"].noise_db < min(found["a"].noise_db, found["y"].noise_db) - 6
    assert all(cost.float_ms > 0 and cost.int8_ms > 0 for cost in found.values())


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ({"a": Cost(20, 1, 0.5), "b": Cost(40, 1, 0.5)}, ["a", "b"]),  # the noisier first
        ({"a": Cost(30, 2, 0.5), "b": Cost(30, 1, 0.9)}, ["b", "a"]),  # of equal noise, what saves least
        ({"a": Cost(30, 1, 2), "b": Cost(30, 1, 0.5)}, ["a", "b"]),  # what INT8 makes slower costs nothing to give up
        ({"a": Cost(50, 1, 0.5), "b": Cost(None, 1, 0.5), "c": Cost(10, 1, 0.5)}, ["b", "c", "a"]),
        ({"a": Cost(None, None, None)}, ["a"]),
        ({}, []),
    ],
)
def test_nodes_leave_int8_by_noise_for_each_millisecond(found, order):
    assert sorted(by_noise(found)) == sorted(order)
    if None not in [cost.noise_db for cost in found.values()]:
        assert by_noise(found) == order
    else:
        assert by_noise(found)[-1] == order[-1]


@pytest.mark.parametrize(
    ("faster", "back", "trials"),
    [
        ([{"a", "d"}], ["a", "d"], [["d", "a"]]),  # all that lose, at once; y saves time and is not asked
        ([{"d"}], ["d"], [["d", "a"], ["d"], ["d", "a"]]),
        ([], [], [["d", "a"], ["d"], ["a"]]),
    ],
    ids=["together", "one of them", "none"],
)
def test_for_speed_all_go_back_at_once_or_those_that_prove_it(open_shop, monkeypatch, faster, back, trials):
    with open_shop(search_s=0.0) as shop:
        quantizer = StaticInt8(shop.graph, shop.samples.feeds, shop.target.types, flexible=True)
        found = Search(shop, quantizer, "minmax", corrected=False, seconds=60.0)
        found._costs = {"a": Cost(40, 1.0, 2.0), "d": Cost(40, 1.0, 3.0), "y": Cost(40, 1.0, 0.5)}
        found._model, found._measured = shop.graph, shop.measure(shop.standard.path)
        tried = []
        monkeypatch.setattr(found, "_make", lambda names: tried.append(list(names)) or shop.graph)
        monkeypatch.setattr(found, "_race", lambda _: [2.0, 1.0 if set(tried[-1]) in faster else 2.0])
        found._for_speed()
    assert sorted(found._back) == back
    assert tried == trials


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost(31.24, 0.5, 0.25), "alone 31.2 dB above its noise at the output, 0.250 ms in INT8, 0.500 in float"),
        (Cost(None, 0.5, 0.25), "0.250 ms in INT8, 0.500 in float"),
        (Cost(31.24, None, 0.25), "alone 31.2 dB above its noise at the output"),
        (Cost(None, None, None), ""),
    ],
)
def test_a_cost_says_what_is_known(cost, text):
    assert str(cost) == text


@pytest.mark.parametrize(
    ("truth", "found", "db"),
    [
        ([[[1.0, 1.0]]], [[[1.0, 0.9]]], 23.0),
        ([[[1.0]]], [[[1.0]]], 200.0),
        ([[[1.0]]], [[[float("nan")]]], -200.0),
        ([[[0.0]]], [[[1.0]]], -200.0),
        ([[[1.0], [1.0]]], [[[1.0], [2.0]]], 0.0),  # the worst of two outputs
        ([[[1.0]], [[1.0]]], [[[1.0]], [[0.9]]], 23.0),  # noise and signal over both feeds
    ],
)
def test_the_worst_output_counts(truth, found, db):
    arrays = [[[np.array(values) for values in feed] for feed in side] for side in (truth, found)]
    assert worst_db(*arrays) == pytest.approx(db, abs=0.1)


@pytest.mark.parametrize(
    ("kernel", "owner"),
    [
        ("a/conv_kernel_time", "a/conv"),
        ("a/conv_nchwc_kernel_time", "a/conv"),
        ("a/conv.float_token_2_kernel_time", "a/conv"),
        ("a/conv.q_kernel_time", "a/conv"),
        ("a/conv2_kernel_time", "a/conv2"),
        ("a/convolution_kernel_time", None),
        ("a/relu_nchwc_kernel_time", "a/conv"),
        ("other_kernel_time", None),
    ],
)
def test_kernels_belong_to_the_node_they_are_named_after(kernel, owner):
    events = [{"cat": "Node", "name": kernel, "dur": 9000}, {"cat": "Node", "name": kernel, "dur": 1000}]
    events.append({"cat": "Node", "name": "a/conv_fence_before", "dur": 1})
    owners = {"a/conv": "a/conv", "a/conv2": "a/conv2", "a/relu": "a/conv"}
    assert sensitivity._by_node(events, owners) == ({owner: 1.0} if owner else {})


def test_the_kernels_of_one_node_add_up():
    events = [{"cat": "Node", "name": f"a{part}_kernel_time", "dur": 500} for part in (".q", ".float", "")]
    assert sensitivity._by_node(events, {"a": "a"}) == {"a": 1.5}


def test_a_fused_kernel_is_called_as_the_activation():
    graph = Graph(loud_network())
    assert sensitivity._owners(graph, ["a", "d", "y"]) == {"a": "a", "b": "a", "d": "d", "e": "d", "y": "y"}


CONVOLUTIONS = {
    "Conv": ({"pads": [0, 0, 0, 0]}, (6, 4, 3, 3), 1),
    "grouped": ({"group": 2}, (6, 2, 3, 3), 2),
    "depthwise": ({"group": 4}, (4, 1, 3, 3), 4),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_mean_shift_of_a_convolution_is_what_its_weights_error_really_moves(case):
    attributes, shape, _ = CONVOLUTIONS[case]
    error = RNG.normal(size=shape).astype(np.float32)
    x = (RNG.normal(size=(1, 4, 1, 1)) * np.ones((1, 4, 8, 8))).astype(np.float32)  # constant a channel: no border
    model = make([node("Conv", ["x", "w"], "y", **attributes)], {"w": error}, {"x": [1, 4, 8, 8]}, {"y": None})
    ((moved,),) = sensitivity._outputs(model, [{"x": x}])
    shift = bias.mean_shift(model.graph.node[0], error, x[0, :, 0, 0].astype(np.float64))
    np.testing.assert_allclose(shift, moved.mean(axis=(0, 2, 3)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "attributes"), [("Gemm", {}), ("Gemm", {"transB": 1}), ("MatMul", {})])
def test_the_mean_shift_of_a_product_is_exact(kind, attributes):
    error = RNG.normal(size=(5, 3))
    mean = RNG.normal(size=5)
    stored = error.T if attributes else error
    made = helper.make_node(kind, ["x", "w"], ["y"], **attributes)
    np.testing.assert_allclose(bias.mean_shift(made, stored, mean), mean @ error, rtol=1e-5)


def test_channel_means_are_over_all_but_the_channels():
    constants = {"w": RNG.normal(size=(2, 3, 1, 1)), "m": RNG.normal(size=(4, 2))}
    nodes = [node("Conv", ["x", "w"], "a"), node("MatMul", ["a", "m"], "y")]
    model = make(nodes, constants, {"x": [1, 3, 5, 4]}, {"y": [1, 2, 5, 2]})
    feeds = [{"x": RNG.normal(size=(1, 3, 5, 4)).astype(np.float32)} for _ in range(3)]
    found = bias.channel_means(model, feeds)
    np.testing.assert_allclose(found["x"], np.mean([f["x"].mean(axis=(0, 2, 3)) for f in feeds], axis=0), atol=1e-6)
    assert found["a"].shape == (4,)


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_correction_takes_the_mean_error_out_of_coarse_weights(kind):
    if kind == "Conv":
        nodes = [node("Conv", ["x", "w"], "y")]
        constants, shape, out = {"w": RNG.normal(size=(8, 16, 1, 1))}, [1, 16, 6, 6], [1, 8, 6, 6]
    elif kind == "Gemm":
        nodes, constants = [node("Gemm", ["x", "w", "b"], "y")], {"w": RNG.normal(size=(16, 8)), "b": np.zeros(8)}
        shape, out = [36, 16], [36, 8]
    else:
        nodes = [node("MatMul", ["x", "w"], "m"), node("Add", ["m", "b"], "y")]
        constants, shape, out = {"w": RNG.normal(size=(16, 8)), "b": np.zeros(8)}, [36, 16], [36, 8]
    model = make(nodes, constants, {"x": shape}, {"y": out})
    feeds = [{"x": (1 + RNG.normal(size=shape) / 10).astype(np.float32)} for _ in range(8)]
    truth = sensitivity._outputs(model, feeds)
    quantizer = StaticInt8(model, feeds, Types(weight_bits=4))
    channels = 1 if kind == "Conv" else -1

    def mean_error(made):
        found = sensitivity._outputs(made, feeds)
        apart = np.mean([b[0] - a[0] for a, b in zip(truth, found, strict=True)], axis=0)
        kept = channels % apart.ndim
        return np.abs(apart.mean(axis=tuple(i for i in range(apart.ndim) if i != kept))).max()

    assert mean_error(quantizer.make(corrected=True)) < mean_error(quantizer.make()) / 4


def test_a_flexible_quantiser_leaves_out_any_node_without_observing_again():
    model = loud_network()
    feeds = [{"x": RNG.normal(size=(1, 16)).astype(np.float32)} for _ in range(4)]
    quantizer = StaticInt8(model, feeds, Types(), flexible=True)
    for skipped in ("a", "d", "y"):
        made = quantizer.make(skip=[skipped])
        onnx.checker.check_model(made)
        weight = {"a": "w1", "d": "w2", "y": "w3"}[skipped]
        assert Graph(made).is_constant(weight)
        assert sensitivity._outputs(made, feeds[:1])[0][0].shape == (1, 10)
