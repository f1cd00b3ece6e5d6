"""The process between `broker.start_broker` and the broker: ends it when its parent closes the pipe or dies.

Run as `python -m edgekit.telemetry.broker_child mosquitto COMMAND CONFIG` or `… amqtt HOST PORT`. A pipe works on
every platform and for every way to die; it needs nothing from the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_S = 5.0
AMQTT_STOP_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Run the broker until it ends, our parent closes the pipe, or we are told to end."""
    kind, *rest = argv
    return run_mosquitto(*rest) if kind == "mosquitto" else asyncio.run(run_amqtt(rest[0], int(rest[1])))


def run_mosquitto(command: str, config: str) -> int:
    """Run mosquitto as a child; its exit code is ours."""
    before = _die_with_parent if sys.platform == "linux" else None
    broker = subprocess.Popen([command, "-c", config], stdin=subprocess.DEVNULL, preexec_fn=before)
    signal.signal(signal.SIGTERM, lambda *_: broker.terminate())
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: broker.send_signal(signal.SIGHUP))
    _when_parent_leaves(broker.terminate)
    return broker.wait()


async def run_amqtt(host: str, port: int) -> int:
    """Run amqtt in this process, quietly: it logs every packet."""
    from amqtt.broker import Broker

    logging.basicConfig(level=logging.ERROR)
    for noisy in ("amqtt", "transitions"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}", "max_connections": 1000}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    leave, loop = asyncio.Event(), asyncio.get_running_loop()
    _when_parent_leaves(lambda: loop.call_soon_threadsafe(leave.set))
    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGTERM, leave.set)
    await broker.start()
    await leave.wait()
    # From Python 3.12.1 on a server's end waits for every connection, half-open ones too: they are cut off instead.
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(broker.shutdown(), AMQTT_STOP_S)
    return 0


def _when_parent_leaves(act: Callable[[], object]) -> None:
    def wait() -> None:
        while sys.stdin.buffer.read(1):
            pass
        act()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
