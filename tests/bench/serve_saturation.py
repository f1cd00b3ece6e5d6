"""Keeps a lane busy from a process of its own: `COUNT` clients that ask again as soon as they are answered.

In the process that measures, its threads would compete for the interpreter with what they are to disturb. The request
comes on stdin; on SIGTERM it prints how many answers there were.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTLE_S = 0.03
"""What was under way when the load was paused is answered by then, and what begins is well on its way."""


class Saturation:
    """A load that is paused until it is used in a `with`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.answers = 0

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE_S)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(SETTLE_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self.answers = int(self._process.communicate()[0])


@contextmanager
def saturation(port: int, request: bytes, count: int) -> Iterator[Saturation]:
    """`count` clients of the daemon on `port`; `answers` is known at the end."""
    command = [sys.executable, str(Path(__file__)), str(port), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(request).to_bytes(8, "little") + request)
    process.stdin.flush()
    process.stdout.readline()  # it has asked once
    process.send_signal(signal.SIGSTOP)
    load = Saturation(process)
    try:
        yield load
    finally:
        load.end()


def main() -> None:
    from serve_clients import RawClient

    port, count = map(int, sys.argv[1:3])
    request = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "little"))
    answers = 0

    def end(*_: object) -> None:
        print(answers, flush=True)
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    selector = selectors.DefaultSelector()
    for _ in range(count):
        client = RawClient(port)
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.ask(request)
    print("ready", flush=True)
    for key in selector.get_map().values():
        key.data.socket.sendall(request)
    while True:
        for key, _ in selector.select():
            key.data.take()
            answers += 1
            key.data.socket.sendall(request)


if __name__ == "__main__":
    main()
