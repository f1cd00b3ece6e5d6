"""Passes on what a slot's daemon says to systemd and to the log, and listens to it. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys

_PIECE_BYTES = 1 << 16
_LAST_WORDS_BYTES = 2000


class Relay:
    """Notify datagrams (sd_notify(3)) and stderr of one daemon. `upstream` is the NOTIFY_SOCKET that we were given."""

    def __init__(self, upstream: str | None) -> None:
        self.was_ready = False
        self.is_ending = False
        "Set when the whole service ends: only then may systemd hear STOPPING=1."
        self._upstream = "\0" + upstream[1:] if upstream and upstream.startswith("@") else upstream
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._inbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._inbox.bind("")  # the kernel picks a free abstract name; the sender of each datagram is checked
        self._inbox.settimeout(1.0)  # whoever does not read what we pass on must not hold us up
        self._said, self.stderr = os.pipe()
        self._last_words = b""

    @property
    def address(self) -> str:
        """NOTIFY_SOCKET for the daemon."""
        return "@" + str(self._inbox.getsockname()[1:], "ascii")

    def close(self) -> None:
        self._inbox.close()
        os.close(self._said)
        os.close(self.stderr)

    def pump(self, seconds: float) -> None:
        """Pass on what there is, or what comes first within `seconds`."""
        while found := select.select([self._inbox.fileno(), self._said], [], [], seconds)[0]:
            if self._said in found:
                words = os.read(self._said, _PIECE_BYTES)
                self._last_words = (self._last_words + words)[-_LAST_WORDS_BYTES:]
                with contextlib.suppress(OSError):  # a log that went away must not end the service
                    os.write(sys.stderr.fileno(), words)
            if self._inbox.fileno() in found:
                self._hear()
            seconds = 0.0

    def last_line(self) -> str:
        """The last thing that the daemon wrote to its stderr: most often why it ended."""
        lines = self._last_words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""

    def _hear(self) -> None:
        data, ancillary, _, _ = self._inbox.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        senders = [struct.unpack("3i", d[:12])[1] for _, kind, d in ancillary if kind == socket.SCM_CREDENTIALS]
        if senders not in ([os.getuid()], [0]):
            return
        lines = data.decode("utf-8", "replace").splitlines()
        self.was_ready = self.was_ready or "READY=1" in lines
        # To systemd STOPPING=1 means that the whole service ends; when we go back to the other slot it does not.
        passed = [line for line in lines if line != "STOPPING=1" or self.is_ending]
        if passed and self._upstream:
            with contextlib.suppress(OSError):
                self._inbox.sendto("\n".join(passed).encode(), self._upstream)
