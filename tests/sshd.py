"""A real sshd on loopback for tests: it lets in the user who runs them, with a key made for it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from edgekit.provision.ssh import Remote

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sshd:
    """The server. `extra`: further lines of its configuration."""

    def __init__(self, folder: Path, *extra: str) -> None:
        self.folder, self.port = folder, free_port()
        self.remotes: list[Remote] = []
        for name in ("host", "user", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized_keys").write_bytes((folder / "user.pub").read_bytes())
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            + "".join(f"{line}\n" for line in extra)
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder, made by Debian at boot
        self.trust("host")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + 10
        while not self._listens():
            assert time.monotonic() < end_s
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def trust(self, key: str, port: int | None = None) -> None:
        """Write the known hosts: `key` is what the client expects of the server."""
        line = (self.folder / f"{key}.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{port or self.port} {line}")

    def options(self, port: int | None = None) -> list[str]:
        return [
            f"-p{port or self.port}", f"-i{self.folder}/user", "-oIdentitiesOnly=yes", "-F/dev/null",
            f"-oUserKnownHostsFile={self.folder}/known", "-oGlobalKnownHostsFile=/dev/null",
        ]  # fmt: skip

    def remote(self, port: int | None = None) -> Remote:
        self.remotes.append(Remote("127.0.0.1", self.options(port)))
        return self.remotes[-1]

    def close(self) -> None:
        for remote in self.remotes:
            remote.close()
        self.process.terminate()
        self.process.wait()
