"""Rules that every runtime shares: axes, inputs, files told by their bytes, placement, profiles, proofs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import ArtifactError, InputError, RuntimeUnavailable
from edgekit.manifest import TensorSpec
from edgekit.runtimes import ahead
from edgekit.runtimes.available import _result
from edgekit.runtimes.axes import OPEN, bind, bound_names, unique_names
from edgekit.runtimes.delegated import placement_of
from edgekit.runtimes.profile import from_litert, from_onnx, from_openvino
from edgekit.runtimes.session import Placement, SessionSettings, check_inputs
from edgekit.runtimes.sniff import looks_like
from edgekit.runtimes.warmup import is_stable, random_inputs

PATH = Path("m.onnx")
DTYPES = ["float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bool", "object"]
AXES = st.one_of(st.integers(1, 9), st.sampled_from(["n", "side"]))


def spec(name: str = "x", shape: tuple[Any, ...] = (1, "n"), dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


@given(st.lists(AXES, min_size=1, max_size=4), st.dictionaries(st.sampled_from(["n", "side"]), st.integers(1, 50)))
def test_binding_replaces_names_that_have_a_size_and_touches_nothing_else(shape: list, sizes: dict[str, int]) -> None:
    declared = spec(shape=tuple(shape))
    known = {axis for axis in shape if isinstance(axis, str)}
    wanted = {name: size for name, size in sizes.items() if name in known}
    complete = wanted | {name: OPEN for name in known if name not in wanted}
    (bound,) = bind(PATH, [declared], complete)
    for before, after in zip(shape, bound.shape, strict=True):
        if isinstance(before, int):
            assert after == before
        else:
            assert after == wanted.get(before, before)


@given(st.lists(st.sampled_from(["a", "b", "a_1", "a_2", "a_1_1"]), max_size=8))
def test_repeated_names_become_unique_and_the_first_keeps_its_own(names: list[str]) -> None:
    found = unique_names(names)
    assert len(set(found)) == len(names)
    for i, name in enumerate(names):
        assert found[i].startswith(name)
        assert (found[i] == name) == (name not in names[:i])


@pytest.mark.parametrize(
    ("shape", "axes", "words"),
    [
        ((1, "n"), {}, "input 'x' has no size for its axis 'n'; give it with --axis 'n=VALUE'"),
        ((1, "x[1]"), {}, "input 'x' has no size for its axis 1; give it with --axis 'x[1]=VALUE'"),
        ((1, 2), {"n": 3}, "has no dynamic axis 'n'; its axes: none"),
        ((1, "n"), {"m": 3}, "has no dynamic axis 'm'; its axes: n"),
        ((1, "n"), {"n": 0}, "axis n=0: a size must be 1 or more"),
        ((1, "n"), {"n": -2}, "axis n=-2: a size must be 1 or more"),
        ((1, "n"), {"n": 2, "x[0]": 4}, "axis x[0] is fixed at 1; it cannot be 4"),
        ((1, "n"), {"n": 2, "x[5]": 4}, "has no dynamic axis 'x[5]'"),
    ],
)
def test_a_size_that_does_not_fit_names_the_axis(shape: tuple, axes: dict[str, int], words: str) -> None:
    with pytest.raises(ArtifactError) as error:
        bind(PATH, [spec(shape=shape)], axes)
    assert words in str(error.value)


def test_only_names_with_one_size_everywhere_are_handed_on() -> None:
    declared = [spec("a", ("n", "m")), spec("b", ("n", "m"))]
    bound = [spec("a", (2, 3)), spec("b", (2, 4))]
    assert bound_names(declared, bound) == {"n": 2}
    assert bound_names([spec("a", ("n",))], [spec("a", ("n",))]) == {}


# Inputs


@given(st.lists(st.tuples(AXES, st.integers(1, 9)), min_size=1, max_size=4), st.sampled_from(DTYPES[:8]))
def test_an_input_passes_exactly_when_every_fixed_axis_has_its_size(pairs: list, dtype: str) -> None:
    wanted = spec(shape=tuple(axis for axis, _ in pairs), dtype=dtype)
    value = np.zeros([size for _, size in pairs], dtype)
    fits = all(isinstance(axis, str) or axis == size for axis, size in pairs)
    if fits:
        check_inputs([wanted], {"x": value})
    else:
        with pytest.raises(InputError, match="has shape"):
            check_inputs([wanted], {"x": value})


@pytest.mark.parametrize(
    ("given_names", "words"),
    [
        ([], "input no inputs: the model takes a, b"),
        (["a"], "input a: the model takes a, b"),
        (["a", "c"], "input a, c: the model takes a, b"),
        (["a", "b", "c"], "input a, b, c: the model takes a, b"),
    ],
)
def test_names_must_be_all_and_no_others(given_names: list[str], words: str) -> None:
    with pytest.raises(InputError) as error:
        check_inputs([spec("a", (1,)), spec("b", (1,))], {name: np.zeros(1, np.float32) for name in given_names})
    assert str(error.value) == words


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_inputs_have_the_declared_kind_and_are_the_same_each_time(dtype: str) -> None:
    specs = [spec("x", (2, "n", 3), dtype)]
    first, again, other = random_inputs(specs), random_inputs(specs), random_inputs(specs, seed=1)
    assert first["x"].shape == (2, 1, 3)
    assert first["x"].dtype == np.dtype(dtype)
    assert np.array_equal(first["x"], again["x"])
    assert dtype in ("object", "bool", "int32", "int64") or not np.array_equal(first["x"], other["x"])
    check_inputs(specs, first)
    if dtype in ("int32", "int64"):
        assert set(first["x"].reshape(-1).tolist()) <= {0, 1}, "indices and masks"


# Files by their first bytes


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\x18\x00\x00\x00TFL3rest", "a LiteRT model"), (b"PK\x03\x04rest", "a zip archive"),
        (b"\x1f\x8b\x08", "a gzip file"), (b"\x89HDF\r\n", "an HDF5 file"), (b"<!DOCTYPE html>", "a web page"),
        (b"  \n<HTML>", "a web page"), (b"import torch\n", "a text file"), (b"{}", "a text file"),
        (b"\x08\x07\x12\x07edgekit", "unknown"), (b"TFL3", "a text file"),
    ],
)  # fmt: skip
def test_a_file_is_called_by_what_it_begins_with(head: bytes, kind: str) -> None:
    assert looks_like(head).startswith(kind)


@given(st.binary(min_size=1, max_size=80))
def test_any_head_has_a_name_and_text_is_called_text(head: bytes) -> None:
    kind = looks_like(head)
    assert kind
    if kind == "a text file":
        assert head.decode("ascii")


# Where operators ran


class Interpreter:
    """The list of nodes that LiteRT tells."""

    def __init__(self, *nodes: tuple[str, list[int], list[int]]) -> None:
        self.nodes = [{"op_name": name, "inputs": taken, "outputs": made} for name, taken, made in nodes]

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return self.nodes


CHAIN = [("CONV", [0], [1]), ("RELU", [1], [2]), ("CONV", [2], [3]), ("SOFTMAX", [3], [4])]


@pytest.mark.parametrize(
    ("parts", "taken", "left", "partitions"),
    [
        ([], 0, 4, 1),
        ([([0], [4])], 4, 0, 1),
        ([([0], [3])], 3, 1, 2),
        ([([1], [3])], 2, 2, 3),
        ([([0], [1]), ([2], [3])], 2, 2, 4),
    ],
)
def test_parts_handed_over_are_traced_back_to_their_operators(
    parts: list, taken: int, left: int, partitions: int
) -> None:
    nodes = [*CHAIN, *(("DELEGATE", taken_in, made) for taken_in, made in parts)]
    found = placement_of(Interpreter(*nodes), "XNNPACK")
    assert found is not None
    assert found.ops_by_provider == {k: v for k, v in {"XNNPACK": taken, "CPU": left}.items() if v}
    assert found.partitions == partitions
    assert found.unused == (() if taken else ("XNNPACK",))


def test_a_runtime_without_the_list_is_not_guessed_about() -> None:
    assert placement_of(object(), "XNNPACK") is None


@pytest.mark.parametrize(
    ("ran", "asked", "unused"),
    [({"A": 1}, ("A",), ()), ({"B": 1}, ("A", "B"), ("A",)), ({}, ("A",), ("A",)), ({"A": 0}, ("A",), ("A",))],
)
def test_what_was_asked_for_and_ran_nothing_is_unused(ran: dict, asked: tuple, unused: tuple) -> None:
    assert Placement(ops_by_provider=ran, partitions=1, asked_for=asked).unused == unused


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (SessionSettings(), "onnxruntime CPU 1t"),
        (SessionSettings(providers=(("CUDAExecutionProvider", {}),), threads=4), "onnxruntime CUDA 4t"),
        (SessionSettings(runtime="litert", threads=2), "litert CPU 2t"),
        (SessionSettings(runtime="litert", delegate="libedgetpu.so.1"), "litert libedgetpu.so.1 1t"),
        (SessionSettings(runtime="openvino", delegate="GPU"), "openvino GPU 1t"),
    ],
)
def test_a_label_is_runtime_hook_and_threads(settings: SessionSettings, label: str) -> None:
    assert settings.label == label


# Profiles


def event(name: str, op: str, dur_us: int, output: str, taken: str = "float") -> dict[str, Any]:
    args = {"op_name": op, "output_type_shape": [{output: [1]}], "input_type_shape": [{taken: [1]}]}
    return {"cat": "Node", "name": name, "dur": dur_us, "args": args}


def test_onnxruntimes_kernels_are_grouped_by_kind_and_precision_slowest_first() -> None:
    events = [
        event("a_kernel_time", "Conv", 2000, "float"),
        event("b_kernel_time", "Conv", 4000, "float"),
        event("c_kernel_time", "QLinearConv", 9000, "uint8", "uint8"),
        event("d_fence_before", "Conv", 9999, "float"),
        {"cat": "Session", "name": "model_run", "dur": 99999},
    ]
    profile = from_onnx(json.dumps(events), 2)
    assert [(o.kind, o.is_float, o.count, o.time_ms) for o in profile.operators] == [
        ("QLinearConv", False, 0, 4.5),
        ("Conv", True, 1, 3.0),
    ]
    assert profile.total_ms == 7.5


@pytest.mark.parametrize(("kernel", "is_float"), [("jit_avx2_f32", True), ("brgemm_i8", False), ("ref_U8", False)])
def test_openvinos_kernels_tell_their_precision_at_the_end(kernel: str, is_float: bool) -> None:
    (found,) = from_openvino([[("Convolution", kernel, 1.5)], [("Convolution", kernel, 2.5)]]).operators
    assert (found.is_float, found.count, found.time_ms) == (is_float, 1, 2.0)


def test_litert_tells_operators_without_times_or_nothing_at_all() -> None:
    profile = from_litert({"CONV_2D": 3, "ADD": 1}, "litert")
    assert (profile.has_times, [o.kind for o in profile.operators]) == (False, ["ADD", "CONV_2D"])
    with pytest.raises(RuntimeUnavailable, match="does not tell its operators"):
        from_litert({}, "tflite")


# Proofs of child processes


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "dies with SIGSEGV"),
        ("import sys; print('first', file=sys.stderr); sys.exit('no such symbol')", "fails: no such symbol"),
        ("raise ImportError('libfoo.so.1')", "fails: ImportError: libfoo.so.1"),
    ],
)
def test_how_a_proof_ended_is_the_runtimes_problem(code: str, problem: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    found = _result("onnxruntime", child)
    assert (found.loads, found.problem) == (False, problem)


# Saved forms, warm-up


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"version": "0.0.1"}, "was saved by onnxruntime 0.0.1, "),
        ({"isa": "vax"}, "was saved on another kind of CPU; build it again here"),
    ],
)
def test_a_saved_form_is_for_this_runtime_and_this_cpu(change: dict[str, str], words: str | None) -> None:
    pytest.importorskip("onnxruntime", reason="elsewhere: the binding is onnxruntime's")
    why = ahead.why_not_here(ahead.binding_here("onnxruntime") | change)
    assert why is None if words is None else str(why).startswith(words)


def test_what_is_bound_to_nothing_is_portable_and_to_an_absent_runtime_is_not() -> None:
    assert ahead.why_not_here({}) is None
    if ahead.installed_version("tflite") is None:
        assert ahead.why_not_here({"runtime": "tflite"}) == "is for tflite, which is not installed"


@given(st.lists(st.floats(0.1, 100), max_size=30))
def test_stable_means_the_last_five_are_not_five_percent_below_the_five_before(times: list[float]) -> None:
    from statistics import median

    if len(times) < 10:
        assert not is_stable(times)
    else:
        assert is_stable(times) == (median(times[-5:]) >= 0.95 * median(times[-10:-5]))
