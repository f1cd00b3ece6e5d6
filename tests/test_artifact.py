"""Artifacts and their records: what a file must be, and what is written about it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from edgekit.artifact import (
    RECORD_NAME,
    Accuracy,
    Artifact,
    ArtifactRecord,
    load_artifacts,
    save_record,
    sha256_of,
    verify_file,
)
from edgekit.errors import ArtifactError


def record(content: bytes, name: str = "flash-int8") -> ArtifactRecord:
    return ArtifactRecord(
        model="digits",
        name=name,
        file="model.onnx",
        format="onnx",
        precision="int8",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        accuracy=Accuracy(
            metric="top1",
            value=0.97,
            standard_value=0.98,
            sample_count=360,
            per_output_sqnr_db={"logits": 31.5, "same": None},
            runtime="onnxruntime",
            isa="x86_64 avx512_vnni",
        ),
    )


def make(folder: Path, content: bytes, name: str = "flash-int8") -> Artifact:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    save_record(folder, record(content, name))
    return Artifact(record=record(content, name), path=folder / "model.onnx")


def test_sha256_is_that_of_the_whole_file_across_pieces(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000  # 2.5 MB: three pieces
    (tmp_path / "x").write_bytes(content)
    assert sha256_of(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_the_right_file_verifies(tmp_path: Path) -> None:
    make(tmp_path / "a", b"weights").verify()


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"weight", "has 6 bytes, expected 7"), (b"Weights", "sha256 is ")],
)
def test_another_content_is_named_for_what_it_is(tmp_path: Path, content: bytes, problem: str) -> None:
    artifact = make(tmp_path / "a", b"weights")
    artifact.path.write_bytes(content)
    with pytest.raises(ArtifactError, match=problem) as caught:
        artifact.verify()
    assert caught.value.path == artifact.path


def test_a_missing_file_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        verify_file(tmp_path / "absent", sha256="0" * 64, size_bytes=1)


def test_records_are_read_back_as_they_were_written_in_the_order_of_their_names(tmp_path: Path) -> None:
    second = make(tmp_path / "b", b"two", "b")
    first = make(tmp_path / "a", b"one", "a")
    assert load_artifacts(tmp_path) == [first, second]


def test_a_folder_without_a_record_is_not_an_artifact_yet(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half/model.onnx").write_bytes(b"x")
    assert load_artifacts(tmp_path) == []
    assert load_artifacts(tmp_path / "absent") == []


def test_a_record_of_a_newer_release_is_read_without_what_it_adds(tmp_path: Path) -> None:
    # Both slots share this state: after a rollback the older release meets the newer one's records.
    make(tmp_path / "a", b"x")
    path = tmp_path / "a" / RECORD_NAME
    table = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(table | {"added_later": {"by": "a newer release"}}))
    (found,) = load_artifacts(tmp_path)
    assert found.record.sha256 == table["sha256"]


def test_accuracy_ratio_is_the_share_of_the_standard() -> None:
    accuracy = record(b"").accuracy
    assert accuracy is not None
    assert accuracy.ratio == pytest.approx(0.97 / 0.98)
    assert msgspec.structs.replace(accuracy, standard_value=None).ratio is None
