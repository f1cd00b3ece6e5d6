"""An MQTT broker as a child process: mosquitto with generated settings where it is installed, else amqtt to try out."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.errors import BrokerError, ConfigError, RuntimeUnavailable
from edgekit.files import write_atomic
from edgekit.telemetry.access import User, access_rules, password_file
from edgekit.telemetry.messages import MAX_PAYLOAD_BYTES

logger = logging.getLogger(__name__)

START_S, STOP_S = 15.0, 10.0
INSTALL = "sudo apt install mosquitto (or brew install mosquitto)"
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
"""Where packages put mosquitto; an ordinary user's PATH often lacks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a listener encrypts."""

    certificate: Path
    "Key and certificate of the broker, in one file."
    authority: Path
    "Whose certificates clients bring, and what they trust."
    clients_too: bool = False
    "Clients must bring a certificate, beside their password."


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker. It ends with `stop`, or with this process however that dies."""

    host: str
    port: int
    kind: str
    '"mosquitto" or "amqtt".'
    process: subprocess.Popen[bytes]
    log: Path

    def reload(self, users: Sequence[User]) -> None:
        """Let in these users from now on, and use the certificate that is there now.

        Only those are disconnected whose password is no longer right.

        For a mosquitto that was started with users.
        """
        _write_users(self.log.parent.resolve(), users)
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it and wait until it has ended. Safe to call twice."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            logger.warning("the broker did not end within %s s and is killed", STOP_S)
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_mosquitto() -> str | None:
    """The path of mosquitto, also where packages put it outside an ordinary user's PATH."""
    path = os.pathsep.join((os.defpath, *_SYSTEM_FOLDERS))
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=path)


def start_broker(
    folder: Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    users: Sequence[User] | None = None,
    kind: str | None = None,
    tls: Tls | None = None,
) -> Broker:
    """Start a broker and return once it accepts connections.

    Args:
        folder: its settings, retained messages and log.
        port: 0 for any free one.
        users: None lets everyone in, which is allowed on loopback only.
        kind: "mosquitto" or "amqtt"; None for mosquitto where it is installed.
        tls: None for no encryption.

    Raises ConfigError: open to the network without users. RuntimeUnavailable: neither broker is installed, or users
    or encryption were asked of amqtt. BrokerError: it did not start; the text says why.
    """
    if users is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError("edgekit broker", "host", f"'{host}' is reachable from the network: users are required")
    command = find_mosquitto() if kind in (None, "mosquitto") else None
    if command is None and kind == "mosquitto":
        raise RuntimeUnavailable("mosquitto", "not installed", INSTALL)
    if command is None and (users is not None or tls is not None):
        wanted = "users" if users is not None else "TLS"
        raise RuntimeUnavailable("mosquitto", f"not installed; amqtt is for trying out and knows no {wanted}", INSTALL)
    if command is None and importlib.util.find_spec("amqtt") is None:
        raise RuntimeUnavailable("MQTT broker", "neither mosquitto nor amqtt is installed", INSTALL)
    folder.mkdir(parents=True, exist_ok=True)
    attempts = 1 if port else 3  # another process may take the free port before the broker does
    for attempt in range(attempts):
        chosen = port or _free_port(host)
        if command:
            settings = _write_settings(folder.resolve(), host, chosen, users, tls)
            arguments = ["mosquitto", command, str(settings)]
        else:
            arguments = ["amqtt", host, str(chosen)]
        try:
            return _start(arguments, folder / "broker.log", host, chosen)
        except BrokerError:
            if attempt == attempts - 1:
                raise
    raise AssertionError("the loop returns or raises")


def _start(arguments: list[str], log: Path, host: str, port: int) -> Broker:
    if _accepts(host, port):  # else its answer would be taken for the new broker's
        raise BrokerError(f"{host}:{port}", "the port is in use; choose another with --port")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgekit.telemetry.broker_child", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C in a terminal must reach us first: devices say goodbye before their broker ends.
            start_new_session=True,
        )
    broker = Broker(host=host, port=port, kind=arguments[0], process=process, log=log)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            broker.stop()
            raise BrokerError(f"{host}:{port}", f"{arguments[0]} ended at once: {_last_words(log)}")
        if _accepts(host, port):
            return broker
        time.sleep(0.02)
    broker.stop()
    raise BrokerError(f"{host}:{port}", f"{arguments[0]} did not answer within {START_S} s: {_last_words(log)}")


def _write_settings(folder: Path, host: str, port: int, users: Sequence[User] | None, tls: Tls | None) -> Path:
    """mosquitto's settings, password file and access rules. Source: mosquitto.conf(5)."""
    settings = [
        f"listener {port} {host}",
        "persistence true",
        f"persistence_location {folder}/",
        "autosave_interval 60",
        # A reader of 10,000 devices is sent 20,000 retained messages at once; the default drops all but 1,000.
        "max_queued_messages 100000",
        "max_inflight_messages 100",
        "set_tcp_nodelay true",
        f"max_packet_size {MAX_PAYLOAD_BYTES + 4096}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings.append("user root")  # else it drops to a user that cannot read this folder
    if users is None:
        settings.append("allow_anonymous true")
    else:
        passwords, rules = _write_users(folder, users)
        settings += ["allow_anonymous false", f"password_file {passwords}", f"acl_file {rules}"]
    if tls is not None:
        settings += [f"cafile {tls.authority.resolve()}", f"require_certificate {str(tls.clients_too).lower()}"]
        settings += [f"certfile {tls.certificate.resolve()}", f"keyfile {tls.certificate.resolve()}"]
    path = folder / "mosquitto.conf"
    write_atomic(path, ("\n".join(settings) + "\n").encode(), mode=0o600)
    return path


def _write_users(folder: Path, users: Sequence[User]) -> tuple[Path, Path]:
    passwords, rules = folder / "passwords", folder / "access-rules"
    write_atomic(passwords, password_file(users).encode(), mode=0o600)
    write_atomic(rules, access_rules(users).encode(), mode=0o600)
    return passwords, rules


def _accepts(host: str, port: int) -> bool:
    reachable = "127.0.0.1" if host == "0.0.0.0" else host
    try:
        socket.create_connection((reachable, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
