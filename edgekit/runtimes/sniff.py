"""What kind of file a path really holds, told from its first bytes: clearer than any runtime's own complaint."""

from __future__ import annotations

from pathlib import Path

from edgekit.errors import ArtifactError

TFLITE_MAGIC = b"TFL3"
_HEAD_BYTES = 512


def read_head(path: Path) -> bytes:
    """The first bytes. Raises ArtifactError when there is no such readable file."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except IsADirectoryError as e:
        raise ArtifactError(path, "is a folder, not a model file") from e
    except FileNotFoundError as e:
        raise ArtifactError(path, "no such file") from e
    except OSError as e:
        raise ArtifactError(path, f"cannot be read: {e.strerror}") from e


def looks_like(head: bytes) -> str:
    """In words: "empty", "a text file", "a LiteRT model", …, or "unknown" when nothing gives it away."""
    if not head:
        return "empty"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer (fetch the content with 'git lfs pull')"
    if head[4:8] == TFLITE_MAGIC:
        return "a LiteRT model"
    for magic, kind in ((b"PK\x03\x04", "a zip archive"), (b"\x1f\x8b", "a gzip file"), (b"\x89HDF", "an HDF5 file")):
        if head.startswith(magic):
            return kind
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "a web page"
    return "a text file" if _is_text(head) else "unknown"


def _is_text(head: bytes) -> bool:
    # an ONNX file starts with a field tag and a small number: never eight printable bytes
    printable = sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)
    return printable == len(head)
