"""What OpenVINO compiled ahead: found by all it depends on, checked when loaded, never trusted when damaged."""

from __future__ import annotations

import logging
import shutil

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import Artifact, ArtifactRecord, sha256_of
from edgekit.build.ahead_openvino import compile_ahead
from edgekit.build.samples import Options
from edgekit.build.workshop import Workshop
from edgekit.catalog import load_model
from edgekit.config import Home
from edgekit.errors import ArtifactError
from edgekit.fetch import standard_artifact
from edgekit.manifest import TensorSpec
from edgekit.runtimes import openvino_cache
from edgekit.runtimes.session import SessionSettings, open_session

pytest.importorskip("openvino")
from edgekit.runtimes import openvino as runtime

RNG = np.random.default_rng(2)


def write_network(path, *, scale=1.0):
    """A convolution and a product over a picture of any width."""
    weights = {"w": scale * RNG.normal(size=(4, 3, 3, 3)), "b": RNG.normal(size=4)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, None])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def settings(width=8, **more):
    return SessionSettings(runtime="openvino", providers=(), axes={"width": width}, **more)


@pytest.fixture
def bound(tmp_path):
    """A Workshop of a small model, and an artifact of it that is for OpenVINO only."""
    standard = write_network(tmp_path / "net.onnx")
    model, home = load_model(str(standard)), Home(tmp_path / "home")
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(4, 3, 8, 8)).astype(np.float32))
    folder = home.artifacts(model.name) / "flash-int8-openvino"
    folder.mkdir(parents=True)
    path = folder / "flash.onnx"
    shutil.copy(standard, path)
    record = ArtifactRecord(
        model=model.name,
        name="flash-int8-openvino",
        file=path.name,
        format="onnx",
        precision="int8",
        sha256=sha256_of(path),
        size_bytes=path.stat().st_size,
        bound_to={"runtime": "openvino"},
    )
    options = Options(calibration=tmp_path / "x.npz", axes={"width": 8})
    with Workshop(model, standard_artifact(model, home), home, None, options, None) as shop:
        yield shop, Artifact(record=record, path=path)


def compiled(bound):
    shop, artifact = bound
    return compile_ahead(shop, [artifact])["flash-int8-openvino"]


def test_what_was_compiled_ahead_answers_the_same_with_any_number_of_threads(bound):
    _, artifact = bound
    feed = {"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    before = open_session(artifact.path, settings()).run(feed)
    told = compiled(bound)  # a model this small may go either way
    assert (told.path is None) == ("not worth" in told.text)
    _keep(artifact)
    for threads in (1, 2):
        session = open_session(artifact.path, settings(threads=threads))
        assert session.model.get_property("INFERENCE_NUM_THREADS") == threads
        np.testing.assert_array_equal(session.run(feed)["y"], before["y"])
        assert session.outputs[0].name == "y"


def _keep(artifact, width=8):
    """The compiled form on disk, whether it would pay or not: a model this small says little about that."""
    session = open_session(artifact.path, settings(width))
    where = place(artifact.path, session.inputs)
    openvino_cache.save(where, runtime.compiled_form(session))
    return where


def place(path, inputs, **changed):
    parts = {"device": "CPU", "options": runtime.compile_options(settings()), "version": installed(), **changed}
    return openvino_cache.place(path, inputs, **parts)


def installed():
    import importlib.metadata

    return importlib.metadata.version("openvino")


def opened_from_cache(path, monkeypatch, width=8):
    """Whether a session at `path` imports instead of compiling."""
    imported = []
    whole = openvino_cache.load

    def load(where):
        found = whole(where)
        imported.append(found is not None)
        return found

    monkeypatch.setattr(openvino_cache, "load", load)
    open_session(path, settings(width)).close()
    monkeypatch.undo()
    return imported == [True]


def test_it_is_used_for_the_sizes_it_was_compiled_for_and_no_others(bound, monkeypatch):
    _, artifact = bound
    assert not opened_from_cache(artifact.path, monkeypatch)
    _keep(artifact)
    assert opened_from_cache(artifact.path, monkeypatch)
    assert not opened_from_cache(artifact.path, monkeypatch, width=12)


def test_another_model_in_its_place_is_compiled_anew(bound, monkeypatch):
    _, artifact = bound
    _keep(artifact)
    write_network(artifact.path, scale=2.0)
    assert not opened_from_cache(artifact.path, monkeypatch)


INPUTS = (TensorSpec(name="x", dtype="float32", shape=(1, 3, 8, 8)),)


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "2020.1"},
        {"device": "GPU"},
        {"options": {"INFERENCE_PRECISION_HINT": "bf16"}},
        {"inputs": (msgspec.structs.replace(INPUTS[0], shape=(1, 3, 8, 16)),)},
        {"inputs": (msgspec.structs.replace(INPUTS[0], dtype="float16"),)},
    ],
    ids=["version", "device", "options", "shape", "dtype"],
)
def test_everything_it_depends_on_is_part_of_its_name(tmp_path, changed):
    path = write_network(tmp_path / "net.onnx")
    plain = place(path, INPUTS)
    assert place(path, **{"inputs": INPUTS, **changed}) != plain


def test_the_number_of_threads_is_not(tmp_path):
    path = write_network(tmp_path / "net.onnx")
    many = {**runtime.compile_options(settings()), "INFERENCE_NUM_THREADS": 8}
    assert place(path, INPUTS, options=many) == place(path, INPUTS)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-1],
        lambda content: content[:20],
        lambda content: b"",
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    ],
    ids=["cut by a byte", "cut within the hash", "empty", "a bit turned"],
)
def test_a_damaged_one_is_said_and_compiled_around(bound, spoil, caplog, monkeypatch):
    _, artifact = bound
    where = _keep(artifact)
    where.write_bytes(spoil(where.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert not opened_from_cache(artifact.path, monkeypatch)
    assert "is damaged and not used; `edgekit build` makes it again" in caplog.text
    assert compiled(bound).text != "compiled before"


def test_whole_bytes_that_openvino_does_not_take_are_said_too(bound, caplog):
    _, artifact = bound
    session = open_session(artifact.path, settings())
    openvino_cache.save(place(artifact.path, session.inputs), b"not a compiled model")
    with caplog.at_level(logging.WARNING):
        open_session(artifact.path, settings()).close()
    assert "is not taken by openvino, which compiles anew" in caplog.text


def test_a_second_build_finds_it_and_one_for_other_things_goes(bound):
    _, artifact = bound
    old = artifact.path.parent / "openvino-00000000.blob"
    old.write_bytes(b"")
    where = _keep(artifact)
    assert not old.exists()
    assert compiled(bound) == (where, "compiled before")


def test_what_is_unfit_or_for_another_runtime_is_not_compiled(bound):
    shop, artifact = bound
    for change in ({"fit": False}, {"bound_to": {}}, {"bound_to": {"runtime": "onnxruntime"}}):
        other = msgspec.structs.replace(artifact, record=msgspec.structs.replace(artifact.record, **change))
        assert compile_ahead(shop, [other]) == {}


def test_a_full_disk_is_one_clear_line(bound, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(openvino_cache, "write_atomic", full)
    with pytest.raises(ArtifactError, match="cannot be written: No space left on device"):
        compiled(bound)
    assert not list(bound[1].path.parent.glob("openvino-*.blob"))


def test_nothing_beside_the_model_costs_no_hash(tmp_path, monkeypatch):
    path = write_network(tmp_path / "net.onnx")
    monkeypatch.setattr(openvino_cache, "sha256_of", lambda _: pytest.fail("hashed"))
    open_session(path, settings()).close()
