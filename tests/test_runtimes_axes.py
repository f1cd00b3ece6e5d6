"""Which size every dynamic axis takes, and what is said when one has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.errors import ArtifactError
from edgekit.manifest import Model, Source, TensorSpec
from edgekit.runtimes.axes import OPEN, bind, bound_names, session_axes, unique_names

FILE = Path("model.onnx")
IMAGE = TensorSpec(name="x", dtype="float32", shape=("batch", 3, "x[2]", "x[3]"))
MASK = TensorSpec(name="mask", dtype="int64", shape=("batch", "sequence"))


def _model(**changes: object) -> Model:
    source = Source(file="model.onnx", sha256="0" * 64, size_bytes=1)
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, "side", "side"))
    values: dict[str, object] = {
        "name": "m",
        "version": "1",
        "task": "t",
        "source": source,
        "inputs": (spec,),
        "axes": {"side": (320, 640)},
    }
    return Model(**(values | changes))  # type: ignore[arg-type]


def test_named_and_unnamed_axes_take_their_sizes():
    (bound,) = bind(FILE, [IMAGE], {"batch": 1, "x[2]": 48, "x[3]": 320})
    assert bound.shape == (1, 3, 48, 320)


def test_a_named_axis_binds_every_input_that_has_it():
    image, mask = bind(FILE, [IMAGE, MASK], {"batch": 4, "x[2]": 8, "x[3]": 8, "sequence": 16})
    assert image.shape[0] == mask.shape[0] == 4


def test_a_place_wins_over_the_name_of_the_axis():
    (bound,) = bind(FILE, [MASK], {"batch": 4, "mask[0]": 2, "sequence": 16})
    assert bound.shape == (2, 16)


def test_an_open_axis_keeps_its_name():
    (bound,) = bind(FILE, [MASK], {"batch": OPEN, "sequence": 16})
    assert bound.shape == ("batch", 16)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"x[2]": 8, "x[3]": 8}, ("input 'x'", "axis 'batch'", "--axis 'batch=VALUE'")),
        ({"batch": 1, "x[2]": 8}, ("input 'x'", "axis 3", "--axis 'x[3]=VALUE'")),
        ({"batch": 1, "x[2]": 8, "x[3]": 8, "x[1]": 4}, ("x[1]", "fixed at 3", "cannot be 4")),
        ({"batsh": 1}, ("no dynamic axis 'batsh'", "batch, x[2], x[3]")),
        ({"batch": 0, "x[2]": 8, "x[3]": 8}, ("batch=0", "1 or more")),
    ],
)
def test_what_does_not_hold_is_said_with_input_axis_and_flag(axes, words):
    with pytest.raises(ArtifactError) as error:
        bind(FILE, [IMAGE], axes)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_fixed_axis_may_be_repeated_with_its_own_size():
    assert bind(FILE, [IMAGE], {"batch": 1, "x[1]": 3, "x[2]": 8, "x[3]": 8})[0].shape == (1, 3, 8, 8)


def test_names_with_two_sizes_are_not_handed_to_the_runtime_as_one():
    declared = [TensorSpec(name="a", dtype="float32", shape=("n", "m")), MASK]
    bound = bind(FILE, declared, {"a[0]": 2, "n": 2, "m": 5, "batch": 1, "mask[1]": 3, "sequence": 3})
    assert bound_names(declared, bound) == {"n": 2, "m": 5, "batch": 1, "sequence": 3}
    both = [TensorSpec(name="a", dtype="float32", shape=("n",)), TensorSpec(name="b", dtype="float32", shape=("n",))]
    assert bound_names(both, bind(FILE, both, {"a[0]": 2, "b[0]": 3})) == {}


def test_the_manifests_defaults_bind_by_place():
    assert session_axes(_model(), {}) == {"x[0]": 1, "x[1]": 3, "x[2]": 320, "x[3]": 320}


def test_an_override_and_a_built_in_size_replace_the_default():
    assert session_axes(_model(), {"side": 640})["x[2]"] == 640
    assert session_axes(_model(), {}, {"side": 960})["x[3]"] == 960
    assert session_axes(_model(), {"side": OPEN})["x[2]"] == OPEN


def test_an_axis_without_any_size_is_left_for_the_session_to_name():
    model = _model(axes={})
    assert session_axes(model, {}) == {"x[0]": 1, "x[1]": 3}


def test_the_axes_of_a_bare_file_are_handed_through():
    assert session_axes(_model(inputs=(), axes={}), {"N": 2}) == {"N": 2}


def test_repeated_tensor_names_become_unique():
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_1", "a_2"]
