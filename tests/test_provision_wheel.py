"""Wheels unpacked without pip: where files go, what is refused, and that the result is what RECORD says."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgekit.errors import ReleaseError
from edgekit.provision.wheel import installed_bytes, unpack, verify
from tests.torture.small import wheel

MEMBERS = {
    "answer/__init__.py": "ANSWER = 42\n",
    "answer-1.0.data/purelib/pure.py": "P = 1\n",
    "answer-1.0.data/platlib/plat.py": "Q = 2\n",
    "answer-1.0.data/scripts/ask": "#!python\n",
}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "answer-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


def test_packages_can_be_imported_from_site_and_other_schemes_keep_their_folder(tmp_path: Path):
    path = write(tmp_path, wheel(MEMBERS))
    unpack(path, tmp_path / "slot", name="answer", limit_bytes=installed_bytes(path))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import answer, pure, plat; print(answer.ANSWER + pure.P + plat.Q)"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "slot/site")], capture_output=True, text=True
    )
    assert run.stdout == "45\n", run.stderr
    assert (tmp_path / "slot/scripts/ask").exists()
    verify(path, tmp_path / "slot", name="answer")


@pytest.mark.parametrize("damage", [b"ANSWER = 43\n", b"", b"ANSWER = 42\n\n"])
def test_a_file_that_the_disk_changed_is_found(tmp_path: Path, damage: bytes):
    path = write(tmp_path, wheel(MEMBERS))
    unpack(path, tmp_path / "slot", name="answer", limit_bytes=1000)
    (tmp_path / "slot/site/answer/__init__.py").write_bytes(damage)
    with pytest.raises(ReleaseError, match=r"site/answer/__init__\.py is not what was unpacked"):
        verify(path, tmp_path / "slot", name="answer")


@pytest.mark.parametrize(
    "member", ["../escape.py", "/etc/escape", "answer/../../../escape.py", "answer-1.0.data/purelib/../../../x"]
)
def test_a_member_that_leaves_the_slot_is_refused_before_anything_is_written_there(tmp_path: Path, member: str):
    path = write(tmp_path, wheel({member: "x"}))
    with pytest.raises(ReleaseError, match="must"):
        unpack(path, tmp_path / "deep/er/slot", name="answer", limit_bytes=1000)
    assert not list(tmp_path.rglob("*escape*"))


def test_a_symbolic_link_in_a_wheel_is_refused(tmp_path: Path):
    path = tmp_path / "answer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("answer/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("answer-1.0.dist-info/RECORD", "answer/link,,\n")
    with pytest.raises(ReleaseError, match="symbolic link"):
        unpack(path, tmp_path / "slot", name="answer", limit_bytes=1000)


def test_more_than_the_release_says_is_not_unpacked(tmp_path: Path):
    path = write(tmp_path, wheel({"answer/zeros.bin": b"\0" * 100_000}))
    with pytest.raises(ReleaseError, match="more than the 5000 bytes"):
        unpack(path, tmp_path / "slot", name="answer", limit_bytes=5000)
    assert not (tmp_path / "slot/site/answer/zeros.bin").exists()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"not a zip", "is not a wheel"),
        (wheel({"a.py": "x"}, record="b.py,,"), "not in its RECORD"),
        (wheel({"a-1.data/strange/x": "x"}), "of no scheme"),
    ],
)
def test_what_is_no_wheel_is_refused_with_the_reason(tmp_path: Path, data: bytes, problem: str):
    with pytest.raises(ReleaseError, match=problem):
        installed_bytes(write(tmp_path, data))


def test_a_zip_without_record_is_refused(tmp_path: Path):
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.py", "")
    with pytest.raises(ReleaseError, match="one RECORD, this has 0"):
        installed_bytes(path)


def test_a_compiled_package_can_be_imported_from_an_unpacked_wheel(tmp_path: Path):
    import msgspec

    folder = Path(msgspec.__file__).parent
    members = {f"msgspec/{p.name}": p.read_bytes() for p in folder.iterdir() if p.suffix in (".py", ".so")}
    path = write(tmp_path, wheel(members))
    unpack(path, tmp_path / "slot", name="msgspec", limit_bytes=installed_bytes(path))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import msgspec; print(msgspec.__file__)"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "slot/site")], capture_output=True, text=True
    )
    assert run.stdout.startswith(str(tmp_path / "slot/site")), run.stderr
