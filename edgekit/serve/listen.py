"""The loop, and the socket it listens on: bound before anything slow happens, so that a taken port is said at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from pathlib import Path

from edgekit.config import HttpConfig
from edgekit.errors import ConfigError

logger = logging.getLogger(__name__)

UNIX_MODE = 0o660


def listen(http: HttpConfig, source: str) -> socket.socket:
    """A listening TCP or Unix socket. Raises ConfigError (naming `source`) for one that cannot be had."""
    return _listen_unix(http.unix_socket, source) if http.unix_socket else _listen_tcp(http, source)


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which reads and writes with fewer calls; asyncio's own where it is not installed."""
    try:
        import uvloop  # deferred: there is none for Windows, and not for every board
    except ModuleNotFoundError:
        logger.info("uvloop is not installed: asyncio's own loop costs a request about 0.1 ms more")
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """How a client reaches it: http://HOST:PORT, https://HOST:PORT or unix:PATH."""
    address = listener.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http{'s' if is_tls else ''}://{host}:{address[1]}"


def _listen_tcp(http: HttpConfig, source: str) -> socket.socket:
    if not 0 <= http.port <= 65535:  # getaddrinfo would take it modulo 65536
        raise ConfigError(source, "http.port", f"{http.port} is not a port; 0 to 65535 are")
    try:
        found = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as e:
        raise ConfigError(source, "http.host", f"'{http.host}' port {http.port} is not an address: {e}") from e
    family, _, _, _, address = found[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            problem = f"{http.port} on {http.host} is taken by another program; give another port, or 0 for a free one"
        elif e.errno == errno.EACCES:
            problem = f"{http.port} is for root; choose one from 1024 up, or 0 for a free one"
        else:
            problem = f"{http.host}:{http.port} cannot be listened on: {e.strerror}"
        raise ConfigError(source, "http.port", problem) from e


def _listen_unix(path: str, source: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(Path(path))
        listener.bind(path)
        os.chmod(path, UNIX_MODE)
        listener.listen(128)
    except OSError as e:
        listener.close()
        problem = "taken by another program" if e.errno == errno.EADDRINUSE else e.strerror or str(e)
        raise ConfigError(source, "http.unix_socket", f"{path}: {problem}") from e
    return listener


def _remove_stale(path: Path) -> None:
    """A socket file that nobody listens on is what a killed daemon left behind."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def read_token(http: HttpConfig, source: str) -> str | None:
    """The bearer token. Raises ConfigError for a file that holds none."""
    if http.token_file is None:
        return None
    try:
        token = Path(http.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(source, "http.token_file", f"{http.token_file} cannot be read: {e}") from e
    if not token:
        raise ConfigError(source, "http.token_file", f"{http.token_file} is empty")
    return token
