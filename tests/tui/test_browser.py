"""The console in a browser: who is let in, and the real program in a real Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgekit.errors import ConfigError, UsageError
from edgekit_tui.main import main, tab_options
from tests.tui.live import Mosquitto, lived_until_now

aiohttp = pytest.importorskip("aiohttp", reason="elsewhere: the browser extra is not installed")
browser = pytest.importorskip("edgekit_tui.browser", reason="elsewhere: the browser extra is not installed")
from aiohttp import web  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PASSWORD = "correct horse battery"
PAGE_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8000", ("127.0.0.1", 8000)), (":8000", ("127.0.0.1", 8000)), ("localhost:81", ("localhost", 81)),
        ("[::1]:9000", ("::1", 9000)), ("127.0.0.2:65535", ("127.0.0.2", 65535)),
    ],
)  # fmt: skip
def test_an_address_of_this_machine_needs_no_password(text: str, found: tuple[str, int]) -> None:
    assert browser.address(text, None) == found


@pytest.mark.parametrize("text", ["", "0", "x", "localhost", "1.2.3.4:", "127.0.0.1:70000", "127.0.0.1:-1"])
def test_what_is_no_address_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(UsageError, match="write PORT or HOST:PORT"):
        browser.address(text, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.1.4", "console.example", "localhost.example"])
def test_an_address_that_others_reach_needs_a_password(host: str) -> None:
    with pytest.raises(UsageError, match="needs --serve-password-file"):
        browser.address(f"{host}:8000", None)
    assert browser.address(f"{host}:8000", "secret")[1] == 8000


def test_a_password_is_the_first_line_of_its_file_and_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{PASSWORD}\nnot this\n", encoding="utf-8")
    assert browser.read_password(str(file)) == PASSWORD
    for content in ("", "\n\n", "short\n"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match="at least 12"):
            browser.read_password(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        browser.read_password(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("host", "origin", "why"),
    [
        ("127.0.0.1:8000", None, None),
        ("localhost:8000", "http://localhost:8000", None),
        ("localhost:8000", "https://localhost:8000", None),
        ("evil.example:8000", None, "is not called 'evil.example:8000'"),
        ("127.0.0.1:8001", None, "is not called"),
        ("", None, "is not called"),
        ("127.0.0.1:8000", "http://evil.example", "a page of http://evil.example may not"),
        ("127.0.0.1:8000", "http://127.0.0.1:9999", "may not"),
        ("127.0.0.1:8000", "null", "may not"),
    ],
)
def test_pages_of_other_sites_do_not_reach_the_console(host: str, origin: str | None, why: str | None) -> None:
    told = browser.Door("127.0.0.1", 8000, None).why_not(host, origin)
    assert told == why if why is None else why in told


def test_a_console_for_every_address_takes_any_name_but_no_other_origin() -> None:
    door = browser.Door("0.0.0.0", 8000, PASSWORD)
    assert door.why_not("gate.example:8000", "http://gate.example:8000") is None
    assert door.why_not("gate.example:8000", "http://evil.example") is not None


@asynccontextmanager
async def behind(password: str | None) -> AsyncIterator[str]:
    """A page behind the door, on a real socket."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="inside")

    port = free_port()
    app = web.Application(middlewares=[browser.Door("127.0.0.1", port, password).guard])
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        await runner.cleanup()


def visit(password: str | None, go: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    async def session() -> None:
        async with behind(password) as url:
            jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address instead of a name
            async with aiohttp.ClientSession(cookie_jar=jar) as client:
                await go(client, url)

    asyncio.run(session())


async def status(client: aiohttp.ClientSession, url: str, **options: object) -> int:
    async with client.get(url, **options) as response:
        return response.status


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"operator:{password}".encode()).decode()}


def test_the_password_is_asked_for_once() -> None:
    async def go(client: aiohttp.ClientSession, url: str) -> None:
        async with client.get(url) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Basic ")
        for wrong in ("", "correct horse", PASSWORD.upper(), "correct horse batterü"):
            assert await status(client, url, headers=basic(wrong)) == 401, wrong
        for header in ("Basic", "Basic !!!", "Bearer x", "Basic " + base64.b64encode(b"no colon").decode()):
            assert await status(client, url, headers={"Authorization": header}) == 401, header
        async with client.get(url, headers=basic(PASSWORD)) as response:
            assert await response.text() == "inside"
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
        assert await status(client, url) == 200, "the cookie lets in"
        assert await status(client, url, headers={"Origin": "http://evil.example"}) == 403, "but no other site's page"

    visit(PASSWORD, go)


