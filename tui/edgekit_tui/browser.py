"""The console in a browser through textual-serve, which knows no users: who may come in is checked here, before it.

Each tab runs a console of its own. Without TLS: beyond this machine a reverse proxy belongs in front.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

from edgekit.errors import ConfigError, UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
PAGE = Path(__file__).with_name("page.html")
COOKIE = "edgekit-console"
LEAST_PASSWORD = 12


def address(text: str, password_file: str | None) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`. Raises UsageError, also for an address others reach without a password."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise UsageError(f"--serve {text}: write PORT or HOST:PORT, such as 8000")
    if not is_loopback(host) and password_file is None:
        raise UsageError(f"--serve {text}: others can reach {host}, so it needs --serve-password-file FILE")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Only this machine reaches it. A name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_password(path: str) -> str:
    """The first line of the file. Raises ConfigError."""
    try:
        word = (Path(path).read_text(encoding="utf-8").splitlines() or [""])[0].strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(path, None, f"cannot be read: {e}") from e
    if len(word) < LEAST_PASSWORD:
        raise ConfigError(path, None, f"the password must have at least {LEAST_PASSWORD} characters")
    return word


class Door:
    """Lets in who knows the password, if there is one, and no other web page's scripts."""

    def __init__(self, host: str, port: int, password: str | None) -> None:
        self._password, self._token = password, secrets.token_urlsafe(32)
        names = LOOPBACK_NAMES if is_loopback(host) else ()
        self._hosts = frozenset(f"{name}:{port}" for name in (*names, host, f"[{host}]"))
        self._anywhere = host in ("0.0.0.0", "::")

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse, or hand on; who came in by the password need not send it again."""
        if why := self.why_not(request.headers.get("Host", ""), request.headers.get("Origin")):
            return web.Response(status=403, text=why + "\n")
        if self._password is None or self._is_known(request):
            return await handler(request)
        if not self._is_told(request.headers.get("Authorization")):
            ask = {"WWW-Authenticate": 'Basic realm="edgekit console", charset="UTF-8"'}
            return web.Response(status=401, text="the password of --serve-password-file is asked for\n", headers=ask)
        response = await handler(request)
        if not response.prepared:
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict")
        return response

    def why_not(self, host: str, origin: str | None) -> str | None:
        """Why a request of this host and origin is refused; None when it is not.

        A page of another site may send a browser here, by our address or by a name of its own that leads here.
        """
        if not self._anywhere and host not in self._hosts:
            return f"this console is not called '{host}'"
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return f"a page of {origin} may not use this console"
        return None

    def _is_known(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._token.encode())

    def _is_told(self, header: str | None) -> bool:
        """Source: RFC 7617; the name before the colon is anybody's."""
        kind, _, word = (header or "").partition(" ")
        try:
            told = base64.b64decode(word, validate=True).partition(b":")[2] if kind.lower() == "basic" else b""
        except ValueError:
            return False
        return hmac.compare_digest(told, (self._password or "").encode())


class Guarded(Server):
    """textual-serve behind the door."""

    def __init__(self, command: str, host: str, port: int, password: str | None) -> None:
        super().__init__(command, host=host, port=port, title="edgekit console", public_url="")
        self._door = Door(host, port, password)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._door.guard)
        return app

    async def handle_index(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Our own page: textual-serve's fetches a font from another company's server."""
        return web.Response(text=PAGE.read_text(encoding="utf-8"), content_type="text/html")

    async def on_startup(self, app: web.Application) -> None:  # noqa: ARG002
        host = f"[{self.host}]" if ":" in self.host else self.host
        print(f"edgekit-console: http://{host}:{self.port}  (ctrl+c ends it)", file=sys.stderr, flush=True)


def serve(command: Sequence[str], host: str, port: int, password: str | None) -> None:
    """Serve until interrupted. `command` runs one console. Raises UsageError when the address is taken."""
    try:
        Guarded(shlex.join(command), host, port, password).serve()
    except OSError as e:
        raise UsageError(f"--serve {host}:{port}: {e.strerror or e}") from e
