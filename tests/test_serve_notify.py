"""What systemd is told, and how it says what it expects."""

from __future__ import annotations

import os
import socket
import time

import pytest

from edgekit.config import Supervisor, supervisor
from edgekit.serve.notify import Notifier


def test_each_state_is_one_datagram(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        notifier = Notifier(str(tmp_path / "notify"))
        notifier.loading("building", 30)
        notifier.ready("serving")
        notifier.alive()
        notifier.reloading()
        notifier.stopping("draining")
        before_us = time.monotonic_ns() // 1000
        assert [channel.recv(4096).decode() for _ in range(3)] == [
            "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=building",
            "READY=1\nSTATUS=serving",
            "WATCHDOG=1",
        ]
        reloading, _, stamp = channel.recv(4096).decode().partition("\nMONOTONIC_USEC=")
        assert reloading == "RELOADING=1"
        assert before_us - 10_000_000 < int(stamp) <= before_us
        assert channel.recv(4096) == b"STOPPING=1\nSTATUS=draining"


def test_a_supervisor_that_is_gone_is_a_warning_and_none_is_silence(caplog):
    Notifier(None).ready("serving")
    assert not caplog.records
    Notifier("@edgekit-nobody-listens").ready("serving")
    assert "NOTIFY_SOCKET @edgekit-nobody-listens: Connection refused" in caplog.text


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Supervisor()),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000"}, Supervisor("/run/n", 30.0)),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}, Supervisor(None, 1.0)),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, Supervisor()),
        ({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "0"}, Supervisor()),
        ({"WATCHDOG_USEC": "soon"}, Supervisor()),
    ],
)
def test_what_systemd_expects_is_read_from_its_environment(environ, expected):
    assert supervisor(environ) == expected
