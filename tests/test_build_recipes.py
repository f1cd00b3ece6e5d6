"""Whole builds of a small real model: what is made, what is refused, what survives a kill."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit.artifact import RECORD_NAME, load_artifacts
from edgekit.build import Options, build, report
from edgekit.build.edit import Graph
from edgekit.build.quantize import dynamic_int8, matmul_share, target_of
from edgekit.build.search import groups_in_doubt
from edgekit.build.workshop import Workshop
from edgekit.catalog import data_folder, load_model
from edgekit.config import Home
from edgekit.device.cpu import Cpu
from edgekit.errors import ArtifactError, UsageError
from edgekit.runtimes.session import SessionSettings, open_session
from tests.exact import exact

STATIC = "flash-int8-static"


def cpu(architecture, *features):
    return Cpu(architecture, None, 1, 1, None, features, (), 64, architecture)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(home, report) of one build of the digits model, shared by the tests that only read it."""
    home = Home(tmp_path_factory.mktemp("home"))
    seen: list[tuple[str, float]] = []
    made = report(load_model("digits"), home=home, progress=lambda what, share: seen.append((what, share)))
    return home, made, seen


def by_name(artifacts):
    return {artifact.record.name: artifact for artifact in artifacts}


def test_the_standard_comes_first_with_its_own_accuracy(built):
    _, made, _ = built
    standard = made.artifacts[0].record
    assert standard.name == "standard"
    assert standard.accuracy is not None
    assert standard.accuracy.ratio == 1.0


def test_static_int8_is_small_integer_accurate_and_says_how_it_came_to_be(built):
    home, made, _ = built
    record = by_name(made.artifacts)[STATIC].record
    standard = made.artifacts[0].record
    assert record.fit
    assert record.size_bytes < 0.5 * standard.size_bytes
    assert record.accuracy is not None
    assert record.accuracy.ratio is not None
    assert record.accuracy.ratio >= 0.99
    assert record.accuracy.isa.startswith(target_of_here())
    assert record.node_counts["QLinearConv"] >= 2
    assert "Conv" not in record.node_counts
    assert record.made_from_sha256 == standard.sha256
    assert record.calibration_sha256
    assert record.tools.keys() == {"onnx", "onnxruntime"}
    assert {"graph", "quantised", "ranges", "kept in float"} <= record.recipe.keys()
    assert by_name(load_artifacts(home.artifacts("digits")))[STATIC].record == record


def target_of_here():
    return os.uname().machine


def test_progress_goes_from_nothing_to_all_and_never_back(built):
    shares = [share for _, share in built[2]]
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_what_is_not_made_has_a_reason(built):
    _, made, _ = built
    assert "matrix products" in made.refused["flash-int8-dynamic"]
    assert "nothing to rewrite" in made.refused["standard-optimized"]


def test_a_second_build_makes_nothing(built):
    home, first, _ = built
    second = report(load_model("digits"), home=home)
    assert second.is_cached
    assert not first.is_cached
    assert second.artifacts == first.artifacts
    assert second.refused == first.refused


@pytest.mark.parametrize("damage", ["file", "record", "gone"])
def test_a_damaged_artifact_is_built_again(tmp_path, damage):
    home = Home(tmp_path)
    model = load_model("digits")
    artifact = by_name(build(model, home=home))[STATIC]
    if damage == "file":
        artifact.path.write_bytes(artifact.path.read_bytes()[:-10])
    elif damage == "record":
        (artifact.path.parent / RECORD_NAME).write_text("{")
    else:
        artifact.path.unlink()
    again = by_name(build(model, home=home))[STATIC]
    again.verify()
    assert again.record.sha256 == artifact.record.sha256


def test_other_data_another_target_or_another_floor_make_another_artifact(tmp_path):
    home, model = Home(tmp_path), load_model("digits")
    here = report(model, home=home)
    arm = Options(method="percentile")
    assert not report(model, home=home, options=arm).is_cached
    assert not report(msgspec.structs.replace(model, accuracy_floor=0.5), home=home).is_cached
    assert not here.is_cached


