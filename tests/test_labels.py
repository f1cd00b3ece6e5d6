"""`--labels`: an .npy of one label a sample; whatever else the file is, one line of our own says so."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.build.samples import _labelled
from edgekit.errors import CatalogError, UsageError
from edgekit.pipeline.data import Sample, read_npy, read_npz

SAMPLES = [Sample(inputs={"x": np.full((1, 2), i, np.float32)}) for i in range(4)]


def save_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(4), b=np.ones(4))


def save_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)


BAD: list[tuple[str, Callable[[Path], Any], str]] = [
    ("empty", lambda path: path.write_bytes(b""), "not an .npy of one plain array: No data left in file"),
    ("text", lambda path: path.write_text("1\n2\n3\n"), "not an .npy of one plain array"),
    ("pickle", lambda path: path.write_bytes(pickle.dumps([1, 2])), "not an .npy of one plain array"),
    ("objects", save_objects, "not an .npy of one plain array: it holds Python objects"),
    ("npz", save_npz, "not an .npy of one plain array: it is an .npz of a, b"),
    ("cut", lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "not an .npy of one plain array: "),
]


@pytest.mark.parametrize(("kind", "make", "problem"), BAD, ids=[kind for kind, _, _ in BAD])
def test_a_file_that_is_no_labels_is_one_line_without_numpys_advice(
    kind: str, make: Callable[[Path], Any], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "labels.npy"
    make(path)
    with pytest.raises(CatalogError) as error:
        read_npy(path)
    assert error.value.problem.startswith(problem)
    with pytest.raises(UsageError) as refused:
        _labelled(SAMPLES, path, 1)
    line = str(refused.value)
    assert line == f"--labels {path}: {error.value.problem}"
    assert "pickle" not in line
    assert "\n" not in line


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no such file"):
        read_npy(tmp_path / "none.npy")


@pytest.mark.parametrize("values", [np.arange(4), np.array(["a", "b", "c", "d"]), np.array([0.5, 1, 2, 3])])
def test_labels_become_words_one_a_sample_and_inputs_stay(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", values)
    labelled = _labelled(SAMPLES, tmp_path / "labels.npy", 1)
    assert [sample.label for sample in labelled] == [str(value) for value in values]
    assert all(a.inputs is b.inputs for a, b in zip(labelled, SAMPLES, strict=True))


def test_pairs_share_a_label(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([7, 8]))
    assert [sample.label for sample in _labelled(SAMPLES, tmp_path / "labels.npy", 2)] == ["7", "7", "8", "8"]


def test_more_labels_than_samples_are_left_over(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(9))
    assert [sample.label for sample in _labelled(SAMPLES, tmp_path / "labels.npy", 1)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("values", "unit", "words"),
    [
        (np.arange(3), 1, "has shape [3], expected one label for each of 4 samples"),
        (np.zeros((4, 2)), 1, "has shape [4, 2], expected one label for each of 4 samples"),
        (np.float32(1.0), 1, "has shape [], expected one label for each of 4 samples"),
        (np.arange(1), 2, "has shape [1], expected one label for each of 2 pairs"),
    ],
)
def test_labels_of_another_shape_say_which_was_expected(
    values: np.ndarray, unit: int, words: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "labels.npy", values)
    with pytest.raises(UsageError) as error:
        _labelled(SAMPLES, tmp_path / "labels.npy", unit)
    assert words in str(error.value)


def test_one_sample_is_called_the_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros((1, 1)))
    with pytest.raises(UsageError, match=r"one label for each of the sample$"):
        _labelled(SAMPLES[:1], tmp_path / "labels.npy", 1)


def test_an_npz_keeps_every_array_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros((2, 2), np.uint8))
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == {"x", "y"}
    assert found["x"].tolist() == [0, 1, 2]
    assert found["y"].dtype == np.uint8
