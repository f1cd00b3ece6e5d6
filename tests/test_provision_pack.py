"""Packing: what a box holds, how it is named and started; and pip's part in it, told by a pip that is a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from edgekit.errors import FetchError, ReleaseError
from edgekit.provision import pack, wheelhouse
from edgekit.provision.pack import CHECK_S, Box, Order, _content_name, _launch, _put_wheels, this_machine
from edgekit.provision.release import LaunchSpec, Objective, Release, ReleaseFile, Target
from tests.torture.small import wheel

WHEEL = "answer-1.0-py3-none-any.whl"


def order(**more: Any) -> Order:
    blank: dict[str, Any] = {"name": "1.0", "sequence": 1, "config": Path("edgekit.toml"), "target": this_machine()}
    return Order(**(blank | more))


def silent(_text: str, _share: float) -> None:
    """Nobody is watching."""


# The box


def test_a_box_knows_each_path_once_and_each_content_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"one")
    (tmp_path / "c").write_bytes(b"two!")
    box = Box()
    for path, source in (("x", "a"), ("y", "b"), ("z", "c"), ("x", "c")):
        box.put(path, tmp_path / source)
    assert [(file.path, file.size_bytes) for file in box.files] == [("x", 3), ("y", 3), ("z", 4)]
    assert box.files[0].sha256 == box.files[1].sha256 != box.files[2].sha256
    assert set(box.sources) == {file.sha256 for file in box.files}
    assert all(box.sources[file.sha256].read_bytes() in (b"one", b"two!") for file in box.files)


def test_a_wheel_in_the_box_says_what_it_takes_unpacked(tmp_path: Path) -> None:
    content = {"answer/__init__.py": "ANSWER = 42\n", "answer/data.bin": b"x" * 1000}
    (tmp_path / WHEEL).write_bytes(wheel(content))
    box = Box()
    box.put(WHEEL, tmp_path / WHEEL, is_wheel=True)
    (file,) = box.files
    assert file.is_wheel
    assert file.installed_bytes >= 1012
    assert file.size_bytes == (tmp_path / WHEEL).stat().st_size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("answer-1.0-cp39-cp39-any.whl", "is for cp39 (cp39), the target has Python 3.11"),
        ("answer-1.0-py3-none-win_amd64.whl", "is for win_amd64, the target is aarch64"),
        ("answer.whl", "is not the file name of a wheel"),
    ],
)
def test_a_wheel_that_does_not_run_there_stays_out(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(wheel({"a.py": "x"}))
    box = Box()
    asked = order(target=Target(machine="aarch64", python="3.11"), wheels=(tmp_path / name,))
    with pytest.raises(ReleaseError) as error:
        _put_wheels(box, asked, tmp_path, silent)
    assert words in str(error.value)
    assert box.files == []


# Names and starting


def release(**more: Any) -> Release:
    file = ReleaseFile(path="x", sha256="a" * 64, size_bytes=1)
    blank: dict[str, Any] = {"name": "", "sequence": 1, "launch": LaunchSpec(run=("x",)), "files": (file,)}
    return Release(**(blank | {"objectives": (Objective(model="digits", samples="s"),)} | more))


def test_a_name_made_of_the_content_is_the_same_for_the_same_content_whenever_it_is_made() -> None:
    name = _content_name(release())
    assert name == _content_name(release(sequence=99)) == _content_name(release(name="other"))
    assert name.startswith("digits-")
    assert len(name) == len("digits-") + 12


@pytest.mark.parametrize(
    "more",
    [
        {"files": (ReleaseFile(path="x", sha256="b" * 64, size_bytes=1),)},
        {"files": (ReleaseFile(path="y", sha256="a" * 64, size_bytes=1),)},
        {"launch": LaunchSpec(run=("x",), soak_s=1.0)},
        {"objectives": (Objective(model="digits", samples="s", p99_ms=5.0),)},
        {"target": Target(machine="aarch64")},
    ],
)
def test_other_content_is_another_name(more: dict[str, Any]) -> None:
    assert _content_name(release(**more)) != _content_name(release())


def test_a_name_of_many_models_stays_short_enough_for_a_file() -> None:
    many = tuple(Objective(model=f"a-model-of-some-length-{i}", samples="s") for i in range(9))
    assert len(_content_name(release(objectives=many))) <= 53


@pytest.mark.parametrize(
    ("p99_ms", "seconds"), [([None], CHECK_S), ([10.0], CHECK_S + 13.24), ([10.0, 20.0, None], CHECK_S + 39.72)]
)
def test_the_check_gets_the_time_that_its_samples_take_at_twice_the_bound(p99_ms: list, seconds: float) -> None:
    objectives = [Objective(model=f"m{i}", samples="s", p99_ms=bound) for i, bound in enumerate(p99_ms)]
    launch = _launch(objectives, order(), has_wheels=False)
    assert launch.check[-2:] == ("--seconds", f"{seconds:.0f}")
    assert launch.check_s == pytest.approx(seconds * 1.5 + 30)


def test_a_check_never_gets_more_than_an_hour() -> None:
    launch = _launch([Objective(model="m", samples="s", p99_ms=1e6)], order(), has_wheels=False)
    assert launch.check_s == 3600.0


@pytest.mark.parametrize("has_wheels", [True, False])
def test_a_release_runs_from_its_slot_and_from_nothing_else(has_wheels: bool) -> None:
    launch = _launch([], order(soak_s=7.0, ready_s=9.0), has_wheels=has_wheels)
    assert (launch.soak_s, launch.ready_s) == (7.0, 9.0)
    assert launch.env["EDGEKIT_HOME"] == "{slot}/home"
    assert launch.env["PYTHONNOUSERSITE"] == launch.env["PYTHONSAFEPATH"] == "1"
    assert launch.env.get("PYTHONPATH") == ("{slot}/site" if has_wheels else None)
    assert launch.run[:3] == ("{python}", "-m", "edgekit.cli.main")


# pip's part


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes `sys.executable -m pip` do what a shell script says; gives the file that keeps its arguments."""

    def does(script: str) -> Path:
        python, calls = tmp_path / "python", tmp_path / "calls"
        python.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{script}\n')
        python.chmod(0o755)
        monkeypatch.setattr(wheelhouse.sys, "executable", str(python))
        return calls

    return does