def test_below_the_floor_an_artifact_is_kept_but_unfit(tmp_path):
    model = msgspec.structs.replace(load_model("digits"), accuracy_floor=1.5)
    record = by_name(build(model, home=Home(tmp_path)))[STATIC].record
    assert not record.fit
    assert record.why_unfit == "keeps 100.0 % of the standard's top1, the floor is 150 %"


@pytest.mark.parametrize("delay_s", [0.45, 0.6, 0.75, 0.9])
def test_killed_at_any_point_it_leaves_no_broken_artifact_and_continues(tmp_path, delay_s):
    code = (
        "from pathlib import Path; from edgekit.build import build; from edgekit.catalog import load_model;"
        f"from edgekit.config import Home; build(load_model('digits'), home=Home(Path({str(tmp_path)!r})))"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    child.wait()
    for artifact in load_artifacts(Home(tmp_path).artifacts("digits")):
        artifact.verify()
    made = report(load_model("digits"), home=Home(tmp_path))
    assert STATIC in by_name(made.artifacts)
    left = [path.name for path in (Home(tmp_path).artifacts("digits") / STATIC).iterdir()]
    assert sorted(left) == sorted([RECORD_NAME, by_name(made.artifacts)[STATIC].record.file])


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file size are POSIX")
def test_a_full_disk_is_one_clear_error(tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from edgekit.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "sys.exit(main(['build', 'digits']))"
    )
    environ = {**os.environ, "EDGEKIT_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "cannot be" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert load_artifacts(Home(tmp_path).artifacts("digits")) == []


@pytest.fixture
def own(tmp_path):
    """A user's own file, samples and labels, without a manifest."""
    folder = data_folder("models") / "digits"
    path = tmp_path / "own.onnx"
    path.write_bytes((folder / "digits.onnx").read_bytes())
    with np.load(folder / "calibration.npz") as file:
        images = file[next(n for n in file.files if n != "labels")][:64]
    feed = images.reshape(-1, 1, *images.shape[1:]) if images.ndim == 3 else images
    session = open_session(path, SessionSettings(axes={}))
    name, shape = session.inputs[0].name, session.inputs[0].shape
    images = feed.reshape(len(feed), *shape[1:]).astype(np.float32)
    labels = [int(np.argmax(session.run({name: image[None]})["logits"])) for image in images]
    session.close()
    np.savez(tmp_path / "samples.npz", **{name: images})
    np.save(tmp_path / "labels.npy", np.array(labels))
    return path


def test_a_users_own_model_builds_in_one_call(own, tmp_path):
    options = Options(calibration=tmp_path / "samples.npz", labels=tmp_path / "labels.npy", metric="top1")
    made = build(load_model(str(own)), home=Home(tmp_path / "home"), options=options)
    record = by_name(made)[STATIC].record
    assert record.fit
    assert record.accuracy is not None
    assert (record.accuracy.metric, record.accuracy.sample_count) == ("top1", 32)


def test_without_labels_the_agreement_with_the_standard_is_measured(own, tmp_path):
    options = Options(calibration=tmp_path / "samples.npz")
    record = by_name(build(load_model(str(own)), home=Home(tmp_path / "home"), options=options))[STATIC].record
    assert record.accuracy is not None
    assert record.accuracy.metric == "agreement"


def test_without_calibration_data_static_int8_is_refused_with_what_to_give(own, tmp_path):
    made = report(load_model(str(own)), home=Home(tmp_path / "home"))
    assert "no calibration data: give --calibration FILE.npz" in made.refused[STATIC]


@pytest.mark.parametrize(
    ("samples", "labels", "metric", "message"),
    [
        ({"image": np.zeros((4, 9, 9, 1), np.float32)}, None, None, "does not fit the model"),
        ({"picture": np.zeros((4, 8, 8, 1), np.float32)}, None, None, "does not fit the model"),
        ({"image": np.full((4, 8, 8, 1), np.nan, np.float32)}, None, None, "NaN or infinite"),
        ({"image": np.zeros((4, 8, 8, 1), np.float32)}, np.zeros(2), "top1", "expected one label for each of 4"),
        ({"image": np.zeros((4, 8, 8, 1), np.float32)}, None, "top1", "needs labels"),
        ({"image": np.zeros((4, 8, 8, 1), np.float32)}, np.array(["a"] * 4), "top1", "is not a class number"),
    ],
)
def test_data_that_does_not_fit_is_one_clear_error(own, tmp_path, samples, labels, metric, message):
    np.savez(tmp_path / "bad.npz", **samples)
    if labels is not None:
        np.save(tmp_path / "bad.npy", labels)
    options = Options(
        calibration=tmp_path / "bad.npz", labels=tmp_path / "bad.npy" if labels is not None else None, metric=metric
    )
    with pytest.raises(UsageError, match=message) as caught:
        build(load_model(str(own)), home=Home(tmp_path / "home"), options=options)
    assert "\n" not in str(caught.value)


def embedder(path):
    """A float embedder of 16 numbers, as a file."""
    from onnx import TensorProto, helper

    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "embedder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [
            numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
            for name, size in (("a", (16, 64)), ("b", (64, 32)))
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_embeddings_are_judged_by_pairs(tmp_path):
    rng = np.random.default_rng(6)
    first, noise = rng.normal(size=(2, 40, 16))
    apart = np.linspace(0.0, 3.0, 40)
    rng.shuffle(apart)
    samples = np.stack([first, first + apart[:, None] * noise], axis=1).reshape(80, 16)
    np.savez(tmp_path / "pairs.npz", x=samples.astype(np.float32))
    np.save(tmp_path / "scores.npy", -apart)
    options = Options(calibration=tmp_path / "pairs.npz", labels=tmp_path / "scores.npy", metric="spearman")
    made = build(load_model(str(embedder(tmp_path / "own.onnx"))), home=Home(tmp_path / "home"), options=options)
    record = by_name(made)[STATIC].record
    assert record.accuracy is not None
    assert record.accuracy.metric == "spearman"
    assert record.accuracy.sample_count == 40
    assert record.accuracy.standard_value > 0.5
    assert record.fit


def test_an_odd_number_of_samples_is_no_set_of_pairs(tmp_path):
    np.savez(tmp_path / "pairs.npz", x=np.ones((5, 16), np.float32))
    np.save(tmp_path / "scores.npy", np.arange(2))
    options = Options(calibration=tmp_path / "pairs.npz", labels=tmp_path / "scores.npy", metric="spearman")
    with pytest.raises(UsageError, match="an odd number"):
        build(load_model(str(embedder(tmp_path / "own.onnx"))), home=Home(tmp_path / "home"), options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(labels=None, calibration=None, axes={"side": 3}), "--axis side: digits has no dynamic axes"),
        (Options(method="best"), "calibration method 'best'"),
    ],
)
def test_options_that_do_not_go_with_the_model_are_usage_errors(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        build(load_model("digits"), home=Home(tmp_path), options=options)


def test_a_litert_standard_is_refused(tmp_path):
    path = data_folder("models") / "digits" / "digits.tflite"
    with pytest.raises(ArtifactError, match="builds from ONNX only"):
        build(load_model(str(path)), home=Home(tmp_path))


@pytest.mark.parametrize(
    ("found", "activation", "bits"),
    [
        (cpu("x86_64", "avx2", "avx512_vnni"), np.uint8, 8),
        (cpu("x86_64", "avx2", "avx_vnni"), np.uint8, 8),
        (cpu("x86_64", "avx2"), np.uint8, 7),
        (cpu("aarch64", "asimd", "asimddp"), np.int8, 8),
        (cpu("aarch64", "asimd"), np.int8, 8),
    ],
)
def test_integer_types_follow_the_cpu(found, activation, bits):
    target = target_of(found)
    assert (target.types.activation, target.types.weight_bits) == (activation, bits)
    assert target.isa.split()[0] == found.architecture


def test_dynamic_int8_touches_matrix_products_only(tmp_path):
    from onnx import TensorProto, helper

    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), name) for name in "ab"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert matmul_share(model) == 1.0
    made = dynamic_int8(model, exact())
    kinds = {node.op_type for node in made.graph.node}
    assert "MatMulInteger" in kinds
    assert "ConvInteger" not in kinds
    onnx.save(made, str(tmp_path / "m.onnx"))
    session = open_session(tmp_path / "m.onnx", SessionSettings())
    x = rng.normal(size=(1, 64)).astype(np.float32)
    expected = np.maximum(x @ numpy_helper.to_array(graph.initializer[0]), 0) @ numpy_helper.to_array(
        graph.initializer[1]
    )
    assert np.corrcoef(session.run({"x": x})["y"].ravel(), expected.ravel())[0, 1] > 0.999
    session.close()


