"""Manifests: what no device would take is refused when made and when read; content is stored and shipped once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import ArtifactError, ReleaseError
from edgekit.provision import release
from edgekit.provision.release import LaunchSpec, Library, Release, ReleaseFile, diff, parse, problem_in_path, seal
from tests.torture.small import make

SHA = hashlib.sha256(b"x").hexdigest()


def entry(path: str, **how: object) -> ReleaseFile:
    return ReleaseFile(**({"path": path, "sha256": SHA, "size_bytes": 1} | how))


def of(*files: ReleaseFile, **how: object) -> Release:
    return Release(**({"name": "1.0", "sequence": 1, "launch": LaunchSpec(run=("x",)), "files": files} | how))


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "", "a\\b", "C:x", "a\nb", "a\x00b", "x" * 256, ".."],
)
def test_a_path_that_could_leave_the_slot_is_refused_when_made_and_when_read(path: str):
    with pytest.raises(ReleaseError, match=r"path|have no"):
        seal(of(entry(path)))
    with pytest.raises(ReleaseError):
        parse(msgspec.json.encode(of(entry(path))))


@pytest.mark.parametrize(
    "path", ["launch.json", "release.json", "site/numpy/__init__.py", "scripts/x", "home/daemon", "home/daemon/epoch"]
)
def test_places_that_are_edgekits_own_are_refused(path: str):
    with pytest.raises(ReleaseError, match="edgekit's own"):
        seal(of(entry(path)))


@given(st.text(max_size=40))
def test_every_accepted_path_stays_below_its_folder(path: str):
    if problem_in_path(path) is None:
        assert Path("/slot", path).resolve().is_relative_to("/slot")
        assert Path("/slot", path) != Path("/slot")


@pytest.mark.parametrize(
    ("release_", "problem"),
    [
        (of(entry("a"), entry("A")), "twice"),
        (of(entry("a"), entry("a/b")), "both a file and a folder"),
        (of(entry("a", sha256="../../x")), "64 lower-case"),
        (of(entry("a", size_bytes=-1)), "below zero"),
        (of(entry("a", size_bytes=release.MAX_BYTES + 1)), "larger than"),
        (of(entry("w.whl", is_wheel=True, installed_bytes=release.MAX_BYTES)), "larger than"),
        (of(entry("sub/w.whl", is_wheel=True)), "not the name of a wheel"),
        (of(*(entry(f"f{i}") for i in range(release.MAX_FILES + 1))), "files, more than"),
        (of(name="../x"), "its name must be"),
        (of(name=""), "its name must be"),
        (of(launch=LaunchSpec(run=())), "launch.run is empty"),
        (of(launch=LaunchSpec(run=("x",), soak_s=1e9)), "launch.soak_s must be"),
        (of(launch=LaunchSpec(run=("x",), ready_s=-1.0)), "launch.ready_s must be"),
        (of(schema=2), "schema 2"),
    ],
)
def test_a_manifest_that_no_device_could_use_is_refused_with_the_reason(release_: Release, problem: str):
    with pytest.raises(ReleaseError, match=problem):
        seal(release_)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"name": 1}', b"[" * 100_000, b" " * (2 << 20)])
def test_what_is_no_manifest_is_one_clear_error(raw: bytes):
    with pytest.raises(ReleaseError):
        parse(raw)


def test_the_digest_is_over_the_bytes_so_keys_of_newer_releases_are_kept_in_it():
    raw = seal(of(entry("a"))).raw
    newer = raw.replace(b'"schema"', b'"colour": "red", "schema"')
    assert parse(newer).release == parse(raw).release
    assert parse(newer).digest == hashlib.sha256(newer).hexdigest() != parse(raw).digest


def test_equal_releases_have_equal_digests():
    first = of(launch=LaunchSpec(run=("x",), env={"B": "1", "A": "2"}))
    second = of(launch=LaunchSpec(run=("x",), env={"A": "2", "B": "1"}))
    assert seal(first).digest == seal(second).digest


def test_a_library_stores_content_once_and_lists_by_sequence(tmp_path: Path):
    library = Library(tmp_path)
    make(library, "2.0", sequence=20)
    make(library, "1.0", sequence=10)
    assert library.names() == ["1.0", "2.0"]
    # daemon, check and wheel are the same in both; only the artifact differs
    assert len(list((tmp_path / "blobs").iterdir())) == 5
    assert library.load("2.0").release.sequence == 20


def test_a_name_is_given_once(tmp_path: Path):
    library = Library(tmp_path)
    make(library, "1.0")
    make(library, "1.0")
    with pytest.raises(ReleaseError, match="choose a new name"):
        make(library, "1.0", daemon="import")


def test_a_damaged_blob_is_written_again_and_a_lying_source_is_refused(tmp_path: Path):
    library = Library(tmp_path)
    stored = make(library, "1.0")
    victim = library.blob(stored.release.files[0].sha256)
    victim.write_bytes(b"rot")
    make(library, "1.0")
    assert hashlib.sha256(victim.read_bytes()).hexdigest() == victim.name
    other = seal(of(entry("a", sha256="0" * 64), name="2.0"))
    (tmp_path / "lie").write_bytes(b"x")
    with pytest.raises(ArtifactError):
        library.save(other, {"0" * 64: tmp_path / "lie"})


@pytest.mark.parametrize("name", ["9.9", "../1.0", ""])
def test_an_unknown_release_names_those_there_are(tmp_path: Path, name: str):
    library = Library(tmp_path)
    make(library, "1.0")
    with pytest.raises(ReleaseError, match=r"which holds: 1\.0"):
        library.load(name)


def test_a_diff_counts_only_content_that_the_device_lacks(tmp_path: Path):
    library = Library(tmp_path)
    old = make(library, "1.0", artifact=b"a" * 5000).release
    new = make(library, "2.0", artifact=b"b" * 7000).release
    change = diff(old, new)
    assert change.changed == ("home/artifacts/digits/flash/model.bin",)
    assert (change.added, change.removed, change.unchanged_count) == ((), (), 3)
    assert change.shipped_bytes == 7000
    assert change.settings == ()
    moved = msgspec.structs.replace(old, files=tuple(msgspec.structs.replace(f, path=f"x{f.path}") for f in old.files))
    assert diff(old, moved).shipped_bytes == 0
    slower = msgspec.structs.replace(old, launch=msgspec.structs.replace(old.launch, soak_s=99.0))
    assert diff(old, slower).settings == ("launch",)