def test_a_cookie_that_was_made_up_does_not_let_in() -> None:
    async def go(client: aiohttp.ClientSession, url: str) -> None:
        assert await status(client, url, headers={"Cookie": f"{browser.COOKIE}=guessed"}) == 401
        assert await status(client, url, headers={"Cookie": f"{browser.COOKIE}="}) == 401

    visit(PASSWORD, go)


def test_without_a_password_this_machine_is_let_in() -> None:
    async def go(client: aiohttp.ClientSession, url: str) -> None:
        assert await status(client, url) == 200
        assert await status(client, url, headers={"Host": "rebound.example"}) == 403

    visit(None, go)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--serve", "8000", "--port", "1884"], ["--port", "1884"]),
        (["--read-only", "--serve=8000"], ["--read-only"]),
        (["--serve", "1", "--serve-password-file", "f", "--site", "lab"], ["--site", "lab"]),
        (["--serve-password-file=f", "--serve=:80"], []),
    ],
)
def test_a_tab_gets_the_options_of_the_console(given: list[str], kept: list[str]) -> None:
    assert tab_options(given) == [*kept, "--served"]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--serve", "0.0.0.0:8000"], 2, "needs --serve-password-file"),
        (["--serve", "8000", "--once"], 2, "leave out --once"),
        (["--serve", "8000", "--snapshot", "x.svg"], 2, "leave out --once"),
        (["--serve", "eight"], 2, "write PORT or HOST:PORT"),
        (["--serve", "8000", "--serve-password-file", "/no/such/file"], 3, "cannot be read"),
        (["--serve", "8000", "--ca-file", "/no/such/file"], 3, "no such file (--ca-file)"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    argv: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "edgekit_tui.main", "--serve", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


class Page:
    """A page in Chromium, over its debugging socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._id, self.shown = socket, 0, ""

    async def do(self, method: str, **params: object) -> None:
        self._id += 1
        await self._socket.send_json({"id": self._id, "method": method, "params": params})

    async def close(self) -> None:
        await self._socket.close()

    async def press(self, text: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, text=text if kind == "keyDown" else "", key=text)

    async def shows(self, *words: str) -> None:
        """Wait until the console has sent all words to the page."""
        until = time.monotonic() + PAGE_S
        while not all(word in self.shown for word in words):
            left_s = until - time.monotonic()
            assert left_s > 0, f"{words} not among what the page was sent: {self.shown[-500:]}"
            event = json.loads((await self._socket.receive(timeout=left_s)).data)
            if event.get("method") == "Network.webSocketFrameReceived":
                frame = event["params"]["response"]
                raw = frame["payloadData"]
                self.shown += base64.b64decode(raw).decode(errors="replace") if frame["opcode"] == 2 else raw


async def opened(client: aiohttp.ClientSession, port: int) -> Page:
    """The first page of a Chromium whose debugging port this is."""
    until = time.monotonic() + PAGE_S
    while True:
        try:
            async with client.get(f"http://127.0.0.1:{port}/json") as response:
                target = next(one for one in await response.json() if one["type"] == "page")
                page = Page(await client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
                await page.do("Network.enable")
                return page
        except (aiohttp.ClientError, StopIteration):
            assert time.monotonic() < until, "Chromium did not open its debugging port"
            await asyncio.sleep(0.1)


@pytest.mark.broker
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on the PATH")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_the_console_answers_keys_in_a_real_browser(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    broker, port, debug = Mosquitto(), free_port(), free_port()
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n", encoding="utf-8")
    broker.start()
    broker.publish(*lived_until_now(3))
    serve = [sys.executable, "-m", "edgekit_tui.main", "--port", str(broker.port), "--serve", str(port),
             "--serve-password-file", str(secret), "--read-only"]  # fmt: skip
    served = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    assert served.stderr is not None
    assert f"http://127.0.0.1:{port}" in served.stderr.readline()
    look = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,700", "about:blank",
            f"--user-data-dir={tmp_path / 'profile'}", f"--remote-debugging-port={debug}"]  # fmt: skip
    chromium = subprocess.Popen(look, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def session() -> None:
        async with aiohttp.ClientSession() as client:
            page = await opened(client, debug)
            url = f"http://any:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/"
            await page.do("Page.navigate", url=url)
            await page.shows("edgekit", "worst offenders", "12")
            await page.press("2")
            await page.shows("gate-north", "req/s")
            await page.close()

    try:
        asyncio.run(session())
    finally:
        for process in (chromium, served):
            process.terminate()
            process.wait(20)
        served.stderr.close()
        broker.stop()
    assert served.returncode == 0
