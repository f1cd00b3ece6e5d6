"""Provisioning over the system's ssh against a real sshd on loopback: what goes well, and each way it can fail."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.cli.main import main
from edgekit.errors import SlotError, UnreachableError, UsageError
from edgekit.provision import remote as far
from edgekit.provision.release import Library
from edgekit.provision.ssh import Remote
from tests.sshd import SSHD, Sshd
from tests.torture.small import Guarded, make

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="needs sshd; to mend it: sudo apt install openssh-server"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere: devices run Linux"),
]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def trusting(sshd: Sshd) -> None:
    sshd.trust("host")


def provision(sshd: Sshd, root: Path, *words: str) -> int:
    options = [f"--ssh-option={word}" for word in sshd.options()]
    return main(["provision", f"127.0.0.1:{root}", *options, "--interpreter", sys.executable, "--service=none", *words])


def test_a_bare_folder_is_provisioned_again_updated_and_kept_from_a_bad_release(sshd, tmp_path, edgekit_home, capfd):
    root, library = tmp_path / "board", Library(tmp_path / "library")
    make(library, "1.0")
    make(library, "2.0", daemon="import")
    make(library, "3.0")
    words = ("--library", str(library.folder), "--release")

    assert provision(sshd, root, *words, "1.0", "--dry-run") == 0
    assert "send at most" in capfd.readouterr().out
    assert not root.exists()

    assert provision(sshd, root, *words, "1.0") == 0
    said = capfd.readouterr()
    assert "1.0: committed; 1.0 runs" in said.out
    assert "MiB free" in said.err
    assert not (root / "incoming").exists()

    before = (root / "state.json").read_bytes()
    assert provision(sshd, root, *words, "1.0") == 0
    assert "nothing to do" in capfd.readouterr().out
    assert (root / "state.json").read_bytes() == before

    assert provision(sshd, root, *words, "2.0") == 1
    assert "2.0: rolled back; 1.0 runs" in (said := capfd.readouterr()).out
    assert "no_such_module_in_this_release" in said.out

    with Guarded(root):  # as its service would
        assert provision(sshd, root, *words, "3.0") == 0
        assert "3.0: committed; 3.0 runs" in capfd.readouterr().out


def test_only_what_the_board_lacks_is_sent(sshd, tmp_path):
    root, library = tmp_path / "board", Library(tmp_path / "library")
    first, second = make(library, "1.0"), make(library, "2.0")
    board = far.look(sshd.remote(), str(root), python=sys.executable)
    assert far.bring(sshd.remote(), board, first, library, lambda *_: None, python=sys.executable) > 1000
    assert far.bring(sshd.remote(), board, first, library, lambda *_: None, python=sys.executable) == 0
    assert (
        far.bring(sshd.remote(), board, second, library, lambda *_: None, python=sys.executable) == 300
    )  # its artifact


def test_a_changed_host_key_and_an_unknown_host_are_refused(sshd, tmp_path, capsys):
    sshd.trust("other")
    assert provision(sshd, tmp_path / "board", "--model", "digits") == 4
    assert "its host key has changed" in capsys.readouterr().err
    (sshd.folder / "known").write_text("")
    assert provision(sshd, tmp_path / "board", "--model", "digits") == 4
    assert "check the fingerprint" in capsys.readouterr().err


def test_a_key_that_is_not_let_in_is_said_with_what_mends_it(sshd, tmp_path):
    words = [word for word in sshd.options() if not word.startswith("-i")] + [f"-i{sshd.folder}/other"]
    with Remote("127.0.0.1", words) as remote, pytest.raises(UnreachableError, match="ssh-copy-id 127"):
        remote.run(["true"])


def test_a_host_that_is_not_there_is_said(sshd):
    with pytest.raises(UnreachableError, match="refuses ssh"):
        sshd.remote(port=9).run(["true"])
    with (
        Remote("no-such-host.invalid", sshd.options()) as nowhere,
        pytest.raises(UnreachableError, match="no such host"),
    ):
        nowhere.run(["true"])
    with pytest.raises(UsageError, match="not the name of a host"):
        Remote("-oProxyCommand=touch /tmp/x")


def test_a_board_without_python_or_with_an_old_one_is_refused_early(sshd, tmp_path):
    with pytest.raises(SlotError, match="has no python9"):
        far.look(sshd.remote(), str(tmp_path), python="python9")
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\necho \'{"python": [3, 6], "machine": "aarch64"}\'\n')
    old.chmod(0o755)
    with pytest.raises(SlotError, match=r"has Python 3\.6, edgekit needs 3\.10"):
        far.look(sshd.remote(), str(tmp_path), python=str(old))


def test_a_board_is_probed_before_anything_is_sent(sshd, tmp_path):
    board = far.look(sshd.remote(), f"{tmp_path}/x/y/z", python=sys.executable)
    assert board.python == sys.version_info[:2]
    assert board.machine == os.uname().machine
    assert board.has_edgekit
    assert board.free_bytes > 0
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("has", "problem"),
    [
        ({"machine": "aarch64"}, "the board is aarch64"),
        ({"python": (3, 99)}, r"the board has 3\.99"),
        ({"has_edgekit": False}, None),
        ({"free_bytes": 100}, "are free"),
    ],
)
def test_what_the_board_cannot_run_is_refused_before_anything_is_sent(sshd, tmp_path, has, problem):
    from dataclasses import replace

    import msgspec

    from edgekit.provision.pack import this_machine
    from edgekit.provision.release import seal

    made = make(Library(tmp_path / "library"), "1.0").release
    stored = seal(msgspec.structs.replace(made, name="1.1", target=this_machine()))
    board = replace(far.look(sshd.remote(), str(tmp_path), python=sys.executable), **has)
    why = far.why_not(board, stored)
    if problem is None:  # it brings its own edgekit as a wheel
        assert why is None
    else:
        assert re.search(problem, why or "")


class Cutting:
    """Passes connections on to sshd and cuts the first one after `limit` bytes."""

    def __init__(self, port: int, limit: int) -> None:
        self._to, self._limit = port, limit
        self.passed_bytes = self.cuts = 0
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [client, server]
            for words in ((client, server, True), (server, client, False)):
                self._threads.append(threading.Thread(target=self._pump, args=words, daemon=True))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, to: socket.socket, counts: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                to.sendall(data)
                passed += len(data)
                self.passed_bytes += len(data) if counts else 0
                if counts and not self.cuts and passed > self._limit:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
        for end in self._ends:
            end.close()


def test_an_upload_that_is_cut_off_goes_on_where_it_ended(sshd, tmp_path):
    (tmp_path / "blob").write_bytes(os.urandom(4_000_000))
    cutting = Cutting(sshd.port, 3_500_000)  # ssh sends 2 MB ahead of what was read at the other end
    try:
        sshd.trust("host", cutting.port)
        with sshd.remote(cutting.port) as remote:
            remote.upload(tmp_path / "blob", str(tmp_path / "there"), lambda _: None)
    finally:
        cutting.close()
    assert (tmp_path / "there").read_bytes() == (tmp_path / "blob").read_bytes()
    assert cutting.cuts == 1
    assert cutting.passed_bytes < 6_500_000  # from the beginning it would be 7.5 MB


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_sent(sshd, tmp_path, capsys):
    if os.geteuid() != 0 or os.system(f"mkdir {tmp_path}/ro && mount -t tmpfs -o ro tmpfs {tmp_path}/ro") != 0:
        pytest.skip("elsewhere: file systems cannot be mounted in this container")
    try:
        assert provision(sshd, tmp_path / "ro/board", "--model", "digits") == 5
        assert "cannot be written, even by root" in capsys.readouterr().err
    finally:
        os.system(f"umount {tmp_path}/ro")


def test_what_an_operator_runs_needs_no_linux():
    """They sit at macOS and Windows machines too: no fcntl before a slot of this machine is touched."""
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import edgekit.cli.provision, edgekit.cli.release, edgekit.cli.repo, edgekit.cli.keys\n"
        "import edgekit.provision.remote, edgekit.provision.pack, edgekit.provision.repository, edgekit.provision.keys"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
