"""Tells systemd how the daemon fares, by datagrams as sd_notify(3) defines them; silent when nobody asked."""

from __future__ import annotations

import logging
import socket
import time

logger = logging.getLogger(__name__)


class Notifier:
    """`address` is NOTIFY_SOCKET: a path, or "@name" for an abstract socket; None when there is no supervisor."""

    def __init__(self, address: str | None) -> None:
        self._address = None
        if address is not None:
            self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Every model is loaded and warm."""
        self._send(f"READY=1\nSTATUS={status}")

    def loading(self, status: str, extend_s: float) -> None:
        """Still starting: ask for `extend_s` more than systemd's start timeout would give."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}\nSTATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again; `ready` follows, whatever comes of it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def alive(self) -> None:
        """The watchdog's sign of life."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.sendto(text.encode(), self._address)
        except OSError as e:  # a supervisor that went away is no reason to stop serving
            logger.warning("NOTIFY_SOCKET %s: %s", self._address.replace("\0", "@"), e.strerror)
