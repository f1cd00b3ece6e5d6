"""File-type steps: the features as Magika defines them, and what its scores are taken for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.artifact import Artifact
from edgekit.catalog import load_model
from edgekit.pipeline import open_pipeline, run
from edgekit.pipeline.answers import Labels
from edgekit.pipeline.content import Content, byte_features, content_type
from edgekit.steps import ByteFeatures, ContentType

STEP = ByteFeatures(begin=4, end=4, block=16, padding=256)
NAMES = ("python", "png", "randomtxt")
TYPE = ContentType(labels="x", thresholds={"png": 0.9}, rename={"randomtxt": "txt"})
TEXT = Content(stripped_size=100, size=100, is_text=True)
BINARY = Content(stripped_size=100, size=100, is_text=False)


def features(raw: bytes) -> list[int]:
    values, _ = byte_features(raw, STEP)
    assert values.shape == (1, 8)
    assert values.dtype == np.int32
    return values[0].tolist()


def test_features_are_the_first_and_the_last_bytes() -> None:
    assert features(b"abcdefgh") == [*b"abcd", *b"efgh"]


def test_what_is_missing_is_padded_on_the_inner_side() -> None:
    assert features(b"ab") == [*b"ab", 256, 256, 256, 256, *b"ab"]
    assert features(b"") == [256] * 8


def test_outer_white_space_is_not_looked_at() -> None:
    assert features(b" \n\tabcdefgh\r\n ") == [*b"abcd", *b"efgh"]


def test_only_a_block_of_each_end_is_looked_at() -> None:
    raw = b" " * 16 + b"inside" + b"\n" * 16
    assert features(raw) == [256] * 8
    assert features(b"x" * 15 + b"y" + b"." * 1000 + b"z" * 16) == [*b"xxxx", *b"zzzz"]


@given(st.binary(max_size=64))
def test_features_are_always_bytes_or_padding(raw: bytes) -> None:
    assert all(0 <= value <= 256 for value in features(raw))


@pytest.mark.parametrize(
    ("raw", "is_text"),
    [
        (b"plain", True),
        ("äöü €".encode(), True),
        (b"\xff\xd8\xff\xe0", False),
        (b"with a zero \0", False),
        (b"x" * 15 + "€".encode(), True),  # the block ends inside the character
    ],
)
def test_text_is_what_reads_as_utf8(raw: bytes, is_text: bool) -> None:
    assert byte_features(raw, STEP)[1].is_text is is_text


@pytest.mark.parametrize(
    ("scores", "content", "name"),
    [
        ([0.6, 0.3, 0.1], TEXT, "python"),
        ([0.4, 0.3, 0.3], TEXT, "txt"),
        ([0.4, 0.3, 0.3], BINARY, "unknown"),
        ([0.1, 0.85, 0.05], BINARY, "unknown"),  # png wants 0.9
        ([0.05, 0.91, 0.04], BINARY, "png"),
        ([0.05, 0.05, 0.9], TEXT, "txt"),  # renamed
        ([0.9, 0.05, 0.05], Content(stripped_size=0, size=0, is_text=True), "empty"),
        ([0.9, 0.05, 0.05], Content(stripped_size=3, size=3, is_text=True), "txt"),
        ([0.9, 0.05, 0.05], Content(stripped_size=0, size=5000, is_text=True), "txt"),  # white space only
        ([0.9, 0.05, 0.05], Content(stripped_size=3, size=3, is_text=False), "unknown"),
    ],
)
def test_an_unsure_model_gives_a_general_type(scores: list[float], content: Content, name: str) -> None:
    assert content_type(np.array(scores), TYPE, NAMES, content)[0].name == name


def test_magikas_own_test_files_are_all_told_right(data_dir: Path, standard: Callable[[str], Artifact]) -> None:
    from edgekit.runtimes.session import SessionSettings, open_session

    pipeline = open_pipeline(load_model("file-type"))
    session = open_session(standard("file-type").path, SessionSettings(axes={"bytes[0]": 1}))
    paths = sorted((data_dir / "magika/tests_data_basic").glob("*/*"))
    wrong = []
    for path in paths:
        answer = run(pipeline, session.run, path).answer
        assert isinstance(answer, Labels)
        if answer.labels[0].name != path.parent.name:
            wrong.append((path.name, answer.labels[0]))
    session.close()
    assert len(paths) >= 76
    assert wrong == []
