"""Which artifact the daemon runs: pinned, as selected before, or chosen now."""

from __future__ import annotations

import msgspec
import pytest

from edgekit.bench.candidates import to_record
from edgekit.catalog import load_model
from edgekit.config import BatchConfig, Home, ModelConfig, TolerantConfig
from edgekit.device.probe import probe
from edgekit.errors import ArtifactError, ConfigError
from edgekit.fetch import all_artifacts
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.session import SessionSettings
from edgekit.selection import Limits, Rejection, Selection
from edgekit.serve.opening import load_lane
from edgekit.serve.plan import make_plan, make_tolerant_plan, pinned_plan, selected_plan

pytest.importorskip("onnxruntime", reason="the artifacts of these tests run in onnxruntime")


@pytest.fixture(scope="module")
def facts():
    return probe()


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def stored(home: Home, **changes: object) -> Selection:
    """A selection of the digits model's int8 artifact, as `edgekit select` leaves it."""
    artifact = next(a for a in all_artifacts(load_model("digits"), home) if a.record.name == "int8")
    selection = Selection(
        model="digits",
        artifact="int8",
        artifact_sha256=artifact.record.sha256,
        precision="int8",
        settings=to_record(SessionSettings(threads=2)),
        reasons=("fastest here",),
        rejections=(Rejection(candidate="standard", reason="slower"),),
        p50_ms=0.5,
        p99_ms=None,
        peak_memory_bytes=None,
        accuracy_ratio=1.0,
        limits=Limits(),
    )
    selection = msgspec.structs.replace(selection, **changes)
    path = home.selection("digits")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(selection))
    return selection


def test_a_pinned_artifact_needs_no_selection(home, facts):
    wanted = ModelConfig(name="digits", artifact="int8")
    plan = make_plan(load_model("digits"), wanted, home=home, facts=facts, threads=2)
    assert plan.artifact.record.name == "int8"
    assert plan.settings.runtime == "onnxruntime"
    assert plan.settings.threads == 2
    assert plan.reasons == ("pinned by the configuration",)
    with pytest.raises(ConfigError, match="there is no 'q' here, only standard"):
        make_plan(load_model("digits"), ModelConfig(name="digits", artifact="q"), home=home, facts=facts, threads=2)


def test_a_stored_selection_is_run_as_it_was_measured(home, facts):
    stored(home)
    plan = make_plan(load_model("digits"), ModelConfig(name="digits"), home=home, facts=facts, threads=2)
    assert (plan.artifact.record.name, plan.settings.threads, plan.reasons) == ("int8", 2, ("fastest here",))
    state = plan.state("ready")
    assert (state.model, state.benched_p50_ms, state.accuracy_ratio) == ("digits", 0.5, 1.0)
    assert state.rejections == (("standard", "slower"),)


def test_models_that_share_the_cores_get_fewer_threads_and_it_is_said(home, facts):
    stored(home)
    plan = make_plan(load_model("digits"), ModelConfig(name="digits"), home=home, facts=facts, threads=1)
    assert plan.settings.threads == 1
    assert "1 of the 2 threads measured with" in plan.reasons[-1]
    wanted = ModelConfig(name="digits", threads=3)
    assert make_plan(load_model("digits"), wanted, home=home, facts=facts, threads=1).settings.threads == 3


