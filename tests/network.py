"""A network that misbehaves when told to: a TCP proxy that cuts, resets or refuses, without any rights of its own."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading

from edgekit.telemetry.backoff import BackOff

QUICK = BackOff(first_s=0.05, longest_s=0.3, stable_s=0.5, takeover_s=0.1)
"""For tests: the same shape, in tenths of seconds."""
_RESET = struct.pack("ii", 1, 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Forwards connections to the first of its ports that accepts.

    `cut` makes every connection half-open for good: what either side sends is swallowed, nobody is told. New ones are
    accepted and left in silence, until `heal`. `reset` ends all connections with an error. Both leave no trace else.
    """

    def __init__(self, *ports: int) -> None:
        self.ports = ports
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket | None] = {}
        self._lock = threading.Lock()
        self._is_cut = self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            self._pairs = dict.fromkeys(self._pairs)

    def heal(self) -> None:
        with self._lock:
            self._is_cut = False
            for end in [end for end, other in self._pairs.items() if other is None]:
                self._drop(end)  # by now the network's own timeouts have ended them

    def reset(self) -> None:
        with self._lock:
            for end in list(self._pairs):
                self._drop(end)

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        self.reset()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._is_cut:
            self._adopt(client, None)
            return
        for port in self.ports:
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port), timeout=1.0)
                self._adopt(client, server)
                self._adopt(server, client)
                return
        client.close()

    def _adopt(self, end: socket.socket, other: socket.socket | None) -> None:
        end.settimeout(5.0)
        self._pairs[end] = other
        self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        other = self._pairs[end]
        try:
            data = end.recv(65_536)
            if other is not None and data:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end)
            if other is not None and other in self._pairs:
                self._drop(other)

    def _drop(self, end: socket.socket) -> None:
        del self._pairs[end]
        self._selector.unregister(end)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.close()