LOCK = f"answer==1.0 --hash=sha256:{'a' * 64}\n"
ARM = Target(machine="aarch64", python="3.11")


def locked(tmp_path: Path, text: str = LOCK) -> Path:
    (tmp_path / "lock.txt").write_text(text)
    return tmp_path / "lock.txt"


def test_wheels_are_asked_for_by_hash_for_the_targets_machine_and_python(pip: Any, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    calls = pip(f"touch {into}/{WHEEL} {into}/b-1-cp311-cp311-manylinux_2_28_aarch64.whl")
    found = wheelhouse.collect(locked(tmp_path), ARM, into)
    assert [path.name for path in found] == [WHEEL, "b-1-cp311-cp311-manylinux_2_28_aarch64.whl"]
    words = calls.read_text()
    assert "download --require-hashes --no-deps --only-binary :all: --implementation cp --python-version 3.11" in words
    assert words.count("--platform") == len(wheelhouse.TAGS["aarch64"])


def test_a_wheel_that_pip_brought_for_another_machine_is_refused_all_the_same(pip: Any, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    pip(f"touch {into}/b-1-cp311-cp311-manylinux_2_28_x86_64.whl")
    with pytest.raises(ReleaseError, match="is for manylinux_2_28_x86_64, the target is aarch64"):
        wheelhouse.collect(locked(tmp_path), ARM, into)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ERROR: No matching distribution found for answer==1.0", "No matching distribution found for answer==1.0"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "a package is not what the list's hash says"),
        ("something odd", "something odd"),
        ("", "no word"),
    ],
)
def test_what_pip_says_is_the_reason(said: str, words: str, pip: Any, tmp_path: Path) -> None:
    pip(f'echo "{said}" >&2; exit 1')
    with pytest.raises(FetchError) as error:
        wheelhouse.collect(locked(tmp_path), ARM, tmp_path)
    assert str(error.value).endswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("answer==1.0\n", "'answer==1.0' has no --hash=sha256"),
        ("answer\n", "'answer' has no --hash"),
        (None, "cannot be read"),
    ],
)
def test_a_list_that_is_not_locked_asks_nobody(text: str | None, words: str, pip: Any, tmp_path: Path) -> None:
    calls = pip("exit 0")
    path = tmp_path / "lock.txt" if text is None else locked(tmp_path, text)
    with pytest.raises(ReleaseError) as error:
        wheelhouse.collect(path, ARM, tmp_path)
    assert words in str(error.value)
    assert not calls.exists()


@pytest.mark.parametrize("text", [LOCK, f"# a note\n\nanswer==1.0 \\\n  --hash=sha256:{'a' * 64}\n"])
def test_notes_and_folded_lines_are_locked_too(text: str, pip: Any, tmp_path: Path) -> None:
    pip("exit 0")
    assert wheelhouse.collect(locked(tmp_path, text), ARM, tmp_path) == []


@pytest.mark.parametrize("machine", ["mips", "", "x86"])
def test_a_machine_that_has_no_wheels_names_those_that_do(machine: str, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no wheels are known for this machine, only for x86_64, aarch64"):
        wheelhouse.collect(locked(tmp_path), Target(machine=machine, python="3.11"), tmp_path)


def test_a_lock_is_sorted_by_name_with_one_hash_a_line(pip: Any, tmp_path: Path) -> None:
    def entry(name: str) -> dict[str, Any]:
        archive = {"archive_info": {"hashes": {"sha256": name[0].lower() * 64}}}
        return {"metadata": {"name": name, "version": "1.0"}, "download_info": archive}

    (tmp_path / "report").write_text(json.dumps({"install": [entry("b"), entry("A"), entry("c")]}))
    pip(f'while [ "$1" != --report ]; do shift; done; cp {tmp_path}/report "$2"')
    assert wheelhouse.lock(["b"], ARM).splitlines() == [
        "# for aarch64 with Python 3.11; made by: edgekit release lock",
        f"A==1.0 --hash=sha256:{'a' * 64}",
        f"b==1.0 --hash=sha256:{'b' * 64}",
        f"c==1.0 --hash=sha256:{'c' * 64}",
    ]


def test_what_edgekit_needs_is_its_core_and_the_extras_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ["numpy>=1", 'tomli>=2; python_version < "3.11"', 'httptools>=0.6; extra == "serve"']
    declared += ['uvloop; sys_platform != "win32" and extra == "serve"', "onnx>=1; extra == 'build'"]
    monkeypatch.setattr(metadata, "requires", lambda _: declared)
    core = ["numpy>=1", 'tomli>=2; python_version < "3.11"']
    assert wheelhouse.needs_of_edgekit([]) == core
    assert wheelhouse.needs_of_edgekit(["serve"]) == [*core, "httptools>=0.6", 'uvloop; sys_platform != "win32"']
    assert wheelhouse.needs_of_edgekit(["build"]) == [*core, "onnx>=1"]


def test_an_edgekit_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", absent)
    with pytest.raises(ReleaseError, match="is not installed here, so its needs are unknown"):
        wheelhouse.needs_of_edgekit([])


def test_this_machine_is_the_one_that_runs_us() -> None:
    assert pack.this_machine().python == f"{sys.version_info.major}.{sys.version_info.minor}"
