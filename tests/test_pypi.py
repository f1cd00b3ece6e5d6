"""pip as a carrier: what its words mean, which wheels are tried, and how often, told by a pip that is a script."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from edgekit import pypi
from edgekit.errors import FetchError


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A python whose `-m pip` writes its arguments to `calls` and then does what `does` says."""
    monkeypatch.setattr(pypi, "_BACKOFF_S", (0.0, 0.0))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n. {tmp_path}/does\n')
    python.chmod(0o755)
    (tmp_path / "into").mkdir()
    return python


def download(pip: Path, does: str) -> Path:
    (pip.parent / "does").write_text(does + "\n")
    return pypi.download_wheel("pkg==1.0", pip.parent / "into", python=str(pip))


def calls(pip: Path) -> list[str]:
    return (pip.parent / "calls").read_text().splitlines()


def test_a_wheel_for_this_python_is_asked_for_first_and_no_dependency(pip: Path) -> None:
    into = pip.parent / "into"
    assert download(pip, f"touch {into}/pkg-1.0-py3-none-any.whl") == into / "pkg-1.0-py3-none-any.whl"
    (call,) = calls(pip)
    assert call.startswith("-m pip download --no-deps --only-binary :all: --no-input")
    assert call.endswith(f"--dest {into} pkg==1.0")
    assert "--python-version" not in call


def test_where_this_python_has_none_the_wheel_of_another_serves(pip: Path) -> None:
    into = pip.parent / "into"
    does = f'case "$*" in *manylinux*) touch {into}/pkg-1.0-cp311.whl;; *) echo "ERROR: No matching" >&2; exit 1;; esac'
    assert download(pip, does).name == "pkg-1.0-cp311.whl"
    assert [call.count("--platform") for call in calls(pip)] == [0, 1, 2]


def test_a_version_that_does_not_exist_is_said_in_pips_words_and_asked_for_once_each(pip: Path) -> None:
    with pytest.raises(FetchError) as error:
        download(pip, 'echo "ERROR: No matching distribution found for pkg==1.0" >&2; exit 1')
    words = "pkg==1.0: the package index has no wheel of it: No matching distribution found for pkg==1.0"
    assert str(error.value) == words
    assert len(calls(pip)) == 3


@pytest.mark.parametrize("sign", pypi._NETWORK_SIGNS)
def test_a_network_that_fails_is_tried_again_and_no_other_wheel_is_asked_for(sign: str, pip: Path) -> None:
    with pytest.raises(FetchError) as error:
        download(pip, f"echo 'WARNING: {sign} after connection broken' >&2; exit 1")
    assert "the package index is not reachable (tried 3 times): " in str(error.value)
    assert str(error.value).endswith("; connect once, after that the model is cached")
    assert len(calls(pip)) == 3
    assert all("--platform" not in call for call in calls(pip))


def test_a_network_that_comes_back_is_enough(pip: Path) -> None:
    into, once = pip.parent / "into", pip.parent / "once"
    does = f"if [ -e {once} ]; then touch {into}/pkg.whl; else touch {once}; echo 'Retrying (' >&2; exit 1; fi"
    assert download(pip, does) == into / "pkg.whl"


def test_a_python_without_pip_is_told_how_to_get_it(pip: Path) -> None:
    with pytest.raises(FetchError) as error:
        download(pip, f'echo "{pip}: No module named pip" >&2; exit 1')
    assert f"to mend it: {pip} -m ensurepip --upgrade (Debian: apt-get install python3-pip)" in str(error.value)
    assert len(calls(pip)) == 1


def test_a_pip_that_hangs_counts_as_a_network_that_fails(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(pypi, "_BACKOFF_S", ())
    with pytest.raises(FetchError, match=r"not reachable \(tried 1 times\): Retrying \(pip took more than 0\.2 s"):
        download(pip, "exec sleep 30")


@pytest.mark.parametrize(
    ("talk", "last"),
    [
        ("", "pip said nothing"),
        ("one\ntwo\n", "two"),
        ("ERROR: first\nERROR: second\nnotice: upgrade\n", "second"),
        ("ERROR:   spaced  \n", "spaced"),
    ],
)
def test_pips_own_last_word_counts(talk: str, last: str) -> None:
    assert pypi._last_line(talk) == last


def test_a_member_is_read_as_a_stream(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("pkg/m.onnx", b"weights")
    with pypi.open_member(tmp_path / "a.whl", "pkg==1", "pkg/m.onnx") as stream:
        assert stream.read() == b"weights"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "pkg==1: the wheel a.whl holds no member pkg/m.onnx"), (b"no zip", "pkg==1: the wheel a.whl is damaged: ")],
)
def test_a_wheel_without_the_member_or_none_at_all_is_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("pkg/other.onnx", b"x")
    else:
        path.write_bytes(content)
    with pytest.raises(FetchError) as error, pypi.open_member(path, "pkg==1", "pkg/m.onnx"):
        pass
    assert str(error.value).startswith(words)
