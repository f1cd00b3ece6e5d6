"""What an operator meets on boards: a user without root, sudo or none, a full disk, a board that cannot run edgekit."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgekit.errors import SlotError
from edgekit.provision import remote as far
from tests.sshd import SSHD, Sshd

NOBODY = 65534
BECOME_NOBODY = (
    'ForceCommand exec setpriv --reuid=65534 --regid=65534 --clear-groups /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
)
pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="needs sshd; to mend it: sudo apt install openssh-server"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux"),
]
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="elsewhere: only root can be somebody else or mount"
)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def nobodys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server whose user has no rights: every command runs as nobody."""
    server = Sshd(tmp_path_factory.mktemp("sshd"), BECOME_NOBODY)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _alone_with_sudo() -> Iterator[None]:
    """What one of these tests lets nobody do, another one beside it would be let as well."""
    with contextlib.ExitStack() as held:
        if sys.platform == "linux":  # else these tests are skipped anyway
            import fcntl

            lock = held.enter_context(Path(f"/tmp/edgekit-test-sudo-{os.getuid()}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def sudoers() -> Iterator[Path]:
    """What nobody may do through the real sudo, for one test."""
    if os.environ.get("EDGEKIT_CI") != "1":
        pytest.skip("elsewhere: nobody gets sudo for a moment, which only a machine made for tests should give (CI)")
    if shutil.which("sudo") is None:
        pytest.skip("needs sudo; to mend it: apt install sudo")
    path = Path("/etc/sudoers.d/edgekit-test")
    path.touch(mode=0o440)
    yield path
    path.unlink()


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that nobody cannot write, reachable for everyone."""
    folder = Path(f"/opt/edgekit-test-{os.getpid()}")
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_a_folder_of_root_without_sudo_names_the_way_out(nobodys, locked):
    remote = nobodys.remote()
    board = far.look(remote, f"{locked}/edgekit", python="/usr/bin/python3")
    assert not board.is_writable
    assert not board.is_root
    with pytest.raises(SlotError) as e:
        far.become_root(remote, board, service="auto")
    assert "cannot be written by this user, and " in str(e.value)
    assert "sudo" in str(e.value)
    assert str(e.value).endswith("give a folder that is yours, such as 127.0.0.1:edgekit")
    assert remote.become == ()


@as_root
def test_sudo_that_asks_for_nothing_is_used_for_every_command(nobodys, locked, sudoers, tmp_path):
    sudoers.write_text("nobody ALL=(ALL) NOPASSWD: ALL\n")
    remote = nobodys.remote()
    board = far.look(remote, f"{locked}/edgekit", python="/usr/bin/python3")
    far.become_root(remote, board, service="auto")
    assert remote.become == ("sudo", "-n")
    (tmp_path / "blob").write_bytes(b"x" * 100_000)
    assert remote.run(["mkdir", "-p", f"{locked}/edgekit/blobs"]).returncode == 0
    remote.upload(tmp_path / "blob", f"{locked}/edgekit/blobs/it's", lambda _: None)
    far.put(remote, f"{locked}/edgekit/secret", b"s")
    assert (locked / "edgekit/blobs/it's").read_bytes() == b"x" * 100_000
    assert (locked / "edgekit/secret").stat().st_mode & 0o777 == 0o600
    assert (locked / "edgekit/secret").stat().st_uid == 0


@as_root
def test_sudo_that_wants_a_password_is_said_as_such(nobodys, locked, sudoers):
    sudoers.write_text("nobody ALL=(ALL) ALL\n")
    remote = nobodys.remote()
    board = far.look(remote, f"{locked}/edgekit", python="/usr/bin/python3")
    with pytest.raises(SlotError, match="sudo there wants a password"):
        far.become_root(remote, board, service="auto")


@as_root
def test_a_folder_of_ones_own_needs_no_root_but_for_a_system_service(nobodys, tmp_path):
    own = Path(f"/tmp/edgekit-own-{os.getpid()}")
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    try:
        remote = nobodys.remote()
        board = far.look(remote, f"{own}/edgekit", python="/usr/bin/python3")
        assert board.is_writable
        far.become_root(remote, board, service="auto")
        assert remote.become == ()
        with pytest.raises(SlotError, match="a system service needs root, and "):
            far.become_root(remote, board, service="system")
    finally:
        shutil.rmtree(own)


def test_root_that_cannot_write_is_told_of_the_file_system(sshd, tmp_path):
    remote = sshd.remote()
    board = far.look(remote, str(tmp_path), python=sys.executable)
    with pytest.raises(SlotError, match="even by root: is that file system read-only"):
        far.become_root(remote, replace(board, is_writable=False, is_root=True), service="auto")


@as_root
def test_a_disk_that_fills_up_during_the_upload_is_one_line_at_once(sshd, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode != 0:
        pytest.skip("elsewhere: file systems cannot be mounted in this container")
    try:
        (tmp_path / "blob").write_bytes(os.urandom(2_000_000))
        with pytest.raises(SlotError, match="its disk is full; to mend it: free some"):
            sshd.remote().upload(tmp_path / "blob", f"{disk}/there", lambda _: None)
        with pytest.raises(SlotError, match="No space left on device"):
            far.put(sshd.remote(), f"{disk}/small", b"x" * 300_000)
        assert not (disk / "small").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def told(tmp_path: Path, *, python: tuple[int, int], board_id: str | None) -> str:
    """A Python of that version on a board that is recognised as `board_id`; the real look() asks it twice."""
    program = tmp_path / "python"
    facts = f'{{"board": {{"id": "{board_id}"}}, "device_id": null}}' if board_id else "no probe"
    look = (
        f'{{"root": "/x", "python": [{python[0]}, {python[1]}], "machine": "aarch64", "has_edgekit": false, '
        '"is_writable": true, "is_root": false, "free_bytes": 1}'
    )
    program.write_text(f"#!/bin/sh\ncat > /dev/null\nif [ $# -gt 1 ]; then echo '{look}'; else echo '{facts}'; fi\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("python", "board_id", "problems"),
    [
        ((3, 6), "jetson-tx2", ["has Python 3.6, edgekit needs 3.10", "Jetson TX2", "JetPack 4 is the last one"]),
        ((3, 8), "jetson-xavier-nx-16gb", ["has Python 3.8", "JetPack 5 is the last one for this board"]),
        ((3, 9), "rpi-4", ["has Python 3.9, edgekit needs 3.10; name a newer one with --interpreter"]),
        ((3, 6), None, ["has Python 3.6, edgekit needs 3.10; name a newer one with --interpreter"]),
        ((3, 11), "generic-riscv64", ["edgekit does not run there", "only the probe runs"]),
    ],
)  # fmt: skip
def test_what_the_profile_cannot_run_is_refused_with_the_profiles_own_reason(
    sshd, tmp_path, python, board_id, problems
):
    with pytest.raises(SlotError) as e:
        far.look(sshd.remote(), "/x", python=told(tmp_path, python=python, board_id=board_id))
    for problem in problems:
        assert problem in str(e.value)
    assert "\n" not in str(e.value)


def test_a_container_board_with_a_newer_python_of_its_own_is_let_through(sshd, tmp_path):
    board = far.look(sshd.remote(), "/x", python=told(tmp_path, python=(3, 11), board_id="jetson-tx2"))
    assert board.board_id == "jetson-tx2"


def test_what_a_device_alone_is_given_arrives_and_is_named_by_folder(sshd, tmp_path):
    gifts = far.Gifts(trust_root=b"{}", own={"device.toml": b'device = "d"\n', "mqtt-password": b"secret\n"})
    words = far._hand_over(sshd.remote(), str(tmp_path), gifts)
    assert words == ["--trust-root", f"{tmp_path}/root-of-trust", "--own", f"{tmp_path}/own"]
    assert (tmp_path / "own/mqtt-password").read_bytes() == b"secret\n"
    assert (tmp_path / "own/mqtt-password").stat().st_mode & 0o777 == 0o600
    assert not any("secret" in word for word in words)
