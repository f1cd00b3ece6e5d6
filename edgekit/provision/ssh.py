"""A board at the other end of the system's own OpenSSH client: its keys, configuration and host checks are honoured."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.errors import SlotError, UnreachableError, UsageError

CONNECT_S = 15
TRIES = 3
FULL = "No space left on device"
_PIECE_BYTES = 1 << 18
_REASONS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed; somebody may sit in between"),
    ("Host key verification failed", "its host key is not known; connect once by hand and check the fingerprint"),
    ("Permission denied", "it lets us in with none of our keys; try: ssh-copy-id {host}"),
    ("Could not resolve hostname", "there is no such host"),
    ("Connection refused", "it refuses ssh; is sshd running there?"),
    ("Connection timed out", "it does not answer"),
    ("No route to host", "there is no route to it"),
)


class Remote:
    """One board. `options` go to ssh before its name, such as ("-p", "2222")."""

    def __init__(self, host: str, options: Sequence[str] = ()) -> None:
        if host.startswith("-"):
            raise UsageError(f"'{host}' is not the name of a host")
        if shutil.which("ssh") is None:
            raise UsageError("the OpenSSH client is not installed; to mend it: sudo apt install openssh-client")
        self.host = host
        # BatchMode: a question nobody sees would hang a fleet's provisioning.
        fixed = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=5")
        self._shared: tempfile.TemporaryDirectory[str] | None = None
        shared: tuple[str, ...] = ()
        if os.name == "posix":  # one connection for all our commands; OpenSSH on Windows cannot
            self._shared = tempfile.TemporaryDirectory(prefix="edgekit-ssh-")
            path = f"-oControlPath={self._shared.name}/%C"
            shared = ("-oControlMaster=auto", path, "-oControlPersist=60")
        self._ssh = ["ssh", *fixed, *shared, *options, "--", host]
        self.become: tuple[str, ...] = ()
        """Put before every command there, such as ("sudo", "-n")."""

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the shared connection."""
        if self._shared is not None:
            subprocess.run([*self._ssh[:-2], "-O", "exit", "--", self.host], capture_output=True, check=False)
            self._shared.cleanup()
            self._shared = None

    def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there. Raises UnreachableError when ssh itself fails; the command's own failure is returned."""
        words = " ".join(shlex.quote(word) for word in (*self.become, *command))
        try:
            done = subprocess.run([*self._ssh, words], input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as e:
            raise UnreachableError(self.host, f"'{command[0]}' did not end within {timeout_s:.0f} s") from e
        if done.returncode == 255:
            raise UnreachableError(self.host, self._why(done.stderr))
        return done

    def upload(self, source: Path, to: str, progress: Callable[[int], None], *, have: int | None = None) -> None:
        """Bring a file there, going on where an earlier try ended: after `have` bytes; None asks.

        Raises UnreachableError after some tries. What arrived is as long as `source`; its content is checked there.
        """
        size, problem = source.stat().st_size, ""
        for _ in range(TRIES):
            have = self.size_of(to) if have is None else have
            if have > size:
                self.run(["rm", "-f", to])
                have = 0
            if have == size:
                return
            problem = self._append(source, to, have, progress)
            if not problem:
                return
            if FULL in problem:  # trying again would not help
                raise SlotError("a and b", f"{self.host}: its disk is full; to mend it: free some", rolled_back=False)
            have = None
        raise UnreachableError(self.host, f"{source.name} did not arrive, tried {TRIES} times: {problem}")

    def size_of(self, path: str) -> int:
        """Bytes of a file there; 0 when there is none."""
        done = self.run(["sh", "-c", f"wc -c < {shlex.quote(path)} 2>/dev/null || echo 0"])
        return int(done.stdout.split()[0]) if done.stdout.split() else 0

    def _append(self, source: Path, to: str, have: int, progress: Callable[[int], None]) -> str:
        words = " ".join(map(shlex.quote, (*self.become, "sh", "-c", f"cat >> {shlex.quote(to)}")))
        with source.open("rb") as file:
            file.seek(have)
            child = subprocess.Popen([*self._ssh, words], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            assert child.stdin is not None
            try:
                while piece := file.read(_PIECE_BYTES):
                    child.stdin.write(piece)
                    progress(len(piece))
                child.stdin.close()
            except BrokenPipeError:  # ssh says why on its stderr
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
            child.stdin = None
            said = child.communicate()[1]
        return "" if child.returncode == 0 else self._why(said)

    def _why(self, stderr: bytes) -> str:
        text = stderr.decode(errors="replace")
        for sign, reason in _REASONS:
            if sign in text:
                return reason.format(host=self.host)
        lines = [line for line in text.strip().splitlines() if line]
        return lines[-1] if lines else "ssh ended without a word"
