"""What a manifest may say, and what is refused although its types are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from edgekit.manifest import METRICS, Model, Source, TensorSpec, problem_in

SHA = "a" * 64


def model(**changes: Any) -> Model:
    table: dict[str, Any] = {
        "name": "m",
        "version": "1",
        "task": "t",
        "source": Source(file="m.onnx", sha256=SHA, size_bytes=1),
        "inputs": (
            TensorSpec(name="x", dtype="float32", shape=(1, 3, "height", "width")),
            TensorSpec(name="state", dtype="float32", shape=(2,)),
        ),
        "outputs": (
            TensorSpec(name="y", dtype="float32", shape=(1, "steps")),
            TensorSpec(name="next", dtype="float32", shape=(2,)),
        ),
        "axes": {"height": (32, 64), "width": (100,)},
        "state": {"state": "next"},
    }
    return Model(**(table | changes))


def source(**table: Any) -> Source:
    return Source(**({"sha256": SHA, "size_bytes": 1} | table))


def test_axes_take_their_first_size_unless_they_are_bound() -> None:
    m = model()
    assert m.bound_shape(m.inputs[0]) == (1, 3, 32, 100)
    assert m.bound_shape(m.inputs[0], {"height": 64}) == (1, 3, 64, 100)
    assert m.default_axes == {"height": 32, "width": 100}


def test_an_axis_without_a_size_is_a_key_error_by_its_name() -> None:
    m = model()
    with pytest.raises(KeyError, match="steps"):
        m.bound_shape(m.outputs[0])


def test_a_model_with_state_is_stateful() -> None:
    assert model().is_stateful
    assert not model(state={}).is_stateful


def test_a_sound_manifest_has_no_problem() -> None:
    assert problem_in(model()) is None
    assert all(problem_in(model(metric=metric)) is None for metric in METRICS)


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"source": source()}, "source", "exactly one of file, url, wheel; has none"),
        ({"source": source(file="a", url="https://b")}, "source", "has file and url"),
        ({"source": source(wheel="a==1")}, "source.member", "go together"),
        ({"source": source(file="a", member="b")}, "source.member", "go together"),
        ({"source": source(wheel="a>=1", member="b")}, "source.wheel", "not a pinned requirement"),
        ({"source": source(wheel="a", member="b")}, "source.wheel", "not a pinned requirement"),
        ({"source": source(wheel="--help==1", member="b")}, "source.wheel", "not a pinned requirement"),
        ({"source": Source(file="a", sha256="abc", size_bytes=1)}, "source.sha256", "64 lower-case"),
        ({"metric": "map50"}, "metric", "'map50' is unknown; edgekit knows top1"),
        ({"axes": {"height": (32,)}}, "axes.width", "input 'x' has this named axis"),
        ({"axes": {"height": (), "width": (1,)}}, "axes.height", "at least one size"),
        ({"axes": {"height": (0,), "width": (1,)}}, "axes.height", "each 1 or more"),
        ({"constants": {"rate": 1}}, "constants", "no tensor 'rate' is declared; there are state, x"),
        ({"state": {"stat": "next"}}, "state", "no tensor 'stat'"),
        ({"state": {"state": "nxt"}}, "state", "no tensor 'nxt' is declared; there are next, y"),
    ],
)
def test_what_does_not_hold_together_is_named(changes: Mapping[str, Any], key: str, problem: str) -> None:
    found = problem_in(model(**changes))
    assert found is not None
    assert found[0] == key
    assert problem in found[1]


def test_steps_are_told_apart_by_their_tag() -> None:
    steps = [{"step": "decode_image", "color": "bgr"}, {"step": "resize", "height": "side", "width": 8}]
    table = {
        "name": "m",
        "version": "1",
        "task": "t",
        "source": {"file": "a", "sha256": SHA, "size_bytes": 1},
        "preprocess": steps,
    }
    made = msgspec.convert(table, Model)
    assert [type(step).__name__ for step in made.preprocess] == ["DecodeImage", "Resize"]
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'grey'"):
        msgspec.convert(table | {"preprocess": [{"step": "decode_image", "color": "grey"}]}, Model)
