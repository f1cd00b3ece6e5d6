"""Which tensors a served model takes, from what the session says and the manifest declares."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.errors import ConfigError, InputError
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.serve.signature import signature_of


def model(*shape: int | str, **axes: tuple[int, ...]) -> Model:
    inputs = (TensorSpec(name="x", dtype="float32", shape=shape),) if shape else ()
    source = Source(file="x", sha256="0", size_bytes=0)
    return Model(name="m", version="1", task="tensors", source=source, inputs=inputs, axes=axes)


def specs(*shapes: tuple[int | str, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in zip("xz", shapes, strict=False))


OUT = specs((1,))


def test_the_manifests_axis_names_replace_the_files_own():
    found = signature_of(model(1, "side", "side", side=(320, 640)), specs((1, "dim.0", "dim.1")), OUT, overrides={})
    assert found.inputs[0].shape == (1, "side", "side")
    assert found.axes == {"side": (320, 640)}
    assert found.describe(found.inputs[0]) == "[1, side (320 or 640), side (320 or 640)]"


def test_what_the_session_has_fixed_stays_fixed():
    found = signature_of(model(1, "side", side=(320, 640)), specs((1, 320)), OUT, overrides={})
    assert found.inputs[0].shape == (1, 320)
    assert found.axes == {}


def test_an_override_is_the_only_size():
    found = signature_of(model(1, "side", side=(320, 640)), specs((1, "d")), OUT, overrides={"side": 480})
    assert found.axes == {"side": (480,)}


def test_a_bare_file_keeps_its_own_names_and_needs_their_sizes():
    found = signature_of(model(), specs((1, "length")), OUT, overrides={"length": 8})
    assert found.axes == {"length": (8,)}
    with pytest.raises(ConfigError, match=r"axes\.length: give the size"):
        signature_of(model(), specs((1, "length")), OUT, overrides={})


def test_too_many_shapes_to_warm_up_are_an_error_and_not_a_long_start():
    many = tuple(range(1, 10))
    with pytest.raises(ConfigError, match="81 combinations of sizes, at most 64"):
        signature_of(model("a", "b", a=many, b=many), specs(("a", "b")), OUT, overrides={})


def test_shapes_are_every_combination_and_equal_names_go_together():
    declared = model("a", "b", "a", a=(1, 2), b=(5, 6))
    found = signature_of(declared, specs(("p", "q", "r")), OUT, overrides={})
    assert [inputs[0].shape for inputs in found.shapes()] == [(1, 5, 1), (1, 6, 1), (2, 5, 2), (2, 6, 2)]
    assert len(list(signature_of(model(), specs((3,)), OUT, overrides={}).shapes())) == 1


def test_arrays_are_checked_by_name_dtype_and_shape():
    found = signature_of(model("n", 3, n=(1, 2)), specs(("d", 3), (2,)), OUT, overrides={})
    good = {"x": np.zeros((2, 3), np.float32), "z": np.zeros(2, np.float32)}
    found.check_arrays(good)
    for changes, words in (
        ({"q": good["x"]}, "no such input; the model has x, z"),
        ({"x": np.zeros((2, 3))}, "is float64, the model takes float32"),
        ({"x": np.zeros((3, 3), np.float32)}, r"has shape \[3, 3\], the model takes \[n \(1 or 2\), 3\]"),
        ({"x": np.zeros((2, 3, 1), np.float32)}, "the model takes"),
    ):
        with pytest.raises(InputError, match=words):
            found.check_arrays(good | changes)
    with pytest.raises(InputError, match="z: missing"):
        found.check_arrays({"x": good["x"]})


def test_a_named_axis_has_one_size_in_a_request():
    found = signature_of(model("n", "n", n=(1, 2)), specs(("a", "b")), OUT, overrides={})
    with pytest.raises(InputError, match="n = 2 where another input has 1"):
        found.check_arrays({"x": np.zeros((1, 2), np.float32)})
