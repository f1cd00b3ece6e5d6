"""Which samples calibrate and which judge, what labels must be, and how a file is opened."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgekit.build.samples import (
    MOST_FEEDS,
    Options,
    _check,
    _labelled,
    _split,
    data_key,
    settings_for,
    with_options,
)
from edgekit.catalog import load_model
from edgekit.errors import InputError, UsageError
from edgekit.manifest import TensorSpec
from edgekit.pipeline.data import Sample
from edgekit.runtimes.axes import OPEN


def samples(count):
    return [Sample(inputs={"x": np.array([i], np.float32)}, label=None, context=None) for i in range(count)]


def numbers(feeds):
    return [int(feed["x"][0]) for feed in feeds]


@pytest.mark.parametrize(
    ("count", "unit", "calibrating", "judging"),
    [
        (1, 1, [0], [0]),  # too few to part: all do both
        (3, 1, [0, 1, 2], [0, 1, 2]),
        (4, 1, [0, 2], [1, 3]),
        (7, 1, [0, 2, 4, 6], [1, 3, 5]),
        (6, 2, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
        (8, 2, [0, 1, 4, 5], [2, 3, 6, 7]),
    ],
)
def test_some_calibrate_and_the_others_judge_and_pairs_stay_together(count, unit, calibrating, judging):
    found = _split(samples(count), None, unit)
    assert numbers(found.feeds) == calibrating
    assert numbers([sample.inputs for sample in found.judged]) == judging


@pytest.mark.parametrize("count", [63, 64, 65, 200, 1000])
def test_no_more_calibrate_than_is_useful_and_none_is_lost(count):
    found = _split(samples(count), None, 1)
    assert len(found.feeds) <= MOST_FEEDS
    assert len(found.judged) >= count // 2
    assert not set(numbers(found.feeds)) & set(numbers([s.inputs for s in found.judged]))


def test_an_odd_number_is_no_set_of_pairs():
    with pytest.raises(UsageError, match="there are 5, an odd number"):
        _split(samples(5), None, 2)


@pytest.mark.parametrize(("unit", "expected"), [(1, ["0", "1", "2", "3"]), (2, ["0", "0", "1", "1"])])
def test_labels_go_with_samples_or_with_pairs(tmp_path, unit, expected):
    np.save(tmp_path / "l.npy", np.arange(4))
    assert [sample.label for sample in _labelled(samples(4), tmp_path / "l.npy", unit)] == expected


@pytest.mark.parametrize(
    ("values", "unit", "message"),
    [
        (np.zeros(3), 1, r"has shape \[3\], expected one label for each of 4 samples"),
        (np.zeros((4, 1)), 1, r"has shape \[4, 1\]"),
        (np.zeros(1), 2, "expected one label for each of 2 pairs"),
        (None, 1, "not an .npy of one"),
        (np.array([None] * 4, dtype=object), 1, "not an .npy of one"),
    ],
)
def test_labels_that_do_not_fit_are_said(tmp_path, values, unit, message):
    path = tmp_path / "l.npy"
    path.write_bytes(b"text") if values is None else np.save(path, values)
    with pytest.raises(UsageError, match=message):
        _labelled(samples(4), path, unit)


SPEC = (TensorSpec(name="x", dtype="float32", shape=(1, 2)),)


@pytest.mark.parametrize(
    ("feeds", "error", "message"),
    [
        ([], UsageError, "holds no samples"),
        ([{"x": np.zeros((1, 3), np.float32)}], InputError, "has shape"),
        ([{"y": np.zeros((1, 2), np.float32)}], InputError, "the model takes x"),
        ([{"x": np.zeros((1, 2))}], InputError, "is float64"),
        ([{"x": np.zeros((1, 2), np.float32)}, {"x": np.full((1, 2), np.inf, np.float32)}], InputError, "infinite"),
        ([{"x": np.full((1, 2), np.nan, np.float32)}], InputError, "holds NaN"),
    ],
)
def test_feeds_are_looked_at_before_anything_is_made_of_them(feeds, error, message):
    with pytest.raises(error, match=message):
        _check(feeds, SPEC)


def test_feeds_that_fit_pass():
    _check([{"x": np.zeros((1, 2), np.float32)}], SPEC)


def test_a_users_labels_put_the_manifests_evaluation_aside(tmp_path):
    digits = load_model("digits")
    for name in ("c.npz", "l.npy"):
        (tmp_path / name).write_bytes(b"")
    alone = with_options(digits, Options(calibration=tmp_path / "c.npz"))
    assert alone.data.evaluation == digits.data.evaluation
    both = with_options(digits, Options(calibration=tmp_path / "c.npz", labels=tmp_path / "l.npy", metric="top1"))
    assert both.data.evaluation is None
    assert both.metric == "top1"
    assert with_options(digits, Options()) == digits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda t: Options(labels=t / "l.npy"), "--labels goes with --calibration"),
        (lambda t: Options(calibration=t / "absent.npz"), "absent.npz: no such file"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        with_options(load_model("digits"), options(tmp_path))


def test_data_is_told_apart_by_content_count_and_generator(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"one")
    (tmp_path / "b.npz").write_bytes(b"two")
    plain = load_model("digits").data
    variants = [
        {"calibration": "a.npz"},
        {"calibration": "b.npz"},
        {"calibration": "a.npz", "calibration_count": 7},
        {"calibration": "generator:files"},
        {"calibration": "generator:pages"},
        {"calibration": "a.npz", "evaluation": "b.npz"},
    ]
    bare = msgspec.structs.replace(plain, evaluation=None)
    keys = [data_key(msgspec.structs.replace(bare, **variant), tmp_path) for variant in variants]
    assert len(set(keys)) == len(keys)
    (tmp_path / "a.npz").write_bytes(b"changed")
    assert data_key(msgspec.structs.replace(bare, calibration="a.npz"), tmp_path) != keys[0]


def test_a_folder_of_data_counts_with_all_that_is_in_it(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "1.png").write_bytes(b"1")
    data = msgspec.structs.replace(load_model("digits").data, calibration="photos", evaluation=None)
    before = data_key(data, tmp_path)
    (folder / "2.png").write_bytes(b"2")
    assert data_key(data, tmp_path) != before


@pytest.mark.parametrize(
    ("fixed", "axes"),
    [({}, {"n": OPEN, "w": OPEN}), ({"n": 3}, {"n": 3, "w": OPEN}), ({"n": 3, "absent": 5}, {"n": 3, "w": OPEN})],
)
def test_a_bare_files_axes_stay_open_but_for_those_that_are_fixed(tmp_path, fixed, axes):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "bare.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert settings_for(load_model(str(path)), path, fixed).axes == axes