def test_a_selection_that_does_not_hold_is_made_again(home, facts, caplog, tmp_path):
    onnx = pytest.importorskip("onnx", reason="the tiny model of this test is made with onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "relu.onnx")
    model = load_model(str(tmp_path / "relu.onnx"))
    stale = stored(home, limits=Limits(accuracy_floor=0.0))
    home.selection("relu").write_bytes(msgspec.json.encode(stale))
    caplog.set_level("INFO")
    for latency_ms, words in (
        (None, "relu: the selected artifact int8 has gone or changed: measuring"),
        (500.0, "relu: the stored selection was made for other limits: measuring"),
    ):
        wanted = ModelConfig(name="relu", threads=1, latency_ms=latency_ms)
        plan = make_plan(model, wanted, home=home, facts=facts, threads=1)
        assert words in caplog.text
        assert plan.selection is not None
        assert plan.selection.limits.latency_ms == latency_ms
        assert plan.artifact.record.name == "standard"


def test_an_axis_with_several_sizes_stays_open_for_all_of_them(home):
    model = load_model("digits")
    artifacts = all_artifacts(model, home)
    many = msgspec.structs.replace(
        model,
        inputs=tuple(msgspec.structs.replace(spec, shape=("n", *spec.shape[1:])) for spec in model.inputs),
        axes={"n": (1, 2)},
    )
    name = model.inputs[0].name
    plan = pinned_plan(many, ModelConfig(name="digits", artifact="standard"), artifacts, threads=1)
    assert plan.settings.axes[f"{name}[0]"] == OPEN
    bound = ModelConfig(name="digits", artifact="standard", axes={"n": 2})
    assert pinned_plan(many, bound, artifacts, threads=1).settings.axes[f"{name}[0]"] == 2


def test_an_artifact_that_is_not_what_its_record_says_is_not_opened(home, tmp_path):
    model = load_model("digits")
    selection = stored(home)
    artifact = next(a for a in all_artifacts(model, home) if a.record.name == "int8")
    damaged = bytearray(artifact.path.read_bytes())
    damaged[100] ^= 1
    path = tmp_path / "damaged.onnx"
    path.write_bytes(damaged)
    artifact = msgspec.structs.replace(artifact, path=path)
    plan = selected_plan(model, ModelConfig(name="digits"), [artifact], selection, threads=1)
    with pytest.raises(ArtifactError, match="sha256 is"):
        load_lane(plan, None)


def test_a_loaded_lane_is_warm_and_answers(home, caplog):
    caplog.set_level("INFO")
    model = load_model("digits")
    wanted = ModelConfig(name="digits", artifact="standard")
    plan = pinned_plan(model, wanted, all_artifacts(model, home), threads=1)
    lane = load_lane(plan, None)
    assert "sha256 holds; loaded in" in caplog.text
    assert "warm: [1, 8, 8, 1]" in caplog.text
    assert lane.close(5.0)


# Batches


@pytest.mark.parametrize(
    ("selected", "wanted", "most", "preferred"),
    [
        (1, {}, None, None),
        (1, {"max": 4}, 4, None),
        (16, {}, 16, 16),
        (16, {"max": 4}, 4, 4),
        (4, {"max": 16}, 16, 4),
        (16, {"preferred": 2}, 16, 2),
    ],
)
def test_what_the_configuration_leaves_open_of_batches_is_as_it_was_selected(
    home, facts, selected, wanted, most, preferred
):
    stored(home, settings=to_record(SessionSettings(threads=2).with_batch(["image"], selected)))
    config = ModelConfig(name="digits", batch=BatchConfig(**wanted, window_ms=7.0))
    plan = make_plan(load_model("digits"), config, home=home, facts=facts, threads=2)
    assert plan.batch == BatchConfig(max=most, preferred=preferred, window_ms=7.0)
    assert (plan.settings.batch, plan.settings.axes["image[0]"]) == (1, OPEN)
    assert plan.wanted == config
    assert plan.reasons == ("fastest here",)
    assert plan.state("ready").benched_p50_ms == 0.5


@pytest.mark.parametrize(
    ("runtime", "batch", "why"),
    [("onnxruntime", None, "no [model.batch]"), ("openvino", BatchConfig(), "openvino fixes its shapes")],
)
def test_a_lane_that_collects_no_batches_says_that_it_was_measured_with_them(home, facts, runtime, batch, why):
    artifacts = all_artifacts(load_model("digits"), home)
    selection = stored(home, settings=to_record(SessionSettings(runtime=runtime).with_batch(["image"], 8)))
    plan = selected_plan(load_model("digits"), ModelConfig(name="digits", batch=batch), artifacts, selection, threads=1)
    assert plan.reasons[-1] == f"measured in batches of 8, run one item at a time: {why}"
    assert (plan.settings.batch, plan.settings.axes["image[0]"]) == (1, 1)
    assert plan.state("ready").benched_p50_ms is None  # that was a whole batch's


def test_a_pinned_artifact_has_the_batches_of_the_configuration_alone(home):
    artifacts = all_artifacts(load_model("digits"), home)
    config = ModelConfig(name="digits", artifact="standard", batch=BatchConfig())
    assert pinned_plan(load_model("digits"), config, artifacts, threads=1).batch == BatchConfig()


def test_larger_batches_are_measured_only_for_a_lane_that_will_collect_them(home, facts, monkeypatch):
    """For throughput, in the runtime that can, up to what the configuration allows."""
    import edgekit.choose

    asked = []

    def choosing(model, limits, *, space, **_):
        asked.append((limits.objective, tuple(space.batches), space.batched_in))
        return stored(home, limits=limits)

    monkeypatch.setattr(edgekit.choose, "choose", choosing)
    digits, tolerant = load_model("digits"), TolerantConfig()
    for config in (
        ModelConfig(name="digits", batch=BatchConfig()),
        ModelConfig(name="digits", objective="throughput"),
        ModelConfig(name="digits", objective="throughput", batch=BatchConfig(max=5)),
    ):
        home.selection("digits").unlink(missing_ok=True)
        make_plan(digits, config, home=home, facts=facts, threads=1)
    make_tolerant_plan(digits, ModelConfig(name="digits", tolerant=tolerant), home=home, facts=facts)
    make_tolerant_plan(
        digits, ModelConfig(name="digits", tolerant=tolerant, batch=BatchConfig()), home=home, facts=facts
    )
    assert asked == [
        ("latency", (1,), None),
        ("throughput", (1,), None),
        ("throughput", (1, 2, 4), ("onnxruntime",)),
        ("throughput", (1,), None),
        ("throughput", (1, 2, 4, 8, 16, 32), ("onnxruntime",)),
    ]
