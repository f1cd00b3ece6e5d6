"""What a release, a wheel and a wheel's name may be: rules against plain models of them, row by row."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import ReleaseError
from edgekit.provision import wheel as wheels
from edgekit.provision.release import (
    CAPS_S,
    OWN_NAMES,
    LaunchSpec,
    Objective,
    Release,
    ReleaseFile,
    Target,
    diff,
    parse,
    problem_in,
    problem_in_file,
    problem_in_path,
    seal,
)
from edgekit.provision.wheelhouse import TAGS, why_unfit
from tests.torture.small import wheel

SHA = "ab" * 32


def file(path: str = "x/y", **more: Any) -> ReleaseFile:
    return ReleaseFile(**({"path": path, "sha256": SHA, "size_bytes": 1} | more))


def release(*files: ReleaseFile, **more: Any) -> Release:
    blank: dict[str, Any] = {"name": "1.0", "sequence": 1, "launch": LaunchSpec(run=("x",)), "files": files}
    return Release(**(blank | more))


# Paths


@given(st.text(alphabet="ab./\\:\x00\n~ é", min_size=0, max_size=12))
def test_a_path_that_is_accepted_stays_below_its_folder_and_is_its_own_normal_form(text: str) -> None:
    if problem_in_path(text) is None:
        path = PurePosixPath(text)
        assert not path.is_absolute()
        assert str(path) == text
        assert ".." not in path.parts
        assert "\\" not in text
        assert text.isprintable() or "é" in text


@pytest.mark.parametrize("path", ["a", "a/b", "a.b/c-d_e+f", "..a", "a..", "a b", "é", "x" * 255])
def test_an_ordinary_path_is_accepted(path: str) -> None:
    assert problem_in_path(path) is None


@pytest.mark.parametrize(
    "path",
    ["", "/", "/a", "a/", "a//b", "./a", "a/./b", "..", "a/../b", "a\\b", "C:a", "a\nb", "a\0b", "a\x7f", "x" * 256],
)
def test_a_path_that_leads_elsewhere_or_means_two_things_is_refused(path: str) -> None:
    assert problem_in_path(path) is not None


@pytest.mark.parametrize("name", sorted(OWN_NAMES))
def test_places_that_staging_writes_are_no_releases(name: str) -> None:
    assert problem_in_file(file(f"{name}/x")) == f"'{name}/x': this place in a slot is edgekit's own"
    assert problem_in_file(file(name)) is not None
    assert problem_in_file(file(f"{name}x")) is None


@pytest.mark.parametrize(
    ("path", "is_shared"), [("home/daemon", True), ("home/daemon/x", True), ("home/daemonx", False), ("home/x", False)]
)
def test_what_both_slots_share_is_no_releases(path: str, is_shared: bool) -> None:
    assert (problem_in_file(file(path)) is not None) == is_shared


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sha256": "AB" * 32}, "sha256 must be 64 lower-case hexadecimal digits"),
        ({"sha256": "ab" * 31}, "sha256 must be 64"),
        ({"size_bytes": -1}, "a size below zero"),
        ({"installed_bytes": -1}, "a size below zero"),
        ({"path": "a.whl/x", "is_wheel": True}, "not the name of a wheel"),
        ({"path": "a.zip", "is_wheel": True}, "not the name of a wheel"),
    ],
)
def test_a_file_that_must_not_be_written_says_why(more: dict[str, Any], words: str) -> None:
    assert words in str(problem_in_file(file(**more)))


def test_a_wheel_may_lie_where_a_file_may_not() -> None:
    assert problem_in_file(file("site.whl", is_wheel=True)) is None


# Manifests


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (release(schema=2), "has schema 2, this edgekit reads 1"),
        (release(name=""), "its name must be"),
        (release(launch=LaunchSpec(run=())), "launch.run is empty"),
        (release(file(), file()), "names one path twice"),
        (release(file("A/b"), file("a/B")), "names one path twice"),
        (release(file("a"), file("a/b")), "'a' is both a file and a folder"),
        (release(file("a/b/c"), file("A")), "'a' is both a file and a folder"),
        (release(file(size_bytes=17 << 30)), "is larger than"),
        (release(file(size_bytes=9 << 30), file("z", installed_bytes=8 << 30)), "is larger than"),
        (release(*(file(f"f{i}") for i in range(2001))), "has 2001 files, more than 2000"),
    ],
)
def test_a_manifest_that_no_device_takes_says_why(found: Release, words: str) -> None:
    assert words in str(problem_in(found))
    with pytest.raises(ReleaseError):
        seal(found)


@pytest.mark.parametrize(("key", "cap_s"), sorted(CAPS_S.items()))
def test_a_patience_has_a_cap_and_its_ends_are_allowed(key: str, cap_s: float) -> None:
    for value, is_fine in ((0.0, True), (cap_s, True), (cap_s + 1, False), (-1.0, False)):
        problem = problem_in(release(launch=LaunchSpec(**{"run": ("x",), key: value})))  # type: ignore[arg-type]
        assert (problem is None) == is_fine
        assert problem is None or problem == f"launch.{key} must be 0 to {cap_s:g}"


def test_a_wheel_and_a_file_may_share_a_name_since_they_lie_apart() -> None:
    assert problem_in(release(file("a.whl", is_wheel=True), file("a.whl"))) is None


NAMES = st.from_regex(r"[a-z]{1,6}(/[a-z]{1,6}){0,2}", fullmatch=True).filter(
    lambda name: name.split("/")[0] not in OWN_NAMES and not name.startswith("home/")
)
FILES = st.dictionaries(NAMES, st.tuples(st.sampled_from("abcd"), st.integers(0, 1000)), max_size=6)


def of(table: dict[str, tuple[str, int]]) -> Release:
    """A release whose sizes follow from its contents, as real ones do."""
    sizes = {letter: 100 * (index + 1) for index, letter in enumerate("abcd")}
    return release(*(file(path, sha256=letter * 64, size_bytes=sizes[letter]) for path, (letter, _) in table.items()))


@settings(max_examples=40)
@given(FILES, FILES)
def test_a_diff_accounts_for_every_file_and_ships_what_is_missing(old: Any, new: Any) -> None:
    change = diff(of(old), of(new))
    assert set(change.added) == new.keys() - old.keys()
    assert set(change.removed) == old.keys() - new.keys()
    both = old.keys() & new.keys()
    assert set(change.changed) == {path for path in both if old[path][0] != new[path][0]}
    assert change.unchanged_count == len(both) - len(change.changed)
    missing = {letter for letter, _ in new.values()} - {letter for letter, _ in old.values()}
    assert change.shipped_bytes == sum({letter: 100 * (i + 1) for i, letter in enumerate("abcd")}[m] for m in missing)
    assert change.settings == ()


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({"launch": LaunchSpec(run=("y",))}, ("launch",)),
        ({"objectives": (Objective(model="m", samples="s"),)}, ("objectives",)),
        ({"target": Target(machine="aarch64")}, ("target",)),
        ({"name": "2.0", "sequence": 9}, ()),
    ],
)
def test_a_diff_names_the_settings_that_differ(more: dict[str, Any], settings: tuple[str, ...]) -> None:
    assert diff(release(), release(**more)).settings == settings


@given(st.binary(max_size=300))
def test_any_bytes_are_a_manifest_or_one_error(raw: bytes) -> None:
    with pytest.raises(ReleaseError) as error:
        parse(raw)
    assert "\n" not in str(error.value)


@given(st.data())
def test_a_manifest_with_one_byte_changed_is_refused_or_another_release(data: st.DataObject) -> None:
    whole = seal(release(file())).raw
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    try:
        stored = parse(changed)
    except ReleaseError:
        return
    assert stored.digest != seal(release(file())).digest or changed == whole


def test_a_manifest_survives_the_round_trip_and_a_newer_key_is_kept_in_the_bytes() -> None:
    stored = seal(release(file(), objectives=(Objective(model="m", samples="s", p99_ms=5.0),)))
    assert parse(stored.raw).release == stored.release
    table = msgspec.json.decode(stored.raw)
    newer = parse(msgspec.json.encode(table | {"from_the_future": 1}))
    assert newer.release == stored.release
    assert newer.digest != stored.digest


# Names of wheels


@pytest.mark.parametrize("machine", sorted(TAGS))
def test_every_tag_of_a_machine_fits_it_and_no_other(machine: str) -> None:
    for tag in TAGS[machine]:
        name = f"pkg-1.0-cp311-cp311-{tag}.whl"
        for other in TAGS:
            assert (why_unfit(name, Target(machine=other, python="3.11")) is None) == (other == machine)


@pytest.mark.parametrize(
    ("tags", "python", "fits"),
    [
        ("py3-none", "3.11", True), ("py2.py3-none", "3.9", True), ("cp311-cp311", "3.11", True),
        ("cp311-cp311", "3.12", False), ("cp310-cp310", "3.11", False), ("cp38-abi3", "3.11", True),
        ("cp311-abi3", "3.11", True), ("cp312-abi3", "3.11", False), ("py311-none", "3.11", True),
        ("py310-none", "3.11", False), ("cp39.cp310-abi3", "3.10", True), ("pp310-pypy310_pp73", "3.10", False),
        ("py2-none", "3.11", False), ("cp27-none", "3.11", False),
    ],
)  # fmt: skip
def test_a_wheel_runs_on_the_pythons_of_its_tags(tags: str, python: str, fits: bool) -> None:
    assert (why_unfit(f"pkg-1.0-{tags}-any.whl", Target(machine="x86_64", python=python)) is None) == fits


@pytest.mark.parametrize("name", ["pkg.whl", "pkg-1.0.tar.gz", "pkg-1.0-py3-none-any.zip", "", "a-b-c-d.whl"])
def test_what_is_no_wheels_name_is_said(name: str) -> None:
    assert why_unfit(name, Target()) == "is not the file name of a wheel"


def test_a_build_number_changes_nothing() -> None:
    assert why_unfit("pkg-1.0-2-py3-none-any.whl", Target(machine="riscv64", python="3.13")) is None


# Members of wheels


def members(tmp_path: Path, content: dict[str, str | bytes], **more: Any) -> list[str]:
    path = tmp_path / "answer-1.0-py3-none-any.whl"
    path.write_bytes(wheel(content, **more))
    with zipfile.ZipFile(path) as archive:
        return [member.path for member in wheels.members(archive, path.name)]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("pkg/a.py", "site/pkg/a.py"), ("answer-1.0.data/purelib/p/a.py", "site/p/a.py"),
        ("answer-1.0.data/platlib/p/a.so", "site/p/a.so"), ("answer-1.0.data/scripts/run", "scripts/run"),
        ("answer-1.0.data/data/etc/x", "data/etc/x"), ("answer-1.0.data/headers/x.h", "headers/x.h"),
    ],
)  # fmt: skip
def test_each_scheme_has_its_place(name: str, place: str, tmp_path: Path) -> None:
    assert members(tmp_path, {name: "x"})[0] == place


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/passwd", "a/../../b", "a\\b.py", "answer-1.0.data/lib/x", "answer-1.0.data/x"]
)
def test_a_member_without_a_place_refuses_the_whole_wheel(name: str, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError):
        members(tmp_path, {"good.py": "x", name: "x"})


def test_a_member_that_record_does_not_list_refuses_the_whole_wheel(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"'sneaked\.py' is not in its RECORD"):
        members(tmp_path, {"sneaked.py": "x"}, record="answer-1.0.dist-info/RECORD,,")
