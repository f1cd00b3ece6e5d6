"""ONNX models in onnxruntime: axes, providers, threads, placement, and files that cannot be run."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import ArtifactError, InputError, RuntimeUnavailable
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.session import SessionSettings, open_session

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models/digits/digits.onnx"
INT8 = ROOT / "models/digits/digits-int8.onnx"


def _open(path, **settings):
    return open_session(path, SessionSettings(**settings))


def _zeros(session):
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs}


def _save(path: Path, nodes, inputs, outputs, **more) -> Path:
    """A small model made on the spot; inputs and outputs are (name, element type, shape)."""
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    graph = make.make_graph(
        [make.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
        "graph",
        [make.make_tensor_value_info(*value) for value in inputs],
        [make.make_tensor_value_info(*value) for value in outputs],
        **more,
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture
def dynamic(tmp_path) -> Path:
    """y = x + x with a named batch axis and an unnamed second one."""
    return _save(
        tmp_path / "dynamic.onnx",
        [("Add", ["x", "x"], ["y"])],
        [("x", 1, ["batch", None])],
        [("y", 1, ["batch", None])],
    )


def test_it_classifies_real_digits():
    session = _open(DIGITS)
    (given,), (answer,) = session.inputs, session.outputs
    with np.load(ROOT / "models/digits/evaluation.npz") as data:
        images, labels = data[given.name], data["labels"]
    found = [session.run({given.name: image[None]})[answer.name].argmax() for image in images[:60]]
    assert np.mean(np.array(found) == labels[:60]) > 0.9


def test_an_axis_without_a_size_names_input_axis_and_flag(dynamic):
    with pytest.raises(ArtifactError, match=r"input 'x'.*axis 'batch'.*--axis 'batch=VALUE'"):
        _open(dynamic, axes={"x[1]": 4})
    with pytest.raises(ArtifactError, match=r"input 'x'.*axis 1; give it with --axis 'x\[1\]=VALUE'"):
        _open(dynamic, axes={"batch": 2})


def test_bound_axes_reach_inputs_and_outputs(dynamic):
    session = _open(dynamic, axes={"batch": 2, "x[1]": 4})
    assert session.inputs[0].shape == (2, 4)
    assert session.outputs[0].shape[0] == 2
    assert session.run({"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 4)


def test_a_bound_axis_refuses_another_size(dynamic):
    session = _open(dynamic, axes={"batch": 2, "x[1]": 4})
    with pytest.raises(InputError, match=r"has shape \[3, 4\], the model takes \[2, 4\]"):
        session.run({"x": np.ones((3, 4), np.float32)})
    with pytest.raises(InputError, match=r"has shape \[2, 5\]"):
        session.run({"x": np.ones((2, 5), np.float32)})


def test_an_open_axis_takes_another_size_each_time(dynamic):
    session = _open(dynamic, axes={"batch": OPEN, "x[1]": 4})
    assert session.inputs[0].shape == ("batch", 4)
    for size in (1, 7, 2):
        assert session.run({"x": np.ones((size, 4), np.float32)})["y"].shape == (size, 4)


def test_wrong_inputs_are_named(dynamic):
    session = _open(dynamic, axes={"batch": 1, "x[1]": 4})
    with pytest.raises(InputError, match="float64, the model takes float32"):
        session.run({"x": np.ones((1, 4))})
    with pytest.raises(InputError, match="input no inputs: the model takes x"):
        session.run({})
    with pytest.raises(InputError, match="the model takes x"):
        session.run({"x": np.ones((1, 4), np.float32), "y": np.ones(1)})


def test_placement_counts_the_nodes_that_ran():
    session = _open(DIGITS)
    placement = session.placement(_zeros(session))
    assert set(placement.ops_by_provider) == {"CPUExecutionProvider"}
    assert placement.ops_by_provider["CPUExecutionProvider"] >= 3
    assert placement.partitions == 1
    assert placement.unused == ()
    assert session.active_providers == ("CPUExecutionProvider",)


def test_placement_leaves_no_profile_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = _open(DIGITS)
    session.placement(_zeros(session))
    assert list(tmp_path.iterdir()) == []


def test_a_provider_that_is_not_built_in_is_an_error_unless_fallback_is_allowed():
    wanted = (("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {}))
    with pytest.raises(RuntimeUnavailable, match="CUDAExecutionProvider is not part of this build"):
        _open(DIGITS, providers=wanted)
    session = _open(DIGITS, providers=wanted, allow_fallback=True)
    assert session.active_providers == ("CPUExecutionProvider",)
    assert session.placement(_zeros(session)).unused == ("CUDAExecutionProvider",)


def test_no_provider_at_all_is_an_error():
    with pytest.raises(RuntimeUnavailable, match="no execution provider was asked for"):
        _open(DIGITS, providers=())


def test_threads_and_spinning_are_what_the_settings_say():
    options = _open(DIGITS, threads=2)._session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    spinning = _open(DIGITS, spinning=True)._session.get_session_options()
    assert spinning.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert spinning.get_session_config_entry("session.force_spinning_stop") == "1", "a pause must not cost a core"


def test_an_idle_session_uses_no_cpu():
    import time

    session = _open(DIGITS, threads=2)
    session.run(_zeros(session))
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_session_options_go_by_the_runtimes_own_names():
    session = _open(DIGITS, session_options={"enable_cpu_mem_arena": "0", "session.disable_prepacking": "1"})
    options = session._session.get_session_options()
    assert options.enable_cpu_mem_arena is False
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    with pytest.raises(RuntimeUnavailable, match="no session option 'enable_magic'"):
        _open(DIGITS, session_options={"enable_magic": "1"})
    with pytest.raises(RuntimeUnavailable, match="ORT_ENABLE_ALL"):
        _open(DIGITS, session_options={"graph_optimization_level": "99"})


def test_the_arena_is_off_only_where_shapes_vary(dynamic):
    fixed = _open(dynamic, axes={"batch": 1, "x[1]": 4})._session.get_session_options()
    open_ = _open(dynamic, axes={"batch": OPEN, "x[1]": 4})._session.get_session_options()
    assert fixed.enable_cpu_mem_arena is True
    assert open_.enable_cpu_mem_arena is False


def test_several_threads_may_call_one_session():
    session = _open(DIGITS)
    name, answer = session.inputs[0].name, session.outputs[0].name
    inputs = [np.full(session.inputs[0].shape, value, np.float32) for value in (0.0, 0.5, 1.0)]
    expected = [session.run({name: value})[answer] for value in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.allclose(session.run({name: inputs[i]})[answer], expected[i], atol=1e-6):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_files_own_metadata_is_told(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(DIGITS)
    entry = model.metadata_props.add()
    entry.key, entry.value = "alphabet", "abc"
    onnx.save(model, tmp_path / "named.onnx")
    assert _open(tmp_path / "named.onnx").metadata["alphabet"] == "abc"


def test_closing_twice_is_harmless():
    session = _open(DIGITS)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({})


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_a_truncated_model_is_one_clear_line(tmp_path, capfd, share):
    data = DIGITS.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ArtifactError, match="damaged or cut short") as error:
        _open(path)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"this is a text file that somebody has named .onnx\n", "is a text file, not an ONNX model"),
        (b"\x18\0\0\0TFL3" + b"\0" * 40, "is a LiteRT model, not an ONNX model"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "is an HDF5 file"),
        (bytes(range(200, 256)) * 4, "damaged or cut short"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_kind(content, words, tmp_path, capfd):
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=words):
        _open(path)
    assert capfd.readouterr().err == ""


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(ArtifactError, match="no such file"):
        _open(tmp_path / "none.onnx")


def test_an_operator_that_the_runtime_lacks_is_named(tmp_path, capfd):
    nodes = [("Frobnicate", ["x"], ["y"], {"domain": "com.example"})]
    path = _save(tmp_path / "unknown.onnx", nodes, [("x", 1, [4])], [("y", 1, [4])])
    with pytest.raises(ArtifactError, match="Frobnicate") as error:
        _open(path)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_weights_in_another_file_that_is_not_there_are_named(tmp_path):
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.ones(2000, np.float32), "w")
    path = _save(
        tmp_path / "apart.onnx",
        [("Add", ["x", "w"], ["y"])],
        [("x", 1, [2000])],
        [("y", 1, [2000])],
        initializer=[weights],
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert _open(path).run({"x": np.zeros(2000, np.float32)})["y"].sum() == 2000
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"keeps its weights in weights\.bin, which is not beside it"):
        _open(path)


def test_a_model_that_fails_on_its_values_says_so(tmp_path):
    path = _save(
        tmp_path / "gather.onnx",
        [("Gather", ["table", "i"], ["y"])],
        [("table", 1, [4]), ("i", 7, [1])],
        [("y", 1, [1])],
    )
    session = _open(path)
    with pytest.raises(ArtifactError, match="inference failed") as error:
        session.run({"table": np.zeros(4, np.float32), "i": np.array([99])})
    assert "\n" not in str(error.value)


def test_an_unknown_runtime_names_the_known_ones():
    with pytest.raises(RuntimeUnavailable, match="onnxruntime, openvino, litert, tflite"):
        _open(DIGITS, runtime="tensorrt")


def test_labels_are_short_and_tell_settings_apart():
    assert SessionSettings(threads=2).label == "onnxruntime CPU 2t"
    assert SessionSettings(runtime="litert", delegate="libedgetpu.so.1").label == "litert libedgetpu.so.1 1t"


@pytest.mark.data
def test_real_models_of_every_make_open_and_run(data_dir):
    for path, axes in (
        (data_dir / "mnist/mnist.onnx", {}),
        (data_dir / "efficientnet_lite0/efficientnet_lite0_f32.onnx", {"N": 1}),
    ):
        session = _open(path, axes=axes)
        outputs = session.run(_zeros(session))
        assert [outputs[spec.name].shape for spec in session.outputs] == [spec.shape for spec in session.outputs]
