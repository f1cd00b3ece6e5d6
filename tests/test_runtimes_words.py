"""What the libraries say when a model fails, in our words: one line without their codes, paths and repetitions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes import litert
from edgekit.runtimes.quiet import captured_stderr
from edgekit.runtimes.session import SessionSettings, import_runtime, open_session

# onnxruntime


onnx = pytest.importorskip("edgekit.runtimes.onnx", reason="elsewhere: onnxruntime's words need onnxruntime")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/m.onnx failed:Fatal error: Foo(-1) is no op",
            "Fatal error: Foo(-1) is no op",
        ),
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions\n index: 1\n",
            "Got invalid dimensions index: 1",
        ),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status", "Non-zero status"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_onnxruntimes_message_loses_its_codes_and_line_breaks(said: str, line: str) -> None:
    assert onnx.one_line(RuntimeError(said)) == line


@given(st.text(max_size=80))
def test_any_message_becomes_one_line(text: str) -> None:
    assert "\n" not in onnx.one_line(RuntimeError(text))
    assert "\n" not in litert._one_line(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SessionSettings(providers=()), "no execution provider was asked for; name at least one"),
        (
            SessionSettings(providers=(("NoSuchExecutionProvider", {}),)),
            "NoSuchExecutionProvider is not part of this build, which has ",
        ),
        (
            SessionSettings(providers=(("A", {}), ("CPUExecutionProvider", {}), ("B", {}))),
            "A, B is not part of this build",
        ),
    ],
)
def test_a_provider_that_is_not_there_is_said_before_the_file_is_opened(settings: SessionSettings, words: str) -> None:
    with pytest.raises(RuntimeUnavailable) as error:
        open_session(Path("/nowhere.onnx"), settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("graph_optimization_level", "MOST", "graph_optimization_level 'MOST' is not one of ORT_DISABLE_ALL"),
        ("no_such_option", "1", "knows no session option 'no_such_option'"),
    ],
)
def test_a_session_option_that_is_none_names_itself(key: str, value: str, words: str) -> None:
    with pytest.raises(RuntimeUnavailable) as error:
        onnx._options(SessionSettings(session_options={key: value}))
    assert words in str(error.value)


def test_session_options_are_set_by_the_runtimes_own_names() -> None:
    options = onnx._options(
        SessionSettings(
            threads=3,
            spinning=True,
            session_options={
                "graph_optimization_level": "ORT_ENABLE_BASIC",
                "enable_mem_pattern": "false",
                "session.x.y": "7",
            },
        )
    )
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.enable_mem_pattern is False
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.x.y") == "7"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    still = onnx._options(SessionSettings())
    assert still.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("name", ["torch", "", "ONNXRuntime", "tensorrt"])
def test_an_unknown_runtime_names_the_known_ones(name: str) -> None:
    with pytest.raises(
        RuntimeUnavailable, match="unknown runtime; edgekit knows onnxruntime, openvino, litert, tflite"
    ):
        import_runtime(name)


# LiteRT


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("one\n  two\tthree", "one two three"),
        (
            "Node number 3 (CONV) failed to prepare.Node number 3 (CONV) failed to prepare.",
            "Node number 3 (CONV) failed to prepare.",
        ),
        ("First thing went wrong. Second thing too.", "First thing went wrong. Second thing too."),
        ("", ""),
    ],
)
def test_litert_is_heard_until_it_repeats_itself(said: str, line: str) -> None:
    assert litert._one_line(said) == line


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Encountered unresolved custom op: edgetpu-custom-op.\nNode 0",
            "is compiled for an Edge TPU; litert on a CPU cannot run it, only the delegate libedgetpu.so.1 can",
        ),
        (
            "unresolved custom op: Foo. unresolved custom op: Foo. unresolved custom op: Bar",
            "the custom operator Foo, Bar, which litert",
        ),
        ("Something else", "litert cannot load it: Something else"),
    ],
)
def test_why_litert_does_not_load_a_file(said: str, words: str) -> None:
    assert words in litert._why_not_loaded(said, "litert")


@pytest.mark.parametrize(
    ("names", "axes", "wanted"),
    [
        (["x"], {"x[0]": 4}, {"x[0]": 4}),
        (["serving_input"], {"image[1]": 4}, {"serving_input[1]": 4}),
        (["x"], {"side": 4}, {"side": 4}),
        (["a", "b"], {"c[0]": 4}, {"c[0]": 4}),
    ],
)
def test_the_only_input_answers_to_the_onnx_originals_name(names: list[str], axes: dict, wanted: dict) -> None:
    specs = tuple(TensorSpec(name=name, dtype="float32", shape=(1, 2)) for name in names)
    assert litert._by_place(specs, axes) == wanted


def detail(name: str, shape: list[int], signature: list[int] | None = None, index: int = 0) -> dict[str, Any]:
    found = {"name": name, "index": index, "dtype": np.float32, "shape": np.array(shape)}
    return found | ({"shape_signature": np.array(signature)} if signature else {})


def test_tensors_are_named_by_the_signature_and_open_axes_by_their_place() -> None:
    details = [detail("serving_a:0", [1, 8], [-1, 8], 5), detail("b", [2], None, 7)]
    index, specs = litert._specs(details, {"serving_a:0": "image"})
    assert index == {"image": 5, "b": 7}
    assert [(spec.name, spec.shape) for spec in specs] == [("image", ("image[0]", 8)), ("b", (2,))]


def test_tensors_of_one_name_are_told_apart() -> None:
    index, specs = litert._specs([detail("x", [1], None, 1), detail("x", [1], None, 2)], {})
    assert index == {"x": 1, "x_1": 2}
    assert [spec.name for spec in specs] == ["x", "x_1"]


@pytest.mark.parametrize(("shape", "fixed"), [((1, 2), (1, 2)), ((), ()), ((1, "n"), None), (("n",), None)])
def test_a_shape_is_fixed_when_every_axis_is(shape: tuple, fixed: tuple | None) -> None:
    assert litert._all_fixed(shape) == fixed


# OpenVINO


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "Exception from src/x.cpp:12:\nCheck 'ok' failed at y.cpp:3:\nFrontEnd API failed:\nShapes do not fit\n",
            "Shapes do not fit",
        ),
        ("x\n-- Conversion is failed for: ai.acme.Foo\n", "it has no way to carry out ai.acme.Foo"),
        ("Exception from only.cpp:1", "Exception from only.cpp:1"),
        ("w" * 400, "w" * 299 + "…"),
    ],
)
def test_openvinos_message_loses_its_own_source_places(said: str, line: str) -> None:
    openvino = pytest.importorskip("edgekit.runtimes.openvino", reason="elsewhere: its words need OpenVINO")
    assert openvino._one_line(RuntimeError(said)) == line


# What C libraries print


def test_chatter_of_a_library_is_swallowed_and_all_else_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as said:
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nI0000 x\nW0000 y\n")
        os.write(2, b"a real warning\n\n")
        assert "a real warning" in said()
    assert capfd.readouterr().err == "a real warning\n"


def test_after_a_failure_the_words_are_the_callers_to_tell(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with captured_stderr() as said:
            os.write(2, b"why it failed\n")
            raise ValueError(said())

    with pytest.raises(ValueError, match=r"^why it failed\n$"):
        fail()
    assert capfd.readouterr().err == ""
    print("stderr works again", file=sys.stderr)
    assert capfd.readouterr().err == "stderr works again\n"