def test_too_little_memory_is_said_before_anything_is_read(tmp_path, built, monkeypatch):
    home, made, _ = built
    standard = made.artifacts[0]
    huge = msgspec.structs.replace(standard.record, size_bytes=10**13)
    with (
        Workshop(
            load_model("digits"), msgspec.structs.replace(standard, record=huge), home, None, Options(), None
        ) as shop,
        pytest.raises(ArtifactError, match=r"needs about .* MiB of memory"),
    ):
        _ = shop.graph


@pytest.mark.data
def test_an_opset_8_model_with_weights_among_its_inputs_builds_and_keeps_its_accuracy(data_dir, tmp_path):
    folder = data_dir / "mnist"
    images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = np.frombuffer(images, np.uint8).reshape(-1, 1, 28, 28)[:512].astype(np.float32)
    np.savez(tmp_path / "samples.npz", Input3=pixels)
    np.save(tmp_path / "labels.npy", np.frombuffer(labels, np.uint8)[:512])
    options = Options(calibration=tmp_path / "samples.npz", labels=tmp_path / "labels.npy", metric="top1")
    made = by_name(build(load_model(str(folder / "mnist.onnx")), home=Home(tmp_path / "home"), options=options))
    record = made[STATIC].record
    assert record.fit
    assert record.accuracy is not None
    assert record.accuracy.standard_value == pytest.approx(0.98, abs=0.01)
    assert record.node_counts["QLinearConv"] >= 1  # the first convolution stays in float where that is faster


def test_the_plan_names_every_node_with_its_precision_and_why(built):
    _, made, _ = built
    plan = by_name(made.artifacts)[STATIC].record.plan
    assert any(text == "int8" for text in plan.values())
    floats = {node: text for node, text in plan.items() if text.startswith("float: ")}
    assert all(len(text) > len("float: ") for text in floats.values())
    assert {node.split()[0] for node in plan} >= {"Conv"}


def test_groups_in_doubt_are_first_depthwise_and_gate_convolutions():
    from onnx import TensorProto, helper

    shapes = {
        "first": (8, 3, 3, 3),
        "depth": (8, 1, 3, 3),
        "squeeze": (4, 8, 1, 1),
        "expand": (8, 4, 1, 1),
        "main": (8, 8, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("Conv", ["a", "depth"], ["b"], group=8),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "squeeze"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "expand"], ["f"]),
        helper.make_node("Mul", ["b", "f"], ["g"]),
        helper.make_node("Conv", ["g", "main"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()],
    )
    found = groups_in_doubt(Graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
    assert found == {"first convolutions": ("a",), "depthwise convolutions": ("b",), "gates": ("d", "f")}
