"""Both LiteRT libraries through the same tests: each runs where it is importable. Knows nothing of onnxruntime."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import ArtifactError, InputError, RuntimeUnavailable
from edgekit.runtimes import litert
from edgekit.runtimes.axes import OPEN
from edgekit.runtimes.delegated import placement_of
from edgekit.runtimes.quiet import captured_stderr
from edgekit.runtimes.session import SessionSettings, open_session

ROOT = Path(__file__).resolve().parent.parent
FLOAT = ROOT / "models/digits/digits.tflite"
INT8 = ROOT / "models/digits/digits-int8.tflite"


def _loads(name: str) -> bool:
    try:
        litert.load_library(name)
    except RuntimeUnavailable:
        return False
    return True


HERE = [name for name in ("litert", "tflite") if _loads(name)]
if not HERE:
    pytest.skip("neither ai-edge-litert nor tflite-runtime is installed", allow_module_level=True)


@pytest.fixture(params=HERE)
def runtime(request) -> str:
    return request.param


@pytest.fixture
def dynamic(data_dir) -> Path:
    """A float model with a dynamic batch axis."""
    return data_dir / "mlperf_tiny/kws_ref_model_float32.tflite"


def _open(path, runtime, **settings):
    return open_session(path, SessionSettings(runtime=runtime, **settings))


def _zeros(session):
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs}


def _evaluation():
    with np.load(ROOT / "models/digits/evaluation.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_it_classifies_real_digits(runtime):
    session = _open(FLOAT, runtime)
    (given,), (answer,) = session.inputs, session.outputs
    data = _evaluation()
    images, labels = data[given.name], data["labels"]
    found = [session.run({given.name: image[None]})[answer.name].argmax() for image in images[:60]]
    assert np.mean(np.array(found) == labels[:60]) > 0.9


def test_quantised_tensors_are_shown_as_they_are(runtime):
    session = _open(INT8, runtime)
    dtypes = {spec.dtype for spec in (*session.inputs, *session.outputs)}
    assert dtypes <= {"int8", "uint8", "float32"}
    quantised = [spec.name for spec in (*session.inputs, *session.outputs) if spec.dtype != "float32"]
    assert set(quantised) == set(session.quantization)
    assert all(q.scale > 0 for q in session.quantization.values())


def test_the_version_and_where_it_ran_are_told(runtime):
    session = _open(FLOAT, runtime)
    assert session.runtime == runtime
    assert session.runtime_version[0].isdigit()
    placement = session.placement(_zeros(session))
    assert set(placement.ops_by_provider) <= {"XNNPACK", "CPU"}
    assert placement.ops_by_provider["XNNPACK"] >= 1
    assert placement.partitions >= 1
    assert session.active_providers == tuple(placement.ops_by_provider)


def test_wrong_inputs_are_named(runtime):
    session = _open(FLOAT, runtime)
    (spec,) = session.inputs
    good = np.zeros(spec.shape, spec.dtype)
    with pytest.raises(InputError, match="float64, the model takes float32"):
        session.run({spec.name: good.astype("float64")})
    with pytest.raises(InputError, match="the model takes"):
        session.run({"no such input": good})
    with pytest.raises(InputError, match="has shape"):
        session.run({spec.name: good[..., None]})


@pytest.mark.data
def test_a_dynamic_axis_defaults_to_the_files_own_size_and_can_be_set(runtime, dynamic):
    assert _open(dynamic, runtime).inputs[0].shape == (1, 49, 10, 1)
    assert _open(dynamic, runtime, axes={"input_1[0]": 4}).inputs[0].shape == (4, 49, 10, 1)


@pytest.mark.data
def test_a_bound_batch_answers_each_of_its_members(runtime, dynamic):
    single, batch = _open(dynamic, runtime), _open(dynamic, runtime, axes={"input_1[0]": 3})
    name, answer = single.inputs[0].name, single.outputs[0].name
    sounds = np.random.default_rng(1).random((3, 49, 10, 1), dtype=np.float32)
    together = batch.run({name: sounds})[answer]
    alone = np.concatenate([single.run({name: sound[None]})[answer] for sound in sounds])
    assert batch.outputs[0].shape == together.shape
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.data
def test_an_open_axis_takes_another_size_each_time(runtime, dynamic):
    session = _open(dynamic, runtime, axes={"input_1[0]": OPEN})
    assert session.inputs[0].shape == ("input_1[0]", 49, 10, 1)
    for size in (1, 5, 2):
        (output,) = session.run({"input_1": np.zeros((size, 49, 10, 1), np.float32)}).values()
        assert output.shape[0] == size


@pytest.mark.data
def test_the_onnx_originals_name_of_the_only_input_is_understood(runtime, dynamic):
    assert _open(dynamic, runtime, axes={"another_name[0]": 2}).inputs[0].shape[0] == 2


def test_a_fixed_size_cannot_be_changed(runtime):
    (spec,) = _open(FLOAT, runtime).inputs
    with pytest.raises(ArtifactError, match="fixed at 8; it cannot be 9"):
        _open(FLOAT, runtime, axes={f"{spec.name}[1]": 9})


def test_threads_do_not_change_the_answer(runtime):
    one, two = _open(FLOAT, runtime, threads=1), _open(FLOAT, runtime, threads=2)
    inputs = {one.inputs[0].name: np.full(one.inputs[0].shape, 0.5, np.float32)}
    (a,), (b,) = one.run(inputs).values(), two.run(inputs).values()
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_outputs_are_copies_that_the_next_run_leaves_alone(runtime):
    session = _open(FLOAT, runtime)
    name = session.inputs[0].name
    (first,) = session.run({name: np.zeros(session.inputs[0].shape, np.float32)}).values()
    kept = first.copy()
    session.run({name: np.ones(session.inputs[0].shape, np.float32)})
    np.testing.assert_array_equal(first, kept)


def test_calls_from_several_threads_do_not_mix_their_tensors(runtime):
    session = _open(FLOAT, runtime)
    name, answer = session.inputs[0].name, session.outputs[0].name
    inputs = [np.full(session.inputs[0].shape, value, np.float32) for value in (0.0, 0.3, 0.6, 1.0)]
    expected = [session.run({name: value})[answer] for value in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(session.run({name: inputs[i]})[answer], expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_missing_delegate_is_one_error_and_nothing_on_stderr(runtime, capfd):
    with pytest.raises(RuntimeUnavailable, match=r"delegate libno_such\.so does not load"):
        _open(FLOAT, runtime, delegate="libno_such.so")
    assert capfd.readouterr().err == ""


def test_loading_prints_nothing(runtime, capfd):
    session = _open(FLOAT, runtime)
    session.run(_zeros(session))
    assert capfd.readouterr().err == ""


def test_closing_twice_is_harmless(runtime):
    session = _open(FLOAT, runtime)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({})


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("tflm/person_detect.tflite", "quantized_dimension must be in range"),
        ("tflm/audio_preprocessor_float.tflite", "needs the custom operator SignalWindow"),
        ("tflm/audio_preprocessor_int8.tflite", "needs the custom operator SignalWindow"),
        ("coral/mobilenet_v1_0.25_128_quant_edgetpu.tflite", "compiled for an Edge TPU"),
    ],
)
def test_files_that_cannot_run_are_refused_in_one_line(runtime, data_dir, capfd, file, words):
    with pytest.raises(ArtifactError, match=words) as error:
        _open(data_dir / file, runtime)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400
    assert capfd.readouterr().err == ""


@pytest.mark.data
def test_every_other_real_model_runs_and_keeps_its_shapes(runtime, data_dir):
    refused = ("person_detect", "audio_preprocessor", "edgetpu")
    files = [path for path in sorted(data_dir.glob("*/*.tflite")) if not any(word in path.name for word in refused)]
    assert len(files) > 12
    for path in files:
        session = _open(path, runtime)
        outputs = session.run(_zeros(session))
        assert {spec.name: (spec.dtype, spec.shape) for spec in session.outputs} == {
            name: (value.dtype.name, value.shape) for name, value in outputs.items()
        }, path.name
        assert session.placement({}).partitions >= 1


@pytest.mark.data
def test_a_fully_delegated_model_leaves_nothing_on_the_cpu(runtime, data_dir):
    session = _open(data_dir / "mlperf_tiny/pretrainedResnet_large_float.tflite", runtime)
    placement = session.placement({})
    assert placement.ops_by_provider == {"XNNPACK": 16}
    assert placement.partitions == 1


def test_a_part_that_was_handed_over_counts_the_operators_inside_it():
    nodes = [
        {"op_name": "CONV", "inputs": [0, 9], "outputs": [1]},
        {"op_name": "ADD", "inputs": [1, 1], "outputs": [2]},
        {"op_name": "SOFTMAX", "inputs": [2], "outputs": [3]},
        {"op_name": "DELEGATE", "inputs": [0, 9], "outputs": [2]},
    ]

    class Interpreter:
        def _get_ops_details(self):
            return nodes

    placement = placement_of(Interpreter(), "XNNPACK")
    assert placement is not None
    assert placement.ops_by_provider == {"XNNPACK": 2, "CPU": 1}
    assert placement.partitions == 2


def test_a_runtime_that_does_not_tell_is_not_guessed_about():
    assert placement_of(object(), "XNNPACK") is None


def test_an_absent_library_says_what_to_install():
    missing = [name for name, (package, _) in litert._MODULES.items() if not _importable(package)]
    if not missing:
        pytest.skip("both LiteRT libraries are installed")
    with pytest.raises(RuntimeUnavailable, match="pip install"):
        litert.load_library(missing[0])


def test_numpy_2_with_tflite_runtime_is_explained_before_it_dies(tmp_path, monkeypatch):
    if int(np.__version__.split(".")[0]) < 2:
        pytest.skip("elsewhere: the main environment has numpy 2")
    folder = tmp_path / "tflite_runtime-2.14.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tflite-runtime\nVersion: 2.14.0\n")
    (tmp_path / "tflite_runtime").mkdir()
    (tmp_path / "tflite_runtime/interpreter.py").write_text("raise SystemError('what the real one does')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with pytest.raises(RuntimeUnavailable, match=r"built for numpy 1 and dies with numpy 2.*pip install 'numpy<2'"):
        litert.load_library("tflite")


def test_what_another_thread_says_is_not_swallowed(capfd):
    import os

    with captured_stderr() as said:
        os.write(2, b"INFO: chatter\nsomething that matters\n")
        assert "chatter" in said()
    assert capfd.readouterr().err == "something that matters\n"


def _importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
